"""The terminal of a command, its output on the way to log and pane, and the pane itself."""
