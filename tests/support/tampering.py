"""Twelve kinds of tampering with what an open sweep protects: by a proposal, or by a run while it has the files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Change = Callable[[Path], object]
PROTECT = ("prepare.py", "eval/", "data")


def restore(path: Path) -> None:
    """Write another content, and put content and times back as they were."""
    text, status = path.read_text(), path.stat()
    path.write_text("cheat\n")
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("SECONDS = 9\n")


def link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/etc/hostname")


PROPOSED: tuple[tuple[str, Change], ...] = (
    ("prepare.py", write),
    ("prepare.py", Path.unlink),
    ("prepare.py", lambda path: path.rename(path.with_name("prepared.py"))),
    ("prepare.py", link),
    ("prepare.py", lambda path: path.chmod(0o755)),
    ("eval/more.py", write),
    ("data", link),
    ("numpy.py", write),
    ("sitecustomize.py", write),
    ("prepare/__init__.py", write),
    ("prepare.abi3.so", write),
    (".gitattributes", write),
)
"""What a proposal shows, by the name of the file that is refused."""

AT_RUN_TIME: tuple[tuple[str, Change], ...] = (
    ("prepare.py", write),
    ("prepare.py", restore),
    ("prepare.py", Path.unlink),
    ("prepare.py", lambda path: path.chmod(0o755)),
    ("eval/more.py", write),
    ("eval/score.py", link),
    ("data/train.bin", restore),
    ("data/more.bin", write),
    ("numpy.py", write),
    ("eval/json.py", write),
    ("~/cache/tokens", restore),
    (".git/hooks/pre-commit", write),
)
"""What a run does, by the name of the file that is found."""

KINDS = {
    "edit": PROPOSED[0],
    "delete": PROPOSED[1],
    "rename": PROPOSED[2],
    "add in directory": PROPOSED[5],
    "symlink": PROPOSED[3],
    "mode": PROPOSED[4],
    "shadow module": PROPOSED[7],
    "attributes": PROPOSED[11],
    "write at run time": AT_RUN_TIME[0],
    "write and restore": AT_RUN_TIME[1],
    "data outside": AT_RUN_TIME[10],
    "git hook": AT_RUN_TIME[11],
}
