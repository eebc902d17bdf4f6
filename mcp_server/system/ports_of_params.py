"""What a retry may change that only the world knows: a free port."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping

_PORTS = range(20000, 60000)


def free_port(after: int | None = None) -> int:
    """Return a TCP port that nobody listens on: the first above ``after``, else any.

    Raises:
        OSError: there is none.
    """
    candidates: Iterable[int] = range(after + 1, min(after + 1000, 65536)) if after and after > 0 else _PORTS
    for port in candidates:
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def port_of(name: str, params: Mapping[str, object], env: Mapping[str, str]) -> int | None:
    """Return the port that a parameter or a variable holds now, if it is one."""
    with contextlib.suppress(ValueError, TypeError):
        return int(str(params.get(name, env.get(name, os.environ.get(name)))))
    return None
