"""The fault simulation: server, agents and network in virtual time, in one process, from a seed."""
