"""One attempt of a run: starts its command, relays its terminal, stops it on request, and records its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_server.command.ssh_command import parse_ssh
from mcp_server.record.exit_status import CTRL_C, Ending, ExitRecord, StopRequest, classify_ending
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import now
from mcp_server.record.script import AttemptInputs, attempt_arguments
from mcp_server.supervisor.code.code_keeper import CodeKeeper, start_code_keeper
from mcp_server.supervisor.control import ControlInputs, poll_until
from mcp_server.supervisor.judging.observer import Observer
from mcp_server.supervisor.start_command import attempt_identity, find_unproven_job, start_command
from mcp_server.supervisor.terminal import pty
from mcp_server.supervisor.terminal.output_log import OutputLog, OutputRelay, SharedLog
from mcp_server.system import processes
from mcp_server.system.processes import Stage, StopSequence, stop_stages
from mcp_server.text.formatting import parse_time
from mcp_server.text.redaction import Redactor

if TYPE_CHECKING:
    from mcp_server.supervisor.gpus.gpu_allocation import GpuAllocation
    from mcp_server.supervisor.gpus.gpu_monitor import GpuMonitor
    from mcp_server.supervisor.outputs.recorder import OutputRecorder

_TICK_S = 0.05  # while a stop is under way
# What a command leaves behind may be about to end by itself, such as a filter that still prints its last
# lines: it is let alone as long as it prints, within limits.
_SETTLE_S, _LONGEST_SETTLE_S = 0.25, 2.0
_SHORTAGE_S = 10.0  # an end is not delayed longer by what this machine is out of
_COMMAND_CHARS = 80  # of a leftover's command line
# An end so soon after Ctrl-C is that person's doing.
_INTERRUPT_S = 60.0
_LEFTOVER_STAGES = (Stage(signal.SIGTERM, 2.0), Stage(signal.SIGKILL, 3.0))


@dataclass(frozen=True)
class NextAttempt:
    """The next attempt: all its parameters, the variables that retries changed, and the pause before it."""

    params: dict[str, object]
    environment: dict[str, str]
    wait_s: float


class Attempt:
    """One attempt of a run. ``start`` starts its command. ``supervise`` returns when all its processes have ended."""

    def __init__(
        self,
        control: ControlInputs,
        handover: Handover,
        number: int,
        child: pty.Child,
        log: OutputLog,
        record: ExitRecord,
        gpu_monitor: GpuMonitor | None,
        started_at: str,
    ) -> None:
        self.control, self.number, self.started_at = control, number, started_at
        self.arguments: list[str] = []
        self.ended_s, self.ended_at = 0.0, ""
        self._handover, self._code_keeper = handover, CodeKeeper()
        self._events, self._child, self._record, self._gpu_monitor = control.events, child, record, gpu_monitor
        self._redactor = Redactor(handover.masked)
        search_path = handover.env.get("PATH")
        self.observer = Observer(control, number, self.living, self._redactor.text, search_path, gpu_monitor)
        self._outputs: OutputRecorder | None = None
        self.relay = OutputRelay(child.master_fd, log, self._redactor, control.pane, self._observe)
        self._wait_status: int | None = None
        self._stop_request: StopRequest | None = None
        self._stop_sequence: StopSequence | None = None
        self._interrupted_s: float | None = None
        self._far_side = ""
        self._leftovers: dict[processes.Process, str] = {}
        # The guard lives, and will report the command's end; once that is known it is released.
        self._is_guarded, self._is_released, self._is_acknowledged = True, False, False

    @classmethod
    def start(
        cls,
        control: ControlInputs,
        handover: Handover,
        allocation: GpuAllocation | None,
        number: int,
        inputs: AttemptInputs,
    ) -> Attempt:
        """Start the command as attempt ``number``, or raise as ``start_command`` does."""
        rundir, events = control.rundir, control.events
        rundir.attempt(number).parent.mkdir(mode=0o700, exist_ok=True)
        rundir.attempt(number).mkdir(mode=0o700, exist_ok=True)  # a start that met a full disk is made up
        log = (SharedLog if control.job else OutputLog)(
            rundir.log(number), lambda text: events.append("log_lost", text)
        )
        with contextlib.ExitStack() as undo:  # where nothing starts, no descriptor stays
            undo.callback(log.close)
            record = ExitRecord(rundir.exit(number))
            undo.callback(record.close)
            processes.become_subreaper()
            started_s, started_at = time.monotonic(), now()
            gpu_environment, lease_fds = (allocation.environment, allocation.lease_fds) if allocation else ({}, ())
            child = start_command(control, handover, number, inputs, gpu_environment, lease_fds)
            undo.pop_all()
        gpu_monitor = None
        if allocation and allocation.gpus:
            from mcp_server.supervisor.gpus.gpu_monitor import GpuMonitor  # noqa: PLC0415 - 10 ms, of runs with GPUs

            gpu_monitor = GpuMonitor.for_attempt(control, number, allocation.gpus, handover.env)
        attempt = cls(control, handover, number, child, log, record, gpu_monitor, started_at)
        attempt.arguments = attempt_arguments(control.spec, inputs)
        control.start_time_limit(started_s)
        events.append(
            "started",
            "The command runs." if number == 1 else f"Attempt {number} runs.",
            at=started_at,  # one moment for the record and the report of attempts
            attempt=number,
            arguments=attempt.arguments or None,
            environment=dict(inputs.environment) or None,
            gpus=(list(allocation.uuids) if allocation else None) or None,
            gpu_indices=(list(allocation.indices) if allocation else None) or None,
            at_start=attempt_identity(child),
        )
        child.let_go()  # last: what the record does not hold, a second launch would do again
        attempt._begin_observing(inputs)
        return attempt

    def _begin_observing(self, inputs: AttemptInputs) -> None:
        """Start all that works beside the command, as far as there are descriptors and processes for it."""
        begin: list[Callable[[], None]] = [lambda: self._keep_code(inputs.environment)]
        begin.append(lambda: self.observer.begin(inputs))
        begin += [self._gpu_monitor.start] if self._gpu_monitor else []
        begin.append(lambda: self._record_outputs(inputs))
        for each in begin:
            try:
                each()
            except OSError as error:  # noqa: PERF203 - the others are started all the same
                self._events.append("observer_error", f"Not all of the run is observed: {error}.")

    def _record_outputs(self, inputs: AttemptInputs) -> None:
        from mcp_server.supervisor.outputs.recorder import OutputRecorder  # noqa: PLC0415 - 7 ms: the command runs meanwhile

        def list_living() -> list[processes.Process]:  # a thread asks
            monitor_pid = self._gpu_monitor.pid if self._gpu_monitor else None
            living = processes.descendants_of_threads(os.getpid(), {monitor_pid, self._code_keeper.pid})
            return [p for p in living if p.pid != self._child.guard_pid]

        control = self.control
        command, path = inputs.fill_words(control.spec.command), control.rundir.outputs(self.number)
        try:
            outputs = OutputRecorder(
                path,
                list_living,
                command,
                control.spec.cwd,
                inputs.params,
                control.look_for_stop,
                self.observer.note_rows,
                parse_time(self.started_at).timestamp(),
            )
            outputs.start()
        except (OSError, RuntimeError) as error:  # neither a descriptor nor a thread is left
            self._events.append("observer_error", f"The files of the run are not recorded: {error}.")
            return
        self._outputs, self.observer.on_checkpoint = outputs, outputs.note_saved
        self.observer.list_empty_files = outputs.describe_empty
        self.observer.read_curves = lambda: outputs.read_curves(before_alarm=True)
        control.hears_stop_requests = lambda: self._outputs is not None and self._outputs.hears_stop_requests

    def _observe(self, output: bytes) -> None:
        self.observer.feed(output)
        if self._outputs:
            self._outputs.note_output()

    def _keep_code(self, changed: Mapping[str, str]) -> None:
        """Begin to keep what the attempt runs: a process of its own does, while the command runs."""
        spec, secrets, rundir = self.control.spec, self._handover.masked, self.control.rundir
        env = {**self._handover.env, **spec.env, **changed}

        def keep(on_done: Callable[[], None]) -> None:
            from mcp_server.supervisor.code.keep_code import KeptAttempt, keep_code  # noqa: PLC0415 - 23 ms, in that process alone

            keep_code(KeptAttempt(rundir, spec, self.number, self.arguments, env, secrets, self._child.pid), on_done)

        self._code_keeper = start_code_keeper(keep)

    # --- the loop

    def supervise(self) -> None:
        """Go on until the command and everything that it left behind have ended, then write the attempt's end."""
        os.kill(os.getpid(), signal.SIGCHLD)  # first check for an earlier stop request
        is_over = False
        while not is_over:
            try:
                is_over = self._is_over()
                if not is_over:
                    self._handle_next_inputs()
            except Exception as error:  # noqa: PERF203 - the loop must survive its own errors
                self.control.report_error(error)
        self._code_keeper.kill()
        self.relay.drain()
        self.relay.log.send()
        self._flush_outputs()
        self.observer.read_end()  # also of a run that was killed: its last step is a fact of the run
        if self._wait_status is None:  # not even SIGKILL ended it, or its guard was killed with the status
            self.ended_s, self.ended_at = time.monotonic(), now()
            self._write_record()

    def _handle_next_inputs(self) -> None:
        pane, monitor = self.control.pane, self._gpu_monitor
        for fd, _ in self._poll():
            if fd == self._child.master_fd:
                self.relay.read()
            elif pane and fd == pane.fd:
                self._forward_keys()
                pane.write()
            elif fd == self._child.status_fd:
                self._read_wait_status()
            elif monitor and fd == monitor.fd:
                monitor.read()
            else:
                self._handle_signals(self.control.handle(fd))
        self.control.check_deadlines()
        if monitor:
            monitor.check_deadline(time.monotonic())
        self._begin_requested_stop()

    def _poll(self) -> list[tuple[int, int]]:
        """Wait for inputs or the next deadline. Output that changes neither is passed on meanwhile."""
        poll, monitor = select.poll(), self._gpu_monitor
        self.control.register(poll)
        if self.relay.connected:
            poll.register(self._child.master_fd, select.POLLIN)
        if self._wait_status is None and self._is_guarded:
            poll.register(self._child.status_fd, select.POLLIN)
        if monitor and monitor.fd is not None:
            poll.register(monitor.fd, select.POLLIN)
        if self._stop_sequence or self._wait_status is not None:
            return poll.poll(round(_TICK_S * 1000))
        due_s = self.control.earliest_due_s(self.observer.due_s, monitor.due_s if monitor else None)
        while (ready := poll_until(poll, due_s)) == [(self._child.master_fd, select.POLLIN)]:
            self.relay.read()
            quiet_until_s = self.observer.quiet_until_s
            if quiet_until_s is None or (self.control.pane and self.control.pane.has_backlog):
                return []
            due_s = min(due_s, quiet_until_s)
        return ready

    def _begin_requested_stop(self) -> None:
        """Begin to stop when there is a stop request. One from outside takes precedence over the recovery policy's."""
        if self._wait_status is not None:
            if self.control.stop_request is not None and not self._is_acknowledged and self._stop_request is None:
                # Who stops it would take a supervisor that says nothing for one that hangs, and kill it.
                self._is_acknowledged = True
                text = f"Stopping: {self.control.stop_request.text}. Its command has ended; what it left is ended."
                self._events.append("stopping", text)
            return
        request = self.control.stop_request or self.control.job_stop or self._stop_request
        if request is None and self._stop_sequence is None:
            request = self.observer.check_deadlines()
        if request is not None and request is not self._stop_request:
            self._stop_request = request
            self._events.append("stopping", f"Stopping: {request.text}.")
            self.observer.note_stopping()
            self._far_side = self._far_side or self._find_far_side()
            if self._stop_sequence is None:
                job = self.control.job if request is self.control.job_stop else None
                stages = job.stop_stages() if job else stop_stages(self.control.spec.stop_grace_s)
                self._stop_sequence = StopSequence(stages)

    def _is_over(self) -> bool:
        """Send signals that are due and return whether the attempt's processes have ended or cannot be stopped."""
        if self._wait_status is None:
            if not self._is_guarded and not self._children():
                return True  # the guard was killed before it reported the status
            return self._stop_sequence is not None and self._continue_stop()
        if not self._has_settled():
            return False
        self._release_guard()
        if not self._code_keeper.end(time.monotonic()):
            return False
        if not processes.has_children():
            return True
        if self._stop_sequence is None:  # what a finished command leaves behind is stopped too, and reported
            self._stop_sequence = StopSequence(_LEFTOVER_STAGES)
        return self._continue_stop()

    def _continue_stop(self) -> bool:
        assert self._stop_sequence is not None  # noqa: S101
        living = self.living()
        is_done = self._stop_sequence.step(living, time.monotonic())
        # The guard reports the command's end a moment after the last process is gone.
        return is_done and (self._wait_status is not None or bool(living))

    def living(self) -> list[processes.Process]:
        """Return the living processes of the attempt."""
        living = processes.descendants(os.getpid(), self._helpers())
        return [p for p in living if p.pid != self._child.guard_pid]

    def _children(self) -> list[int]:
        helpers = self._helpers()
        return [pid for pid in processes.children(os.getpid()) if pid not in helpers]

    def _helpers(self) -> set[int | None]:
        """Return the pids of processes that work beside the attempt and are not the run's, nor is what they start."""
        monitor_pid = self._gpu_monitor.pid if self._gpu_monitor else None
        return {monitor_pid, self.control.helper_pid, self._code_keeper.living_pid}

    def _has_settled(self) -> bool:
        """Return whether only the guard is left of an ended command, or its leftovers had time to end by themselves."""
        if self._is_released or self._stop_request or self._children() in ([self._child.guard_pid], []):
            return True
        now_s = time.monotonic()
        quiet_s = now_s - max(self.ended_s, self.relay.last_output_s)
        return quiet_s >= _SETTLE_S or now_s - self.ended_s >= _LONGEST_SETTLE_S

    def _release_guard(self) -> None:
        """Record what the command left behind, and end its guard, which hangs up on them."""
        if self._is_released:
            return
        guard = self._child.guard_pid
        if self._stop_request is None and (self._children() != [guard] or processes.children(guard)):
            self._leftovers = {p: p.command for p in self.living()}
        self._is_released = True
        os.close(self._child.release_fd)
        processes.resume_process(self._child.guard_pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._child.guard_pid, 0)

    def _find_far_side(self) -> str:
        """Return the host on which a command continues without a terminal when its ssh is stopped, or empty."""
        for process in self.living():
            if process.name == "ssh":
                remote = parse_ssh(processes.command_words(process.pid))
                if remote is not None and not remote.has_terminal:
                    return self._redactor.text(remote.host)
        return ""

    # --- inputs

    def _forward_keys(self) -> None:
        event = self.relay.forward_keys()
        if event == "closed":
            self.control.on_pane_closed()
        elif event == "interrupt" and self._wait_status is None:
            self._interrupted_s = time.monotonic()
            self._events.append("interrupted", "A person at the terminal typed Ctrl-C.")
        elif event == "interrupt":  # the command has ended: no other attempt shall follow
            self.control.request_stop(CTRL_C)

    def _read_wait_status(self) -> None:
        if (status := pty.read_number(self._child.status_fd)) is not None:
            self._set_wait_status(status)
        else:
            self._is_guarded = False  # this process inherits the command, see _handle_signals

    def _set_wait_status(self, status: int) -> None:
        if self._wait_status is None:
            self._wait_status, self.ended_s, self.ended_at = status, time.monotonic(), now()
            self._write_record()
            if self._gpu_monitor:
                self._gpu_monitor.close()

    def _handle_signals(self, numbers: set[int]) -> None:
        self._begin_requested_stop()
        processes.resume_process(self._child.guard_pid)  # stopped together with its group, it could not report an end
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self._child.pid:  # its guard was killed, so this process inherited the command
                    self._set_wait_status(reaped[1])
        if signal.SIGUSR1 in numbers and self.control.job and self._wait_status is None:
            count = self.control.job.signal_checkpoint(self.living())
            text = "Slurm ends the job in about two minutes, at its time limit: "
            text += f"SIGUSR1 went to {count} processes that handle it." if count else "no process handles SIGUSR1."
            self._events.append("limit_near", text)
        if signal.SIGWINCH in numbers:  # from the terminal, or from a reader (see store/freshness)
            self.relay.resize_terminal()
            if self._outputs:
                self._outputs.read_curves()
            self.observer.look_now()

    # --- the end

    def _write_record(self) -> None:
        try:
            self._record.write(self.ending.record(self.started_at, self.ended_at))
        except OSError as error:  # e.g. the directory was removed; leftovers must still be stopped
            self._events.append("log_lost", f"The exit record could not be written: {error}.")

    @property
    def ending(self) -> Ending:
        """How the command ended, as far as it is known."""
        interrupted = self._interrupted_s is not None and self.ended_s - self._interrupted_s < _INTERRUPT_S
        ending = classify_ending(self._wait_status, self._stop_request, interrupted=interrupted)
        far_side = self._far_side or find_unproven_job(self.control.rundir, self.control.spec, self.number)
        return ending.lose(far_side) if far_side else ending

    def blame(self, request: StopRequest) -> None:
        """Say that an attempt which seemed to fail by itself was stopped by ``request``."""
        self._stop_request = request

    @property
    def leftover_count(self) -> int:
        """How many processes the command left behind."""
        return len(self._leftovers)

    def end_facts(self) -> dict[str, Any]:
        """Return how the attempt ended, for the event that reports it."""
        survivors = {p: p.command for p in self._find_survivors()}
        return {
            "exit_code": self.ending.exit_code,
            "signal": self.ending.signal,
            "stopped_by": self.ending.stopped_by,
            "signals_sent": (self._stop_sequence.sent if self._stop_sequence else None) or None,
            "leftovers": self._describe(self._leftovers) or None,
            "survivors": self._describe(survivors) or None,
            "gpus": (self._gpu_monitor.figures() if self._gpu_monitor else None) or None,
        }

    def _find_survivors(self) -> list[processes.Process]:
        """Return the living processes. A shortage of descriptors is waited for; in the end it is reported."""
        if not processes.has_children():  # every orphan would be one: nothing needs to be listed
            return []
        until_s = time.monotonic() + _SHORTAGE_S
        while True:
            try:
                return self.living()
            except OSError as error:
                if time.monotonic() >= until_s:
                    self._events.append("observer_error", f"Whether a process survived is unknown: {error}.")
                    return []
            time.sleep(_TICK_S)

    def _flush_outputs(self) -> None:
        if self._outputs:
            self._outputs.flush()
            if self._outputs.problem:
                self._events.append("observer_error", self._outputs.problem)

    def close_outputs(self) -> None:
        """End the record of written files. Call it once the end has been reported: it may take a second."""
        if self._outputs:
            self._outputs.close()
            self._outputs = None

    def close(self) -> None:
        """Close the files of this attempt. Call it once the end has been reported."""
        self.relay.log.close()
        if self._gpu_monitor:
            self._gpu_monitor.close()
        for fd in (self._child.master_fd, self._child.status_fd):
            os.close(fd)

    def _describe(self, commands: dict[processes.Process, str]) -> list[dict[str, Any]]:
        return [{"pid": p.pid, "command": self._redactor.text(c)[:_COMMAND_CHARS]} for p, c in commands.items()]
