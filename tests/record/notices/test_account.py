"""Which notices never arrived, told from the record alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mcp_server.record.notices.notice import RECORD, SENDER_DIED, find_undelivered, write_line


def write(directory: Path, *lines: dict[str, Any]) -> int:
    """Write lines about one notice each, and return the descriptor with the sender's lock."""
    lock = None
    for line in lines:
        lock = write_line(directory / RECORD, {"target": "a", "kind": "ended", "seq": 2, **line}, lock)
    assert lock is not None
    return lock


def test_a_notice_that_was_accepted_and_never_tried_to_the_end_is_lost_once_its_sender_is_gone(tmp_path: Path) -> None:
    sender = write(tmp_path, {"accepted": True})
    assert find_undelivered(tmp_path) == []  # it is on its way
    os.close(sender)
    assert find_undelivered(tmp_path) == [f"ended to a: {SENDER_DIED}"]


def test_what_arrived_or_was_left_out_as_configured_is_not_lost_and_a_cause_is_named_at_once(tmp_path: Path) -> None:
    accepted, other = {"accepted": True}, {"seq": 3, "kind": "stalled"}
    sender = write(
        tmp_path, accepted, {**other, **accepted}, {"sent": True}, {**other, "sent": False, "left_out": True}
    )
    assert find_undelivered(tmp_path) == []
    write(tmp_path, {"target": "b", "sent": False, "cause": "HTTP 413"}, {"target": "c", **accepted})
    assert find_undelivered(tmp_path) == ["ended to b: HTTP 413"]
    os.close(sender)


def test_a_record_that_is_missing_or_damaged_names_nothing(tmp_path: Path) -> None:
    assert find_undelivered(tmp_path) == []
    (tmp_path / RECORD).write_bytes(b"[]\n{\n7\n" + b"[" * 99_999)
    assert find_undelivered(tmp_path) == []
