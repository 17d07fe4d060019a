"""Subcommands that look at groups and change nothing: get, describe, why, history, wait, top, logs."""
