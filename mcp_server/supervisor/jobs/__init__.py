"""Supervisors as jobs of a scheduler, Slurm or Ray."""
