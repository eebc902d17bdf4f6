"""The key of a Ray job's metadata that says whose job it is. Apart from what speaks HTTP: supervisors need it alone."""

MARK = "runward_launch"
