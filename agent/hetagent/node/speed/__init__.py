"""How fast each of this node's slots is: measured once by a process of its own, then kept."""
