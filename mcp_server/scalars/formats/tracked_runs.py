"""Reads the facts of a run that trackers keep beside its curves: name, settings, command, times, its end if known.

Field numbers of wandb 0.31 (``wandb_internal.proto``): a record has 5 config, 17 run, 18 exit, 26 environment. A
run has 4 config, 8 name, 9 notes, 10 tags, 17 start (1 seconds), 21 git (2 commit); an exit 1 code, 2 seconds; an
environment 5 arguments, 6 program, 14 Python; a config 1 items: 1 key, 2 parts of it, 16 JSON.
TensorBoard's hyperparameters: 3 of the plugin's data is the start (1 pairs of name and value), 4 the end (1 status).
"""

import json
import os
import re
import shlex
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mcp_server.record.curves.protobuf import BYTES, Malformed, find_fields, read_fields, to_signed
from mcp_server.record.curves.tracker_records import BLOCK_BYTES, DAMAGE, iter_records, read_values
from mcp_server.scalars.formats.detect import ScalarSource
from mcp_server.scalars.formats.sqlite import read_database_facts
from mcp_server.scalars.locate import MetricLocation
from mcp_server.scalars.series import ScalarsUnreadable
from mcp_server.scalars.tensorboard.find import list_event_files
from mcp_server.system.files import open_regular, read_regular_file
from mcp_server.text.formatting import parse_time

KnownEnd = Literal["finished", "failed", "killed", ""]

_HEAD_BYTES, _TAIL_BYTES = 64 * BLOCK_BYTES, 4 * BLOCK_BYTES
_MOST_VALUES, _MOST_BYTES = 2_000, 1 << 20
_TOLD = _CONFIG, _RUN, _EXIT, _ENVIRONMENT = 5, 17, 18, 26
_HPARAMS = b"hparams"
# Of MLflow: in its file store numbers, in its databases words.
_STATUS: Mapping[str, KnownEnd] = {
    **dict.fromkeys(("3", "FINISHED"), "finished"),
    **dict.fromkeys(("4", "FAILED"), "failed"),
    **dict.fromkeys(("5", "KILLED"), "killed"),
}
_TABLE = re.compile(rb"\|param\|value\|\n\|-\|-\|\n((?:\|[^|\n]*\|[^|\n]*\|\n?)+)")  # a text, as CleanRL writes it
_LAST_TAGS = ("mlflow.source.name", "mlflow.source.git.commit", "mlflow.note.content", "mlflow.user")


@dataclass(frozen=True)
class TrackedRun:
    """``params`` may be nested. ``end`` is empty where nobody wrote one. Times are POSIX seconds."""

    tracker: str = ""
    name: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    note: str = ""
    command: str = ""
    commit: str = ""
    started_s: float | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    end: KnownEnd = ""


def read_tracked(location: MetricLocation) -> TrackedRun:
    """Return what the tracker of a location knows; an empty one where it knows nothing, or cannot be read."""
    with suppress(OSError, ScalarsUnreadable, *DAMAGE):
        if not isinstance(location, ScalarSource):
            return _read_hyperparameters(location if isinstance(location, Path) else location.path)
        if location.kind == "wandb":
            return _read_wandb(location.path)
        if location.kind == "mlflow" and location.path.is_dir():
            return _read_mlflow_store(location.path)
        if location.kind in ("mlflow", "trackio"):
            return _read_database(location)
    return TrackedRun()


def _read_wandb(path: Path) -> TrackedRun:
    run, params = TrackedRun("wandb"), dict[str, Any]()
    for number, content in _iter_wandb(path):
        fields = list(read_fields(content))
        last = {key: value for key, _, value in fields}
        if number == _RUN:
            params |= _read_items(last.get(4, b""))
            start = read_values(last[17]).get(1) if 17 in last else None  # noqa: PLR2004 - numbers of fields
            tags = tuple(value.decode() for key, _, value in fields if key == 10)  # noqa: PLR2004
            name, note, commit = (
                value.decode() if isinstance(value, bytes) else ""
                for value in (last.get(8), last.get(9), read_values(last.get(21, b"")).get(2))
            )
            run = replace(run, started_s=start, tags=tags, name=name, note=note, commit=commit)
        elif number == _CONFIG:
            params |= _read_items(content)
        elif number == _ENVIRONMENT:
            words = [last.get(14, b"python"), last[6]] if 6 in last else []  # noqa: PLR2004
            words += [value for key, _, value in fields if key == 5 and words]  # noqa: PLR2004
            run = replace(run, command=shlex.join(word.decode() for word in words) or run.command)
        elif number == _EXIT:
            code, took_s = to_signed(last.get(1, 0), 32), last.get(2)
            ended_s = run.started_s + took_s if run.started_s is not None and took_s else None
            run = replace(run, exit_code=code, end="failed" if code else "finished", ended_s=ended_s)
    params.pop("_wandb", None)
    return replace(run, params=params)


