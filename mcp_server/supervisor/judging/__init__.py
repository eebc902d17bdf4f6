"""Judging an attempt by its output and its processes."""
