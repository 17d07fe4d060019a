"""All groups of one store: applies commands, commits them, wakes whoever waits."""
