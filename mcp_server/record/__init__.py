"""The run directory: every file of a run, its events and its state."""
