"""The pure heart: a group's state machine. No clock, no I/O, no framework; the standard library only."""
