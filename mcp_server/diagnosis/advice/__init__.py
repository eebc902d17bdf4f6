"""What to do next after a failure: rows by topic, the figures of a message, and the remedy that it names."""
