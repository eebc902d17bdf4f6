"""Scalars of training runs, read from the files that other programs write."""
