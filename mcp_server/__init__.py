"""runward: training runs that cannot get lost."""

__version__ = "0.1.0"
