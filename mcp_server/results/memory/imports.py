"""Makes records of trainings that runward did not start: state ``imported``, found and compared like others.

Nothing of the training is changed or moved. Its curves stay where they are; settings and log are copied, since a
record outlives them. It ends as far as its tracker, or the end of its log, says so.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.record.code.code_snapshot import FILES, SNAPSHOT, CodeSnapshot, KeptFile
from mcp_server.record.results.notes import NOTES
from mcp_server.record.run_directory import LAYOUT, RunDir, now, write_json
from mcp_server.record.script import LONGEST_NAME
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import IMPORTED, Run
from mcp_server.results.memory.found_trainings import Training, find_trainings
from mcp_server.scalars.formats.tracked_runs import TrackedRun, read_tracked
from mcp_server.scalars.locate import EventFiles
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.run_scalars import Scalars, location_path
from mcp_server.scalars.tag_names import rank_headline
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.system.files import read_regular_file, whole_directory
from mcp_server.system.git_state import GitState
from mcp_server.text.formatting import format_posix, printable
from mcp_server.text.secret_patterns import mask_secrets, mask_source

_MOST_METRICS, _MOST_LOG_BYTES, _MOST_CONFIG_BYTES = 60, 256 << 20, 1 << 20


@dataclass(frozen=True)
class Imported:
    """The outcome for one training. ``did``: new, again (files changed), known, or run: a run of runward wrote it."""

    did: str
    run_id: str
    source: str


def import_trainings(
    roots: Sequence[Path], store: RunStore, scalars: Scalars, owner: str, *, dry_run: bool = False
) -> tuple[list[Imported], list[str]]:
    """Make records of the trainings at or below ``roots``; return what became of each, and notes. BadArgument."""
    done, notes = list[Imported](), list[str]()
    known = {run.spec.imported["key"]: run for run in store.list_runs(RunQuery(state=IMPORTED)) if run.spec.imported}
    for root in roots:
        path = Path(os.path.abspath(root.expanduser()))  # noqa: PTH100 - links stay
        if not path.exists():
            raise BadArgument("DIR", f"there is no {path}.", "Nothing was imported." if not done else "")
        trainings, is_cut = find_trainings(path, ScalarReader())
        if is_cut:
            notes.append(f"{path} holds more than one search reads: import its subdirectories.")
        if not trainings:
            notes.append(f"No training seen below {path}: no curves, and no log with a step.")
        for training in trainings:
            done.append(_import(training, known.get(training.key), store, scalars, owner, dry_run=dry_run))
    return done, notes


def _import(
    training: Training, former: Run | None, store: RunStore, scalars: Scalars, owner: str, *, dry_run: bool
) -> Imported:
    spec, parts = _describe(training, owner)
    if former is not None and former.spec.imported == spec.imported:
        return Imported("known", former.run_id, training.key)
    writer = None if former is not None else _find_writer(training, parts["end"], store, scalars)
    if writer is not None:
        return Imported("run", writer, training.key)
    run_id = former.run_id if former is not None else store.home.choose_id(spec.name)
    if not dry_run:
        _write(RunDir(store.home.runs / run_id), spec, parts, training, run_id, is_again=former is not None)
    return Imported("again" if former is not None else "new", run_id, training.key)


def _describe(training: Training, owner: str) -> tuple[RunSpec, dict[str, Any]]:
    """Return the specification of a training, and its ``end``, ``progress``, ``params`` and ``commit``."""
    trackers = [read_tracked(one) for one in training.locations]
    told = next((one for one in trackers if one.name or one.params or one.end), TrackedRun())
    walls = [float(points.walls[at]) for one in training.series for points in one.series.values() for at in (0, -1)]
    files = [path for path in (training.log, *map(location_path, training.locations)) if path is not None]
    changed_s = max((path.stat().st_mtime for path in files if path.exists()), default=0.0)
    known = [wall for wall in walls if math.isfinite(wall) and wall > 1.0]
    started_s = told.started_s or min(known, default=None)
    created_s, last_s = started_s or changed_s, max(known, default=changed_s)
    end: dict[str, Any] = {"exit_code": told.exit_code, "then": _tell_end(told, training)}
    if told.ended_s is not None and started_s is not None and told.ended_s >= started_s:
        end["elapsed_s"] = told.ended_s - started_s
    end |= {name: format_posix(at) for name, at in (("started_at", started_s), ("ended_at", told.ended_s)) if at}
    failure = training.examined.facts() if training.examined is not None and training.examined.failure else None
    if failure is not None and told.end != "finished":
        end["failure"] = {"kind": failure["kind"], "line": mask_secrets(failure["line"] or "")}
    spec = RunSpec(
        command=mask_secrets(told.command),
        name=printable(told.name or training.name, "")[-LONGEST_NAME:],
        cwd=str(training.home),
        owner=owner,
        tags=list(told.tags),
        why=mask_secrets(told.note) or None,
        layout=LAYOUT,
        created_at=format_posix(created_s),
        imported={"key": training.key, "locations": [_keep_location(one) for one in training.locations]}
        | {"seen": hashlib.sha256(json.dumps([*map(str, files), changed_s]).encode()).hexdigest()[:12]},
    )
    progress = _describe_progress(training, last_s)
    return spec, {"end": end, "progress": progress, "params": dict(told.params), "commit": told.commit, "last": last_s}


def _tell_end(told: TrackedRun, training: Training) -> str:
    if told.end:
        code = f", exit code {told.exit_code}" if told.exit_code else ""
        return f"Imported: {told.tracker} says that it {told.end}{code}."
    if training.examined is not None and training.examined.failure is not None:
        return "Imported: the end of its log shows a failure."
    return "Imported: how it ended is not known."


def _keep_location(location: Any) -> dict[str, Any]:
    if isinstance(location, EventFiles):
        return {"kind": "events", "path": str(location.path), "files": sorted(location.attempts)}
    return {"kind": location.kind, "path": str(location.path), "name": location.name}


def _describe_progress(training: Training, last_s: float) -> dict[str, Any]:
    last = {tag: points for one in training.series for tag, points in one.series.items() if len(points.steps)}
    tags = sorted(last, key=lambda tag: (rank_headline(tag), tag))[:_MOST_METRICS]
    values = {tag: float(last[tag].values[-1]) for tag in tags}
    steps = [int(points.steps[-1]) for points in last.values()]
    if training.examined is not None and training.examined.step is not None and not steps:
        steps = [training.examined.step]
    metrics = {tag: value if math.isfinite(value) else str(value) for tag, value in values.items()}
    return {"step": max(steps, default=None), "metrics": metrics, "at": format_posix(last_s)}


def _find_writer(training: Training, end: Mapping[str, Any], store: RunStore, scalars: Scalars) -> str | None:
    """Return the id of a run of runward that wrote this training's files, None without one."""
    span = Run(
        RunSpec(run_id="", cwd=str(training.home), tensorboard=str(training.home), created_at=now()),
        IMPORTED,
        started_at=end.get("started_at"),
        ended_at=end.get("ended_at"),
    )
    files = set(_list_files(training.locations)) | {str(path) for path in (training.log,) if path is not None}
    for run in store.list_runs(RunQuery(beside=span, mirror="")):
        written = {*_list_files(scalars.locate(run).locations), *scalars.attribution.claims_of(run).written}
        if run.spec.imported is None and files & written:
            return run.run_id
    return None


