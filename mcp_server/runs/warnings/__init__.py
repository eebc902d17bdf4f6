"""Warnings before a launch, and the live runs that it may end."""
