"""Large files are read in a process of its own, with the same result, and what lives on needs it no more."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mcp_server.scalars import reading_process
from mcp_server.scalars.formats.detect import ScalarSource, find_sources
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.reading_process import ReadingProcess
from mcp_server.scalars.series import RunScalars, ScalarsUnreadable
from mcp_server.system import processes
from mcp_server.threads import CallAbandoned
from tests.benchmarks.event_files import simple_values, write
from tests.support.sandbox import PATIENCE_S, until
from tests.support.scalar_files import csv_file, points

HERE = os.getpid()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadingProcess]:
    monkeypatch.setattr("mcp_server.scalars.reading.LARGE_BYTES", 20)
    process = ReadingProcess()
    yield process
    process.close()


def pid_of(process: ReadingProcess) -> int:
    return process.call(os.getpid)


def has_ended(child: int) -> bool:
    return processes.find_process(child) is None


def everything(run: RunScalars) -> object:
    series = {tag: [a.tobytes() for a in (s.steps, s.walls, s.values)] for tag, s in run.series.items()}
    return series, run.notes


def mlflow(directory: Path) -> Path:
    path = directory / "mlflow.db"
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE experiments (experiment_id, name); CREATE TABLE metrics (key, value, timestamp, run_uuid, step,"
        " is_nan); CREATE TABLE runs (run_uuid, name, experiment_id, lifecycle_stage, start_time);"
        "INSERT INTO runs VALUES ('r', 'one', 0, 'active', 1); INSERT INTO metrics VALUES ('loss', 2, 1000, 'r', 5, 0)"
    )
    database.close()
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "trainer_state", "mlflow", "mlruns"])
def test_what_the_process_read_is_what_this_one_reads(tmp_path: Path, process: ReadingProcess, kind: str) -> None:
    if kind == "mlflow":
        mlflow(tmp_path)
    elif kind == "mlruns":
        (tmp_path / "metrics").mkdir()
        (tmp_path / "meta.yaml").write_text("")
        (tmp_path / "metrics" / "loss").write_text("1000 2 5\n2000 nan 6\n3000 1 7\n")
    else:
        names = {"csv": "metrics.csv", "jsonl": "metrics.jsonl", "trainer_state": "trainer_state.json"}
        text = {
            "csv": "step,loss\n1,3\n2,nan\n3,x\n",
            "jsonl": '{"step": 1, "loss": 3}\n{"step": 2, "loss": NaN}\nbad\n',
            "trainer_state": '{"log_history": [{"step": 1, "loss": 3}, {"step": 2, "eval_loss": 4}]}',
        }
        csv_file(tmp_path, text[kind], names[kind])
    (source,) = find_sources(tmp_path)
    there, here = ScalarReader(process=process), ScalarReader()
    run = there.read(source)
    assert everything(run) == everything(here.read(source))
    assert not any(array.flags.writeable for one in run.series.values() for array in (one.steps, one.values))
    assert pid_of(process) != HERE


def test_what_is_appended_to_a_file_that_the_process_read_is_read_here(tmp_path: Path, process: ReadingProcess) -> None:
    path = csv_file(tmp_path, "step,loss\n1,3\n2,2\n3,1\n4,1\n")
    reader, source = ScalarReader(process=process), ScalarSource("csv", path)
    reader.read(source)
    process.close()
    with path.open("a") as file:
        file.write("5,7\n")
    assert points(reader.read(source), "loss") == [(1, 3), (2, 2), (3, 1), (4, 1), (5, 7)]
    assert process._process is None


def test_event_files_come_back_by_the_cache(tmp_path: Path, process: ReadingProcess) -> None:
    write(tmp_path / "logs" / "events.out.tfevents.1.h", simple_values(4000))
    (tmp_path / "home").mkdir(mode=0o700)
    run = ScalarReader(tmp_path / "home" / "scalars", process).read(tmp_path / "logs")
    assert pid_of(process) != HERE
    assert everything(run) == everything(ScalarReader().read(tmp_path / "logs"))
    assert sum(len(one.steps) for one in run.series.values()) == 4000
    process.close()
    ScalarReader(tmp_path / "home" / "scalars", process).read(tmp_path / "logs")
    assert process._process is None, "another reader starts from the cache"


def test_the_reason_why_a_file_is_unreadable_comes_back(tmp_path: Path, process: ReadingProcess) -> None:
    path = csv_file(tmp_path, '{"log_history": [' + " " * 100, "trainer_state.json")
    with pytest.raises(ScalarsUnreadable, match="not a trainer state"):
        ScalarReader(process=process).read(ScalarSource("trainer_state", path))


def test_an_abandoned_read_ends_the_process(process: ReadingProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    child = pid_of(process)
    monkeypatch.setattr("mcp_server.threads.is_abandoned", lambda: True)
    with pytest.raises(CallAbandoned):
        process.call(signal.pause)
    until(lambda: has_ended(child), "the end of the process")
    monkeypatch.undo()
    assert pid_of(process) not in (HERE, child)


def test_a_process_that_dies_is_said_to_have_and_the_next_read_has_another(process: ReadingProcess) -> None:
    first = pid_of(process)
    with pytest.raises(ScalarsUnreadable, match="its memory may be used up"):
        process.call(signal.raise_signal, signal.SIGKILL)
    assert pid_of(process) not in (HERE, first)


def test_it_ends_when_nobody_needs_it(process: ReadingProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "_IDLE_S", 0.01)
    child = pid_of(process)
    until(lambda: has_ended(child), "the end of the process")
    until(lambda: process._process is None, "the record of it")


def test_it_ends_with_its_server_also_while_it_reads(process: ReadingProcess) -> None:
    assert pid_of(process) != HERE
    assert process._process is not None
    assert process._pipe is not None
    reading_process._send(process._pipe, (signal.pause, ()))
    process._pipe.close()  # as the kernel does
    assert process._process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("name", ["sys.executable", "__version__"])
def test_where_it_cannot_be_started_or_is_of_another_version_this_one_reads(
    process: ReadingProcess, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(f"mcp_server.scalars.reading_process.{name}", "/nowhere/python")
    assert pid_of(process) == HERE


def test_a_read_behind_one_that_does_not_end_is_done_here(
    process: ReadingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_process, "_PATIENCE_S", 0.0)
    with process._lock:
        assert pid_of(process) == HERE
    assert np.array_equal(process.call(np.arange, 3), [0, 1, 2])
