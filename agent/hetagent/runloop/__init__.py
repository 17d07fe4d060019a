"""The run loop: does on this node what the server decides."""
