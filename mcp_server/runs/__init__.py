"""What is asked for of runs: launch, wait, stop."""
