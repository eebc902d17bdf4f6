"""Events: one table of kinds, and lines that are whole, in order and readable whatever a file holds."""

import errno
import json
import os
from pathlib import Path
from typing import get_args

import pytest

from mcp_server.record.events import (
    ENDING,
    LIVE_STATES,
    NOTEWORTHY,
    TRAITS,
    EventKind,
    EventLog,
    LiveState,
    read_events,
)

FULL = OSError(errno.ENOSPC, "No space left on device")
KINDS: tuple[EventKind, ...] = ("started", "stalled", "ended")


def test_the_table_has_every_kind_and_no_other() -> None:
    assert set(TRAITS) == set(get_args(EventKind))
    assert set(NOTEWORTHY) <= set(TRAITS)


def test_the_table_gives_live_states_and_ends() -> None:
    assert set(LIVE_STATES.values()) == set(get_args(LiveState))
    assert not set(LIVE_STATES) & ENDING
    assert {"ended", "refused"} == ENDING


def test_a_kind_of_a_newer_version_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"seq": 1, "kind": "teleported", "text": "x", "to": ["mars"]}\n')
    assert read_events(tmp_path / "events.jsonl") == [{"seq": 1, "kind": "teleported", "text": "x", "to": ["mars"]}]


class Disk:
    """Replaces ``os.write``: takes ``room`` bytes, then is full."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._write = os.write

    def write(self, fd: int, data: bytes) -> int:
        if not self.room:
            raise FULL
        taken = self._write(fd, data[: self.room])
        self.room -= taken
        return taken


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    limited = Disk(10**9)
    monkeypatch.setattr(os, "write", limited.write)
    return limited


def numbers_and_kinds(path: Path) -> list[tuple[int, str]]:
    return [(event["seq"], event["kind"]) for event in read_events(path)]


def test_events_are_numbered_lines_and_facts_that_are_none_are_left_out(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("started", "The command runs.", attempt=1, signal=None)
    log.append("log_lost", "zwei\nZeilen")
    first, second = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    at = json.loads(first)["at"]
    assert json.loads(first) == {"seq": 1, "at": at, "kind": "started", "text": "The command runs.", "attempt": 1}
    assert json.loads(second)["text"] == "zwei\nZeilen"
    assert not log.behind


def test_events_on_a_full_disk_are_delayed_and_keep_their_order(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append("started", "")
    disk.room = 0
    log.append("stalled", "")
    log.append("resumed", "")
    assert (numbers_and_kinds(path), log.behind) == ([(1, "started")], True)
    log.flush()
    assert (numbers_and_kinds(path), log.behind) == ([(1, "started")], True)

    disk.room = 10**9
    log.append("ended", "")
    assert numbers_and_kinds(path) == [(1, "started"), (2, "stalled"), (3, "resumed"), (4, "ended")]
    assert not log.behind


def test_an_event_that_did_not_fit_whole_is_taken_back(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append("started", "")
    size = path.stat().st_size
    for room in range(1, 60, 7):
        disk.room = room
        log.append("log_lost", "x" * 100)
        assert path.stat().st_size == size, room
    disk.room = 10**9
    log.flush()
    assert [seq for seq, _ in numbers_and_kinds(path)] == list(range(1, 11))


def test_no_event_is_lost_wherever_the_disk_runs_full(tmp_path: Path, disk: Disk) -> None:
    for room in range(0, 420, 11):
        path = tmp_path / f"{room}.jsonl"
        log = EventLog(path)
        disk.room = room
        for kind in KINDS:
            log.append(kind, "größe")
        assert numbers_and_kinds(path) == [*enumerate(KINDS, 1)][: len(numbers_and_kinds(path))]
        disk.room = 10**9
        log.flush()
        assert numbers_and_kinds(path) == [*enumerate(KINDS, 1)], room


def test_a_file_system_that_fails_reads_and_sizes_for_a_moment_costs_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It killed the supervisor: its handler of errors met the same error."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fstat", fail)
        log.append("started", "")
        assert (log.behind, log.is_removed) == (True, False)
    log.append("ended", "")
    assert numbers_and_kinds(path) == [(1, "started"), (2, "ended")]


def test_a_line_that_could_not_be_taken_back_is_taken_back_before_the_next(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append("started", "")
    disk.room = 20

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", fail)
        log.append("stalled", "")
        log.append("resumed", "")
    disk.room = 10**9
    log.append("ended", "")
    assert numbers_and_kinds(path) == [(1, "started"), (2, "stalled"), (3, "resumed"), (4, "ended")]


def test_an_event_that_is_not_unicode_is_written_all_the_same(tmp_path: Path) -> None:
    # json.loads takes the half of an emoji at the end of a stop.json; writing it must not end the run.
    log = EventLog(tmp_path / "events.jsonl")
    log.append("stopping", json.loads(r'"Stopping: diverged \ud83d"'))
    assert numbers_and_kinds(tmp_path / "events.jsonl") == [(1, "stopping")]


def test_only_events_after_the_cursor_are_read(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for kind in KINDS:
        log.append(kind, "")
    for after in range(5):
        assert [e["kind"] for e in read_events(tmp_path / "events.jsonl", after)] == list(KINDS[after:])


def test_a_torn_last_line_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = b'{"seq": 1, "kind": "a"}\n{"seq": 2, "kind": "b\xc3\xa9"}\n'
    first = whole.index(b"\n") + 1
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        assert len(read_events(path)) == (length >= first) + (length == len(whole)), length


def test_lines_that_are_not_events_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'garbage\n[1]\n\n{"kind": "x"}\n{"seq": "1"}\n\xff\n{"seq": 7, "kind": "a"}\n')
    assert numbers_and_kinds(path) == [(7, "a")]


def test_without_a_file_there_are_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "events.jsonl") == []


def test_a_log_that_is_opened_again_continues_its_numbers_and_drops_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).append("started", "The command runs.")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"seq": 2, "kind": "first_step", "text": "torn')
    EventLog(path).append("requeued", "Requeued.")
    assert path.read_bytes().startswith(whole)
    assert [(e["seq"], e["kind"]) for e in read_events(path)] == [(1, "started"), (2, "requeued")]
    assert path.read_bytes().count(b"\n") == 2


def test_a_log_whose_file_was_removed_knows_it(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("started", "It runs.")
    assert not log.is_removed
    (tmp_path / "events.jsonl").unlink()
    assert log.is_removed
