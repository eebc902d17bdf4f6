"""Blueprints as text: cut into sections, read, and told what is wrong with which line. Pure."""
