"""Slurm: supervisors as the process of a batch job; Slurm schedules, runward keeps the run's record."""
