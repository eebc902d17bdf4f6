"""What gpu.py asks NVML, and how it outlasts a driver that hangs."""
