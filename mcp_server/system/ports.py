"""TCP ports and addresses of this machine: which ports are free, and which process listens on one that is not."""

from __future__ import annotations

import errno
import ipaddress
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
_RAY_PORT, _RAY_PATIENCE_S = 6379, 5.0
_NEIGHBOURS = 1_000
_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h


def is_port_free(port: int) -> bool:
    """Return whether no process listens on ``port``; a PermissionError where this user may not."""
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


def describe_taken(port: int) -> tuple[str, str] | None:
    """Return why a program cannot listen on ``port``, and which it can use instead. None where it can."""
    if not 0 < port <= HIGHEST_PORT:
        return f"{port} is not a port.", f"Use one from 1024 to {HIGHEST_PORT}."
    try:
        if is_port_free(port):
            return None
        text = f"{find_listener(port) or 'A process not visible here'} listens on port {port}."
    except PermissionError:
        text = f"This user may not listen on port {port}."
    free = find_free_port(max(port, 1024), min(max(port, 1024) + 1000, HIGHEST_PORT))
    return text, f"Use another, e.g. {free}." if free else "Use another."


def describe_ray(address: str, *, asks: bool) -> tuple[list[tuple[str, str]], list[str]]:
    """Return problems with a Ray, each with its remedy, and what was found: at ``address``, by default on this host.

    ``asks``: one must answer. Blocks for 5 s at most.
    """
    listens = _find_default_ray()
    facts = [f"{listens} listens on port {_RAY_PORT}, Ray's default"] if listens else []
    if not asks:
        return [], facts
    if address == "local" or (not address and not listens):
        text = "RAY_ADDRESS names no Ray" + ("." if address else f", and none runs on the default port {_RAY_PORT}.")
        remedy = "Set it in env, or in an environment of hosts.toml; a command that starts its own Ray needs none."
        return [(text, remedy)], facts
    place = f"127.0.0.1:{_RAY_PORT}"
    target = place if address in ("", "auto") else address.rpartition("//")[2].partition("/")[0]
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host.strip("[]") or "127.0.0.1", int(port)), _RAY_PATIENCE_S).close()
    except (OSError, ValueError, OverflowError) as error:
        why = "no answer" if isinstance(error, (socket.timeout, TimeoutError)) else str(error).partition("\n")[0][:120]
        remedy = "A person or the run itself starts it: ray start --head. Never stop the Ray of others."
        return [(f"Ray at {address or place} cannot be reached: {why}.", remedy)], facts
    return [], [*facts, f"Ray answers at {address or place}"]


def _find_default_ray() -> str:
    """Return the process that listens on Ray's default port; empty where the port is free or another program's."""
    if is_port_free(_RAY_PORT):
        return ""
    listener = find_listener(_RAY_PORT)
    if listener is not None and listener.startswith("redis"):
        return ""
    return listener or "A process not visible here"


def find_next_port(current: int | None) -> int:
    """Return the first free port above ``current``, as people count up, else any free one, else raise OSError."""
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

    It is the one that started first: a child has its parent's sockets until it becomes another program.
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


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is loopback, without asking a name server."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_own_address(host: str) -> bool:
    """Return whether a host name or address is this machine's. May ask a name server, which takes time."""
    if is_loopback(host):
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    """Return whether this machine has an address: nobody can bind to that of another."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True
