"""Whether this node can take part in the next round: its GPUs' memory is free, and the site's own check passes."""
