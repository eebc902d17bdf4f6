"""One copy of the supervisor's program for all state directories of this process: 0.16 s of processor time less each.

A state directory gets a link to it where the product makes a copy. Tests of copies make their own (`own_copies`).
Another host gets the program with what Python compiles of it: 0.4 s of processor time less for a relay and a run there.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import io
import marshal
import shutil
import tempfile
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

from mcp_server.backends import supervisor_copy
from mcp_server.backends.ssh import ssh_link
from mcp_server.backends.supervisor_copy import PACKAGE

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


def place_relay(state: Path) -> None:
    """Put the relay's program where a server looks for it, before it sends its own, in a state directory elsewhere."""
    name, program = _compile_relay()
    path = state / "relays" / f"{name}.pyz"
    path.parent.mkdir(mode=0o700, parents=True)
    path.write_bytes(program)


@functools.cache
def _compile_relay() -> tuple[str, bytes]:
    name, program = ssh_link._packed_program()
    content = io.BytesIO(program)
    with zipfile.ZipFile(content, "a") as archive:
        for entry in archive.namelist():
            if entry.startswith(PACKAGE.name) and entry.endswith(".py"):
                code = SourceFileLoader(entry, str(PACKAGE.parent / entry)).get_code(entry)
                # Never compared with the source; another version of Python compiles that.
                head = importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + bytes(8)
                archive.writestr(f"{entry}c", head + marshal.dumps(code))
    return name, content.getvalue()


def _link(directory: Path) -> None:
    directory.parent.mkdir(mode=0o700, exist_ok=True)
    directory.symlink_to(_make_copy(directory.name))


@functools.cache
def _make_copy(name: str) -> Path:
    home = Path(tempfile.mkdtemp(prefix="runward-test-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    _copy(home / "supervisors" / name)
    return home / "supervisors" / name
