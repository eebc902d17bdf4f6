"""The server's read-only view of all runs."""
