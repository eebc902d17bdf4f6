"""The files of a run directory: named once, and either whole or missing."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.run_directory import RunDir, now, read_json, write_json

FULL = OSError(errno.ENOSPC, "No space left on device")


def failing(*_: Any) -> Any:
    raise FULL


# --- names


def test_a_run_directory_names_the_files_of_the_contract() -> None:
    run = RunDir(Path("/state/runs/cfm-7kqz"))
    files = (run.spec, run.script, run.handover, run.events, run.lock, run.stop, run.log(2), run.exit(1))
    assert run.run_id == "cfm-7kqz"
    assert [str(file.relative_to(run.path)) for file in files] == [
        "spec.json",
        "run.sh",
        "handover",
        "events.jsonl",
        "supervisor.lock",
        "stop.json",
        "attempts/2/output.log",
        "attempts/1/exit.json",
    ]


def test_now_is_utc_with_milliseconds() -> None:
    assert len(now()) == len("2026-11-21T15:30:45.123Z")
    assert now().endswith("Z")


# --- JSON files


def test_what_is_written_is_read(tmp_path: Path) -> None:
    value = {"name": "größe 训练", "n": 1, "none": None, "list": [1.5, True], "text": "a\nb"}
    write_json(tmp_path / "spec.json", value)
    assert read_json(tmp_path / "spec.json") == value
    assert "größe" in (tmp_path / "spec.json").read_text(encoding="utf-8")  # readable with cat
    assert [p.name for p in tmp_path.iterdir()] == ["spec.json"]
    assert (tmp_path / "spec.json").stat().st_mode & 0o777 == 0o600


def test_a_second_write_replaces_the_first_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "stop.json", {"reason": "x" * 9999})
    write_json(tmp_path / "stop.json", {"reason": "y"})
    assert read_json(tmp_path / "stop.json") == {"reason": "y"}


def test_a_reader_never_sees_a_file_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stop.json"
    write_json(file, {"n": 1})
    seen: list[Any] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        seen.append(read_json(file))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    write_json(file, {"n": 2})
    assert seen == [{"n": 1}, {"n": 2}]  # the file's own, then the directory's after the rename


@pytest.mark.parametrize(("owner", "call"), [(os, "fsync"), (Path, "rename")])
def test_a_write_that_fails_leaves_the_old_file_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, call: str
) -> None:
    write_json(tmp_path / "stop.json", {"n": 1})
    monkeypatch.setattr(owner, call, failing)
    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "stop.json", {"n": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["stop.json"]
    assert read_json(tmp_path / "stop.json") == {"n": 1}


@pytest.mark.parametrize("value", ["/data/caf\udce9", Path("/data")])
def test_a_value_that_is_no_json_leaves_no_part(tmp_path: Path, value: Any) -> None:
    with contextlib.suppress(TypeError, ValueError):
        write_json(tmp_path / "spec.json", {"cwd": value})
    assert [p.name for p in tmp_path.iterdir()] in ([], ["spec.json"])


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"text"', "7", '{"a": 1', "\xff", " " * 512])
def test_what_is_no_object_is_read_as_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    assert read_json(tmp_path / "x.json") is None


def test_what_cannot_be_read_is_read_as_nothing(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None
    assert read_json(tmp_path) is None
