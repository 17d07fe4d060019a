"""How workers and nodes do: who hangs, who slows the others down, what crashes again and again, what does not fit."""
