"""Monitors the GPUs of one attempt through a sampler, a process of its own. A failure in here never harms the run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_server.gpus.deviations import UsageTracker
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.events import EventKind
from mcp_server.record.run_directory import now
from mcp_server.system.files import append_whole, open_private

if TYPE_CHECKING:
    from mcp_server.gpus.query import GpuSampler
    from mcp_server.supervisor.control import ControlInputs

T = TypeVar("T")

_RESTART_S = 60.0
_SILENT_SAMPLES, _SILENT_S = 12, 10.0  # so many intervals, and a start


class GpuMonitor:
    """Turns samples into ``gpu_deviation`` events, figures, and a line a minute in ``record``. No method raises.

    Without ``uuids`` it does nothing. ``require`` holds the run's requirements, of which ``max_sm_clock_mhz`` and
    ``power_limit_w`` are compared with the samples. ``report(kind, text, facts)`` is called with ``gpu_deviation``,
    and at most once with ``sampler_lost``.
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
        report: Callable[[EventKind, str, dict[str, Any]], None],
        record: Path,
        sampler: Callable[[str, Mapping[str, str], Sequence[str], float], GpuSampler] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = partial(sampler or _start_sampler, python, env, uuids, every_s)
        limits = {name: (require or {}).get(name) for name in ("max_sm_clock_mhz", "power_limit_w")}
        self._usage = UsageTracker(uuids, window_s=window_s, **limits)
        self._every_s, self._report, self._record, self._clock = every_s, report, record, clock
        self._sampler: GpuSampler | None = None
        self._pid: int | None = None
        # When ``check_deadline`` has something to do, in monotonic seconds: a living sampler will have been silent for
        # too long, or a dead one is replaced.
        self.due_s: float | None = None
        self._reported_loss, self._off = False, not uuids
        self.imbalance: str | None = None  # the first that was reported, in one sentence

    @classmethod
    def for_attempt(
        cls, control: ControlInputs, attempt: int, uuids: Sequence[str], env: Mapping[str, str]
    ) -> GpuMonitor:
        """Return the monitor of an attempt, with the settings of its run."""
        spec = control.spec
        return cls(
            sys.executable,
            env,
            uuids,
            every_s=spec.gpu_sample_s,
            window_s=spec.gpu_window_s,
            require=spec.require,
            report=lambda kind, text, facts: control.events.append(kind, text, attempt=attempt, **facts),
            record=control.rundir.attempt(attempt) / "gpus.jsonl",
        )

    @property
    def fd(self) -> int | None:
        """The descriptor to poll for input, or None while there is no sampler."""
        return self._sampler.fd if self._sampler else None

    @property
    def pid(self) -> int | None:
        """The sampler's process, a child of the supervisor outside the run. It may linger after a kill."""
        return self._pid if self._lingers() else None

    def start(self) -> None:
        """Start the sampler."""
        self._safely(self._start)

    def read(self) -> None:
        """Read new samples. Call it when ``fd`` is readable."""
        self._safely(self._read)

    def check_deadline(self, now_s: float) -> None:
        """Replace a sampler that is silent for too long, or start the next one."""
        if self.due_s is not None and now_s >= self.due_s:
            self._safely(lambda: self._lose("It was silent for too long.") if self._sampler else self._start())

    def figures(self) -> dict[str, dict[str, float]]:
        """Return, by UUID, the figures of all samples of the attempt (see ``UsageTracker.figures``)."""
        return self._safely(self._usage.figures) or {}

    def idle_s(self) -> float | None:
        """Return for how long all GPUs have been at 0 %, or None when they were never used or it is unknown."""
        return self._safely(lambda: self._usage.idle_s(self._clock()))

    def close(self) -> None:
        """End the sampler for good. The figures remain."""
        self._off = True
        self._drop()

    def _safely(self, act: Callable[[], T]) -> T | None:
        try:
            return act()
        except Exception as error:
            self._off = True
            self._drop()
            self._report_loss(f"{error!r}.")
            return None

    def _start(self) -> None:
        if self._off:
            return
        now_s = self._clock()
        if self._lingers():  # not even SIGKILL ended it, so it hangs in the driver, and the next one would too
            self.due_s = now_s + _RESTART_S
            return
        self._sampler = self._make()
        self._pid = self._sampler.pid
        if self._sampler.fd is None:
            self._lose("It could not be started.")
        else:
            self.due_s = now_s + self._silent_s

    def _read(self) -> None:
        if self._sampler is None:
            return
        samples = self._sampler.read()
        died = samples is None or self._sampler.fd is None
        snapshots, now_s = samples or [], self._clock()
        for number, snapshot in enumerate(snapshots, 1):
            self._add(snapshot, now_s - (len(snapshots) - number) * self._every_s)
        if snapshots:
            self.due_s = now_s + self._silent_s
        if (minute := self._usage.minute_figures(now_s)) is not None:
            self._write({"at": now(), "gpus": minute})
        if died:
            self._lose("It ended.")

    @property
    def _silent_s(self) -> float:
        return _SILENT_SAMPLES * self._every_s + _SILENT_S

    def _add(self, snapshot: Snapshot, at_s: float) -> None:
        for deviation in self._usage.add_sample(snapshot, at_s):
            self._report("gpu_deviation", deviation.text, {"what": deviation.what, **deviation.facts})
            if deviation.what == "imbalance":
                self.imbalance = self.imbalance or deviation.text
        if snapshot.trouble is not None and snapshot.trouble != "hangs":  # a hanging driver is a deviation
            self._report_loss(f"{(snapshot.text or snapshot.trouble).rstrip('.')}.")

    def _lose(self, why: str) -> None:
        """Drop the sampler, and start another after a minute."""
        self._drop()
        self.due_s = self._clock() + _RESTART_S
        self._report_loss(why)

    def _report_loss(self, why: str) -> None:
        if not self._reported_loss:
            self._reported_loss = True
            with contextlib.suppress(Exception):
                self._report("sampler_lost", f"The sampler of the GPUs does not work: {why} The run goes on.", {})

    def _drop(self) -> None:
        sampler, self._sampler, self.due_s = self._sampler, None, None
        if sampler is not None:
            with contextlib.suppress(Exception):
                sampler.close()

    def _lingers(self) -> bool:
        try:
            if self._pid is not None:
                os.kill(self._pid, 0)
        except OSError:
            self._pid = None
        return self._pid is not None

    def _write(self, facts: dict[str, Any]) -> None:
        """Append a line to the record. A line that does not fit whole, as on a full disk, is removed again."""
        with contextlib.suppress(OSError), open(self._record, "ab", buffering=0, opener=open_private) as file:
            append_whole(file.fileno(), json.dumps(facts).encode() + b"\n")


def _start_sampler(python: str, env: Mapping[str, str], uuids: Sequence[str], every_s: float) -> GpuSampler:
    from mcp_server.gpus.query import GpuSampler  # noqa: PLC0415 - 4 ms, in this process alone

    return GpuSampler(python, env, uuids, every_s)
