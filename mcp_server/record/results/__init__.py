"""The result directory of a blueprint's run."""
