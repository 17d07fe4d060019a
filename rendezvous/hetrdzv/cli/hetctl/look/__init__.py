"""Subcommands that look at groups and change nothing: get, describe, history, wait, logs."""
