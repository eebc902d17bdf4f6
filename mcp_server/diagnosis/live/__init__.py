"""Judges output while it is printed: steps, errors, stalls, divergence."""
