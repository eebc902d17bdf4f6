"""GPU state, placement and leases."""
