"""Curves in files as other programs write them, record by record: TensorBoard, wandb, tables, lines of JSON."""
