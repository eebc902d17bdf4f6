"""Events are read once each, and never more than both ends of a file."""

import errno
import json
import os
from pathlib import Path

import pytest

from mcp_server.record import events as event_reader
from mcp_server.record.events import EventLog, EventsRead, RecordEvent, parse_events, read_events, read_new_events


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def line(seq: int, text: str = "") -> bytes:
    return json.dumps({"seq": seq, "kind": "error_seen", "text": text}).encode() + b"\n"


def numbers(found: EventsRead) -> list[int]:
    return [event["seq"] for event in found.events]


def test_only_what_was_added_is_parsed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parse(data: bytes) -> list[RecordEvent]:
        parsed.append(data)
        return parse_events(data)

    monkeypatch.setattr(event_reader, "parse_events", parse)
    log, found = EventLog(path), None
    for count in range(1, 30):
        log.append("error_seen", f"number {count}")
        found = read_new_events(path, found)
        assert numbers(found) == list(range(1, count + 1))
    assert b"".join(parsed) == path.read_bytes()
    assert read_new_events(path, found) is found
    assert list(found.events) == read_events(path)


def test_an_incomplete_line_is_read_when_it_is_whole(path: Path) -> None:
    path.write_bytes(line(1) + line(2)[:9])
    found = read_new_events(path)
    assert numbers(found) == [1]
    path.write_bytes(line(1) + line(2))
    assert numbers(read_new_events(path, found)) == [1, 2]


@pytest.mark.parametrize("content", [line(7), line(7) + line(8) + line(9), b""])
def test_a_file_that_was_replaced_or_rewritten_is_read_anew(path: Path, content: bytes) -> None:
    path.write_bytes(line(1) + line(2))
    found = read_new_events(path)
    for replaces in (False, True):
        if replaces:
            path.unlink()
        path.write_bytes(content)
        assert numbers(read_new_events(path, found)) == [event["seq"] for event in read_events(path)]


def test_a_missing_file_has_no_events_and_an_unreadable_one_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_new_events(path) == EventsRead()
    os.mkfifo(path)
    assert read_new_events(path) == EventsRead()

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(event_reader, "open_regular", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        read_new_events(path)


def test_of_a_huge_file_both_ends_are_read_at_first_and_as_it_grows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "_END_BYTES", 10_000)
    found, most = None, 0
    with path.open("ab", buffering=0) as file:
        for seq in range(1, 5000):
            file.write(line(seq))
            found = read_new_events(path, found)
            most = max(most, len(found.events))
            assert numbers(found)[0] == 1
            assert numbers(found)[-1] == seq
    whole = numbers(read_new_events(path))
    assert whole == sorted(set(whole))
    assert most * len(line(1000)) < 3 * 10_000 + 1000
