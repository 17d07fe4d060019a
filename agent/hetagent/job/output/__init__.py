"""What workers write: to the console, into log files, and the end of it for the server."""
