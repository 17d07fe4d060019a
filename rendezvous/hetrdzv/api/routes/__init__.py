"""The routes: agents, people, supervision, the document."""
