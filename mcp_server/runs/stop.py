"""Stopping a run: confirmed first, then by its supervisor, or without it when that is dead or stuck."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_server.errors import ForeignRun, KillNotConfirmed, RunElsewhere
from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.snapshot import IDLE_MIB
from mcp_server.record.run_directory import now, write_json
from mcp_server.record.state import Run
from mcp_server.store.file_watch import Changes
from mcp_server.store.run_store import RunStore
from mcp_server.system import processes
from mcp_server.system.lock_files import is_locked
from mcp_server.system.stop_sequence import StopSequence, stop_stages
from mcp_server.views.run_status import Leftover

TOKEN_VALID_S = 600.0
# A living supervisor answers in milliseconds; one that is stopped or hangs never does.
_ANSWER_WITHIN_S = 3.0
_TICK_S = 0.05
_RELEASED_WITHIN_S = 5.0


@dataclass(frozen=True)
class _Grant:
    run_id: str
    attempt: int
    expires_s: float


class Confirmations:
    """Tokens that confirm one kill each: single use, bound to run and attempt, valid for 10 minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._grants: dict[str, _Grant] = {}

    def grant(self, run: Run) -> str:
        """Return a new token; an older one for the same run is void."""
        self._grants = {token: grant for token, grant in self._grants.items() if grant.run_id != run.run_id}
        token = secrets.token_urlsafe(9)
        self._grants[token] = _Grant(run.run_id, run.attempt, self._clock() + TOKEN_VALID_S)
        return token

    def redeem(self, token: str, run: Run) -> None:
        """Use a token up.

        Raises:
            KillNotConfirmed: it is unknown, used, expired, or for another run or attempt.
        """
        grant = self._grants.pop(token, None)
        if grant is None or grant.run_id != run.run_id:
            cause = "the confirm_token is unknown, used, or for another run"
        elif grant.attempt != run.attempt:
            cause = "the confirm_token was for an earlier attempt"
        elif self._clock() >= grant.expires_s:
            cause = "the confirm_token has expired (10 min)"
        else:
            return
        raise KillNotConfirmed(
            f"Kill not confirmed: {run.run_id!r} is still {run.state}; {cause}. "
            "Call kill_run without confirm_token for a new one."
        )


def check_owner(run: Run, caller: str, *, force: bool) -> None:
    """Refuse another owner's run.

    Raises:
        ForeignRun: ``caller`` does not own it and did not insist.
    """
    if run.spec.owner and run.spec.owner != caller and not force:
        raise ForeignRun(run.run_id, run.spec.owner, caller)


def facts(run: Run, leftovers: list[processes.Process]) -> str:
    """Return what whoever confirms should know; no elapsed time, so that a question stays the same question."""
    command = run.spec.command if isinstance(run.spec.command, str) else " ".join(run.spec.command)
    owner = run.spec.owner or "unknown"
    command = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in command)
    since = f", started {run.started_at}" if run.started_at else ""
    text = f"{run.run_id} ({run.state}, owner {owner}{since}): {command[:200]}"
    if leftovers:
        text += "; left-over processes: " + ", ".join(f"{p.pid} {processes.program_name(p)}" for p in leftovers[:10])
    return text


@dataclass(frozen=True)
class Stopped:
    """What came of a stop: the run afterwards, what was sent, and what is still there: nothing, usually.

    ``unsupervised``: there was no supervisor any more, whose descendants would have been all of it.
    """

    run: Run
    signals_sent: tuple[str, ...]
    survivors: tuple[Leftover, ...]
    unsupervised: bool = False

    @property
    def message(self) -> str:
        """What to say of it, with what could not be done or verified."""
        text = f"{self.run.run_id} was stopped"
        if self.survivors:
            text += f", but {len(self.survivors)} process(es) could not be stopped"
        if self.unsupervised:
            text += ". Its supervisor was dead: a daemon of it that had cleaned its environment could not be found"
        return f"{text}."


