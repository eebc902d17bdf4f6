"""The run directory: every file of a run, its events and its state; and the notices that people hear of its events."""
