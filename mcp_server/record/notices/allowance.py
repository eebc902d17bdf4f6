"""How many notices a target still gets in this hour, shared by all runs of a state directory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from mcp_server.record.notices.target import Target
from mcp_server.system.files import read_regular_file, write_atomic
from mcp_server.system.lock_files import take_lock

_HOUR_S = 3600.0
_PATIENCE_S = 5.0  # with the lock, which is held for milliseconds


class Allowance:
    """Counts the notices to one target in the last hour. ``directory`` may be missing."""

    def __init__(self, directory: Path, target: Target) -> None:
        key = hashlib.sha256(f"{target.url}\0{target.command}".encode()).hexdigest()[:16]
        self._file, self._limit = directory / f"{key}.json", target.max_per_hour

    def take(self, unix_s: float) -> tuple[bool, int]:
        """Return whether a notice may be sent now, and how many were left out since the last one that was sent.

        Where the count cannot be kept, as on a full disk or while another process holds its lock, the notice is sent.
        """
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = take_lock(self._file.with_suffix(".lock"), _PATIENCE_S)
            if lock is None:
                return True, 0
            try:
                return self._take(unix_s)
            finally:
                os.close(lock)
        return True, 0

    def _take(self, unix_s: float) -> tuple[bool, int]:
        sent, left_out = self._read()
        sent = [at_s for at_s in sent if unix_s - _HOUR_S < at_s <= unix_s]
        may_send = len(sent) < self._limit
        facts = {"sent": [*sent, unix_s], "left_out": 0} if may_send else {"sent": sent, "left_out": left_out + 1}
        write_atomic(self._file, json.dumps(facts).encode(), mode=0o600)
        return may_send, left_out if may_send else left_out + 1

    def _read(self) -> tuple[list[float], int]:
        try:
            facts = json.loads(read_regular_file(self._file, follow_links=False))
            return [float(at_s) for at_s in facts["sent"]][-self._limit :], int(facts["left_out"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return [], 0
