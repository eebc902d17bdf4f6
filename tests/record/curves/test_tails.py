"""Tails of growing files: their newest rows, by value, whole, in pieces, damaged and written anew."""

import json
import math
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from mcp_server.record.curves.follow import open_tail
from mcp_server.record.curves.tails import CurveRow, Tail
from tests.support.scalar_files import chunked_log, field

Row = tuple[int, dict[str, float]]


def read(path: Path, tail: Tail | None = None) -> list[Row]:
    fd = os.open(path, os.O_RDONLY)
    try:
        tail = tail or open_tail(str(path), os.pread(fd, 4096, 0), 0.0)
        assert tail is not None
        return [(row.step, dict(row.values)) for row in tail.read(fd)]
    finally:
        os.close(fd)


def tail_of(path: Path) -> Tail:
    tail = open_tail(str(path), path.read_bytes()[:4096], 0.0)
    assert tail is not None
    return tail


def event(step: int, **values: float) -> Event:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
    return Event(wall_time=1e9 + step, step=step, summary=summary)


def write_events(directory: Path, *events: Event) -> Path:
    writer = EventFileWriter(str(directory))
    for one in events:
        writer.add_event(one)
    writer.close()
    (path,) = directory.iterdir()
    return path


def test_an_event_file_is_read_as_it_grows_and_a_record_only_whole(tmp_path: Path) -> None:
    whole = write_events(tmp_path / "a", event(1, loss=2.0), event(2, loss=1.5)).read_bytes()
    path = tmp_path / "events.out.tfevents.1.host.2.0"
    path.write_bytes(whole[:-1])
    tail = tail_of(path)
    assert read(path, tail) == [(1, {"loss": 2.0})]
    path.write_bytes(whole)
    assert read(path, tail) == [(2, {"loss": 1.5})]
    assert read(path, tail) == []


def test_scalars_as_tensors_are_read_once_the_plugin_is_named_and_other_tensors_never(tmp_path: Path) -> None:
    def tensor(step: int, tag: str, plugin: str, value: object) -> Event:
        one = Summary.Value(tag=tag, tensor=make_tensor_proto(value))
        if plugin:
            one.metadata.plugin_data.plugin_name = plugin
        return Event(step=step, summary=Summary(value=[one]))

    path = write_events(
        tmp_path / "a", tensor(1, "loss", "scalars", 2.5), tensor(2, "loss", "", 2.25), tensor(3, "words", "text", "x")
    )
    assert read(path) == [(1, {"loss": 2.5}), (2, {"loss": 2.25})]


def test_the_newest_of_a_long_event_file_is_found_without_its_beginning(tmp_path: Path) -> None:
    path = write_events(tmp_path / "a", *(event(step, loss=step / 7) for step in range(10_000)))
    assert path.stat().st_size > 300_000
    rows = read(path)
    assert rows[0][0] > 0
    assert rows[-1][0] == 9_999
    assert [step for step, _ in rows] == list(range(rows[0][0], 10_000))


def test_a_tail_of_zeros_waits_for_what_fills_it(tmp_path: Path) -> None:
    whole = write_events(tmp_path / "a", event(1, loss=2.0), event(2, loss=1.5)).read_bytes()
    path = tmp_path / "events.out.tfevents.1.host.2.0"
    first = len(whole) - 40
    path.write_bytes(whole[:first] + bytes(len(whole) - first))
    tail = tail_of(path)
    before = read(path, tail)
    path.write_bytes(whole)
    assert before + read(path, tail) == [(1, {"loss": 2.0}), (2, {"loss": 1.5})]


