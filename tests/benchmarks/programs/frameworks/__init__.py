"""Small real trainings: `python -m tests.benchmarks.programs.frameworks.NAME`, with a Python that has what it takes."""
