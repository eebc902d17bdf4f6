"""Sweeps: many runs that answer one question."""