TABLES: dict[str, tuple[str, list[Row]]] = {
    "a step beside an epoch": ("epoch,step,loss\n0,10,0.5\n0,20,0.4\n", [(10, {"loss": 0.5}), (20, {"loss": 0.4})]),
    "cells left empty": (
        "step,train_loss,val_loss\n10,0.5,\n10,,0.7\n",
        [(10, {"train_loss": 0.5}), (10, {"val_loss": 0.7})],
    ),
    "semicolons": ("Epoch;acc\n1;0.5\n", [(1, {"acc": 0.5})]),
    "tabs": ("Epoch\tAverageEpRet\n3\t-12.5\n", [(3, {"AverageEpRet": -12.5})]),
    "a comment": ("# made by X\nstep,loss\n1,nan\n", [(1, {"loss": math.nan})]),
    "a counter of any name": (
        "lap,warp,shine_pct,secs\n1,2.8,-179,0.2\n2,2.7,-166,0.4\n3,nan,3,0.6\n",
        [
            (1, {"warp": 2.8, "shine_pct": -179.0, "secs": 0.2}),
            (2, {"warp": 2.7, "shine_pct": -166.0, "secs": 0.4}),
            (3, {"warp": math.nan, "shine_pct": 3.0, "secs": 0.6}),
        ],
    ),
    "a counter that goes on, behind a value": (
        "energy;sweep\n0.5;21\n0.4;22\n0.3;23\n",
        [(21, {"energy": 0.5}), (22, {"energy": 0.4}), (23, {"energy": 0.3})],
    ),
    "a header in a comment, written again": (
        "# it loss lr\n1 0.5 0.02\n# it loss lr\n# goes on\n2 0.4 0.02\n",
        [(1, {"loss": 0.5, "lr": 0.02}), (2, {"loss": 0.4, "lr": 0.02})],
    ),
    "decimal commas": (
        "Epoche;Verlust;R1\n1;0,4849;-1,5e1\n2;0,3711;17\n3;0,2834;19,25\n",
        [
            (1, {"Verlust": 0.4849, "R1": -15.0}),
            (2, {"Verlust": 0.3711, "R1": 17.0}),
            (3, {"Verlust": 0.2834, "R1": 19.25}),
        ],
    ),
    "a step in a group": ("time/total_timesteps,rollout/ep_rew_mean\n128,20\n", [(128, {"rollout/ep_rew_mean": 20.0})]),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_is_read_by_the_column_that_counts_steps(tmp_path: Path, case: str) -> None:
    text, expected = TABLES[case]
    path = tmp_path / "progress.csv"
    path.write_text(text)
    assert str(read(path)) == str(expected)


@pytest.mark.parametrize(
    ("name", "text", "steps"),
    [
        ("log.csv", "Time,Learning rate,Train loss\n0.6,0.1,8.5\n1.2,0.1,4.25\n", [1, 2]),
        ("0.monitor.csv", '#{"t_start": 1.0}\nr,l,t\n1.5,22,0.5\n2.5,20,0.75\n3.5,25,0.75\n', [1, 2, 3]),
    ],
)
def test_the_rows_of_a_log_without_a_column_of_steps_are_counted(
    tmp_path: Path, name: str, text: str, steps: list[int]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with path.open("rb") as file:
        tail = open_tail(str(path), path.read_bytes(), 0.0)
        assert tail is not None
        assert [row.step for row in tail.read(file.fileno())] == steps
        tail.pass_over(file.fileno())
        path.write_text(text + text.splitlines()[-1] + "\n")
        assert [row.step for row in tail.read(file.fileno())] == [len(steps) + 1]


@pytest.mark.parametrize(
    "text",
    [
        *("id,label,score\n1,2,0.3\n", "1,2\n3,4\n", "step\n1\n", "a,b\n1,0.5\n2,0.4\n4,0.3\n"),
        *("sample_id,pred\n1,0.5\n2,0.4\n3,0.3\n", "lap,word\n1,a\n2,b\n3,c\n", "lap,seconds\n1,2\n2,4\n3,6\n"),
    ],
)
def test_a_table_without_steps_is_no_curve(text: str) -> None:
    assert open_tail("/x/metrics.csv", text.encode(), 0.0) is None


@pytest.mark.parametrize("text", [b"step,lo", b"lap,warp\n", b"lap,warp\n1,0.5\n2,0.4\n"])
def test_too_little_says_nothing(text: bytes) -> None:
    with pytest.raises(EOFError):
        open_tail("/x/metrics.csv", text, 0.0)


def test_a_table_that_is_written_anew_with_another_column_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,0.5\n")
    tail = tail_of(path)
    assert read(path, tail) == [(1, {"loss": 0.5})]
    path.write_text("step,loss,lr\n1,0.5,\n2,0.4,0.1\n")
    assert read(path, tail) == [(1, {"loss": 0.5}), (2, {"loss": 0.4, "lr": 0.1})]


def test_lines_of_json_are_read_with_their_steps_and_other_objects_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"config": {"lr": 0.1}}\n{"step": 5, "train": {"loss": 0.25}, "name": "x"}\nbroken\n{"step": 6')
    tail = tail_of(path)
    assert read(path, tail) == [(5, {"train/loss": 0.25})]
    with path.open("a") as file:
        file.write(', "loss": 1}\n')
    assert read(path, tail) == [(6, {"loss": 1.0})]


def test_a_log_of_wandb_is_read_record_by_record(tmp_path: Path) -> None:
    def history(step: int, loss: bytes) -> bytes:
        items = [("_step", str(step).encode()), ("train/loss", loss), ("_timestamp", b"1700000000.5")]
        return field(2, b"".join(field(1, field(2, key.encode()) + field(16, value)) for key, value in items))

    path = tmp_path / "run-x.wandb"
    path.write_bytes(chunked_log(b":W&B\xe1\xbe\x00", history(1, b"0.5"), field(3, b"summary"), history(2, b"0.25")))
    fd = os.open(path, os.O_RDONLY)
    rows = tail_of(path).read(fd)
    os.close(fd)
    assert rows == [
        CurveRow(1, 1700000000.5, {"train/loss": 0.5}, "_step"),
        CurveRow(2, 1700000000.5, {"train/loss": 0.25}, "_step"),
    ]


def test_a_metric_of_mlflow_has_its_name_from_the_path(tmp_path: Path) -> None:
    metrics = tmp_path / "mlruns/0/abc/metrics/val"
    metrics.mkdir(parents=True)
    (metrics.parents[1] / "meta.yaml").touch()
    (metrics / "acc").write_text("1700000000000 0.5 10\n1700000001000 0.75 20\n17000")
    assert read(metrics / "acc") == [(10, {"val/acc": 0.5}), (20, {"val/acc": 0.75})]


def test_random_bytes_never_raise(tmp_path: Path) -> None:
    import random  # noqa: PLC0415

    chance = random.Random(1)
    whole = write_events(tmp_path / "a", *(event(step, loss=1.0) for step in range(20))).read_bytes()
    for number in range(200):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        for name in ("events.out.tfevents.1", "x.wandb"):
            path = tmp_path / f"{number}{name}"
            path.write_bytes(bytes(data))
            read(path)


@pytest.mark.parametrize("between", [b"", b"st", b"step,loss"])
def test_a_table_that_is_met_while_it_is_written_anew_is_read_afterwards(tmp_path: Path, between: bytes) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"step,loss\n1,3\n")
    tail = tail_of(path)
    assert read(path, tail) == [(1, {"loss": 3.0})]
    path.write_bytes(between)
    assert read(path, tail) == []
    path.write_bytes(b"step,loss\n1,3\n2,2\n")
    assert read(path, tail) == [(1, {"loss": 3.0}), (2, {"loss": 2.0})]
    path.write_bytes(b"step,loss\n1,3\n2,2\n3,1\n")
    assert read(path, tail) == [(3, {"loss": 1.0})]


def test_a_document_that_is_written_anew_gives_the_rows_that_are_new(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-20" / "trainer_state.json"
    path.parent.mkdir()
    history: list[dict[str, float]] = []
    tail = None
    for step in (10, 20, 30):
        history.append({"epoch": step / 100, "loss": 1 / step, "step": step})
        state = {"best_metric": None, "global_step": step, "log_history": history, "train_batch_size": 8}
        path.write_text(json.dumps(state, indent=2))
        if step > 10:  # a single row may be a part of any file
            tail = tail or tail_of(path)
            rows = read(path, tail)
            assert [at for at, _ in rows] == ([10, 20] if step == 20 else [30])
            assert rows[-1][1] == {"loss": 1 / step}
    path.write_text('{"log_history": [')
    assert read(path, tail) == []
    for n in (2, 4):
        (tmp_path / "history.json").write_text(json.dumps({"loss": [0.5] * n, "val_loss": [0.6] * n}))
        assert [step for step, _ in read(tmp_path / "history.json")] == list(range(1, n + 1))
    (tmp_path / "config.json").write_text(json.dumps({"model": {"layers": [1, 2, 3]}, "lr": 0.1}, indent=1))
    assert read(tmp_path / "config.json") == []


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_of_a_database_the_newest_run_is_followed(tmp_path: Path, journal: str) -> None:
    mlflow, trackio = tmp_path / "mlflow.db", tmp_path / "demo.db"
    with closing(sqlite3.connect(mlflow)) as one, closing(sqlite3.connect(trackio)) as other:
        for database in (one, other):
            database.execute(f"PRAGMA journal_mode = {journal}")
        one.execute("CREATE TABLE runs (run_uuid)")
        one.execute("CREATE TABLE experiments (experiment_id)")
        one.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
        other.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp, run_name, step, metrics)")
        one.execute("INSERT INTO metrics VALUES ('loss', 9.0, 1000, 'old', 900, 0)")
        one.commit()
        other.commit()
        tails = [open_tail(str(path), b"SQLite format 3\0", 5000.0) for path in (mlflow, trackio)]
        for step in (10, 20):
            one.execute("INSERT INTO metrics VALUES ('loss', ?, ?, 'new', ?, ?)", (1 / step, step * 10**6, step, 0))
            metrics = json.dumps({"train": {"loss": 1 / step}})
            other.execute(
                "INSERT INTO metrics VALUES (NULL, ?, 'run', ?, ?)", (f"2026-01-01T00:00:{step}", step, metrics)
            )
            one.commit()
            other.commit()
            for n, path in enumerate((mlflow, trackio)):
                assert read(path, tails[n]) == [(step, {"train/loss" if n else "loss": 1 / step})]
        assert read(mlflow, tails[0]) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.db", "mlflow.db"]
