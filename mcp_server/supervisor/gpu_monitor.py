"""Watches the GPUs of one attempt by a sampler, a process of its own. What goes wrong in here never harms the run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mcp_server.gpus.deviations import UsageTracker
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.events import EventKind
from mcp_server.record.run_directory import now
from mcp_server.system.files import open_private

if TYPE_CHECKING:
    from mcp_server.supervisor.control import Desk

T = TypeVar("T")

_RESTART_S = 60.0
_SILENT_SAMPLES, _SILENT_S = 12, 10.0  # so many intervals, and a start


class SamplerLike(Protocol):
    """A child process that samples GPUs and tells them by a pipe."""

    @property
    def fd(self) -> int | None:
        """What becomes readable; None: it has died."""

    @property
    def pid(self) -> int | None:
        """The process."""

    def read(self) -> list[Snapshot] | None:
        """Return what has come; None: it has died."""

    def close(self) -> None:
        """Kill and reap it."""


class GpuWatch:
    """Turns samples into ``gpu_deviation`` events, figures, and a line a minute in ``record``. No method raises.

    Without ``uuids`` it does nothing. ``require``: what the run requires of its GPUs, of which ``max_sm_clock_mhz``
    and ``power_limit_w`` are held against the samples. ``tell(kind, text, facts)`` is called with ``gpu_deviation``,
    and once at most with ``sampler_lost``.
    """

    def __init__(
        self,
        python: str,
        env: Mapping[str, str],
        uuids: Sequence[str],
        *,
        every_s: float = 5.0,
        window_s: float = 120.0,
        require: Mapping[str, Any] | None = None,
        tell: Callable[[EventKind, str, dict[str, Any]], None],
        record: Path,
        sampler: Callable[[str, Mapping[str, str], Sequence[str], float], SamplerLike] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = partial(sampler or _sampler, python, env, uuids, every_s)
        limits = {name: (require or {}).get(name) for name in ("max_sm_clock_mhz", "power_limit_w")}
        self._usage = UsageTracker(uuids, window_s=window_s, **limits)
        self._every_s, self._tell, self._record, self._clock = every_s, tell, record, clock
        self._sampler: SamplerLike | None = None
        self._pid: int | None = None
        # When a living sampler will have been silent for too long, or a dead one is replaced.
        self._due_s: float | None = None
        self._told_lost, self._off = False, not uuids

    @classmethod
    def of(cls, desk: Desk, attempt: int, uuids: Sequence[str], env: Mapping[str, str]) -> GpuWatch:
        """Return the watch of an attempt, as its run's launch has set it."""
        spec = desk.spec
        return cls(
            sys.executable,
            env,
            uuids,
            every_s=spec.get("gpu_sample_s", 5.0),
            window_s=spec.get("gpu_window_s", 120.0),
            require=spec.get("require"),
            tell=lambda kind, text, facts: desk.events.append(kind, text, attempt=attempt, **facts),
            record=desk.rundir.attempt(attempt) / "gpus.jsonl",
        )

    @property
    def fd(self) -> int | None:
        """To be polled for input; None while there is no sampler."""
        return self._sampler.fd if self._sampler else None

    @property
    def pid(self) -> int | None:
        """The sampler: a child of the supervisor's that is no part of the run; even killed, it may linger."""
        return self._pid if self._lingers() else None

    @property
    def due_s(self) -> float | None:
        """When ``tick`` has something to do, in monotonic seconds."""
        return self._due_s

    def start(self) -> None:
        """Start the sampler."""
        self._safely(self._start)

    def read(self) -> None:
        """Take what the sampler tells; call it when ``fd`` is ready."""
        self._safely(self._read)

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        if self._due_s is not None and now_s >= self._due_s:
            self._safely(lambda: self._lose("It told nothing for too long.") if self._sampler else self._start())

    def figures(self) -> dict[str, dict[str, float]]:
        """Return, by UUID, what the samples of the whole attempt come to (see ``UsageTracker.figures``)."""
        return self._safely(self._usage.figures) or {}

    def idle_s(self) -> float | None:
        """Return for how long all GPUs have been at 0 %; None when they were never used, or no sample tells."""
        return self._safely(lambda: self._usage.idle_s(self._clock()))

    def close(self) -> None:
        """End the sampler, and watch no more; the figures remain."""
        self._off = True
        self._drop()

    def _safely(self, act: Callable[[], T]) -> T | None:
        try:
            return act()
        except Exception as error:
            self._off = True
            self._drop()
            self._tell_lost(f"{error!r}.")
            return None

    def _start(self) -> None:
        if self._off:
            return
        now_s = self._clock()
        if self._lingers():  # even SIGKILL does not end it, so that it hangs in the driver, as the next one would
            self._due_s = now_s + _RESTART_S
            return
        self._sampler = self._make()
        self._pid = self._sampler.pid
        if self._sampler.fd is None:
            self._lose("It could not be started.")
        else:
            self._due_s = now_s + self._silent_s

    def _read(self) -> None:
        if self._sampler is None:
            return
        told = self._sampler.read()
        died = told is None or self._sampler.fd is None
        snapshots, now_s = told or [], self._clock()
        for later, snapshot in zip(reversed(range(len(snapshots))), snapshots, strict=True):
            self._take(snapshot, now_s - later * self._every_s)
        if snapshots:
            self._due_s = now_s + self._silent_s
        if (minute := self._usage.minute_figures(now_s)) is not None:
            self._write({"at": now(), "gpus": minute})
        if died:
            self._lose("It ended.")

    @property
    def _silent_s(self) -> float:
        return _SILENT_SAMPLES * self._every_s + _SILENT_S

    def _take(self, snapshot: Snapshot, at_s: float) -> None:
        for deviation in self._usage.add_sample(snapshot, at_s):
            self._tell("gpu_deviation", deviation.text, {"what": deviation.what, **deviation.facts})
        if snapshot.trouble is not None and snapshot.trouble != "hangs":  # a hanging driver is a deviation
            self._tell_lost(f"{(snapshot.text or snapshot.trouble).rstrip('.')}.")

    def _lose(self, why: str) -> None:
        """Do without a sampler for a while."""
        self._drop()
        self._due_s = self._clock() + _RESTART_S
        self._tell_lost(why)

    def _tell_lost(self, why: str) -> None:
        if not self._told_lost:
            self._told_lost = True
            with contextlib.suppress(Exception):
                self._tell("sampler_lost", f"The sampler of the GPUs does not work: {why} The run goes on.", {})

    def _drop(self) -> None:
        sampler, self._sampler, self._due_s = self._sampler, None, None
        if sampler is not None:
            with contextlib.suppress(Exception):
                sampler.close()

    def _lingers(self) -> bool:
        """Whether the newest sampler is still there."""
        try:
            if self._pid is not None:
                os.kill(self._pid, 0)
        except OSError:
            self._pid = None
        return self._pid is not None

    def _write(self, facts: dict[str, Any]) -> None:
        """Add a line to the record; one that does not fit whole, as on a full disk, is taken back."""
        line = json.dumps(facts).encode() + b"\n"
        with contextlib.suppress(OSError), open(self._record, "ab", buffering=0, opener=open_private) as file:
            before = file.tell()
            written = 0
            try:
                written = file.write(line)
            finally:
                if written < len(line):
                    file.truncate(before)


def _sampler(python: str, env: Mapping[str, str], uuids: Sequence[str], every_s: float) -> SamplerLike:
    from mcp_server.gpus.query import GpuSampler  # noqa: PLC0415 - most runs on a laptop have no GPU to sample

    return GpuSampler(python, env, uuids, every_s)
