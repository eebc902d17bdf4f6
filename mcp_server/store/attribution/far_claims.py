"""Runs of other hosts as if their files were here, below the mirror of their host: their claims are then about copies.

What `results/far_results` makes below `hosts/NAME/files` has the paths, sizes and times of that host's files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mcp_server.record.state import Run
from mcp_server.record.written_files import Outputs, Outsider, WrittenFile


def files_root(mirror: str) -> str:
    """Return the directory of this host below which a far host's files stand, by their absolute paths."""
    return str(Path(mirror) / "files")


def move_run(run: Run) -> Run:
    """Return a far run as if its directories were those below the mirror of its host."""
    root, spec = files_root(run.spec.mirror), run.spec
    spec = replace(
        spec,
        mirror="",
        cwd=_move(spec.cwd, root),
        tensorboard=_move(spec.tensorboard, root) if spec.tensorboard else None,
        result_dir=_move(spec.result_dir, root) if spec.result_dir else None,
    )
    progress = run.progress
    if isinstance(named := progress.get("checkpoint"), str):
        progress = {**progress, "checkpoint": _move(named, root)}
    return replace(run, spec=spec, progress=progress)


def move_outputs(record: Outputs, mirror: str) -> Outputs:
    """Return the record of a far run's files as if they were below the mirror. Inodes of another host say nothing."""
    root = files_root(mirror)
    return replace(
        record,
        directories=_move_all(record.directories, root),
        saved=_move_all(record.saved, root),
        files=tuple(_move_file(file, root) for file in record.files),
        outsiders=tuple(_move_outsider(one, root) for one in record.outsiders),
    )


def _move_file(file: WrittenFile, root: str) -> WrittenFile:
    return replace(file, path=_move(file.path, root), inode=0)


def _move_outsider(one: Outsider, root: str) -> Outsider:
    files = tuple((_move(path, root), 0) for path, _ in one.files)
    return replace(one, cwd=_move(one.cwd, root), directories=_move_all(one.directories, root), files=files)


def _move_all(paths: Iterable[str], root: str) -> tuple[str, ...]:
    return tuple(_move(path, root) for path in paths)


def _move(path: str, root: str) -> str:
    return f"{root}{path}" if path.startswith("/") else path
