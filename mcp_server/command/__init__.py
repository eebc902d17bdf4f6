"""What a command line says: one parser, one table of programs, and the readers that ask it."""
