"""Tables of a sweep's settings, for agents, people and papers."""
