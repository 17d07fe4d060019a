"""Every supported release of torch, tested in a virtual environment of its own (`make test-torch`)."""
