"""Stopping runs, and the confirmation of it."""
