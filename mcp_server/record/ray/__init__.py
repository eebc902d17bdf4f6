"""Runs as Ray jobs: their files, and the Jobs API of a head. Ray itself is not imported."""
