"""HTTP below the API: the server, its connections, and what a client may take of it."""
