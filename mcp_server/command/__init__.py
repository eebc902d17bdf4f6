"""The reader of command lines: one parser, one table of programs, and the readers that ask it."""
