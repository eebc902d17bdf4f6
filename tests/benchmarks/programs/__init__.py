"""What the benchmarks run: each file is started by its path, and uses the standard library alone."""
