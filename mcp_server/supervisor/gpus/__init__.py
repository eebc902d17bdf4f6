"""The GPUs of a run: leased, watched, and given back."""
