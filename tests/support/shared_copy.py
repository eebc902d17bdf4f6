"""One copy of the supervisor's program for all state directories of this process: 0.16 s of processor time less each.

A state directory gets a link to it where the product makes a copy. Tests of copies make their own (`own_copies`).
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from mcp_server.backends import supervisor_copy

_copy = supervisor_copy._copy


def share_copies() -> None:
    """Let every state directory link to one copy, in this process and in those that it forks."""
    supervisor_copy._copy = _link


def make_copy() -> Path:
    """Make the copy now, so that processes forked from this one have it, and return the program in it."""
    with tempfile.TemporaryDirectory() as home:
        return supervisor_copy.supervisor_program(Path(home)).resolve()


def own_copies() -> None:
    """Let every state directory have its own copy, as it has in use."""
    supervisor_copy._copy = _copy


def _link(directory: Path) -> None:
    directory.parent.mkdir(mode=0o700, exist_ok=True)
    directory.symlink_to(_make_copy(directory.name))


@functools.cache
def _make_copy(name: str) -> Path:
    home = Path(tempfile.mkdtemp(prefix="runward-test-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    _copy(home / "supervisors" / name)
    return home / "supervisors" / name
