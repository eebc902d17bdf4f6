"""The files that an attempt writes, and whose they are."""
