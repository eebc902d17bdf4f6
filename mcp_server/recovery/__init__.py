"""Retry policies: what follows a failed attempt."""
