"""Checks of a machine before a launch."""
