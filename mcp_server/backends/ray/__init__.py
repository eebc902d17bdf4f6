"""Runs as Ray jobs, by the REST interface of a cluster's head. Ray itself is not imported."""
