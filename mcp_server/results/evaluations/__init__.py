"""Evaluations of runs: found, read, as series, and in tables by benchmark."""
