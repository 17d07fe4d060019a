"""`hetagent --check`: whether this machine is fit to join, without joining."""
