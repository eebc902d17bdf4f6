"""Observes one attempt and reports its steps, stalls, errors and divergence as events.

An error in here never touches the run. Judging skips what it cannot read and goes on. After repeated errors it rests
for a minute, and an event says so.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from mcp_server.command.shell import parse
from mcp_server.record.exit_status import Ending, StopRequest
from mcp_server.record.script import AttemptInputs, command_text
from mcp_server.record.spec import RunSpec
from mcp_server.supervisor.control import ControlInputs
from mcp_server.supervisor.judging.bookkeeping import CpuUse, JudgingFaults, ProgressFile
from mcp_server.supervisor.judging.failure_facts import LINE_CHARS, describe_failure, mask_failure, mask_line
from mcp_server.system import processes
from mcp_server.system.time_bounds import within
from mcp_server.text.formatting import join_some
from mcp_server.text.regex import compile_lazily

if TYPE_CHECKING:
    from mcp_server.diagnosis.failure.diagnose import Diagnosis
    from mcp_server.diagnosis.live.divergence import Doubt
    from mcp_server.diagnosis.live.output_monitor import OutputEvent, OutputMonitor
    from mcp_server.record.curves.tails import CurveRow
    from mcp_server.supervisor.gpus.gpu_monitor import GpuMonitor

T = TypeVar("T")

_EXCEPTION = compile_lazily(
    r"(?:\[\w ]+\]:? ?)*[\w.]+(?:Error|Exception|Interrupt|Exit|Warning|Expired|NotFound)\b(?::|$)"
)

_REHEARSED_AFTER_S, _QUIET_S = 1.0, 0.1  # after the start: shorter runs need not pay for it
_UNFINISHED_S = 0.5  # until a line without an end is read
_SILENT_S = 10.0  # of silence, after which the processor time is measured
_STACK_CHARS = 2000
# Far above what either takes: a pattern of the user's could match for ever.
_FEED_LIMIT_S, _CHECK_LIMIT_S = 2.0, 20.0
# A burst of output takes up to 0.8 s to read. It is read in pieces, a few at a time: meanwhile the terminal, which
# buffers 12 KiB, would fill up, and the training would wait.
_PIECE_BYTES, _TURN_S = 4096, 0.001
_MOST_WAITS = 3
_PROCESS_STATES = {"S": "sleeps", "D": "waits for a device or a disk", "R": "runs", "T": "is stopped", "Z": "has ended"}
_START_CHARS = 20_000  # of the command and its variables


def _describe_start(spec: RunSpec, inputs: AttemptInputs) -> str:
    """Return the command of an attempt, and the variables that launch_run set, as a shell would show them."""
    variables = (f"{name}={value}" for name, value in spec.env.items())
    return "\n".join([command_text(spec, inputs), *variables])[:_START_CHARS]


class Observer:
    """Reads the output of an attempt, writes ``progress.json``, and appends events.

    ``redact`` masks secrets; ``search_path`` is the PATH in which py-spy is looked up.
    """

    def __init__(
        self,
        control: ControlInputs,
        number: int,
        living: Callable[[], list[processes.Process]],
        redact: Callable[[str], str] = str,
        search_path: str | None = None,
        gpu_monitor: GpuMonitor | None = None,
    ) -> None:
        self._spec, self._events, self._inputs = control.spec, control.events, AttemptInputs(control.spec.params)
        self._living, self._gpu_monitor = living, gpu_monitor
        self._redact, self._search_path = redact, search_path
        self._cwd = f"{os.path.realpath(control.spec.cwd or '/').rstrip('/')}/"
        self._progress_file = ProgressFile(control.rundir.progress(number))
        self._log_path = control.rundir.log(number)
        self._in_attempt = f" in attempt {number}" if number > 1 else ""
        self._monitor: OutputMonitor | None = None
        self._unread: deque[tuple[bytes, float]] = deque()  # pieces of output, and when each arrived
        self._unread_bytes, self._is_read_later = 0, False
        self._stop_on = frozenset((control.spec.recovery or {}).get("stop_on", ()))
        self._stop_request: StopRequest | None = None
        self.stopped_for: str | None = None  # the policy's reason to stop the attempt, a word of its ``stop_on``
        self._silence = self._silent_after = ""  # that of a stall, in words, and the last line before it
        # What the command prints while it is stopped answers signals: it is not news, and proves nothing.
        self._is_stopping = False
        self._stopping_from: int | None = None
        self._diverged_before_stop: str | None = None
        self._cpu_use = CpuUse()
        self._oom_kills = 0
        self._rehearsal_due_s: float | None = None
        self._postponed_s = 2 * _QUIET_S  # next time, if the command still prints
        self._fed_s = 0.0  # when output came last
        self._noted_checkpoint: str | None = None
        self._faults = JudgingFaults(control.events)
        # Of files, with two times of arrival, and who else may have written them.
        self._rows: deque[tuple[str, list[CurveRow], float, float, str]] = deque()
        self.list_empty_files: Callable[[], tuple[str, ...]] = tuple
        self.read_curves: Callable[[], None] = lambda: None  # before it is said that there is no progress
        # Called with each path that the output says it saved.
        self.on_checkpoint: Callable[[str], None] = lambda _: None

    def begin(self, inputs: AttemptInputs | None = None) -> None:
        """Load what reads the output of an attempt, by default the first. The command runs meanwhile, for 0.03 s."""
        self._inputs = inputs or self._inputs
        self._safely(self._load)

    @property
    def due_s(self) -> float | None:
        """When ``check_deadlines`` has something to do, in monotonic seconds."""
        if self._monitor is None:
            return None
        return self._faults.rests_until_s if self._faults.rests else self._earliest_due_s(self._monitor)

    @property
    def quiet_until_s(self) -> float | None:
        """Until when the newest output changes nothing, in monotonic seconds, or None: ``due_s`` may have changed."""
        due_s = self._progress_file.due_s if self._unread and self._is_read_later else None
        return due_s if due_s is not None and due_s > self._fed_s else None

    @property
    def step(self) -> int | None:
        """The newest training step."""
        return self._monitor.step if self._monitor else None

    @property
    def round(self) -> int:
        """The training of several in one run, from 1."""
        return self._monitor.round if self._monitor else 1

    @property
    def checkpoint(self) -> str | None:
        """The newest checkpoint that the output names."""
        return self._monitor.checkpoint if self._monitor else None

    def feed(self, data: bytes) -> None:
        """Take output, and read as much of it as a millisecond allows. The rest is read when ``due_s`` says so.

        The output of a healthy training is read when its progress is next written: reading each line as it comes takes
        a quarter of the time of watching.
        """
        at_s, monitor = time.monotonic(), self._monitor
        if monitor is None:
            return
        if self._faults.rests:
            monitor.skip_output(data, at_s)
            return
        self._fed_s = at_s
        self._unread.extend((data[at : at + _PIECE_BYTES], at_s) for at in range(0, len(data), _PIECE_BYTES))
        self._unread_bytes += len(data)
        self._progress_file.plan(at_s)
        self._is_read_later = self._may_be_read_later(monitor)
        if not self._is_read_later:
            self._safely(lambda: within(_FEED_LIMIT_S, self._read_pieces))

    def note_rows(self, path: str, rows: list[CurveRow], other: str) -> None:
        """Take what is new in a file with curves of the attempt, or of ``other`` too. May be called by any thread."""
        is_first = not self._rows
        self._rows.append((self._shorten(path), rows, time.monotonic(), time.time(), other))
        if is_first:
            os.kill(os.getpid(), signal.SIGCHLD)  # wakes the supervisor, which then finds ``due_s`` passed

    def _shorten(self, path: str) -> str:
        """Return a path as from the working directory, where it is below."""
        return path.removeprefix(self._cwd)

    def _may_be_read_later(self, monitor: OutputMonitor) -> bool:
        """Return whether unread output can change nothing before progress is written."""
        is_sound = not (monitor.suspect or monitor.divergence.is_proven)
        if monitor.first_step_s is None or not is_sound or monitor.stall_detector.is_stalled:
            return False
        return not self._is_stopping and self._unread_bytes <= _PIECE_BYTES

    def check_deadlines(self) -> StopRequest | None:
        """Act on deadlines that have passed and return the stop request of the recovery policy, if there is one."""
        if not self._faults.rests and (due_s := self.due_s) is not None and time.monotonic() >= due_s:
            self._safely(lambda: within(_CHECK_LIMIT_S, self._read_and_check))
        if self._gpu_monitor and self._gpu_monitor.imbalance and not self._is_stopping:
            self._request_stop("imbalance", self._gpu_monitor.imbalance.rstrip("."))
        return self._stop_request

    def look_now(self) -> None:
        """Read all output and write the progress: a reader waits for it."""
        if self._monitor is not None and not self._faults.rests and not self._is_stopping:
            self._safely(lambda: within(_CHECK_LIMIT_S, self._look))

    def read_end(self) -> None:
        """Read the output that is still unread and write the last progress. Call it before the end is reported."""
        self._safely(lambda: within(_CHECK_LIMIT_S, self._read_end))

    def failure(self, ending: Ending) -> Diagnosis | None:
        """Return why the attempt failed, or None when it did not."""
        failure = self._safely(
            lambda: within(_CHECK_LIMIT_S, lambda: self._examine(ending.exit_code, ending.signal, ended=True))
        )
        if failure and failure.kind == "other" and self._gpu_monitor and self.stopped_for == "imbalance":
            return replace(failure, line=self._gpu_monitor.imbalance or failure.line, line_number=None, is_last=False)
        return failure

    def hidden_failure(self) -> str | None:
        """Return what the output of a finished attempt says against its exit code of 0, or None: one sentence."""
        return self._safely(lambda: within(_CHECK_LIMIT_S, self._find_hidden_failure))

    def _find_hidden_failure(self) -> str | None:
        if self._log_path.stat().st_size == 0:
            return None
        failure, passed = self._examine(None, None), self._reader.passed_over
        if failure is not None:
            line, number = failure.line, failure.line_number
        elif passed is not None:
            line, number = passed.line, passed.number
        else:
            return None
        what = "An exception" if _EXCEPTION.match(line) else "A failure"
        where = "" if number is None else f" at line {number}"
        return f"{what} was printed{where}, although the exit code is 0: {mask_line(self._redact(line))[:LINE_CHARS]}"

    def note_stopping(self) -> None:
        """Note that the attempt is being stopped: from now on nothing is reported, and the log so far is diagnosed."""
        if self._is_stopping:
            return
        self._safely(lambda: within(_CHECK_LIMIT_S, lambda: self._read_pieces(math.inf)))
        self._is_stopping = True
        with contextlib.suppress(OSError):
            self._stopping_from = self._log_path.stat().st_size
        if self._monitor is not None and not self._monitor.divergence.recovered:
            self._diverged_before_stop = self._monitor.divergence.line

    def _safely(self, act: Callable[[], T]) -> T | None:
        try:
            return act()
        except Exception as error:
            if self._faults.note(error, is_loaded=self._monitor is not None):
                for data, at_s in self._unread:
                    self._reader.skip_output(data, at_s)
                self._unread.clear()
                self._unread_bytes = 0
            return None

    def _load(self) -> None:
        from mcp_server.diagnosis.live.output_monitor import OutputMonitor  # noqa: PLC0415 - 16 ms: the command runs meanwhile

        self._oom_kills = processes.oom_kills()
        if "mcp_server.diagnosis.log_file" not in sys.modules:  # else a starter has done it
            self._rehearsal_due_s = time.monotonic() + _REHEARSED_AFTER_S
        command = command_text(self._spec, self._inputs)
        self._monitor = OutputMonitor({**self._spec.facts(), "command": command}, time.monotonic())

    @property
    def _reader(self) -> OutputMonitor:
        if self._monitor is None:
            raise RuntimeError("the output patterns are not loaded")
        return self._monitor

    def _earliest_due_s(self, monitor: OutputMonitor) -> float | None:
        if self._rows or (self._unread and not self._is_read_later):
            return 0.0
        due_s = (monitor.next_check_s, self._progress_file.due_s, self._silence_due_s(monitor), self._rehearsal_due_s)
        return min((t for t in due_s if t is not None), default=None)

    def _silence_due_s(self, monitor: OutputMonitor) -> float | None:
        """Return when to measure the processor time from which a stall counts it: soon after the last progress."""
        last_s, stall_s = monitor.stall_detector.last_sign_s, monitor.stall_check_s
        if stall_s is None or self._cpu_use.has_measured_silence(last_s):
            return None
        return last_s + min(_SILENT_S, (stall_s - last_s) / 10)

    def _read_and_check(self) -> None:
        self._read_rows()
        self._read_pieces()
        if not self._unread:
            self._check()

    def _read_rows(self) -> None:
        while self._rows:
            for event in self._reader.read_rows(*self._rows.popleft()):
                self._report(event)
            self._stop_certain_divergence()
            self._progress_file.plan(time.monotonic())

    def _read_pieces(self, turn_s: float | None = None) -> None:
        if not self._unread:
            return
        self._is_read_later = False
        until_s = time.monotonic() + (_TURN_S if turn_s is None else turn_s)
        events: list[OutputEvent] = []
        while self._unread:
            data, at_s = self._unread.popleft()
            self._unread_bytes -= len(data)
            events += self._reader.read_output(data, at_s)
            # A divergence is looked up in the log, all of which must have been read by then.
            if time.monotonic() >= until_s and not any("divergence" in event.facts for event in events):
                break
        for event in events:
            self._report(event)
        self._stop_certain_divergence()
        if (checkpoint := self.checkpoint) is not None and checkpoint != self._noted_checkpoint:
            self._noted_checkpoint = checkpoint
            self.on_checkpoint(checkpoint)
        self._progress_file.plan(time.monotonic())

    def _report(self, event: OutputEvent) -> None:
        self._publish()  # first, because readers of the event read the progress next
        if self._is_stopping:
            return
        event = self._reader.renew(event)
        facts = dict(event.facts)
        if "divergence" in facts:
            facts["failure"] = describe_failure(self._examine(0, None, doubt=facts.pop("divergence")))
        self._events.append(event.kind, event.text, **facts)

    def _stop_certain_divergence(self) -> None:
        """Request the stop of a training that has diverged by two independent signs: one may be a mistake."""
        divergence = self._reader.divergence
        if divergence.is_certain and not self._is_stopping:
            self._request_stop("divergence", f"the training diverged. {divergence.proof.rstrip('.')}")

    def _check(self) -> None:
        now_s = time.monotonic()
        monitor = self._reader
        if self._progress_file.due_s is not None and now_s >= self._progress_file.due_s:
            self._write()
        if self._is_stopping:
            return
        if self._rehearsal_due_s is not None and now_s >= self._rehearsal_due_s:
            self._rehearse(now_s)
        if (silence_s := self._silence_due_s(monitor)) is not None and now_s >= silence_s:
            self._cpu_use.measure_silence(now_s)
        self._read_before_alarm(monitor, now_s)
        if monitor.check_first_step_timeout(now_s):
            self._on_first_step_timeout(now_s)
        if (due_s := monitor.stall_check_s) is not None and now_s >= due_s:
            idle = self._cpu_use.is_idle
            if monitor.stall_detector.detect_stall(now_s, idle):
                self._on_stall(now_s)
            elif not idle:
                self._cpu_use.measure()
        if monitor.suspect is not None:
            self._check_suspect(monitor, now_s)

    def _read_before_alarm(self, monitor: OutputMonitor, now_s: float) -> None:
        if (due_s := monitor.next_check_s) is not None and now_s >= due_s:
            self.read_curves()
            self._read_rows()

    def _rehearse(self, now_s: float) -> None:
        """Diagnose the log as if it had failed: that loads what the end needs, 0.08 s that its report need not wait."""
        if now_s - self._fed_s < _QUIET_S:  # a command that prints would wait for it
            self._rehearsal_due_s = now_s + self._postponed_s
            self._postponed_s *= 2
            return
        self._rehearsal_due_s = None
        self._examine(1, None)

    def _check_suspect(self, monitor: OutputMonitor, now_s: float) -> None:
        idle = self._cpu_use.is_idle
        if monitor.should_diagnose_suspect(now_s, idle=idle):
            failure = self._examine(None, None)
            remark = monitor.note_suspect_diagnosed(now_s, confirmed=failure is not None)
            if failure is not None:
                text = f"{failure.kind}: {failure.line[:LINE_CHARS]} (the process still runs, without progress)"
                text = f"{text} {remark}".strip()
                self._events.append("error_seen", text, failure=describe_failure(failure))
            return
        if not idle:  # the next check counts from here
            self._cpu_use.measure()

    def _on_first_step_timeout(self, now_s: float) -> None:
        is_idle, stall_s = self._cpu_use.is_idle, self._reader.stall_check_s
        waited_s = now_s - self._reader.started_s
        next_step = "read_log shows what it does" + ("" if is_idle else "; if it trains, first_step_pattern was needed")
        if stall_s is not None and self._spec.stall_timeout_s is not None and "stall" in self._stop_on:
            next_step += f"; after {max(0.0, stall_s - now_s):.0f} s more of silence the recovery policy stops it"
        then = self._describe_following("first_step_timeout", f"{next_step}.")
        idle = " It uses no processor time now." if is_idle else ""
        text = f"No training step seen for {waited_s:.0f} s{self._in_attempt}: {self._describe_looked_at()}.{idle}"
        text = f"{text} {self._last_line} {then}"
        self._events.append("first_step_timeout", text, then=then)
        self._request_stop("first_step_timeout", f"no training step came within {waited_s:.0f} s")

    def _describe_looked_at(self) -> str:
        """Return where a step was looked for, and what was found."""
        if self._reader.files.step is not None:
            return f"first_step_pattern has matched no line, while {self._reader.files.path} is at {self._reader.place}"
        found = self._reader.doubtful.describe() or self._describe_empty()
        return f"looked at its output, and {found or 'it has no curve files'}"

    def _describe_empty(self) -> str:
        return "; ".join(f"{self._shorten(path)}: nothing written yet" for path in self.list_empty_files())

    def _on_stall(self, now_s: float) -> None:
        monitor = self._reader
        since_s, used_s = self._cpu_use.since_silence()
        gap = monitor.stall_detector.describe_gap(monitor.step_s)
        usual = f"; usual is {gap}" if gap else ""
        place = f" after {monitor.place}" if monitor.place else ""
        self._silence = f"No progress for {now_s - monitor.stall_detector.last_sign_s:.0f} s{place}"
        self._silent_after = mask_line(monitor.newest_line)[:LINE_CHARS]
        living = self._living()
        stack = self._stack(living)
        idle_s = self._gpu_monitor.idle_s() if self._gpu_monitor else None
        waits = {f"{p.pid} {self._redact(p.name)}": processes.wait_channel(p.pid) for p in living[:8]}
        # What answers cut comes last.
        facts = [
            f"{self._silence}{self._in_attempt}{usual}.",
            _describe_waits(waits),
            f"Processor time used in the last {now_s - since_s:.0f} s: {used_s:.1f} s.",
            f"Its GPUs have been idle for {idle_s:.0f} s." if idle_s else "",
            self._last_line,
            monitor.stall_detector.report_limit.remark,
        ]
        text = " ".join(filter(None, facts))
        then = self._describe_following("stall", "read_log shows its last lines; kill_run stops it.")
        self._events.append(
            "stalled", f"{text} {then}", then=then, cpu_used_s=round(used_s, 2), waits_in=waits, stack=stack
        )
        self._request_stop("stall", "it made no progress any more")

    def _stack(self, living: list[processes.Process]) -> str | None:
        from mcp_server.supervisor.judging.python_stacks import dump_stack, find_printed_stack  # noqa: PLC0415 - 4 ms, where a run stalls

        stack = dump_stack(living, self._search_path)
        return self._redact(stack)[:_STACK_CHARS] if stack else find_printed_stack(self._log_path, _STACK_CHARS)

    def _describe_following(self, kind: str, what_to_do: str) -> str:
        if kind in self._stop_on:
            return "The recovery policy stops it now."
        return f"The run goes on: {what_to_do}"

    def _request_stop(self, kind: str, why: str) -> None:
        """Request the attempt's stop, if the run's recovery policy stops failures of this kind."""
        if kind in self._stop_on and self._stop_request is None:
            self.stopped_for, self._stop_request = kind, StopRequest("killed", "recovery policy", why, "policy")

    @property
    def _last_line(self) -> str:
        return f"Last line: {mask_line(self._reader.newest_line)[:LINE_CHARS]!r}."

    def _examine(
        self, exit_code: int | None, signal: str | None, *, ended: bool = False, doubt: Doubt | None = None
    ) -> Diagnosis | None:
        """Diagnose the log as it is now. Before the end the exit code is None, or 0 to consider the metrics alone."""
        monitor = self._reader
        until, diverged = None, None if monitor.divergence.recovered else monitor.divergence.line
        since = (monitor.divergence.summary, monitor.divergence.first_line)
        if doubt is not None:
            diverged, since = doubt.line, (doubt.text, doubt.first_line)
        if ended and self.stopped_for is not None:  # the exit status is that of the supervisor's own signals
            exit_code, signal = (0 if self.stopped_for == "divergence" else None), None
            until, diverged = self._stopping_from, self._diverged_before_stop
        if exit_code == 0 and diverged is None and not (ended and self._reader.gave_up):
            return None
        from mcp_server.diagnosis.failure.diagnose import RunFacts  # noqa: PLC0415 - 11 ms, at an end
        from mcp_server.diagnosis.log_file import examine_log_end  # noqa: PLC0415 - 11 ms, at an end

        run_facts = RunFacts(
            oom_killed=ended and processes.oom_kills() > self._oom_kills,
            diverged=diverged,
            diverged_since=since,
            command=_describe_start(self._spec, self._inputs),
            cwd=self._spec.cwd,
            stopped_for=self.stopped_for if ended else None,
            is_own_code=parse(self._spec.command).is_one_python,
            silence=self._silence and f"{self._silence}. Last line: {self._silent_after}",
        )
        suspect = (monitor.suspect.offset, monitor.suspect.number) if monitor.suspect else None
        return mask_failure(
            examine_log_end(self._log_path, monitor.line_feeds, suspect, exit_code, signal, run_facts, until)
        )

    def _write(self) -> None:
        now_s = time.monotonic()
        self._progress_file.begin(now_s)
        self._cpu_use.measure_sometimes(now_s)
        for event in self._reader.read_unfinished_line(now_s):
            self._report(event)
        if self._reader.has_unread_line:
            self._progress_file.due_s = now_s + _UNFINISHED_S
        self._publish()

    def _look(self) -> None:
        self._read_rows()
        self._read_pieces(math.inf)
        self._progress_file.forget()
        self._write()

    def _read_end(self) -> None:
        self._read_rows()
        self._read_pieces(math.inf)
        for event in self._reader.read_end(time.monotonic()):
            self._report(event)
        self._publish()

    def _publish(self) -> None:
        facts = self._reader.progress_facts()
        if self.step is None and (empty := self._describe_empty()):
            facts["looked_at"] = empty
        if self._gpu_monitor and (used := self._gpu_monitor.figures()):
            facts = {**facts, "gpus": used}
        self._progress_file.write(facts)


def _describe_waits(waits: Mapping[str, str]) -> str:
    """Return what the newest processes wait for, from ``{"4711 python": "S futex_wait"}``; empty if unknown."""
    found: dict[str, None] = {}
    for process, wait in reversed(list(waits.items())):
        state, _, channel = wait.partition(" ")
        if doing := channel if channel.strip("0") else _PROCESS_STATES.get(state, ""):
            found[f"{process.partition(' ')[2]} {'in ' if doing is channel else ''}{doing}"] = None
    return f"It waits: {join_some(list(found), _MOST_WAITS)}." if found else ""
