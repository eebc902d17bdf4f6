"""Runs and the scalars that they write."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run

BEGUN_S = 1_700_000_000


def iso(posix_s: float) -> str:
    return datetime.fromtimestamp(posix_s, UTC).isoformat()


def a_run(cwd: Path, *, command: str = "python train.py", begun_s: float = BEGUN_S, **facts: Any) -> Run:
    spec = RunSpec(run_id="cfm-7kqz", command=command, cwd=str(cwd), created_at=iso(begun_s))
    return replace(Run(spec, "running", started_at=iso(begun_s), progress={"step": 1}), **facts)


def events(directory: Path, begun_s: float = BEGUN_S, pid: int = 77, more: str = "") -> Path:
    """An empty file with a name as TensorBoard's writers choose."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"events.out.tfevents.{int(begun_s)}.host.example.{pid}.0{more}"
    file.touch()
    return file


class Writer:
    """Writes event files as a training run does."""

    def __init__(self, directory: Path) -> None:
        self._writer = EventFileWriter(str(directory))

    def log(self, step: int, **values: float) -> None:
        items = [Summary.Value(tag=tag.replace("__", "/"), simple_value=value) for tag, value in values.items()]
        self._writer.add_event(Event(wall_time=BEGUN_S + step, step=step, summary=Summary(value=items)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def write(directory: Path, steps: int, curves: Mapping[str, Callable[[int], float]]) -> None:
    writer = Writer(directory)
    for step in range(steps):
        writer.log(step, **{tag: curve(step) for tag, curve in curves.items()})
    writer.close()


def csv(tmp_path: Path, *rows: str) -> Path:
    """A table that a run writes."""
    file = tmp_path / "progress.csv"
    with file.open("a") as out:
        out.writelines(f"{row}\n" for row in rows)
    return file


def live(tmp_path: Path) -> Run:
    return a_run(tmp_path, begun_s=time.time() - 60)
