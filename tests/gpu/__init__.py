"""All that this project says about GPUs, checked on a node that has some (`make test-gpu`)."""