def _list_files(locations: Iterable[Any]) -> Iterable[str]:
    for one in locations:
        if isinstance(one, EventFiles):
            yield from (str(one.path / name) for name in one.attempts)
        else:
            yield f"{location_path(one)}/{getattr(one, 'name', '')}".rstrip("/")


def _write(
    directory: RunDir, spec: RunSpec, parts: Mapping[str, Any], training: Training, run_id: str, *, is_again: bool
) -> None:
    """Make the record appear whole, in place of a former one, whose notes stay."""
    old = directory.path.with_name(f".old-{run_id}")
    with whole_directory(directory.path, anew=True) as path:
        record = RunDir(path)
        code = record.code(1)
        (code / FILES).mkdir(parents=True)
        # ASCII keeps a name that is no UTF-8: its files are found by it.
        record.spec.write_text(json.dumps({**spec.facts(), "run_id": run_id}) + "\n", encoding="ascii")
        kept = _keep_files(training, parts["params"], code, directory.code(1))
        facts = CodeSnapshot(now(), GitState(commit=parts["commit"]), kept).facts()
        write_json(code / SNAPSHOT, facts)
        write_json(record.progress(1), parts["progress"])
        event = {"seq": 1, "at": now(), "kind": "ended", "state": IMPORTED, "attempt": 1, "text": parts["end"]["then"]}
        event |= {name: value for name, value in parts["end"].items() if value is not None}
        record.events.write_text(json.dumps(event) + "\n", encoding="utf-8")
        if training.log is not None and training.log.stat().st_size <= _MOST_LOG_BYTES:
            shutil.copyfile(training.log, record.log(1))
        if is_again:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(directory.path / NOTES, path / NOTES)
            shutil.rmtree(old, ignore_errors=True)
            directory.path.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def _keep_files(training: Training, params: Mapping[str, Any], code: Path, final: Path) -> tuple[KeptFile, ...]:
    """Copy the configurations of a training, masked, and write its tracker's settings as one more."""
    kept = []
    for number, path in enumerate(training.configs):
        with contextlib.suppress(OSError):
            text = read_regular_file(path, max_bytes=_MOST_CONFIG_BYTES).decode("utf-8", "replace")
            kept.append(_keep(code, f"{FILES}/{number}{path.suffix}", str(path), mask_source(text)))
    if params:
        text = mask_source(json.dumps(params, ensure_ascii=False, indent=1, default=str))
        kept.append(_keep(code, f"{FILES}/params.json", str(final / FILES / "params.json"), text))
    return tuple(kept)


def _keep(code: Path, name: str, path: str, text: str) -> KeptFile:
    data = text.encode(errors="replace")
    (code / name).write_bytes(data)
    return KeptFile(path, name, len(data), hashlib.sha256(data).hexdigest())
