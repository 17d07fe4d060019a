"""The conversation with the server."""
