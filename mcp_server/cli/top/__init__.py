"""`runward top`: the table of runs in the terminal, live."""