async def stop(run: Run, store: RunStore, changes: Changes, *, by: str, reason: str) -> Stopped:
    """Stop a run with everything it started, and verify. Call it only after confirmation.

    Raises:
        RunElsewhere: another host supervises it; nothing was signalled.
    """
    if not run.here:
        raise RunElsewhere(run.run_id, run.spec.host)
    rundir = store.rundir(run.run_id)
    request = {"by": by, "reason": reason, "at": now()}
    if is_locked(rundir.lock):
        with contextlib.suppress(OSError):  # a full disk: the signal alone stops it too
            write_json(rundir.stop, request)
        with changes.of([rundir.path]) as ticket:
            # One that has not started its command yet reads the request by itself, or tells its number soon.
            await _within(_ANSWER_WITHIN_S, ticket.news, lambda: bool(store.observe(run.run_id).events))
            signal_supervisor(rundir.path, store.observe(run.run_id), signal.SIGTERM)
            if await _within(_ANSWER_WITHIN_S, ticket.news, lambda: _answered(store.observe(run.run_id))):
                longest_s = 2 * run.spec.stop_grace_s + 10
                await _within(longest_s, ticket.news, lambda: store.observe(run.run_id).ended)
        run = store.observe(run.run_id)
        if run.ended and run.state != "lost":
            end = run.events[-1]
            return Stopped(
                run,
                tuple(end.get("signals_sent") or ()),
                tuple(Leftover.model_validate(p) for p in end.get("survivors") or ()),
            )
    unsupervised = supervisor_of(rundir.path, run) is None
    sent, left = await _finish_job(rundir.path, run, store)
    carried_out = {} if left else {"carried_out": {"at": now(), "signals_sent": sent}}
    with contextlib.suppress(OSError):
        write_json(rundir.stop, {**request, **carried_out})
    survivors = tuple(Leftover(pid=p.pid, command=processes.program_name(p)) for p in left)
    return Stopped(store.observe(run.run_id), tuple(sent), survivors, unsupervised)


async def gpu_memory(run: Run, environ: Mapping[str, str]) -> tuple[bool, str] | None:
    """Look whether a stopped run's GPUs hold nothing of it any more, and say what they hold; None: nobody can tell.

    A driver may take seconds to give memory back, so it is given some.
    """
    if not any(not uuid.startswith("cpu-") for uuid in run.gpus):
        return None
    left: str | None = None
    with anyio.move_on_after(_RELEASED_WITHIN_S):
        while True:
            snapshot = await anyio.to_thread.run_sync(
                partial(query_gpus, sys.executable, environ), abandon_on_cancel=True
            )
            held = [gpu for gpu in snapshot.gpus if gpu.uuid in run.gpus]
            if len(held) < len(run.gpus) or any(gpu.memory_used_mib is None or gpu.lost or gpu.hangs for gpu in held):
                return None
            taken = [(gpu.index, gpu.memory_unattributed_mib or 0) for gpu in held]
            left = ", ".join(f"{mib:,} MiB of GPU {index}" for index, mib in taken if mib > IDLE_MIB)
            if not left and not any(p.run_id == run.run_id for gpu in held for p in gpu.processes):
                return True, ""
            await anyio.sleep(_TICK_S)
    if left is None:  # the driver has not answered
        return None
    return False, f"{left} are still held by no visible process." if left else "Its GPUs are still in use."


def _answered(run: Run) -> bool:
    return run.ended or any(event["kind"] == "stopping" for event in run.events)


async def _within(limit_s: float, news: Callable[[], object], done: Callable[[], bool]) -> bool:
    """Wait for ``done`` as events arrive; False when ``limit_s`` passed first."""
    with anyio.move_on_after(limit_s):
        while not done():
            await news()  # type: ignore[misc]
        return True
    return done()


def supervisor_of(path: Path, run: Run) -> processes.Process | None:
    """Return the run's supervisor: the process of the recorded number and start; None when it is gone."""
    pid, started = run.at_start.get("supervisor_pid"), run.at_start.get("supervisor_started")
    found = processes.find_process(pid) if isinstance(pid, int) else None
    if found is None or (started is None and path.name not in found.command):
        return None
    return found if started in (None, found.started) else None


def signal_supervisor(path: Path, run: Run, number: signal.Signals) -> None:
    """Wake the supervisor, if it is there."""
    if (supervisor := supervisor_of(path, run)) is not None:
        processes.send_signal(supervisor, number)


async def _finish_job(path: Path, run: Run, store: RunStore) -> tuple[list[str], list[processes.Process]]:
    """Stop everything of a run whose supervisor is dead or stuck; return signals sent and survivors."""
    stopping = StopSequence(stop_stages(run.spec.stop_grace_s))
    while True:
        supervisor = supervisor_of(path, run)
        living = _living(run, supervisor, store)
        if stopping.step(living, time.monotonic()):
            break
        await anyio.sleep(_TICK_S)
    sent = stopping.sent
    if supervisor is not None and processes.send_signal(supervisor, signal.SIGKILL):
        sent = [*sent, *([] if "SIGKILL" in sent else ["SIGKILL"])]
        with anyio.move_on_after(_ANSWER_WITHIN_S):  # one that waits for a disk cannot even die
            while processes.find_process(supervisor.pid) == supervisor:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(_TICK_S)
    return sent, _living(run, None, store)


def _living(run: Run, supervisor: processes.Process | None, store: RunStore) -> list[processes.Process]:
    """Return the run's processes: its supervisor's descendants, else what carries its id; never ourselves."""
    if supervisor is not None:
        found = processes.descendants(supervisor.pid)
    else:
        found = processes.find_by_variable("RUNWARD_RUN_ID", run.run_id) + store.leftovers(run)
    ourselves = set(processes.ancestors(os.getpid()))
    return [p for p in dict.fromkeys(found) if p.pid not in ourselves]
