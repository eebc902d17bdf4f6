"""What a retry may change that only the world knows: a free port, another GPU."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping

_ASKED_WITHIN_S = 10.0
_BUSY_MIB = 500  # a GPU with more in use is somebody's; an idle desktop holds less
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


def other_gpu(used: str, path: str | None = None) -> str | None:
    """Return the UUID of a GPU that nobody uses and that is not among ``used`` (as CUDA_VISIBLE_DEVICES has it).

    ``path``: where programs are looked for. None: there is none, or no driver tells. An empty ``used`` means that the
    run had them all.
    """
    program = shutil.which("nvidia-smi", path=path)
    if program is None or not used:
        return None
    query = ["--query-gpu=index,uuid,memory.used", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(
            [program, *query], capture_output=True, text=True, timeout=_ASKED_WITHIN_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    had = set(used.split(","))
    for line in told.splitlines():
        with contextlib.suppress(ValueError):
            index, uuid, mib = (word.strip() for word in line.split(","))
            if not {index, uuid} & had and int(mib) <= _BUSY_MIB:
                return uuid
    return None


def port_of(name: str, params: Mapping[str, object], env: Mapping[str, str]) -> int | None:
    """Return the port that a parameter or a variable holds now, if it is one."""
    with contextlib.suppress(ValueError, TypeError):
        return int(str(params.get(name, env.get(name, os.environ.get(name)))))
    return None
