"""hetrdzv: a rendezvous service for PyTorch jobs whose nodes are not alike."""

__version__ = "0.1.0"
