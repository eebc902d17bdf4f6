"""The process that queries NVML."""
