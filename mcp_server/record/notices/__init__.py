"""Notices to people and programs about a run: what is sent, where to, and the process that sends it."""
