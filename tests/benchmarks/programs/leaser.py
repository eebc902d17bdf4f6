"""Launchers that request GPUs and die at any moment: `leaser.py storm|naive|handover DIRECTORY ROUNDS`. Prints JSON.

`storm` takes leases, `naive` checks which GPUs are in use and then starts, `handover` kills a holder again and again
while another process waits. A process that has a GPU also locks a byte for it in another file, which shows a second
holder.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

sys.path.append(str(Path(__file__).parents[3]))

from mcp_server.gpus.leases import HeldLeases, LeaseHolder, Leases, QueueTicket, acquire_leases
from mcp_server.gpus.placement import Unavailable
from mcp_server.gpus.request import GpuRequest, Requirements
from mcp_server.gpus.snapshot import Gpu, Snapshot

_GPUS, _LAUNCHERS = 8, 64
_MACHINE = Snapshot(gpus=tuple(Gpu(index, f"GPU-{index}") for index in range(_GPUS)))
# Some are killed so long after their start, others so long after they got their GPUs, in use or release.
_KILLED_EARLY, _EARLY_S = 0.3, 0.8
_KILLED_HOLDING, _HOLDING_S = 0.3, 0.045
_QUEUED, _NAMED = 0.9, 0.2
_USED_S = (0.005, 0.04)
_STARTS_S = 0.02  # until a training run is visible on its GPU; real ones take seconds
_NAP_S = 0.006  # times the position in the queue
_LOOK_S = 0.2  # as a supervisor that is next in the queue
_LONGEST_S = 120.0  # a holder is killed long before
_FLOCK = "hhqqi"  # struct flock of 64 bits


class Witness:
    """A file with one byte a GPU, independent of leases, and a log of all processes, in order."""

    def __init__(self, directory: Path) -> None:
        self._bytes = os.open(directory / "witness", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._log_fd = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def log(self, what: str, **facts: object) -> None:
        os.write(self._log_fd, json.dumps({"what": what, "pid": os.getpid(), **facts}).encode() + b"\n")

    def use(self, indices: Sequence[int], lasts_s: float) -> None:
        for index in indices:
            try:
                fcntl.lockf(self._bytes, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
            except OSError:
                self.log("double", gpu=index)
        time.sleep(lasts_s)
        for index in indices:
            fcntl.lockf(self._bytes, fcntl.LOCK_UN, 1, index)

    def is_used(self, index: int) -> bool:
        query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0)
        return bool(struct.unpack(_FLOCK, fcntl.fcntl(self._bytes, fcntl.F_GETLK, query))[0] != fcntl.F_UNLCK)


class Witnessed(Leases):
    """Logs each lease while the allocation mutex is held, so that the order is right."""

    def __init__(self, path: Path, witness: Witness) -> None:
        super().__init__(path)
        self._witness = witness
        self.request_facts: dict[str, object] = {}

    def take(self, uuids: Sequence[str], holder: LeaseHolder, indices: Sequence[int] = ()) -> HeldLeases | Unavailable:
        result = super().take(uuids, holder, indices)
        if isinstance(result, HeldLeases):
            self._witness.log("took", gpus=result.indices, **self.request_facts)
        return result


def lease_gpus(
    directory: Path, chance: random.Random, request: GpuRequest, *, queued: bool, nap_s: float = _NAP_S
) -> HeldLeases | None:
    """Lease the GPUs; ``queued``: wait for them."""
    witness = Witness(directory)
    leases = Witnessed(directory / "leases", witness)
    holder = LeaseHolder(f"run-{os.getpid()}", pid=os.getpid())
    ticket = QueueTicket(leases, holder, request) if queued else None
    number = ticket.number if ticket else 0
    leases.request_facts = {"number": number, "count": request.count, "ids": request.ids}
    if ticket:
        witness.log("drew", number=number)
    while True:
        position = ticket.position if ticket else 1
        if position == 1:
            result = acquire_leases(leases, _MACHINE, 0, request, Requirements(), holder, ticket)
            if isinstance(result, HeldLeases):
                return result
            if not ticket:
                return None
        time.sleep(nap_s * position * chance.uniform(0.5, 1))


def launch(directory: Path, chance: random.Random) -> None:
    """Run one launcher with leases."""
    ids = tuple(map(str, sorted(chance.sample(range(_GPUS), 2)))) if chance.random() < _NAMED else ()
    request = GpuRequest(0 if ids else chance.choice([1, 1, 1, 2, 3]), ids)
    held = lease_gpus(directory, chance, request, queued=chance.random() < _QUEUED)
    if held:
        Witness(directory).use(held.indices, chance.uniform(*_USED_S))
        held.release()


def launch_naively(directory: Path, chance: random.Random) -> None:
    """Run one launcher that checks which GPUs are in use."""
    witness = Witness(directory)
    count = chance.choice([1, 1, 1, 2, 3])
    while len(free := [index for index in range(_GPUS) if not witness.is_used(index)]) < count:
        time.sleep(chance.uniform(0.5, 1) * _STARTS_S)
    time.sleep(_STARTS_S)
    witness.log("took", gpus=free[:count], number=0, count=count, ids=())
    witness.use(free[:count], chance.uniform(*_USED_S))


def storm(directory: Path, rounds: int, *, naive: bool) -> None:
    """Keep 64 launchers going, and kill many of them at random moments."""
    witness, chance = Witness(directory), random.Random(1)
    living: dict[int, float] = {}  # when each is killed
    marked: set[int] = set()  # launchers to kill as holders
    begun, partial = 0, ""
    with (directory / "log").open() as log:
        while begun < rounds or living:
            while begun < rounds and len(living) < _LAUNCHERS:
                begun += 1
                pid = _fork(launch_naively if naive else launch, directory, random.Random(begun))
                early = chance.random() < _KILLED_EARLY
                living[pid] = time.monotonic() + chance.uniform(0, _EARLY_S) if early else math.inf
                if chance.random() < _KILLED_HOLDING:
                    marked.add(pid)
            *lines, partial = (partial + log.read()).split("\n")  # a line may be visible before it is whole
            for line in lines:
                entry = json.loads(line)
                if entry["what"] == "took" and entry["pid"] in marked & living.keys():
                    living[entry["pid"]] = time.monotonic() + chance.uniform(0, _HOLDING_S)
            for pid in [pid for pid, due_s in living.items() if time.monotonic() >= due_s]:
                os.kill(pid, signal.SIGKILL)
                living[pid] = math.inf
            while living and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                del living[ended[0]]
                how = "killed" if os.WIFSIGNALED(ended[1]) else "ended" if ended[1] == 0 else "failed"
                witness.log(how, who=ended[0])
            time.sleep(0.001)


def handover(directory: Path, rounds: int) -> list[dict[str, float]]:
    """Kill the holder of all GPUs while another process waits; return the times in s until free and until leased."""
    leases, chance = Leases(directory / "leases"), random.Random(2)
    times = []
    holder, reports = _waiter(directory)
    reports.readline()
    reports.readline()
    for _ in range(rounds):
        following, next_reports = _waiter(directory)
        next_reports.readline()
        time.sleep(chance.uniform(0, _LOOK_S))
        killed_s = time.monotonic()
        os.kill(holder, signal.SIGKILL)
        while any(each.pid == holder for each in leases.holders().values()):
            pass
        free_s = time.monotonic()
        got_s = float(next_reports.readline())
        os.waitpid(holder, 0)
        times.append({"free_s": free_s - killed_s, "got_s": got_s - killed_s})
        reports.close()
        holder, reports = following, next_reports
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    return times


def _waiter(directory: Path) -> tuple[int, TextIO]:
    """Start a process that waits for all GPUs; return its pid and the pipe on which it reports waiting and leasing."""
    read_fd, write_fd = os.pipe()

    def wait(directory: Path, chance: random.Random) -> None:
        os.write(write_fd, b"on\n")
        lease_gpus(directory, chance, GpuRequest(count=_GPUS), queued=True, nap_s=_LOOK_S)
        os.write(write_fd, b"%f\n" % time.monotonic())
        time.sleep(_LONGEST_S)

    pid = _fork(wait, directory, random.Random(3))
    os.close(write_fd)
    return pid, os.fdopen(read_fd)


def _fork(act: Callable[[Path, random.Random], None], directory: Path, chance: random.Random) -> int:
    if pid := os.fork():
        return pid
    status = 1
    try:
        act(directory, chance)
        status = 0
    finally:
        os._exit(status)


def main() -> None:
    """Run the benchmark that the arguments name."""
    what, directory, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    leases = Leases(directory / "leases")
    leases.prepare()
    times: list[dict[str, float]] = []
    if what == "handover":
        times = handover(directory, rounds)
    else:
        storm(directory, rounds, naive=what == "naive")
    result = acquire_leases(
        leases, _MACHINE, 0, GpuRequest(ids=("all",)), Requirements(), LeaseHolder("last", pid=os.getpid())
    )
    print(json.dumps({"times": times, "all_free": isinstance(result, HeldLeases)}))


if __name__ == "__main__":
    main()
