"""Whether runward's statements about GPUs are true of a real one: `make device`, and `make device-wheels` before."""
