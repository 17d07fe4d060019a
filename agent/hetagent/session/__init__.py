"""The session with the server, sans-I/O: what is asked, what an answer means, when to try again."""
