"""The code that an attempt runs: what is kept of it, and whether it changed."""
