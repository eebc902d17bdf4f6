"""Scalars are found where loggers write them; other files are errors, and nothing hangs."""

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mcp_server.scalars.formats.detect import ScalarSource, SourceKind, explain_no_curve, find_sources
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.series import ScalarsUnreadable
from tests.support.scalar_files import csv_file, points, read

# --- what no logger wrote


def named(directory: Path, make: Callable[[Path], object]) -> Iterator[ScalarSource]:
    kinds: tuple[SourceKind, ...] = ("csv", "jsonl", "trainer_state", "trackio", "mlflow", "wandb")
    names = ("metrics.csv", "a.jsonl", "trainer_state.json", "a.db", "mlflow.db", "run-a.wandb")
    for kind, name in zip(kinds, names, strict=True):
        make(directory / name)
        yield ScalarSource(kind, directory / name)


def bind(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(
    "make", [os.mkfifo, bind, lambda path: path.symlink_to(path), lambda path: path.symlink_to("/dev/zero")]
)
def test_a_pipe_a_socket_a_device_and_a_loop_of_links_are_errors_and_nothing_hangs(
    tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], object]
) -> None:
    directory = tmp_path_factory.mktemp("d")
    for source in named(directory, make):
        with pytest.raises(ScalarsUnreadable, match="cannot be read"):
            ScalarReader().read(source)
        assert find_sources(source.path) == []
    assert find_sources(directory) == []


def test_directories_with_the_names_of_logs_are_not_read(tmp_path: Path) -> None:
    for source in named(tmp_path, Path.mkdir):
        assert find_sources(source.path) == []
        if source.kind != "mlflow":
            with pytest.raises(ScalarsUnreadable, match="not a regular file"):
                ScalarReader().read(source)
    assert find_sources(tmp_path) == []


def test_binary_junk_is_an_error_or_nothing_and_never_a_crash(tmp_path: Path) -> None:
    for seed in range(20):
        junk = random.Random(seed).randbytes(5_000)
        for source in named(tmp_path, lambda path, junk=junk: path.write_bytes(junk)):  # type: ignore[misc]
            with pytest.raises(ScalarsUnreadable):
                ScalarReader().read(source)
        header = b"SQLite format 3\0" + junk
        for source in named(tmp_path, lambda path, header=header: path.write_bytes(header)):  # type: ignore[misc]
            with pytest.raises(ScalarsUnreadable):
                ScalarReader().read(source)
        find_sources(tmp_path)


def test_an_empty_file_is_a_run_without_series(tmp_path: Path) -> None:
    for name in ("metrics.csv", "a.jsonl"):
        run = (
            read(csv_file(tmp_path, "", name))
            if name.endswith("csv")
            else ScalarReader().read(ScalarSource("jsonl", csv_file(tmp_path, "", name)))
        )
        assert (run.series, run.notes) == ({}, ())


@pytest.mark.parametrize("text", ["1,2\n3,4\n", "a\0b,c\n1,2\n", "x" * 2**20])
def test_a_table_without_names_of_columns_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ScalarsUnreadable, match="does not begin with"):
        read(csv_file(tmp_path, text))


def test_only_the_end_of_an_enormous_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_server.scalars.formats.text_tables.Csv.most_bytes", 8 * 2**20)
    path = csv_file(tmp_path, "step,loss\n1,1\n")
    with path.open("r+b") as file:
        file.seek(5 * 2**30)
        file.write(b"\n7,7\n8,8\n")
    run = read(path)
    assert points(run, "loss") == [(7, 7), (8, 8)]
    assert run.notes == ("Only the end was read: the first 5,112 MiB were left out.",)


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    for source in named(tmp_path, lambda path: path.touch(mode=0)):
        if os.access(source.path, os.R_OK):
            pytest.skip("root reads everything")
        with pytest.raises(ScalarsUnreadable, match="Permission denied"):
            ScalarReader().read(source)
    assert {source.kind for source in find_sources(tmp_path)} == {"csv", "trainer_state", "wandb"}


