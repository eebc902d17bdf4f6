"""Runs beside the training command in its tmux pane. Standard library only, so that it can be shipped."""
