"""The memory of all runs: what was tried, found by words and conditions."""
