"""TCP ports of this machine: which are free, and which process listens on one that is not."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mcp_server.system import processes

HIGHEST_PORT = 65535
_LOWEST_USUAL, _HIGHEST_USUAL = 20_000, 59_999  # above services, below most ranges of outgoing connections
_TRIES = 200
_NEIGHBOURS = 1_000
_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h


def is_port_free(port: int) -> bool:
    """Return whether no process listens on ``port``.

    Raises:
        PermissionError: this user may not listen on it.
    """
    with socket.socket() as probe:
        # A connection that has just ended does not keep a training run from listening.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except PermissionError:
            raise
        except OSError:
            return False
    return True


def find_free_port(low: int, high: int) -> int | None:
    """Return a random free port from ``low`` to ``high``, or None after 200 tries."""
    ports = range(low, high + 1)
    with suppress(PermissionError):
        return next(filter(is_port_free, random.sample(ports, min(_TRIES, len(ports)))), None)
    return None


def find_next_port(current: int | None) -> int:
    """Return the first free port above ``current``, as people count them up. Without one, any free port.

    Raises:
        OSError: no port is free.
    """
    above = range(current + 1, min(current + _NEIGHBOURS, HIGHEST_PORT + 1)) if current and current > 0 else ()
    with suppress(PermissionError):
        if (port := next(filter(is_port_free, above), None)) is not None:
            return port
    if (port := find_free_port(_LOWEST_USUAL, _HIGHEST_USUAL)) is None:
        raise OSError(errno.EADDRINUSE, "no port is free")
    return port


def current_port(name: str, params: Mapping[str, object], env: Mapping[str, str]) -> int | None:
    """Return the port that a parameter, else a variable, holds now, or None if it holds no number."""
    with suppress(ValueError, TypeError):
        return int(str(params.get(name, env.get(name, os.environ.get(name)))))
    return None


def find_listener(port: int) -> str | None:
    """Return the process that listens on ``port``, e.g. ``python (pid 4711)``, or None where that is not visible.

    Of several it is the one that started first: a child has its parent's sockets until it becomes another program.
    """
    inodes = {target for target, listened in _read_listening(os.getpid()).items() if listened == port}
    if not inodes:
        return None
    listeners = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError), os.scandir(directory / "fd") as files:
            if any(_link_target(file.path) in inodes for file in files):
                listeners.append(processes.find_process(int(directory.name)))
    first = min(filter(None, listeners), key=lambda process: process.started, default=None)
    return f"{first.name} (pid {first.pid})" if first is not None else None


def list_ports_listened_on(members: Iterable[processes.Process]) -> set[int]:
    """Return the TCP ports that these processes listen on, each in its own network namespace."""
    ports: set[int] = set()
    tables: dict[str, dict[str, int]] = {}  # by namespace: the port of each listening socket
    for process in members:
        with suppress(OSError), os.scandir(f"/proc/{process.pid}/fd") as files:
            sockets = {target for file in files if (target := _link_target(file.path)).startswith("socket:")}
            namespace = _link_target(f"/proc/{process.pid}/ns/net")
            if namespace not in tables:
                tables[namespace] = _read_listening(process.pid)
            ports |= {port for target, port in tables[namespace].items() if target in sockets}
    return ports


def _read_listening(pid: int) -> dict[str, int]:
    listening: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTEN:
                    listening[f"socket:[{words[9]}]"] = int(words[1].rpartition(":")[2], 16)
    return listening


def _link_target(link: str) -> str:
    with suppress(OSError):
        return os.readlink(link)  # noqa: PTH115 - a text, not a path
    return ""