def _iter_wandb(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the records that say something of a run: from the beginning and the end of its log."""
    with open_regular(path) as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        parts = [(0, min(size, _HEAD_BYTES))]
        if size > _HEAD_BYTES:
            parts.append((max(_HEAD_BYTES, (size - _TAIL_BYTES) // BLOCK_BYTES * BLOCK_BYTES), size))
        for begin, end in parts:
            for _, record in iter_records(os.pread(fd, end - begin, begin), begin):
                with suppress(*DAMAGE):
                    fields = read_fields(record or b"")
                    yield from ((number, content) for number, _, content in fields if number in _TOLD)


def _read_items(config: bytes) -> dict[str, Any]:
    values = {}
    for item in find_fields(config, 1, BYTES)[:_MOST_VALUES]:
        parts = [part.decode() for part in find_fields(item, 2, BYTES) or find_fields(item, 1, BYTES)]
        with suppress(ValueError, RecursionError):
            values[".".join(parts)] = json.loads(find_fields(item, 16, BYTES)[-1])
    return values


def _read_mlflow_store(path: Path) -> TrackedRun:
    lines = read_regular_file(path / "meta.yaml", max_bytes=_MOST_BYTES).decode("utf-8", "replace").splitlines()
    pairs = (line.partition(": ") for line in lines)
    facts: dict[str, Any] = {name: value.strip("'\"") for name, _, value in pairs}
    for name in ("start_time", "end_time"):
        facts[name] = int(facts[name]) if facts.get(name, "").isdigit() else None
    return _describe_mlflow(facts, _read_values(path / "params"), _read_values(path / "tags"))


def _read_values(directory: Path) -> dict[str, str]:
    """Return the values of a directory that has a file for each."""
    values = {}
    for parent, _, names in os.walk(directory):
        for name in names[:_MOST_VALUES]:
            with suppress(OSError):
                file = Path(parent, name)
                text = read_regular_file(file, max_bytes=_MOST_BYTES).decode("utf-8", "replace")
                values[str(file.relative_to(directory))] = text.strip()
    return values


def _describe_mlflow(facts: Mapping[str, Any], params: Mapping[str, str], tags: Mapping[str, str]) -> TrackedRun:
    program, commit, note, _ = (tags.get(name, "") for name in _LAST_TAGS)
    start_ms, end_ms = facts.get("start_time"), facts.get("end_time")
    return TrackedRun(
        "MLflow",
        str(facts.get("run_name") or facts.get("name") or tags.get("mlflow.runName") or ""),
        params,
        tuple(f"{name}:{value}" for name, value in tags.items() if not name.startswith("mlflow.")),
        note,
        f"python {shlex.quote(program)}" if program.endswith(".py") else "",
        commit,
        start_ms / 1000 if isinstance(start_ms, int | float) else None,
        end_ms / 1000 if isinstance(end_ms, int | float) and end_ms else None,
        end=_STATUS.get(str(facts.get("status")), ""),
    )


def _read_database(source: ScalarSource) -> TrackedRun:
    facts = read_database_facts(source.path, source.name)
    if source.kind == "mlflow":
        return _describe_mlflow(facts["run"], facts["params"], facts["tags"])
    config = {name: value for name, value in facts["params"].items() if not name.startswith("_")}
    started_s = None
    with suppress(ValueError, TypeError):
        started_s = parse_time(facts["params"].get("_Created") or facts["run"]["created_at"]).timestamp()
    return TrackedRun("Trackio", source.name.rpartition("/")[2], config, started_s=started_s)


def _read_hyperparameters(directory: Path) -> TrackedRun:
    """Return the hyperparameters in event files: they stand at their beginnings."""
    run = TrackedRun("TensorBoard")
    for path in list_event_files(directory):
        data = read_regular_file(path, max_bytes=_MOST_BYTES)
        for content in _iter_plugin_data(data):
            run = _add_hyperparameters(run, content)
        if not run.params and (table := _TABLE.search(data)):
            cells = (line.decode("utf-8", "replace").strip("|").split("|") for line in table[1].splitlines())
            run = replace(run, params=dict(cell for cell in cells if len(cell) == 2))  # noqa: PLR2004 - a pair
    return run


def _iter_plugin_data(data: bytes) -> Iterator[bytes]:
    """Yield the contents of the plugin of hyperparameters in the events of a file."""
    at, last = 0, data.rfind(_HPARAMS)
    while at < last:
        length = int.from_bytes(data[at : at + 8], "little")
        event, at = data[at + 12 : at + 12 + length], at + length + 16
        if _HPARAMS not in event:
            continue
        with suppress(Malformed):
            yield from _follow(event, (5, 1, 9, 1, 2))  # summary, value, metadata, plugin, content


def _follow(message: bytes, path: Sequence[int]) -> Iterator[bytes]:
    if not path:
        yield message
    for field_ in find_fields(message, path[0], BYTES) if path else ():
        yield from _follow(field_, path[1:])


def _add_hyperparameters(run: TrackedRun, content: bytes) -> TrackedRun:
    params = dict(run.params)
    for start in find_fields(content, 3, BYTES):
        for pair in find_fields(start, 1, BYTES)[:_MOST_VALUES]:
            fields = read_values(pair)
            params[fields[1].decode()] = _read_value(fields.get(2, b""))
    ends: Sequence[KnownEnd] = [
        "finished" if to_signed(status, 32) == 1 else "failed"
        for end in find_fields(content, 4, BYTES)
        for status in [read_values(end).get(1, 0)]
        if status in (1, 2)
    ]
    return replace(run, params=params, end=[run.end, *ends][-1])


def _read_value(value: bytes) -> Any:
    """Return the value of a ``google.protobuf.Value``: a number, a text or a truth value."""
    for number, _, content in read_fields(value):
        if number == 2:  # noqa: PLR2004
            return struct.unpack("<d", content)[0]
        if number in (3, 4):
            return content.decode() if number == 3 else bool(content)  # noqa: PLR2004
    return None
