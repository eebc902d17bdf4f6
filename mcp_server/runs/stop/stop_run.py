"""Stopping a run: by its supervisor, or by the backend where the supervisor is dead or stuck."""

import contextlib
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio

from mcp_server.backends.base import Backend, backend_of
from mcp_server.command.ssh_command import parse_ssh
from mcp_server.command.started import find_programs
from mcp_server.errors import HostUnreachable, RunNotFound, RunwardError, StopNotSeen, StopUnknown
from mcp_server.gpus.snapshot import IDLE_MIB
from mcp_server.record.ray.ray_job import FAR_SIDE
from mcp_server.record.run_directory import RunDir, expiry, now
from mcp_server.record.run_processes import RunProcess, supervisor_of
from mcp_server.record.service import parse_need
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, Run
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.text.formatting import join_some
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.threads import run_in_thread

# A living supervisor answers in milliseconds; one that is suspended or hangs never does.
_ANSWER_WITHIN_S = 3.0
# One that no signal reaches, as it is in another process namespace, looks for a request every 5 s.
_UNSEEN_ANSWER_WITHIN_S = 12.0
_EXPIRES_S = 60.0  # a request that its server could not withdraw
_SHORTAGE_S, _SHORTAGE_RETRY_S = 10.0, 0.25  # what the machine is out of may come back
_GPU_POLL_S = _UNRECORDED_POLL_S = 0.05
_GPU_RELEASED_WITHIN_S = 5.0
_AT_ONCE = 8
_MOST_NAMED = 10