def test_a_data_set_next_to_the_logs_is_not_a_log(tmp_path: Path) -> None:
    csv_file(tmp_path, '{"prompt": "What is 2 + 2?", "label": 4}\n', "train.jsonl")
    csv_file(tmp_path, '{"seq": 1, "kind": "started", "text": ""}\n', "events.jsonl")
    csv_file(tmp_path, "name,label\na,1\n", "labels.csv")
    csv_file(tmp_path, '{"epoch": 1, "train_lr": 0.5, "text": "x"}\n', "log.txt")
    (tmp_path / "events.out.tfevents.1.host").touch()
    assert find_sources(tmp_path) == [ScalarSource("jsonl", tmp_path / "log.txt")]
    assert find_sources(tmp_path / "labels.csv") == [ScalarSource("csv", tmp_path / "labels.csv")]
    assert find_sources(tmp_path / "none") == []


def test_a_file_with_new_keys_in_each_line_has_limited_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_server.scalars.formats.row_series.MOST_TAGS", 100)
    path = csv_file(tmp_path, "".join(f'{{"step": {n}, "k{n}": 1}}\n' for n in range(110)), "a.jsonl")
    run = ScalarReader().read(ScalarSource("jsonl", path))
    assert len(run.series) == 100
    assert run.notes == ("Only the first 100 tags were kept.",)


def test_a_whole_file_is_read_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [time.time()]
    monkeypatch.setattr("mcp_server.scalars.formats.appended_file.time.time", lambda: now_s[0])
    state = csv_file(tmp_path, '{"log_history": [{"step": 1, "loss": 3}]}', "trainer_state.json")
    reader, source = ScalarReader(), ScalarSource("trainer_state", state)
    first = reader.read(source)
    assert reader.read(source) is not first, "it may be written twice in one tick of the clock"
    now_s[0] += 3
    settled = reader.read(source)
    assert reader.read(source) is settled
    csv_file(tmp_path, '{"log_history": [{"step": 1, "loss": 3}, {"step": 2, "loss": 4}]}', "trainer_state.json")
    assert points(reader.read(source), "train/loss") == [(1, 3), (2, 4)]
    state.unlink()
    with pytest.raises(ScalarsUnreadable):
        reader.read(source)


@pytest.mark.parametrize("name", ["training.log", "progress.txt"])
def test_output_that_has_the_name_of_a_table_is_none(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    for text in ("Loading model, please wait\nstep 1/50 loss 0.9\n", "step 1/50 loss 0.9\n", "", "a, b\nc, d\n"):
        file.write_text(text)
        assert find_sources(tmp_path) == [], text
    for text in ("epoch,loss\n", "epoch,loss\n0,0.5\n", "Epoch\tEpRet\n1\t3.5\n"):
        file.write_text(text)
        assert find_sources(tmp_path) == [ScalarSource("csv", file)], text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lap,word\n1,a\n2,b\n3,c\n", "no column is named as a step, or rises by 1 beside numbers alone (lap, word)."),
        ("a,b\n1,0.5\n2,0.4\n4,0.3\n", "no column is named as a step, or rises by 1 beside numbers alone (a, b)."),
        ("0.1,0.2\n0.3,0.4\n", "its first line does not name columns."),
        ("step,secs\n1,2\n2,4\n", "its steps do not rise, or nothing is measured beside them (step, secs)."),
        ("lap,warp\n1,0.5\n2,0.4\n3,0.3\n", ""),
    ],
)
def test_a_table_that_is_no_curve_is_told_with_its_reason(tmp_path: Path, text: str, why: str) -> None:
    (path := tmp_path / "kiln_log.csv").write_text(text)
    assert explain_no_curve(path) == (f"kiln_log.csv is no curve: {why}" if why else "")
    assert explain_no_curve(tmp_path / "notes.txt") == ""
