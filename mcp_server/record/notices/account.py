"""`notices.jsonl` of a run: which notices were accepted, what became of each, and what never arrived.

A notice is noted before it is tried, so that the death of its sender leaves a trace. The sender holds the lock of the
file while it lives.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp_server.system.files import read_regular_file
from mcp_server.system.lock_files import may_be_locked, try_lock

RECORD = "notices.jsonl"
SENDER_DIED = "the process that sends notices died"
_MOST_BYTES = 2**20


def write_line(record: Path, facts: Mapping[str, Any], lock: int | None = None) -> int | None:
    """Append a line, as far as the disk takes it. Return a descriptor that holds the file's lock where it can be had.

    ``lock``: the descriptor that an earlier call returned; the caller keeps it open.
    """
    with contextlib.suppress(OSError):  # a full disk keeps no record; the notice is sent all the same
        if lock is None:
            lock = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try_lock(lock)  # of a run that was requeued, a former sender may hold it yet
        os.write(lock, json.dumps(dict(facts), ensure_ascii=False).encode(errors="replace") + b"\n")
    return lock


def find_undelivered(directory: Path) -> list[str]:
    """Return the notices of the run in ``directory`` that never arrived, e.g. ``ended to ntfy.sh: HTTP 413``.

    Without those that are on their way, or that a target's own ceiling left out.
    """
    try:
        lines = read_regular_file(directory / RECORD, max_bytes=_MOST_BYTES).split(b"\n")
    except OSError:
        return []
    causes: dict[tuple[str, str, str], str] = {}
    for line in lines:
        try:
            facts = json.loads(line)
            key = (str(facts["target"]), str(facts["kind"]), str(facts["seq"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if facts.get("sent") or facts.get("left_out"):
            causes.pop(key, None)
        else:
            causes[key] = str(facts.get("cause") or "")
    if not all(causes.values()) and may_be_locked(directory / RECORD):  # its sender lives, and tries
        causes = {key: cause for key, cause in causes.items() if cause}
    return [f"{kind} to {target}: {cause or SENDER_DIED}" for (target, kind, _), cause in causes.items()]
