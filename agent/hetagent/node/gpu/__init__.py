"""GPUs of this node: which there are, which the workers get, and where their memory is."""