@dataclass(frozen=True)
class StopResult:
    """Result of a stop: the run afterwards, the signals sent, and the processes that survived, usually none.

    ``far_side``: the host where the command may go on, so that nothing is known of survivors there. ``unsupervised``:
    the supervisor was dead, so a daemon that cleaned its environment cannot be found. ``is_pending``: the supervisor
    was paused, and dies of SIGKILL when it is resumed.
    """

    run: Run
    signals_sent: tuple[str, ...]
    survivors: tuple[RunProcess, ...]
    unsupervised: bool = False
    far_side: str = ""
    note: str = ""
    is_pending: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the run has ended, and nothing of it is known to live."""
        return self.run.ended and not self.survivors

    @property
    def message(self) -> str:
        """One sentence on the result, with what could not be done or verified."""
        if self.is_pending:
            names = ", ".join(f"{process.program} ({process.pid})" for process in self.survivors)
            return (
                f"{self.run.run_id} is not stopped yet, it is still {self.run.state}: {names or 'its supervisor'} is "
                "paused or waits for a disk, where SIGKILL does nothing. It ends, as killed, once it goes on. "
                f"{self.note}"
            ).strip()
        text = f"{self.run.run_id} {'was stopped' if self.run.ended else f'is still {self.run.state}'}"
        if self.far_side.startswith(FAR_SIDE):
            text += f" on this host. {self.far_side} has not confirmed the end of its job, which may go on: look there"
        elif self.far_side:
            text += (
                f" on this host. Its command runs on {self.far_side} by ssh without a terminal, and whether it goes on "
                f"there is unknown: look there, e.g. with {_find_login(self.run.spec, self.far_side)}"
            )
        if self.survivors:
            text += f", but {len(self.survivors)} process(es) could not be stopped"
            if self.run.gpus and not self.unsupervised:
                text += ": its leases are kept until they end"
        if self.unsupervised:
            text += ". Its supervisor was dead: a daemon of it that had cleaned its environment could not be found"
        return f"{text}. {self.note}".strip()


@dataclass
class Stops:
    """Several stops: results by run, ``gpu_memory`` (``check_gpu_memory``), and why others could not be stopped."""

    results: dict[str, StopResult] = field(default_factory=dict)
    gpu_memory: dict[str, tuple[bool, str]] = field(default_factory=dict)
    problems: dict[str, RunwardError] = field(default_factory=dict)

    @property
    def survivors(self) -> list[RunProcess]:
        """All processes that survived."""
        return [process for result in self.results.values() for process in result.survivors]


async def stop_runs(
    runs: Iterable[Run],
    store: RunStore,
    file_watch: FileWatch,
    *,
    by: str,
    reason: str,
    stopped_by: str,
    environ: Mapping[str, str] | None = None,
) -> Stops:
    """Stop confirmed runs side by side, each whatever becomes of others. ``environ``: also look at their GPUs."""
    stops, limiter = Stops(), anyio.CapacityLimiter(_AT_ONCE)

    async def stop(run: Run) -> None:
        async with limiter:
            try:
                result = await stop_run(run, store, file_watch, by=by, reason=reason, stopped_by=stopped_by)
                stops.results[run.run_id] = result
                memory = await check_gpu_memory(result.run, environ) if environ is not None else None
                if memory is not None:
                    stops.gpu_memory[run.run_id] = memory
            except RunwardError as error:
                stops.problems[run.run_id] = error

    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(stop, run)
    return stops


async def stop_run(
    run: Run, store: RunStore, file_watch: FileWatch, *, by: str, reason: str, stopped_by: str
) -> StopResult:
    """Stop a confirmed run with everything that it started, and verify. ``stopped_by``: `person` or `agent`.

    Raises RunElsewhere (nothing was signalled), StopNotSeen (no signal reaches its supervisor) or StopUnknown (no
    descriptor or memory is left to look for its processes).
    """
    give_up_s, reason = anyio.current_time() + _SHORTAGE_S, mask_secrets(reason)  # it is kept in files
    while True:
        try:
            return await _stop(run, store, file_watch, by=by, reason=reason, stopped_by=stopped_by)
        except OSError as error:
            if anyio.current_time() >= give_up_s:
                raise StopUnknown(run.run_id, error) from error
        await anyio.sleep(_SHORTAGE_RETRY_S)


async def _stop(
    run: Run, store: RunStore, file_watch: FileWatch, *, by: str, reason: str, stopped_by: str
) -> StopResult:
    backend = backend_of(run.spec)
    await run_in_thread(backend.check_stoppable, run.spec)
    try:
        return await _stop_reachable(backend, run, store, file_watch, by=by, reason=reason, stopped_by=stopped_by)
    except RunNotFound:  # its record was removed, perhaps just now
        return await _stop_unrecorded(backend, run)
    except HostUnreachable as error:
        raise HostUnreachable(
            error.host,
            error.why,
            f"Whether {run.run_id} was stopped is unknown: the request may have arrived.",
            "Call wait_run; once the host answers, kill_run again if it still runs.",
        ) from error


async def _stop_reachable(
    backend: Backend, run: Run, store: RunStore, file_watch: FileWatch, *, by: str, reason: str, stopped_by: str
) -> StopResult:
    directory, observe = await run_in_thread(store.run_directory, run.run_id), partial(store.observe, run.run_id)
    request: dict[str, Any] = {"by": by, "reason": reason, "stopped_by": stopped_by, "at": now()}
    request |= expiry(_EXPIRES_S)
    # A supervisor that comes meanwhile starts nothing, and one that a silent scheduler hides reads it by itself.
    if await run_in_thread(_may_come, directory, run):
        with contextlib.suppress(OSError):
            await run_in_thread(backend.put_stop_request, directory, run.spec, request)
    if await run_in_thread(_lives, directory, run):
        with contextlib.suppress(OSError):  # on a full disk the signal alone stops the run
            await run_in_thread(backend.put_stop_request, directory, run.spec, request)
        with file_watch.subscribe([directory.path]) as subscription:
            # A supervisor that has not started its command yet reads the request by itself, or soon records its number.
            await _wait_until(_ANSWER_WITHIN_S, subscription.next_change, lambda: bool(observe().events))
            reached = await backend.request_stop(directory, await run_in_thread(observe))
            patience_s = _ANSWER_WITHIN_S if reached else _UNSEEN_ANSWER_WITHIN_S
            if await _wait_until(patience_s, subscription.next_change, lambda: _has_answered(observe())):
                longest_s = 2 * run.spec.stop_grace_s + 10
                await _wait_until(longest_s, subscription.next_change, lambda: observe().ended)
            elif not reached and await run_in_thread(_lives, directory, run):
                with contextlib.suppress(OSError):
                    await run_in_thread(backend.put_stop_request, directory, run.spec, None)
                raise StopNotSeen(run.run_id)
        run = await run_in_thread(observe)
        # Without its events a record does not say what was sent and what survived: that is looked at again.
        if run.ended and run.events and (run.state != "lost" or run.may_go_on) and not _is_far_job(run):
            return _result_of_supervisor(run)
    elif not run.ended:
        seen = await run_in_thread(observe)
        # A shortage came between its supervisor's stop and the answer. A scheduler's word about a job is no event.
        if seen.state == "killed" and seen.events and seen.events[-1].get("state") == "killed":
            return _result_of_supervisor(seen)
        run = seen
    result = await backend.reap(directory, run)
    lives = await run_in_thread(_lives, directory, run)
    done = {"at": now(), "signals_sent": list(result.signals_sent)}
    outcome: dict[str, Any] = {}
    if lives and "SIGKILL" in result.signals_sent:  # a frozen supervisor dies of it as soon as it is resumed
        outcome = {"killed_paused": done}
    elif not lives and not result.survivors:
        outcome = {"carried_out": {**done, "far_side_ended": result.far_side_ended and _is_far_job(run)}}
    with contextlib.suppress(OSError):
        await run_in_thread(backend.put_stop_request, directory, run.spec, {**request, **outcome})
    run = await run_in_thread(observe)
    is_pending = "killed_paused" in outcome and not run.ended
    unsupervised = result.unsupervised and not (run.ended and not run.events)  # else its supervisor stopped it
    return StopResult(run, result.signals_sent, result.survivors, unsupervised, note=result.note, is_pending=is_pending)


async def _stop_unrecorded(backend: Backend, run: Run) -> StopResult:
    """Stop a run without a record, where nobody reads a request or an answer, by a signal to its supervisor."""
    directory = RunDir(Path(run.spec.run_dir))
    if await backend.request_stop(directory, run):
        with anyio.move_on_after(2 * run.spec.stop_grace_s + 10):
            while supervisor_of(directory.path, run) is not None:  # noqa: ASYNC110 - nothing announces its end
                await anyio.sleep(_UNRECORDED_POLL_S)
    result = await backend.reap(directory, run)
    is_over = supervisor_of(directory.path, run) is None and not result.survivors
    run = replace(run, state="killed" if is_over else run.state)
    return StopResult(run, result.signals_sent, result.survivors, note="Its record had been removed.")


async def check_gpu_memory(run: Run, environ: Mapping[str, str]) -> tuple[bool, str] | None:
    """Return whether a stopped run's GPUs are free of it within 5 s, and what they hold; None where unknown."""
    if not any(not uuid.startswith("cpu-") for uuid in run.gpus):
        return None
    memory_text: str | None = None
    with anyio.move_on_after(_GPU_RELEASED_WITHIN_S):
        while True:
            snapshot = (await run_in_thread(backend_of(run.spec).query_gpus, run.spec, environ)).snapshot
            gpus = [gpu for gpu in snapshot.devices if gpu.uuid in run.gpus]
            if len(gpus) < len(run.gpus) or any(gpu.memory_used_mib is None or gpu.lost or gpu.hangs for gpu in gpus):
                return None
            unseen = [(gpu.index, gpu.memory_unattributed_mib or 0) for gpu in gpus]
            memory_text = ", ".join(f"{mib:,} MiB of GPU {index}" for index, mib in unseen if mib > IDLE_MIB)
            if not memory_text and not any(p.run_id == run.run_id for gpu in gpus for p in gpu.processes):
                return True, ""
            await anyio.sleep(_GPU_POLL_S)
    if memory_text is None:  # the driver has not answered
        return None
    return (
        False,
        f"{memory_text} are still held by no visible process." if memory_text else "Its GPUs are still in use.",
    )


