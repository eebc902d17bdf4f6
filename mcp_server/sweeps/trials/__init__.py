"""Trials of an open sweep: proposed changes, measured and judged."""
