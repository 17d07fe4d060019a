"""What each node is told, and the polls that stay open until that changes."""
