"""Runs on other hosts over ssh: the channel, the relay's program, the mirror."""
