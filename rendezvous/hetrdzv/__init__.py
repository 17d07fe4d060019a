"""A rendezvous service for PyTorch jobs on nodes with different GPU counts."""

__version__ = "0.2.0.dev0"
