"""Where a supervisor lives: one contract, one module per kind of host or scheduler."""
