"""The GPUs of a run: taken before its first attempt, in its turn, and held as long as the supervisor lives."""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcp_server.gpus.lease_holder import LeaseHolder
from mcp_server.gpus.leases import HeldLeases, Leases, QueueTicket, acquire_leases, lease_directory
from mcp_server.gpus.placement import PLACEHOLDERS, VISIBLE_DEVICES, Unavailable
from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.request import GpuRequest, parse_gpus, parse_requirements
from mcp_server.gpus.snapshot import Gpu, Snapshot
from mcp_server.record.handover import StoppedBeforeStart
from mcp_server.record.run_directory import now
from mcp_server.supervisor.control import Desk
from mcp_server.supervisor.gpu_allocation import Allotment, NotAllotted
from mcp_server.supervisor.start_command import supervisor
from mcp_server.system.lock_files import LeaseError

# How often whoever waits looks at the locks: the next in line more often than those behind.
_LOOK_S, _LOOK_BEHIND_S, _NEAR = 0.2, 1.0, 3
# The driver is asked again when a lease has changed hands, soon after that, for what its holder left may take a moment
# to go, and then more and more seldom: strangers come and go untold.
_ASK_SOON_S, _ASK_AGAIN_S = 1.0, 10.0


class Leased(Allotment):
    """What a run asked for, and what it has got."""

    def __init__(self, desk: Desk, env: Mapping[str, str], snapshot: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._desk, self._env = desk, env
        spec = desk.spec
        self._wanted = parse_gpus(spec.get("gpus"))
        self._require = parse_requirements(spec.get("require"))
        self._snapshot = Snapshot.from_json(snapshot) if snapshot else None
        self._leases = Leases(Path(spec.get("leases") or lease_directory(os.environ)))
        self._held: HeldLeases | None = None
        self._had: set[str] = set()

    @property
    def asked(self) -> bool:  # type: ignore[override]
        """Whether the launch said anything of GPUs."""
        return self._wanted is not None

    def obtain(self) -> None:
        """Take what was asked for, waiting in line if the run may.

        Raises:
            NotAllotted: it cannot be had.
            StoppedBeforeStart: somebody asked for a stop meanwhile.
        """
        if not self._wanted:
            return
        try:
            self._leases.prepare()
            if self._desk.spec.get("queue"):
                self._queue(self._wanted)
                return
            got = self._try(self._wanted, None)
        except LeaseError as error:
            raise NotAllotted(f"{error}", never=True) from error
        if isinstance(got, Unavailable):
            raise NotAllotted(got.text, never=got.never)
        self._take(got)

    def environment(self) -> dict[str, str]:
        """Return the variables that keep the command to what it has; UUIDs, since indices mean different things."""
        if self._wanted is None:
            return {}
        words = {"RUNWARD_GPUS": ",".join(self.uuids), "RUNWARD_GPU_INDICES": ",".join(map(str, self.indices))}
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE_DEVICES: ",".join(self.gpus), **words}

    def fill(self, text: str) -> str:
        """Return ``text`` with ``{gpus}`` and ``{gpu_indices}`` filled in; they need no quotes in any shell."""
        if self._wanted is None:
            return text
        gpus, indices = PLACEHOLDERS
        return text.replace(gpus, ",".join(self.uuids)).replace(indices, ",".join(map(str, self.indices)))

    def exchange(self, pinned: str | None) -> str | None:
        """Take other GPUs than the run has had, as many, and give up those; return them as CUDA takes them.

        ``pinned``: what an attempt without a lease was kept to. None: there are none, or it was to have exactly these.
        """
        if self._wanted is not None and not self._wanted.count:
            return None
        had = self.gpus or tuple(word for word in (pinned or "").split(",") if word)
        self._snapshot = self._ask()
        self._had |= {gpu.uuid for gpu in map(self._snapshot.find_gpu, had) if gpu is not None}
        if not self._had:
            return None
        try:
            self._leases.prepare()
            got = self._try(GpuRequest(count=len(had)), None)
        except LeaseError:
            return None
        if isinstance(got, Unavailable):
            return None
        self.release()
        self._take(got)
        return ",".join(self.uuids)

    def release(self) -> None:
        """Give everything back, before the run's end is told: whoever hears of it may want them."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def _queue(self, wanted: GpuRequest) -> None:
        ticket = QueueTicket(self._leases, self._holder(), wanted)
        told, asked_s, seen, again_s = 0, 0.0, None, _ASK_SOON_S
        try:
            while True:
                position, why = ticket.position, ""
                if position == 1:
                    holders = frozenset(self._leases.holders())
                    if holders != seen or time.monotonic() - asked_s >= again_s:
                        again_s = _ASK_SOON_S if holders != seen else min(2 * again_s, _ASK_AGAIN_S)
                        self._snapshot = None if asked_s else self._snapshot
                        got = self._in_turn(wanted, ticket)
                        asked_s, seen = time.monotonic(), holders
                        if not isinstance(got, Unavailable):
                            self._take(got)
                            return
                        why = got.text
                        if got.never:
                            raise NotAllotted(got.text, never=True)
                if position != told:
                    self._tell(position, why)
                    told = position
                if not self._desk.wait(_LOOK_S if position <= _NEAR else _LOOK_BEHIND_S):
                    raise StoppedBeforeStart
        finally:
            ticket.withdraw()

    def _in_turn(self, wanted: GpuRequest, ticket: QueueTicket) -> HeldLeases | Unavailable:
        """Try; leases that cannot be had for the moment, as while somebody holds their door, do not end the wait."""
        try:
            return self._try(wanted, ticket)
        except LeaseError as error:
            return Unavailable(f"{error}")

    def _tell(self, position: int, why: str) -> None:
        text = f"Waiting for GPUs, position {position}. {why}".strip()
        self._desk.say(text)
        self._desk.events.append("queued", text, position=position, at_start=supervisor())

    def _try(self, wanted: GpuRequest, ticket: QueueTicket | None) -> HeldLeases | Unavailable:
        if self._snapshot is None:
            self._snapshot = Snapshot() if wanted.cpu else self._ask()
        seen: Sequence[Gpu] = [gpu for gpu in self._snapshot.gpus if gpu.uuid not in self._had]
        snapshot = Snapshot(self._snapshot.at, self._snapshot.driver, tuple(seen), self._snapshot.trouble)
        slots = int(self._desk.spec.get("cpu_slots") or 0)
        return acquire_leases(self._leases, snapshot, slots, wanted, self._require, self._holder(), ticket)

    def _ask(self) -> Snapshot:
        return query_gpus(sys.executable, self._env, near=True)

    def _holder(self) -> LeaseHolder:
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
        return LeaseHolder(self._desk.rundir.run_id, str(self._desk.spec.get("owner") or ""), user, os.getpid(), now())

    def _take(self, held: HeldLeases) -> None:
        self._held, self.uuids, self.indices = held, held.uuids, held.indices
