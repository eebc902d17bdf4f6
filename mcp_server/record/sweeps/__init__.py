"""The directory of a sweep: what was asked for, its state and its ranking."""
