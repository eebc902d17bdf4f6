"""Ports for the servers of tests that run side by side."""

import random
import socket

_HELD: list[socket.socket] = []
_FIRST, _LAST = 12_000, 32_000  # below those that the system gives to connections


def free_port() -> int:
    """Return a port of this host that nobody uses, and that no other process of tests is given while this one lives."""
    while True:
        port = random.randrange(_FIRST, _LAST)
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0runward-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            continue
        _HELD.append(mark)
        return port
