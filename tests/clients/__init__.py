"""Real clients with a scripted model behind them, on demand: `python -m tests.clients`."""
