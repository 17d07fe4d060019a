"""What happened and why, as values: `words` makes sentences of them."""
