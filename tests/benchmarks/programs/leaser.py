"""Launchers that want GPUs, and die at any moment: `leaser.py storm|naive|handover DIRECTORY ROUNDS`. Tells in JSON.

`storm` asks for leases, `naive` looks which GPUs are in use and then starts, `handover` kills a holder again and again
while somebody waits. Everybody who has a GPU also locks a byte of a file of its own for it: a second holder shows.
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

from mcp_server.gpus.lease_holder import LeaseHolder
from mcp_server.gpus.leases import HeldLeases, Leases, QueueTicket, acquire_leases
from mcp_server.gpus.request import GpuRequest, Requirements
from mcp_server.gpus.snapshot import Gpu, Snapshot

_GPUS, _LAUNCHERS = 8, 64
_MACHINE = Snapshot(gpus=tuple(Gpu(index, f"GPU-{index}") for index in range(_GPUS)))
# Some are killed so long after they began, others so long after they got their GPUs, while they use or release them.
_KILLED_EARLY, _EARLY_S = 0.3, 0.8
_KILLED_HOLDING, _HOLDING_S = 0.3, 0.045
_QUEUED, _NAMED = 0.9, 0.2
_USED_S = (0.005, 0.04)
_STARTS_S = 0.02  # until a training can be seen on its GPU; real ones take seconds
_NAP_S = 0.006  # times the place in the queue
_LOOK_S = 0.2  # as a supervisor that is next looks
_LONGEST_S = 120.0  # a holder is killed long before
_FLOCK = "hhqqi"  # struct flock of 64 bits


class Witness:
    """One byte a GPU, in a file that knows nothing of leases; and what everybody tells, in order."""

    def __init__(self, directory: Path) -> None:
        self._bytes = os.open(directory / "witness", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def tell(self, what: str, **facts: object) -> None:
        os.write(self._log, json.dumps({"what": what, "pid": os.getpid(), **facts}).encode() + b"\n")

    def use(self, indices: Sequence[int], lasts_s: float) -> None:
        for index in indices:
            try:
                fcntl.lockf(self._bytes, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
            except OSError:
                self.tell("double", gpu=index)
        time.sleep(lasts_s)
        for index in indices:
            fcntl.lockf(self._bytes, fcntl.LOCK_UN, 1, index)

    def is_used(self, index: int) -> bool:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0)
        return bool(struct.unpack(_FLOCK, fcntl.fcntl(self._bytes, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)


class Witnessed(Leases):
    """Tells who took what, in the order in which it was taken: behind the door."""

    def __init__(self, path: Path, witness: Witness) -> None:
        super().__init__(path)
        self._witness = witness
        self.asks: dict[str, object] = {}

    def take(self, uuids: Sequence[str], holder: LeaseHolder, indices: Sequence[int] = ()) -> HeldLeases | str:
        got = super().take(uuids, holder, indices)
        if isinstance(got, HeldLeases):
            self._witness.tell("took", gpus=got.indices, **self.asks)
        return got


def ask(
    directory: Path, chance: random.Random, wanted: GpuRequest, *, queued: bool, nap_s: float = _NAP_S
) -> HeldLeases | None:
    """Get the GPUs, waiting in line if so wished."""
    witness = Witness(directory)
    leases = Witnessed(directory / "leases", witness)
    holder = LeaseHolder(f"run-{os.getpid()}", pid=os.getpid())
    place = QueueTicket(leases, holder, wanted) if queued else None
    number = place.number if place else 0
    leases.asks = {"number": number, "count": wanted.count, "ids": wanted.ids}
    if place:
        witness.tell("drew", number=number)
    while True:
        position = place.position if place else 1
        if position == 1:
            got = acquire_leases(leases, _MACHINE, 0, wanted, Requirements(), holder, place)
            if isinstance(got, HeldLeases):
                return got
            if not place:
                return None
        time.sleep(nap_s * position * chance.uniform(0.5, 1))


def launch(directory: Path, chance: random.Random) -> None:
    """Be a launcher for one round, by leases."""
    ids = tuple(map(str, sorted(chance.sample(range(_GPUS), 2)))) if chance.random() < _NAMED else ()
    wanted = GpuRequest(0 if ids else chance.choice([1, 1, 1, 2, 3]), ids)
    got = ask(directory, chance, wanted, queued=chance.random() < _QUEUED)
    if got:
        Witness(directory).use(got.indices, chance.uniform(*_USED_S))
        got.release()


def launch_naively(directory: Path, chance: random.Random) -> None:
    """Be a launcher for one round, by looking first."""
    witness = Witness(directory)
    count = chance.choice([1, 1, 1, 2, 3])
    while len(free := [index for index in range(_GPUS) if not witness.is_used(index)]) < count:
        time.sleep(chance.uniform(0.5, 1) * _STARTS_S)
    time.sleep(_STARTS_S)
    witness.tell("took", gpus=free[:count], number=0, count=count, ids=())
    witness.use(free[:count], chance.uniform(*_USED_S))


def storm(directory: Path, rounds: int, *, naive: bool) -> None:
    """Keep 64 launchers going, and kill many of them at random moments."""
    witness, chance = Witness(directory), random.Random(1)
    living: dict[int, float] = {}  # when each is to die
    marked: set[int] = set()  # who dies as a holder
    begun = 0
    with (directory / "log").open() as log:
        while begun < rounds or living:
            while begun < rounds and len(living) < _LAUNCHERS:
                begun += 1
                pid = _fork(launch_naively if naive else launch, directory, random.Random(begun))
                early = chance.random() < _KILLED_EARLY
                living[pid] = time.monotonic() + chance.uniform(0, _EARLY_S) if early else math.inf
                if chance.random() < _KILLED_HOLDING:
                    marked.add(pid)
            for line in log:
                told = json.loads(line)
                if told["what"] == "took" and told["pid"] in marked & living.keys():
                    living[told["pid"]] = time.monotonic() + chance.uniform(0, _HOLDING_S)
            for pid in [pid for pid, due_s in living.items() if time.monotonic() >= due_s]:
                os.kill(pid, signal.SIGKILL)
                living[pid] = math.inf
            while living and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                del living[ended[0]]
                how = "killed" if os.WIFSIGNALED(ended[1]) else "ended" if ended[1] == 0 else "failed"
                witness.tell(how, who=ended[0])
            time.sleep(0.001)


def handover(directory: Path, rounds: int) -> list[dict[str, float]]:
    """Kill whoever has all GPUs while another waits; return, in s, until they are free and until that one has them."""
    leases, chance = Leases(directory / "leases"), random.Random(2)
    times = []
    holder, heard = _waiter(directory)
    heard.readline()
    heard.readline()
    for _ in range(rounds):
        following, hears = _waiter(directory)
        hears.readline()
        time.sleep(chance.uniform(0, _LOOK_S))
        killed_s = time.monotonic()
        os.kill(holder, signal.SIGKILL)
        while any(who.pid == holder for who in leases.holders().values()):
            pass
        free_s = time.monotonic()
        got_s = float(hears.readline())
        os.waitpid(holder, 0)
        times.append({"free_s": free_s - killed_s, "got_s": got_s - killed_s})
        heard.close()
        holder, heard = following, hears
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    return times


def _waiter(directory: Path) -> tuple[int, TextIO]:
    """Start somebody who wants all GPUs; return its number, and where it says when it waits and when it has them."""
    read_fd, write_fd = os.pipe()

    def wait(directory: Path, chance: random.Random) -> None:
        os.write(write_fd, b"on\n")
        ask(directory, chance, GpuRequest(count=_GPUS), queued=True, nap_s=_LOOK_S)
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
    """Do what the arguments say, and tell of it."""
    what, directory, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    leases = Leases(directory / "leases")
    leases.prepare()
    times: list[dict[str, float]] = []
    if what == "handover":
        times = handover(directory, rounds)
    else:
        storm(directory, rounds, naive=what == "naive")
    got = acquire_leases(
        leases, _MACHINE, 0, GpuRequest(ids=("all",)), Requirements(), LeaseHolder("last", pid=os.getpid())
    )
    print(json.dumps({"times": times, "all_free": isinstance(got, HeldLeases)}))


if __name__ == "__main__":
    main()
