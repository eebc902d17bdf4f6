"""Trials of an open sweep, against real git repositories."""
