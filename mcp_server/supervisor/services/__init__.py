"""The runs and addresses that a run needs."""
