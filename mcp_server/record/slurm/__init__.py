"""A run as a job of Slurm: what its programs say, what that and the record mean together, and handing it in."""
