"""Training steps and metrics in printed output."""
