"""The meaning of a training run's output: progress, stalls, divergence, failures."""
