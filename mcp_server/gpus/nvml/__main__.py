"""Asks NVML what the GPUs do: `python -I …/gpu.py [--every S] [--gpus UUID,…] [--near] [--since S] [--within S]`.

A program that prints one ``Snapshot`` a line, as JSON; once, or every S seconds until nobody reads any more. A process
of its own, since a call into the driver may hang in the kernel for ever, and a process can be left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

if not __package__:  # started by its path
    # Last: nothing that is installed beside the package may stand before the standard library.
    sys.path[0:1] = []
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from mcp_server.gpus.nvml import device as calls
from mcp_server.gpus.nvml.call_timeout import Caller, Hang
from mcp_server.gpus.nvml.device import Device
from mcp_server.gpus.nvml.kernel_log import KernelLog, place
from mcp_server.gpus.nvml.process_owner import Owner, owner
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.run_directory import now

_WITHIN_S = 9.5  # without persistence mode the driver starts every GPU anew
_CALL_S, _LOOK_S, _SHORTEST_S = 0.4, 1.3, 0.03
_LEAST_LOOK_S = 0.5  # is kept for looking when the start takes long
_BACK_S, _KEPT_S = 8.0, 6.0  # until a slow driver comes back, and how long it is kept started
_COMES_S = 2.0  # until the next of many slow answers
_OWNERS_S = 0.3
_LOG_S = 86400.0
_MOST_EVENTS = 64
_XID_CRITICAL = 0x8
_PR_SET_PDEATHSIG = 1

T = TypeVar("T")


class Driver:
    """NVML, asked by one thread at a time: old drivers are made for no more.

    ``within_s``: how long the start and the first look may take together.
    """

    def __init__(self, nvml: Any, wanted: list[str], within_s: float = _WITHIN_S) -> None:
        self.nvml, self._wanted = nvml, wanted
        self.devices: list[Device] = []
        self._version: str | None = None
        self._caller = Caller()
        self._hung: Caller | None = None  # in the start
        self._passwd: Caller | None = Caller()
        self._answered_by_s = time.monotonic() + within_s
        self._started_by_s = self._answered_by_s - min(_LEAST_LOOK_S, within_s / 3)
        self._until_s = self._started_by_s
        self._patience_s = _CALL_S
        self._events: Any = None

    def ask(self, call: Callable[[], T], patience_s: float | None = None) -> T:
        """Make one call; without ``patience_s``, half of what is left: the others shall have theirs.

        Raises:
            Hang: it did not come back.
        """
        left_s = (self._until_s - time.monotonic()) / 2
        return self._caller.ask(call, patience_s or max(_SHORTEST_S, min(self._patience_s, left_s)))

    def open(self) -> Snapshot | None:
        """Start NVML; return the trouble where that cannot be done."""
        try:
            self.ask(self.nvml.nvmlInit, self._start_s())
            count = self.ask(self.nvml.nvmlDeviceGetCount, self._start_s())
        except Hang:
            self._hung = self._caller
            return Snapshot(now(), trouble="hangs", text=calls.HANGS)
        except Exception as error:  # whatever the binding raises
            return Snapshot(now(), None, (), *calls.trouble(calls.code(error), str(error)))
        try:
            self._version = self.ask(self.nvml.nvmlSystemGetDriverVersion)
        except Hang:
            self._caller = Caller()
        except Exception:  # the GPUs may be told all the same
            self._version = None
        self.devices = [Device(index) for index in range(count)]
        return None

    def _start_s(self) -> float:
        return max(_SHORTEST_S, self._started_by_s - time.monotonic())

    def linger(self) -> None:
        """Keep a driver started that was too slow to be told of, once it has come back.

        Without persistence mode it forgets its GPUs when nobody uses them, and would be as slow the next time.
        """
        stuck = [caller for caller in (self._hung, *(d.stuck for d in self.devices)) if caller]
        if stuck and stuck[-1].is_back(_BACK_S):
            time.sleep(_KEPT_S)

    def listen(self) -> None:
        """Have Xids told as events, where the driver does."""
        self._until_s = time.monotonic() + _LOOK_S
        try:
            self._events = self.ask(self.nvml.nvmlEventSetCreate)
            for device in self.devices:
                if device.handle is not None and not device.stuck:
                    with contextlib.suppress(self.nvml.NVMLError):
                        register = partial(self.nvml.nvmlDeviceRegisterEvents, device.handle)
                        self.ask(partial(register, _XID_CRITICAL, self._events))
                        device.events = True
        except Hang:
            self._deaf()
        except Exception:  # not offered; the kernel's log may tell
            self._events = None

    def _deaf(self) -> None:
        self._caller, self._events = Caller(), None
        for device in self.devices:
            device.events = False

    def hear(self) -> None:
        """Take note of the Xids that came as events."""
        self._until_s = time.monotonic() + _LOOK_S
        by_handle = {_address(d.handle): d for d in self.devices if d.events}
        try:
            for _ in range(_MOST_EVENTS if self._events is not None else 0):
                event = self.ask(lambda: self.nvml.nvmlEventSetWait_v2(self._events, 0))
                if (device := by_handle.get(_address(event.device))) is not None:
                    device.xids.append(int(event.eventData))
        except Hang:
            self._deaf()
        except Exception as error:  # a time-out: no more events
            if calls.code(error) != calls.TIMEOUT:
                self._deaf()

    def read_log(self, log: KernelLog, within_s: float | None) -> None:
        """Take note of the Xids in the kernel's log, of the GPUs that tell them in no other way."""
        places = {place(d.facts.get("pci", "")): d for d in self.devices if not d.events}
        for xid in log.xids(within_s):
            if xid.place in places:
                places[xid.place].xids.append(xid.number)

    def look(self) -> None:
        """Ask of every GPU."""
        now_s, self._patience_s = time.monotonic(), _CALL_S
        whole_s = self._answered_by_s if now_s < self._answered_by_s else math.inf  # of the first look
        self._until_s = min(now_s + _LOOK_S, whole_s)
        for device in self.devices:
            self._read(device)
        # A driver that starts every GPU anew is slow, and does not hang: while answers come, wait for the next.
        coming_s = 0.0
        while callers := [d.stuck for d in self.devices if d.stuck]:
            coming_s = min(coming_s, self._answered_by_s - time.monotonic())
            if not any(c.is_back() for c in callers) and not callers[0].is_back(coming_s):
                return
            coming_s = self._patience_s = _COMES_S
            self._until_s = self._answered_by_s
            if time.monotonic() > self._until_s:
                return
            for device in self.devices:
                if device.stuck:
                    self._read(device)

    def _read(self, device: Device) -> None:
        if device.stuck and not device.stuck.is_back():
            return
        device.forget()
        name = calls.HANDLE
        try:
            if device.handle is None:
                device.handle = self.ask(lambda: self.nvml.nvmlDeviceGetHandleByIndex(device.index))
            for name, read in calls.READS:
                self._note(device, name, read)
                if name == calls.UUID and not self._is_wanted(device):
                    return
        except Hang:
            device.failed[name] = "hangs"
            device.stuck, self._caller = self._caller, Caller()
        except Exception as error:  # told, and the next GPU asked
            device.lost = calls.code(error) == calls.LOST
            device.denied = calls.code(error) == calls.NO_PERMISSION
            device.failed[name] = calls.word(error)

    def _note(self, device: Device, name: str, read: calls.Read) -> None:
        try:
            device.facts |= self.ask(lambda: read(self.nvml, device.handle))
        except Hang:
            raise
        except Exception as error:
            if calls.code(error) == calls.LOST:
                raise
            device.failed[name] = calls.word(error)

    def _is_wanted(self, device: Device) -> bool:
        return not self._wanted or any(device.uuid.startswith(word) for word in self._wanted)

    def topology(self) -> None:
        """Ask how close the GPUs are to each other."""
        self._until_s = time.monotonic() + _LOOK_S
        there = [d for d in self.devices if d.handle is not None and not d.stuck and not d.lost]
        for number, one in enumerate(there):
            for other in there[:number]:
                with contextlib.suppress(self.nvml.NVMLError):
                    try:
                        found = self.ask(partial(calls.near, self.nvml, one.handle, other.handle))
                    except Hang:
                        self._caller = Caller()
                        return
                    one.near[other.uuid] = other.near[one.uuid] = found

    def snapshot(self) -> Snapshot:
        """Return what is known, each Xid once."""
        shown = [d for d in self.devices if self._is_wanted(d)]
        if shown and all(d.denied for d in shown):
            return Snapshot(now(), self._version, (), *calls.trouble(calls.NO_PERMISSION, ""))
        owners = self._owners({pid for d in shown for kind in calls.USES for pid in d.facts.get(kind, ())})
        gpus = tuple(device.gpu(owners) for device in shown)
        for device in self.devices:
            device.xids = []
        return Snapshot(now(), self._version, gpus)

    def _owners(self, pids: set[int]) -> dict[int, Owner]:
        """Look up whose the processes are; by number when the directory of users does not answer."""
        if self._passwd is not None:
            try:
                return self._passwd.ask(lambda: {pid: owner(pid) for pid in pids}, _OWNERS_S)
            except Hang:
                self._passwd = None
        return {pid: owner(pid, by_number=True) for pid in pids}


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def main() -> int:
    """Print the snapshots; return the exit status."""
    parser = argparse.ArgumentParser(prog="gpu.py")
    parser.add_argument("--every", type=float, metavar="S")
    parser.add_argument("--gpus", type=lambda text: [word for word in text.split(",") if word], default=[])
    parser.add_argument("--near", action="store_true")
    parser.add_argument("--since", type=float, default=_LOG_S, metavar="S")
    parser.add_argument("--within", type=float, default=_WITHIN_S, metavar="S")
    options = parser.parse_args()
    with contextlib.suppress(AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        return _print(Snapshot(now(), trouble="failed", text=f"nvidia-ml-py is not installed: {error}."))
    driver = Driver(nvml, options.gpus, options.within)
    if (trouble := driver.open()) is not None:
        status = _print(trouble)
        driver.linger()
        return status
    log = KernelLog(only_new=options.every is not None)
    driver.look()
    if options.near:
        driver.topology()
    if options.every is not None:
        driver.listen()
    while True:
        driver.hear()
        driver.read_log(log, options.since)
        status = _print(driver.snapshot())
        if options.every is None:
            driver.linger()
            return status
        if status or not _is_read_for(options.every):
            return status
        driver.look()


def _print(snapshot: Snapshot) -> int:
    try:
        print(json.dumps(snapshot.to_json(), separators=(",", ":")), flush=True)
    except BrokenPipeError:
        return 1
    return 0


def _is_read_for(seconds: float) -> bool:
    """Wait; False as soon as nobody reads any more."""
    poll = select.poll()
    poll.register(sys.stdout, 0)  # errors are told unasked
    return not poll.poll(seconds * 1000)


if __name__ == "__main__":
    os._exit(main())  # a thread that hangs must not be waited for
