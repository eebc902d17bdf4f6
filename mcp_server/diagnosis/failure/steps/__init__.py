"""What to do next after a failure: tables by topic, the figures of a message, and the remedy that it names."""
