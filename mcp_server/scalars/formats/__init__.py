"""Metric files other than TensorBoard: CSV, JSON lines, SQLite, wandb."""
