"""This machine: devices, network, processes."""
