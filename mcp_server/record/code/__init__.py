"""The code of a run, as it was kept."""
