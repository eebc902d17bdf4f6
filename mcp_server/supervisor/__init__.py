"""The supervisor of a run, a program that runs in its tmux pane. Standard library only, so that it can be shipped."""
