"""The dashboard: pages for people, which follow what happens."""
