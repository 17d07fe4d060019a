"""Optional features of rounds: room.py is all that the rest knows of one, table.py lists them."""
