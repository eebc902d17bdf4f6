"""Queries NVML: `python -I …/gpus/nvml [--every S] [--gpus UUID,…] [--near] [--since S] [--within S]`.

Prints one ``Snapshot`` a line, as JSON: once, or every S seconds until the reader closes the pipe. A separate process,
since a call into the driver may hang in the kernel for ever, and a process can be abandoned.
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
    # The package's directory goes last: packages installed next to it must not shadow the standard library.
    sys.path[0:1] = []
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from mcp_server.gpus.nvml import device as nvml_device
from mcp_server.gpus.nvml.device import Caller, CallTimeout, Device, ProcessOwner, find_owner
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.gpus.xid import KernelLog, parse_pci_address
from mcp_server.record.codec import encode
from mcp_server.record.run_directory import now
from mcp_server.system.own_process import GPU_SAMPLER, set_title

_WITHIN_S = 9.5  # without persistence mode the driver starts every GPU on first use
_CALL_S, _POLL_S, _SHORTEST_S = 0.4, 1.3, 0.03
_LEAST_POLL_S = 0.5  # reserved for the first poll when the start takes long
_RETURN_S, _KEPT_S = 8.0, 6.0  # until a slow driver returns, and how long it is kept started
_NEXT_ANSWER_S = 2.0  # until the next of many slow answers
_OWNERS_S = 0.3
_LOG_S = 86400.0
_MOST_EVENTS = 64
_XID_CRITICAL = 0x8
_PR_SET_PDEATHSIG = 1

T = TypeVar("T")


class Driver:
    """NVML, called by one thread at a time, since old drivers support no more.

    ``uuids``: UUIDs or prefixes of the GPUs to report; empty: all. ``within_s``: for the start and the first poll.
    """

    def __init__(self, nvml: Any, uuids: list[str], within_s: float = _WITHIN_S) -> None:
        self.nvml, self._uuids = nvml, uuids
        self.devices: list[Device] = []
        self._version: str | None = None
        self._caller = Caller()
        self._hung: Caller | None = None  # its call hung while NVML started
        self._user_lookup: Caller | None = Caller()
        self._answered_by_s = time.monotonic() + within_s
        self._started_by_s = self._answered_by_s - min(_LEAST_POLL_S, within_s / 3)
        self._until_s = self._started_by_s
        self._call_timeout_s = _CALL_S
        self._events: Any = None

    def call(self, function: Callable[[], T], timeout_s: float | None = None) -> T:
        """Make one call. Without ``timeout_s`` it gets half of the time that is left, to leave some for the others."""
        left_s = (self._until_s - time.monotonic()) / 2
        return self._caller.call(function, timeout_s or max(_SHORTEST_S, min(self._call_timeout_s, left_s)))

    def start(self) -> Snapshot | None:
        """Start NVML and list the GPUs, and return a snapshot of the trouble when that fails."""
        try:
            self.call(self.nvml.nvmlInit, self._start_timeout_s())
            count = self.call(self.nvml.nvmlDeviceGetCount, self._start_timeout_s())
        except CallTimeout:
            self._hung = self._caller
            return Snapshot(now(), trouble="hangs", text=nvml_device.HANGS)
        except Exception as error:  # whatever the binding raises
            trouble = nvml_device.explain_start_error(nvml_device.error_number(error), str(error))
            return Snapshot(now(), None, (), *trouble)
        try:
            self._version = self.call(self.nvml.nvmlSystemGetDriverVersion)
        except CallTimeout:
            self._caller = Caller()
        except Exception:  # the GPUs may answer without it
            self._version = None
        self.devices = [Device(index) for index in range(count)]
        return None

    def _start_timeout_s(self) -> float:
        return max(_SHORTEST_S, self._started_by_s - time.monotonic())

    def linger(self) -> None:
        """Wait for a driver that was too slow, and keep it started for a while.

        Without persistence mode a driver stops GPUs that no process uses, and would be as slow for the next query.
        """
        stuck = [caller for caller in (self._hung, *(d.stuck for d in self.devices)) if caller]
        if stuck and stuck[-1].has_returned(_RETURN_S):
            time.sleep(_KEPT_S)

    def register_events(self) -> None:
        """Subscribe to Xid events, if the driver offers them."""
        self._until_s = time.monotonic() + _POLL_S
        try:
            self._events = self.call(self.nvml.nvmlEventSetCreate)
            for device in self.devices:
                if device.handle is not None and not device.stuck:
                    with contextlib.suppress(self.nvml.NVMLError):
                        register = partial(self.nvml.nvmlDeviceRegisterEvents, device.handle)
                        self.call(partial(register, _XID_CRITICAL, self._events))
                        device.events = True
        except CallTimeout:
            self._drop_events()
        except Exception:  # not offered; the kernel's log may have them
            self._events = None

    def _drop_events(self) -> None:
        self._caller, self._events = Caller(), None
        for device in self.devices:
            device.events = False

    def read_events(self) -> None:
        """Add the Xid errors that arrived as events to their devices."""
        self._until_s = time.monotonic() + _POLL_S
        by_handle = {_address(d.handle): d for d in self.devices if d.events}
        try:
            for _ in range(_MOST_EVENTS if self._events is not None else 0):
                event = self.call(lambda: self.nvml.nvmlEventSetWait_v2(self._events, 0))
                if (device := by_handle.get(_address(event.device))) is not None:
                    device.xids.append(int(event.eventData))
        except CallTimeout:
            self._drop_events()
        except Exception as error:  # a time-out: no more events
            if nvml_device.error_number(error) != nvml_device.TIMEOUT:
                self._drop_events()

    def read_log(self, log: KernelLog, within_s: float | None) -> None:
        """Add the Xid errors in the kernel's log to the devices without events, at most ``within_s`` old."""
        devices = {parse_pci_address(d.facts.get("pci", "")): d for d in self.devices if not d.events}
        for xid in log.read_xids(within_s):
            if xid.address in devices:
                devices[xid.address].xids.append(xid.number)

    def poll(self) -> None:
        """Query every GPU."""
        now_s, self._call_timeout_s = time.monotonic(), _CALL_S
        first_until_s = self._answered_by_s if now_s < self._answered_by_s else math.inf
        self._until_s = min(now_s + _POLL_S, first_until_s)
        for device in self.devices:
            self._query(device)
        # A driver that starts every GPU on first use is slow, but does not hang: while answers arrive, wait for more.
        wait_s = 0.0
        while callers := [d.stuck for d in self.devices if d.stuck]:
            wait_s = min(wait_s, self._answered_by_s - time.monotonic())
            if not any(c.has_returned() for c in callers) and not callers[0].has_returned(wait_s):
                return
            wait_s = self._call_timeout_s = _NEXT_ANSWER_S
            self._until_s = self._answered_by_s
            if time.monotonic() > self._until_s:
                return
            for device in self.devices:
                if device.stuck:
                    self._query(device)

    def _query(self, device: Device) -> None:
        if device.stuck and not device.stuck.has_returned():
            return
        device.reset()
        name = nvml_device.HANDLE
        try:
            if device.handle is None:
                device.handle = self.call(lambda: self.nvml.nvmlDeviceGetHandleByIndex(device.index))
            for name, query in nvml_device.QUERIES:
                self._add_facts(device, name, query)
                if name == nvml_device.UUID and not self._is_selected(device):
                    return
        except CallTimeout:
            device.failed[name] = "hangs"
            device.stuck, self._caller = self._caller, Caller()
        except Exception as error:  # reported, and the next GPU is queried
            device.lost = nvml_device.error_number(error) == nvml_device.LOST
            device.denied = nvml_device.error_number(error) == nvml_device.NO_PERMISSION
            device.failed[name] = nvml_device.describe_error(error)

    def _add_facts(self, device: Device, name: str, query: nvml_device.Query) -> None:
        try:
            device.facts |= self.call(lambda: query(self.nvml, device.handle))
        except CallTimeout:
            raise
        except Exception as error:
            if nvml_device.error_number(error) == nvml_device.LOST:
                raise
            device.failed[name] = nvml_device.describe_error(error)

    def _is_selected(self, device: Device) -> bool:
        return not self._uuids or any(device.uuid.startswith(uuid) for uuid in self._uuids)

    def query_links(self) -> None:
        """Query the links between all GPUs that answer."""
        self._until_s = time.monotonic() + _POLL_S
        answering = [d for d in self.devices if d.handle is not None and not d.stuck and not d.lost]
        for number, one in enumerate(answering):
            for other in answering[:number]:
                with contextlib.suppress(self.nvml.NVMLError):
                    try:
                        link = self.call(partial(nvml_device.find_link, self.nvml, one.handle, other.handle))
                    except CallTimeout:
                        self._caller = Caller()
                        return
                    one.near[other.uuid] = other.near[one.uuid] = link

    def snapshot(self) -> Snapshot:
        """Return the facts of the last poll. Each Xid error is in one snapshot only."""
        selected = [d for d in self.devices if self._is_selected(d)]
        if selected and all(d.denied for d in selected):
            return Snapshot(now(), self._version, (), *nvml_device.explain_start_error(nvml_device.NO_PERMISSION, ""))
        owners = self._find_owners({pid for device in selected for pid in device.pids})
        gpus = tuple(device.to_gpu(owners) for device in selected)
        for device in self.devices:
            device.xids = []
        return Snapshot(now(), self._version, gpus)

    def _find_owners(self, pids: set[int]) -> dict[int, ProcessOwner]:
        """Return the owners of processes; with the numbers of users once the user directory does not answer."""
        if self._user_lookup is not None:
            try:
                return self._user_lookup.call(lambda: {pid: find_owner(pid) for pid in pids}, _OWNERS_S)
            except CallTimeout:
                self._user_lookup = None
        return {pid: find_owner(pid, by_number=True) for pid in pids}


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def main() -> int:
    """Print the snapshots and return the exit status."""
    parser = argparse.ArgumentParser(prog="gpus/nvml")
    parser.add_argument("--every", type=float, metavar="S")
    parser.add_argument("--gpus", type=lambda text: [word for word in text.split(",") if word], default=[])
    parser.add_argument("--near", action="store_true")
    parser.add_argument("--since", type=float, default=_LOG_S, metavar="S")
    parser.add_argument("--within", type=float, default=_WITHIN_S, metavar="S")
    options = parser.parse_args()
    set_title([GPU_SAMPLER])
    with contextlib.suppress(AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        return _print(Snapshot(now(), trouble="failed", text=f"nvidia-ml-py is not installed: {error}."))
    driver = Driver(nvml, options.gpus, options.within)
    if (trouble := driver.start()) is not None:
        status = _print(trouble)
        driver.linger()
        return status
    log = KernelLog(only_new=options.every is not None)
    driver.poll()
    if options.near:
        driver.query_links()
    if options.every is not None:
        driver.register_events()
    while True:
        driver.read_events()
        driver.read_log(log, options.since)
        status = _print(driver.snapshot())
        if options.every is None:
            driver.linger()
            return status
        if status or not _wait_for_reader(options.every):
            return status
        driver.poll()


def _print(snapshot: Snapshot) -> int:
    try:
        print(json.dumps(encode(snapshot), separators=(",", ":")), flush=True)
    except BrokenPipeError:
        return 1
    return 0


def _wait_for_reader(seconds: float) -> bool:
    """Wait; return False as soon as the reader closes the pipe."""
    poll = select.poll()
    poll.register(sys.stdout, 0)  # poll reports errors in any case
    return not poll.poll(seconds * 1000)


if __name__ == "__main__":
    os._exit(main())  # does not wait for a thread that hangs
