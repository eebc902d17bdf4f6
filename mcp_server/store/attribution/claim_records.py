"""The claims of one run, built from its records: its spec, its output, and the files of its processes.

Those of a far run are about copies below the mirror of its host: what `results/far_results` makes in `hosts/NAME/files`
has the paths, sizes and times of that host's files.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_server.command.outputs import configuration_words, find_in_command, find_in_configuration
from mcp_server.record.claims import Claims, claim_outsider, find_linked
from mcp_server.record.events import ENDING
from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import Run, posix
from mcp_server.record.written_files import Outputs, WrittenFile
from mcp_server.system import processes
from mcp_server.system.files import read_regular_file
from mcp_server.system.processes import list_written_files

_MOST_CONFIG_BYTES = 1_000_000


def _follow_link(path: str, copy: str) -> str | None:
    """Return the place of a path below a copy that is behind a link. Never looks there: its disk may be silent."""
    place, parts = Path(copy), Path(path).parts[len(Path(copy).parts) :]
    if not Path(path).is_relative_to(copy):
        return None
    for number, part in enumerate(parts, 1):
        place /= part
        if place.is_symlink():
            return os.path.normpath(place.parent.joinpath(place.readlink(), *parts[number:]))
    return None


def build_claims(
    run: Run,
    records: Sequence[Outputs | None] = (),
    correction: Mapping[str, Any] | None = None,
    last_sign_s: float = float("inf"),
) -> Claims:
    """Return the claims of a run, with the record of each attempt that has one."""
    spec, correction = run.spec, correction or {}
    cwd = os.path.normpath(spec.cwd or "/")
    known = [record for record in records if record is not None]
    named = [
        os.path.normpath(Path(cwd) / Path(path).expanduser()) for path in (spec.tensorboard, spec.result_dir) if path
    ]
    named += [path for record in known for path in record.directories]
    if len(known) < len(records) or not records:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            named += _name_directories(run, cwd)
    if spec.keep_code and not spec.mirror:  # a copy's directories of outputs are links, whose files lie elsewhere
        named += [real for path in dict.fromkeys(named) if (real := _follow_link(path, cwd)) is not None]
    complete = bool(known) and len(known) == len(records) and all(one.ended and not one.cut for one in known)
    files = [_as_known(file, is_over=run.ended) for record in known for file in record.files]
    command_pid = run.at_start.get("pid")
    begun_s = posix(run.started_at or spec.created_at) if run.started_at or spec.created_at else 0.0
    ended_s = posix(run.ended_at) if run.ended_at else float("inf")
    return Claims(
        run_id=run.run_id,
        cwd=cwd,
        result_dir=os.path.normpath(spec.result_dir) if spec.result_dir else None,
        begun_s=begun_s,
        ended_s=ended_s,
        last_sign_s=ended_s if run.ended_at else last_sign_s,
        attempts_s=[posix(event["at"]) for event in run.events if event["kind"] == "started" and "at" in event],
        attempt_pids=[frozenset(record.pids if record else ()) for record in records],
        pids=frozenset([pid for record in known for pid in record.pids])
        | ({command_pid} if isinstance(command_pid, int) else set()),
        written={file.path: file for file in files if not file.listed},
        named=frozenset(named),
        mentioned=frozenset(
            path for record in known for path in record.mentioned if run.ended
        ),  # else inputs, perhaps large
        linked=find_linked(cwd),
        saved=[*dict.fromkeys([*(path for record in known for path in record.saved), *_printed_checkpoint(run, cwd)])],
        listed={file.path: (file.size, file.changed_ns) for file in files if file.listed} if complete else None,
        tensorboard=_texts(correction.get("tensorboard")),
        results=_texts(correction.get("results")),
        has_events=any("tfevents" in file.path for file in files if not file.listed),
        has_step=run.made_a_step,
        host=str(run.at_start.get("host") or ""),
        outsiders=[claim_outsider(one) for record in known for one in record.outsiders],
    )


def _as_known(file: WrittenFile, *, is_over: bool) -> WrittenFile:
    """Return what a record says of a file; who wrote one that was open when its supervisor died is not known."""
    return replace(file, open=False, unsure=True) if file.open and is_over else file


def _printed_checkpoint(run: Run, cwd: str) -> list[str]:
    named = run.progress.get("checkpoint")
    is_path = isinstance(named, str) and named and "\0" not in named
    return [os.path.normpath(Path(cwd) / str(named))] if is_path else []


def _name_directories(run: Run, cwd: str) -> list[str]:
    """Return the directories that the command of a run without a record of its files names."""
    spec = run.spec
    named = find_in_command(run.command, cwd)
    for word in configuration_words(spec.command)[:5]:
        with contextlib.suppress(OSError):
            text = read_regular_file(Path(cwd) / word, max_bytes=_MOST_CONFIG_BYTES)
            named += find_in_configuration(text.decode(errors="replace"), cwd)
    return named


def add_open_files(run: Run, claims: Claims) -> Claims:
    """Return the claims of a live run with the files that its processes have open for writing now."""
    supervisor = run.at_start.get("supervisor_pid")
    if not isinstance(supervisor, int):
        return claims
    living = processes.descendants(supervisor)
    if not living:
        return claims  # of another process namespace
    opened: dict[str, WrittenFile] = {}
    for process in living:
        for path, status, append in list_written_files(process.pid):
            known = claims.written.get(path)
            unsure = known is not None and known.unsure and known.open and known.inode == status.st_ino
            facts = (path, status.st_ino, status.st_size, status.st_mtime_ns)
            opened[path] = WrittenFile(*facts, open=True, append=append, unsure=unsure)
    closed = {path: _as_known(one, is_over=True) for path, one in claims.written.items() if path not in opened}
    return replace(claims, written=closed | opened, pids=claims.pids | {process.pid for process in living})


def find_last_sign_s(run: Run, rundir: RunDir) -> float:
    """Return when a run that is lost gave its last sign. Infinite for a live run.

    That it is lost may have been found long after.
    """
    if not run.ended:
        return float("inf")
    told = [e["at"] for e in run.events if "at" in e and (run.state != "lost" or e["kind"] not in ENDING)]
    signs = [posix(told[-1])] if told else []
    for path in (rundir.log(run.attempt), rundir.outputs(run.attempt)):
        with contextlib.suppress(OSError):
            signs.append(path.stat().st_mtime)
    return max(signs, default=float("inf"))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list) else ()


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
        files=tuple(replace(file, path=_move(file.path, root), inode=0) for file in record.files),
        outsiders=tuple(
            replace(
                one,
                cwd=_move(one.cwd, root),
                directories=_move_all(one.directories, root),
                files=tuple((_move(path, root), 0) for path, _ in one.files),
            )
            for one in record.outsiders
        ),
    )


def _move_all(paths: Iterable[str], root: str) -> tuple[str, ...]:
    return tuple(_move(path, root) for path in paths)


def _move(path: str, root: str) -> str:
    return f"{root}{path}" if path.startswith("/") else path
