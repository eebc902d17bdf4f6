"""Xid errors as the kernel logs them: what the driver reports of a GPU, for whoever may read the log."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

# 4,1203,5021345678,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.
_RECORD = re.compile(
    r"^\d+,\d+,(\d+),[^;]*;NVRM: Xid \((?:PCI:)?([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)[^)]*\): (\d+)",
    re.IGNORECASE | re.MULTILINE,
)
_PCI = re.compile(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)", re.IGNORECASE)
_MOST_BYTES = 8192  # of one record, says the kernel's documentation

Place = tuple[int, int, int]  # PCI domain, bus, device


@dataclass(frozen=True)
class Xid:
    """One error: of which GPU, by its place on the PCI bus, and when, in seconds since boot."""

    place: Place
    number: int
    at_s: float


def place(pci: str) -> Place | None:
    """Return where a PCI bus id such as ``00000000:3B:00.0`` is."""
    found = _PCI.match(pci)
    return (int(found[1], 16), int(found[2], 16), int(found[3], 16)) if found else None


def parse(log: str) -> list[Xid]:
    """Return the Xids in records of ``/dev/kmsg``, oldest first."""
    return [
        Xid((int(m[2], 16), int(m[3], 16), int(m[4], 16)), int(m[5]), int(m[1]) / 1e6) for m in _RECORD.finditer(log)
    ]


class KernelLog:
    """The kernel's log from now on, or with what it still holds. Unreadable: holds nothing."""

    def __init__(self, path: Path = Path("/dev/kmsg"), *, only_new: bool = False) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if only_new:
                os.lseek(self._fd, 0, os.SEEK_END)

    def xids(self, within_s: float | None = None) -> list[Xid]:
        """Return the Xids since the last call that are at most ``within_s`` old."""
        oldest_s = 0.0 if within_s is None else time.monotonic() - within_s
        return [xid for xid in parse(self._read()) if xid.at_s >= oldest_s]

    def _read(self) -> str:
        records = []
        while self._fd is not None:
            try:
                record = os.read(self._fd, _MOST_BYTES)  # one a call
            except OSError as error:
                if error.errno == errno.EPIPE:  # some were overwritten meanwhile
                    continue
                break
            if not record:
                break
            records.append(record.decode(errors="replace"))
        return "".join(records)
