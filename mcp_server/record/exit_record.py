"""``exit.json``: how an attempt ended, recorded even on a full disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mcp_server.record.run_directory import Facts
from mcp_server.system.files import sync_directory

# One block, filled with spaces when an attempt starts and overwritten in place when it ends: a full disk cannot keep
# the end from being recorded.
_RECORD_BYTES = 512


class ExitRecord:
    """The record of one attempt's end. Its disk space is reserved when the attempt starts.

    Raises:
        OSError: the space cannot be reserved.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(".exit.json")
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(self._fd, b" " * _RECORD_BYTES)
            os.fsync(self._fd)
        except OSError:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Give the record up: nothing started whose end it could keep."""
        os.close(self._fd)

    def write(self, value: Facts) -> None:
        """Write the end and publish the file under its name, atomically."""
        line = json.dumps(value, ensure_ascii=False).encode()
        os.pwrite(self._fd, line.ljust(_RECORD_BYTES - 1) + b"\n", 0)
        os.fsync(self._fd)
        os.close(self._fd)
        self._part.rename(self._path)
        sync_directory(self._path.parent)
