"""The exit record: whole or missing, on space reserved at the start."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.exit_status import ExitRecord
from mcp_server.record.run_directory import now, read_json

FULL = OSError(errno.ENOSPC, "No space left on device")


def failing(*_: Any) -> Any:
    raise FULL


def test_an_exit_record_appears_whole_and_takes_no_new_space(tmp_path: Path) -> None:
    record = ExitRecord(tmp_path / "exit.json")
    (reserved,) = tmp_path.iterdir()
    before = reserved.stat()
    assert not (tmp_path / "exit.json").exists()

    value = {"exit_code": 3, "signal": None, "started_at": now(), "ended_at": now()}
    record.write(value)
    after = (tmp_path / "exit.json").stat()
    assert [p.name for p in tmp_path.iterdir()] == ["exit.json"]
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert before.st_size > 0
    assert json.loads((tmp_path / "exit.json").read_text()) == value
    assert (tmp_path / "exit.json").read_bytes().endswith(b" \n")


def test_an_exit_record_needs_no_more_disk_than_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ExitRecord(tmp_path / "exit.json")
    size = 512
    real = os.pwrite

    def full(fd: int, data: bytes, at: int) -> int:
        if at + len(data) > size:
            raise FULL
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "write", failing)
    record.write(
        {"exit_code": None, "signal": "SIGRTMIN+29", "state": "timed_out", "started_at": now(), "ended_at": now()}
    )
    assert (read_json(tmp_path / "exit.json") or {})["state"] == "timed_out"


def test_without_space_for_its_end_a_run_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(OSError, match="No space"):
        ExitRecord(tmp_path / "exit.json")
