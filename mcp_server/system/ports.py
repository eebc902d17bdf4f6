"""TCP ports of this machine: which are free, and who listens on one that is not."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from pathlib import Path

HIGHEST = 65535
_TRIES = 200
_LISTENS = "0A"  # as include/net/tcp_states.h numbers TCP_LISTEN


def is_free(port: int) -> bool:
    """Whether nobody listens on ``port``.

    Raises:
        PermissionError: this user may not listen on it.
    """
    with socket.socket() as probe:
        # A connection that has just ended does not keep a training from listening.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except PermissionError:
            raise
        except OSError:
            return False
    return True


def free_port(low: int, high: int) -> int | None:
    """Return a port from ``low`` to ``high`` that nobody listens on; None after many tries."""
    ports = range(low, high + 1)
    with suppress(PermissionError):
        return next(filter(is_free, random.sample(ports, min(_TRIES, len(ports)))), None)
    return None


def listener(port: int) -> str | None:
    """Return who listens on ``port``, e.g. ``python (pid 4711)``; None where that is not visible."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{words[9]}]")
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError), os.scandir(process / "fd") as files:
            if any(_target(file.path) in inodes for file in files):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return None


def _target(link: str) -> str:
    with suppress(OSError):
        return os.readlink(link)  # noqa: PTH115 - no path is meant
    return ""
