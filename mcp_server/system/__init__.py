"""The local machine: files, locks, processes, ports. Standard library only."""
