"""The GPUs or cpu slots of a run: leased before its first attempt and held until its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from mcp_server.gpus.leases import HeldLeases, LeaseHolder, Leases, QueueTicket, acquire_leases, lease_directory
from mcp_server.gpus.placement import Unavailable
from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.request import (
    DEVICE_ORDER,
    PLACEHOLDERS,
    VISIBLE_DEVICES,
    GpuRequest,
    chooses_itself,
    parse_gpus,
    parse_requirements,
)
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.codec import decode
from mcp_server.record.run_directory import now
from mcp_server.record.spec import RunSpec
from mcp_server.supervisor.control import ControlInputs, GpusUnavailable, StoppedBeforeStart
from mcp_server.supervisor.start_command import supervisor_identity
from mcp_server.system import lock_files, processes
from mcp_server.system.lock_files import LeaseError
from mcp_server.system.own_process import lease_keeper_title, set_title
from mcp_server.system.processes import Process

# How often a waiting run checks the locks: the first in the queue more often than those behind.
_CHECK_S, _CHECK_BEHIND_S, _NEAR = 0.1, 1.0, 3
# The driver is queried again when a lease has changed hands, soon after that, since what its holder left may take a
# moment to go, and then less and less often: processes without a lease come and go without notice.
_PIDS_NAMED = 5
_QUERY_SOON_S, _QUERY_LATER_S = 1.0, 30.0


class GpuAllocation:
    """GPUs, or cpu slots, that a run requested and holds by leases.

    A run launched without ``gpus`` inherits the launcher's ``CUDA_VISIBLE_DEVICES`` and holds nothing until a retry
    exchanges its GPUs. ``uuids`` and ``indices`` are those of the GPUs or cpu slots that the run holds.
    """

    def __init__(
        self, control: ControlInputs, env: Mapping[str, str], snapshot: Mapping[str, object] | None = None
    ) -> None:
        self.uuids: tuple[str, ...] = ()
        self.indices: tuple[int, ...] = ()
        self._control, self._env = control, env
        self._leases_gpus = control.spec.backend == RunSpec.backend  # else a scheduler gives them
        self._request = parse_gpus(control.spec.gpus) if self._leases_gpus else None
        self._require = parse_requirements(control.spec.require)
        self._snapshot = decode(Snapshot, snapshot) if snapshot else None
        self._leases = Leases(Path(control.spec.leases or lease_directory(os.environ)))
        self._own_leases: HeldLeases | None = None
        self._rejected: set[str] = set()  # UUIDs that the run gave up in an exchange

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of whole GPUs alone, without cpu slots and MIG instances, of which the driver reports little."""
        return tuple(uuid for uuid in self.uuids if not uuid.startswith(("cpu-", "MIG-")))

    @property
    def lease_fds(self) -> tuple[int, ...]:
        """Descriptors of the locks that are the leases."""
        return self._own_leases.fds if self._own_leases is not None else ()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that restrict the command to its GPUs. ``CUDA_VISIBLE_DEVICES`` is absent where it chooses itself.

        By index, in the order of the PCI bus, which is NVML's: vLLM, RLinf, robosuite and Ray actors call ``int`` on
        them. MIG instances have none, and are named by UUID.
        """
        if self._request is None:
            return {}
        visible = {} if self._chooses_itself else {VISIBLE_DEVICES: self._visible_devices}
        return {
            DEVICE_ORDER: "PCI_BUS_ID",
            **visible,
            "RUNWARD_GPUS": ",".join(self.uuids),
            "RUNWARD_GPU_INDICES": ",".join(map(str, self.indices)),
        }

    @property
    def _visible_devices(self) -> str:
        if self._request is not None and self._request.is_mig:
            return ",".join(self.uuids)
        return ",".join(map(str, self.indices)) if self.gpus else ""

    @property
    def _chooses_itself(self) -> bool:
        spec = self._control.spec
        return bool(self.gpus) and chooses_itself(spec.command, spec.env, spec.params, spec.resume_args)

    @property
    def placeholders(self) -> dict[str, str]:
        """The texts that replace ``{gpus}`` and ``{gpu_indices}`` in the command. They need no quotes in any shell."""
        if self._request is None:
            return {}
        gpus, indices = PLACEHOLDERS
        return {gpus: ",".join(self.uuids), indices: ",".join(map(str, self.indices))}

    def obtain(self) -> None:
        """Lease the requested GPUs or cpu slots. Wait in the queue if the launch allows it.

        Raises:
            GpusUnavailable: they are not available.
            StoppedBeforeStart: a stop request came meanwhile.
        """
        if not self._request:
            return
        try:
            self._leases.prepare()
            if self._control.spec.queue:
                self._wait_in_queue(self._request)
                return
            result = self._acquire(self._request, None)
        except LeaseError as error:
            raise GpusUnavailable(f"{error}", never=True) from error
        if isinstance(result, Unavailable):
            raise GpusUnavailable(f"{result.text} {result.remedy}".strip(), never=result.never)
        self._hold(result)

    def exchange(self, env: Mapping[str, str]) -> dict[str, str] | None:
        """Lease as many other GPUs, release the former ones, and return the variables that this changes in ``env``.

        ``env`` is the environment of the former attempt; without leases, its CUDA_VISIBLE_DEVICES names the former
        GPUs. Returns None when no others are free, or when the launch named exactly these GPUs.
        """
        if not self._leases_gpus or (self._request is not None and not self._request.count):
            return None
        former = self.gpus or tuple(word for word in env.get(VISIBLE_DEVICES, "").split(",") if word)
        self._snapshot = self._query()
        self._rejected |= {gpu.uuid for gpu in map(self._snapshot.find_gpu, former) if gpu is not None}
        if not self._rejected:
            return None
        try:
            self._leases.prepare()
            result = self._acquire(GpuRequest(count=len(former)), None)
        except LeaseError:
            return None
        if isinstance(result, Unavailable):
            return None
        self.release()
        self._hold(result)
        # Requested GPUs are in the environment of every attempt anyway.
        if self._request is not None:
            return {}
        return {DEVICE_ORDER: "PCI_BUS_ID", VISIBLE_DEVICES: self._visible_devices}

    def release(self) -> None:
        """Release all leases. Call it before the run's end is reported: readers of that event may want the GPUs."""
        if self._own_leases is not None:
            self._own_leases.release()
            self._own_leases = None

    def release_once_ended(self, survivors: Sequence[Process]) -> str:
        """Release all leases once these processes, which nothing could stop, have ended; return a sentence on that."""
        if self._own_leases is None or not self._own_leases.uuids:
            return ""

        what = "GPUs" if self.gpus else "cpu slots"
        try:
            keep_leases(self._own_leases, survivors, self._control.rundir.run_id)
        except OSError as error:
            self.release()
            return f"Its {what} are free, although it still has processes: {error.strerror}."
        pids = ", ".join(str(process.pid) for process in survivors[:_PIDS_NAMED])
        return f"Its {what} stay leased until its processes that could not be stopped have ended ({pids})."

    def _wait_in_queue(self, request: GpuRequest) -> None:
        ticket = QueueTicket(self._leases, self._holder(), request)
        reported, queried_s, known_holders, query_again_s = 0, 0.0, None, _QUERY_SOON_S
        try:
            while True:
                locks, looked_s = self._leases.list_locks(), time.monotonic()
                position, why = ticket.position, ""
                holders = frozenset(self._leases.holders()) if position == 1 else known_holders
                if position == 1 and (holders != known_holders or time.monotonic() - queried_s >= query_again_s):
                    changed = holders != known_holders
                    query_again_s = _QUERY_SOON_S if changed else min(2 * query_again_s, _QUERY_LATER_S)
                    self._snapshot = None if queried_s else self._snapshot
                    result = self._acquire_in_turn(request, ticket)
                    queried_s, known_holders = time.monotonic(), holders
                    if not isinstance(result, Unavailable):
                        self._hold(result)
                        return
                    why = f"{result.text} {result.remedy}".strip()
                    if result.never:
                        raise GpusUnavailable(result.text, never=True)
                if position != reported:
                    self._report_position(position, why)
                    reported = position
                # The kernel's list lacks the locks of other process namespaces, and of files that were removed.
                is_near = position <= _NEAR
                while time.monotonic() - looked_s < _CHECK_BEHIND_S:
                    if not self._control.wait(_CHECK_S if is_near else _CHECK_BEHIND_S):
                        raise StoppedBeforeStart
                    if is_near and self._leases.list_locks() != locks:
                        break
        finally:
            ticket.withdraw()

    def _acquire_in_turn(self, request: GpuRequest, ticket: QueueTicket) -> HeldLeases | Unavailable:
        """Acquire leases as the first in the queue. A lease error, such as a held mutex, does not end the wait."""
        try:
            return self._acquire(request, ticket)
        except LeaseError as error:
            return Unavailable(f"{error}")

    def _report_position(self, position: int, why: str) -> None:
        what = "cpu slots" if self._request and self._request.cpu else "GPUs"
        text = f"Waiting for {what}, position {position}. {why}".strip()
        self._control.show(text)
        self._control.events.append("queued", text, position=position, at_start=supervisor_identity())

    def _acquire(self, request: GpuRequest, ticket: QueueTicket | None) -> HeldLeases | Unavailable:
        if self._snapshot is None:
            self._snapshot = Snapshot() if request.cpu else self._query()
        candidates = tuple(gpu for gpu in self._snapshot.gpus if gpu.uuid not in self._rejected)
        snapshot = Snapshot(self._snapshot.at, self._snapshot.driver, candidates, self._snapshot.trouble)
        slots = self._control.spec.cpu_slots
        return acquire_leases(self._leases, snapshot, slots, request, self._require, self._holder(), ticket)

    def _query(self) -> Snapshot:
        return query_gpus(sys.executable, self._env, near=True)

    def _holder(self) -> LeaseHolder:
        user = lock_files.user_name(os.getuid())
        return LeaseHolder(self._control.rundir.run_id, self._control.spec.owner, user, os.getpid(), now())

    def _hold(self, leases: HeldLeases) -> None:
        self._own_leases, self.uuids, self.indices = leases, leases.uuids, leases.indices


