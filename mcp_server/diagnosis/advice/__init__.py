"""What to do next after a failure: rows by topic, the figures of a message, and the remedy that it names."""

# The files of blocks, in their order: of one topic or library, of any program, the last resorts, and those for errors
# inside a package that the user's code only starts.
SPECIAL = (
    *("beside", "outside", "cluster", "ray", "simulators", "serving", "checkpoints", "packages", "data", "trainers"),
    *("tensors", "estimators", "libraries"),
)
GENERAL = ("machine", "memory", "environment", "program")
LAST = ("language", "general")
INSIDE = ("inside",)
WRAPPED = ("wrapped",)
FILES = (*WRAPPED, *SPECIAL, *GENERAL, *LAST, *INSIDE)
