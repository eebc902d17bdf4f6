"""The code of a launch: sent to another host, copied, or noted."""
