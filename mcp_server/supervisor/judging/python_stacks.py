"""The Python stack of a process that makes no progress: from py-spy, or as its own faulthandler printed it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from mcp_server.system import processes
from mcp_server.system.files import read_end
from mcp_server.text.regex import compile_lazily

_DUMP = compile_lazily(rb"(?m)^(?:Thread|Current thread) 0x[0-9a-f]+.*\(most recent call first\):\n(?:  .*\n?)+")
_LIMIT_S, _TAIL_BYTES = 5.0, 65536


def dump_stack(living: list[processes.Process], search_path: str | None) -> str | None:
    """Return the Python stack of the busiest Python process, if py-spy is installed and has the permission.

    ``search_path`` is the PATH in which py-spy is looked up.
    """
    spy = shutil.which("py-spy", path=search_path)
    pythons = [p for p in living if "python" in p.name or "python" in p.command.partition(" ")[0]]
    if spy is None or not pythons:
        return None
    pid = max(pythons, key=lambda p: processes.cpu_used_s(p.pid)).pid
    try:
        dump = subprocess.run(
            [spy, "dump", "--pid", str(pid)], capture_output=True, timeout=_LIMIT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return dump.decode(errors="replace")


def find_printed_stack(log_path: Path, max_chars: int) -> str | None:
    """Return the last stack that the training's own faulthandler printed, if it did, cut to ``max_chars``."""
    with contextlib.suppress(OSError):
        dumps = list(_DUMP.finditer(read_end(log_path, _TAIL_BYTES)))
        return dumps[-1][0].decode(errors="replace")[:max_chars] if dumps else None
    return None