_KEPT_CHECK_S = 1.0


class SlurmGpus(GpuAllocation):
    """The GPUs that Slurm gave to the job, in the place of leases: the node's CUDA_VISIBLE_DEVICES names them."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables beyond the node's own: a run that wants no GPU sees none."""
        return {VISIBLE_DEVICES: ""} if self._control.spec.gpus in (0, "0", "none", []) else {}

    @property
    def placeholders(self) -> dict[str, str]:
        """The texts that replace ``{gpus}`` and ``{gpu_indices}`` in the command."""
        return dict.fromkeys(PLACEHOLDERS, self._env.get(VISIBLE_DEVICES, ""))


def keep_leases(leases: HeldLeases, survivors: Sequence[processes.Process], run_id: str) -> None:
    """Hand ``leases`` over to a process that holds them until all ``survivors`` have ended, or the machine is rebooted.

    One that waits for a disk cannot be killed, and still computes.

    Raises:
        OSError: there are too many processes; ``leases`` is unchanged.
    """
    child = os.fork()
    if child == 0:
        _detach(leases.fds, survivors, run_id)
    os.waitpid(child, 0)
    leases.hand_over()


def wait_for_ends(survivors: Sequence[processes.Process], sleep: Callable[[float], None] = time.sleep) -> None:
    """Return once all of these processes have ended. Another one with the number of one of them does not count."""
    while any(processes.find_process(process.pid) == process for process in survivors):
        sleep(_KEPT_CHECK_S)


def _detach(fds: Sequence[int], survivors: Sequence[processes.Process], run_id: str) -> NoReturn:
    """Become a process of its own that has nothing of the supervisor but the leases."""
    try:
        processes.leave_parent(fds, ignored=[signal.SIGHUP])
        os.chdir("/")
        set_title(lease_keeper_title(run_id))
        wait_for_ends(survivors)
        for fd in fds:
            lock_files.write_text(fd, "")
    finally:
        os._exit(0)
