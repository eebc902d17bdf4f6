"""Waiting for runs: the wait, its news, and the cursors of callers."""
