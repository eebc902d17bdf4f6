"""What the output of a training run means: progress, stalls, divergence, failures."""
