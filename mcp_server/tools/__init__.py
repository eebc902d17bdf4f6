"""The tools that agents call: arguments in, one typed answer out. The work is done in the layers below."""
