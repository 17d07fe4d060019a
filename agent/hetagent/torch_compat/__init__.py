"""All that hetagent uses of torch's private parts, and every difference between the releases of torch.

One branch per difference, which asks what the installed torch has rather than which number it bears, if that can be
seen. docs/torch.md says what to do about a new release. The other half runs in the workers: worker/torch_server.py.
"""
