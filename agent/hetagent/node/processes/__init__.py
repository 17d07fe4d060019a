"""The agent's own processes and those of its workers: found, watched over, and gone once it is."""
