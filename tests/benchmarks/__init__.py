"""What runward must reach, each figure beside a baseline of the same run: `python -m tests.benchmarks [NAME …]`."""
