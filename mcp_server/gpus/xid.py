"""The meaning of each Xid error of the NVIDIA driver, what causes it, and what the GPU needs before its next use.

Source: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, columns "Immediate Action" and "Trigger
Conditions". RESTART_APP and IGNORE need no recovery of the GPU, RESET_GPU a reset, RESTART_BM a reboot of the machine.
For 48 (WORKFLOW_XID_48) and 74 (WORKFLOW_NVLINK_ERR) it asks for a reset or a reboot as well. 8, 32, 61 and 69 may be
a fault of the hardware, the driver or the program (table of causes in https://docs.nvidia.com/deploy/xid-errors/).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

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
