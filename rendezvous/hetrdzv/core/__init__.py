"""The state machine of a group. Pure: no clock, no I/O, no framework; standard library only."""
