"""A round from its forming to its end: what changes, until when, who is judged."""
