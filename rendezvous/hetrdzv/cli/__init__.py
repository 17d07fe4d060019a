"""Command lines: hetserver and hetctl."""
