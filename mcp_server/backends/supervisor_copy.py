"""The copy of the supervisor's program from which the runs of this host are supervised.

A supervisor imports modules until the end of its run, days later. Its program lies in the state directory, one copy for
each content, so that an upgrade or a removed environment takes nothing away from a living run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import secrets
import shutil
from pathlib import Path

from mcp_server.backends.zipapp import PACKAGE, source_files

_DIRECTORY = "supervisors"
_DIGITS = 16


def supervisor_program(home: Path) -> Path:
    """Return the path of the supervisor's program in the state directory ``home``, copied there if it is missing.

    Where it cannot be copied, that is the installed one.
    """
    try:
        return _copied_program(home)
    except OSError:
        return PACKAGE / "supervisor"


@functools.cache  # a server whose package is removed or replaced goes on with its copy
def _copied_program(home: Path) -> Path:
    files = list(source_files())
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(PACKAGE)}\0".encode() + file.read_bytes() + b"\0")
    directory = home / _DIRECTORY / digest.hexdigest()[:_DIGITS]
    if not directory.exists():
        _copy(files, directory)
    return directory / PACKAGE.name / "supervisor"


def _copy(files: list[Path], directory: Path) -> None:
    """Copy the sources and what Python has compiled of them; other processes see all of it or nothing."""
    directory.parent.mkdir(mode=0o700, exist_ok=True)
    part = directory.with_name(f".{directory.name}-{secrets.token_hex(4)}")
    try:
        for file in files:
            copy = part / PACKAGE.name / file.relative_to(PACKAGE)
            for missing in reversed([parent for parent in copy.parents if not parent.exists()]):
                missing.mkdir(mode=0o700)
            shutil.copy2(file, copy)  # with its time, which the compiled file is valid for
            copy.chmod(0o600)
            compiled, copy = (Path(importlib.util.cache_from_source(str(path))) for path in (file, copy))
            copy.parent.mkdir(mode=0o700, exist_ok=True)  # a supervisor that compiles makes it readable by others
            if compiled.exists():
                shutil.copyfile(compiled, copy)
                copy.chmod(0o600)
        try:
            part.rename(directory)
        except OSError:
            if not directory.exists():  # else another process was faster
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
