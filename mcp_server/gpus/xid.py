"""The meaning of each Xid error of the NVIDIA driver (`xids.rows`), and those in the kernel's log."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_blocks

Recovery = Literal["none", "reset", "reboot"]


class XidMeaning(NamedTuple):
    """``cause`` program: usually an error of the program. corrected: the hardware has corrected it. fault: neither."""

    meaning: str
    cause: Literal["program", "corrected", "fault"] = "fault"
    recovery: Recovery = "none"


_UNKNOWN = XidMeaning("NVIDIA's list of Xid errors explains it")


@functools.cache
def load_xids() -> dict[int, XidMeaning]:
    """Return the known Xids by number."""
    rows: Iterable[dict[str, Any]] = map(dict, read_blocks("gpus/xids"))
    return {int(one["xid"]): XidMeaning(one["say"], one.get("kind", "fault"), one.get("needs", "none")) for one in rows}


def describe_xid(number: int) -> XidMeaning:
    """Return the entry of an Xid, and of an unknown one a fault that NVIDIA's list explains."""
    return load_xids().get(number, _UNKNOWN)


def worst_xid(numbers: Iterable[int]) -> int | None:
    """Return the first Xid after which the machine needs a reboot, else the GPU a reset. None: neither is needed."""
    severity: tuple[Recovery, ...] = ("reboot", "reset")
    numbers = list(numbers)
    return next((n for recovery in severity for n in numbers if describe_xid(n).recovery == recovery), None)


# 4,1203,5021345678,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.
_RECORD = compile_lazily(
    r"^\d+,\d+,(\d+),[^;]*;NVRM: Xid \((?:PCI:)?([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)[^)]*\): (\d+)",
    re.IGNORECASE | re.MULTILINE,
)
_PCI = compile_lazily(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)", re.IGNORECASE)
_MOST_BYTES = 8192  # of one record, says the kernel's documentation

PciAddress = tuple[int, int, int]  # domain, bus, device


@dataclass(frozen=True)
class XidRecord:
    """One Xid error: the GPU's address, the Xid, and its time in seconds since boot."""

    address: PciAddress
    number: int
    at_s: float


def parse_pci_address(pci: str) -> PciAddress | None:
    """Return the address in a PCI bus id such as ``00000000:3B:00.0``, or None when it is not one."""
    match = _PCI.match(pci)
    return (int(match[1], 16), int(match[2], 16), int(match[3], 16)) if match else None


def parse_xid_records(log: str) -> list[XidRecord]:
    """Return the Xid errors in records of ``/dev/kmsg``, oldest first."""
    return [
        XidRecord((int(m[2], 16), int(m[3], 16), int(m[4], 16)), int(m[5]), int(m[1]) / 1e6)
        for m in _RECORD.finditer(log)
    ]


class KernelLog:
    """The records of the kernel's log, or only those from now on. A log that cannot be read is empty."""

    def __init__(self, path: Path = Path("/dev/kmsg"), *, only_new: bool = False) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if only_new:
                os.lseek(self._fd, 0, os.SEEK_END)

    def read_xids(self, within_s: float | None = None) -> list[XidRecord]:
        """Return the Xid errors since the last call, at most ``within_s`` old."""
        oldest_s = 0.0 if within_s is None else time.monotonic() - within_s
        return [xid for xid in parse_xid_records(self._read_records()) if xid.at_s >= oldest_s]

    def _read_records(self) -> str:
        records = []
        while self._fd is not None:
            try:
                record = os.read(self._fd, _MOST_BYTES)  # one record a call
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten meanwhile
                    continue
                break
            if not record:
                break
            records.append(record.decode(errors="replace"))
        return "".join(records)
