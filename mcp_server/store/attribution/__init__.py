"""Whose a file with results is: the evidence, and the claims that follow."""