def _result_of_supervisor(run: Run) -> StopResult:
    end = run.events[-1]
    survivors: list[dict[str, Any]] = end.get("survivors") or []
    return StopResult(
        run,
        tuple(end.get("signals_sent") or ()),
        tuple(RunProcess(process["pid"], process["command"]) for process in survivors),
        far_side=str(end.get("far_side") or ""),
    )


def _is_far_job(run: Run) -> bool:
    """Return whether the command of a lost run is a job of Ray, which can say how it stands."""
    return run.may_go_on and bool(run.events) and str(run.events[-1].get("far_side")).startswith(FAR_SIDE)


def _find_login(spec: RunSpec, host: str) -> str:
    """Return the ssh command that reaches ``host`` as the run's command does, with its options."""
    for program in find_programs(spec.command):
        remote = parse_ssh(program.words)
        if remote is not None and remote.host == host:
            # A quoted ~ would be no home directory.
            login = " ".join(word if word[:2] == "~/" else shlex.quote(word) for word in remote.login)
            files = [option[2:] or value for option, value in pairwise(remote.login) if option[:2] in ("-F", "-i")]
            is_relative = any(not file.startswith(("/", "~")) for file in files)
            return f"`cd {shlex.quote(spec.cwd)} && {login}`" if is_relative else f"`{login}`"
    return f"`ssh {host}`"


def _lives(directory: RunDir, run: Run) -> bool:
    return backend_of(run.spec).liveness(directory, run.spec).liveness is Liveness.ALIVE


def _may_come(directory: RunDir, run: Run) -> bool:
    return backend_of(run.spec).liveness(directory, run.spec).liveness in (Liveness.PENDING, Liveness.UNREACHABLE)


def _has_answered(run: Run) -> bool:
    return run.ended or any(event["kind"] == "stopping" for event in run.events)


async def _wait_until(limit_s: float, next_change: Callable[[], Awaitable[None]], is_done: Callable[[], bool]) -> bool:
    """Check ``is_done`` after every change for at most ``limit_s``; return its last value."""
    with anyio.move_on_after(limit_s):
        while not await run_in_thread(is_done):
            await next_change()
        return True
    return False


def list_dependents(runs: Sequence[Run], store: RunStore) -> list[str]:
    """Return the ids of the living runs, without ``runs`` themselves, that stop when one of ``runs`` does."""
    own, dependents = {run.run_id for run in runs}, set[str]()
    for run in store.list_runs(RunQuery("live")):
        for text in run.spec.needs if run.run_id not in own else ():
            with contextlib.suppress(ValueError):
                dependents |= {run.run_id} if parse_need(text).run in own else set()
    return sorted(dependents)


def describe_dependents(run_ids: Sequence[str]) -> str:
    """Return what a question adds about the runs that stop as well, empty where there are none."""
    return f"; these need it and stop with it: {join_some(run_ids, _MOST_NAMED)}" if run_ids else ""
