"""The meaning of each Xid error of the NVIDIA driver, what causes it, and what the GPU needs before its next use.

Source: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, columns "Immediate Action" and "Trigger
Conditions". RESTART_APP and IGNORE need no recovery of the GPU, RESET_GPU a reset, RESTART_BM a reboot of the machine.
For 48 (WORKFLOW_XID_48) and 74 (WORKFLOW_NVLINK_ERR) it asks for a reset or a reboot as well. 8, 32, 61 and 69 may be
a fault of the hardware, the driver or the program (table of causes in https://docs.nvidia.com/deploy/xid-errors/).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from mcp_server.text.regex import compile_lazily

Recovery = Literal["none", "reset", "reboot"]


class XidMeaning(NamedTuple):
    """``cause`` program: usually an error of the program. corrected: the hardware has corrected it. fault: neither."""

    meaning: str
    cause: Literal["program", "corrected", "fault"] = "fault"
    recovery: Recovery = "none"


XIDS = {
    8: XidMeaning("a channel timed out"),
    13: XidMeaning("exception in a kernel, such as an illegal address or instruction", "program"),
    31: XidMeaning("invalid memory access (MMU fault)", "program"),
    32: XidMeaning("corrupted commands from the host"),
    43: XidMeaning("the work of a process was stopped", "program"),
    45: XidMeaning("clean-up after a killed or failed process", "program"),
    46: XidMeaning("the GPU stopped processing", recovery="reset"),
    48: XidMeaning("double-bit ECC error", recovery="reset"),
    61: XidMeaning("breakpoint of the power controller"),
    62: XidMeaning("the power controller halted", recovery="reset"),
    63: XidMeaning("memory row remapped or page retired", "corrected"),
    64: XidMeaning("memory row could not be remapped or page not retired", recovery="reset"),
    69: XidMeaning("the compute engine refused commands"),
    74: XidMeaning("NVLink error", recovery="reset"),
    79: XidMeaning("fallen off the bus", recovery="reboot"),
    92: XidMeaning("many single-bit ECC errors", "corrected"),
    94: XidMeaning("ECC error, contained in one process"),
    95: XidMeaning("ECC error, not contained", recovery="reset"),
    109: XidMeaning("switching between processes timed out", recovery="reset"),
    110: XidMeaning("security fault", recovery="reset"),
    119: XidMeaning("the GPU's system processor does not answer", recovery="reset"),
    120: XidMeaning("error of the GPU's system processor", recovery="reset"),
    121: XidMeaning("corrected error of the link to the CPU", "corrected"),
    136: XidMeaning("training of an NVLink failed", recovery="reset"),
    140: XidMeaning("ECC error that was not corrected", recovery="reset"),
    143: XidMeaning("the GPU could not be initialised", recovery="reset"),
    # Not an error: a driver that logs it reports the action itself as the GPU's recovery action.
    154: XidMeaning("the recovery action that the driver asks for has changed"),
    155: XidMeaning("NVLink error found by software", recovery="reset"),
    156: XidMeaning("a faulty part of the GPU is to be retired", recovery="reset"),
    158: XidMeaning("fatal time-out of the GPU", recovery="reset"),
}
_UNKNOWN = XidMeaning("NVIDIA's list of Xid errors explains it")


def describe_xid(number: int) -> XidMeaning:
    """Return the entry of an Xid, and of an unknown one a fault that NVIDIA's list explains."""
    return XIDS.get(number, _UNKNOWN)


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
