"""Supervises a run: takes its lock, environment and GPUs, then makes attempts as the recovery policy decides."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_server.record.events import EventLog
from mcp_server.record.exit_status import Ending, StopRequest, closing_line
from mcp_server.record.handover import Handover, HandoverError, receive_handover
from mcp_server.record.run_directory import CODE_STATE, RunDir, read_json
from mcp_server.record.script import AttemptInputs, name_attempt
from mcp_server.record.spec import RunSpec
from mcp_server.supervisor.attempt import Attempt, NextAttempt
from mcp_server.supervisor.attempts_report import AttemptsReport
from mcp_server.supervisor.control import ControlInputs, GpusUnavailable, ServiceEnded, StoppedBeforeStart
from mcp_server.supervisor.judging.failure_facts import describe_failure, word_cause
from mcp_server.supervisor.start_command import supervisor_identity
from mcp_server.system.lock_files import hold_program_lock, release_lock, take_lock
from mcp_server.system.time_bounds import within
from mcp_server.text.formatting import duration

if TYPE_CHECKING:
    from mcp_server.diagnosis.failure.diagnose import Diagnosis
    from mcp_server.supervisor.code.code_watch import CodeWatch
    from mcp_server.supervisor.gpus.gpu_allocation import GpuAllocation
    from mcp_server.supervisor.guard import SpareGuard
    from mcp_server.supervisor.jobs.slurm_job import FormerSupervision, SlurmJob
    from mcp_server.supervisor.retries import Retries
    from mcp_server.supervisor.services.needed_runs import Services

_NOT_OURS = 75  # EX_TEMPFAIL of sysexits.h
_LOCK_PATIENCE_S = 2.0
_DECISION_LIMIT_S = 30.0  # a rule's pattern is the user's; leasing a GPU takes a while
_UNKNOWN = StopRequest("failed", "Slurm", "")
_NO_WRITES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
_ROOM_S = 5.0  # until a disk without room is tried again
_CALLED_OFF = "The retry was called off."
_WAKING = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGPIPE)


def supervise_alone(path: str, spare_guard: SpareGuard | None) -> int:
    """Supervise a run in a process that no starter has forked, which holds the lock of the program itself."""
    hold_program_lock(Path(__file__).resolve().parents[2])
    return supervise(Path(path), spare_guard)


def supervise(path: Path, spare_guard: SpareGuard | None = None) -> int:
    """Supervise the run in ``path`` until its end and return the command's exit status.

    A run whose former supervisor died before the end goes on with a new attempt. 75: another process supervises the
    run, or it must not go on. 1: the command was not started. ``spare_guard``: it guards the first command.
    """
    rundir = RunDir(path)
    if not rundir.spec.is_file():  # its launch was aborted
        return _NOT_OURS
    facts = read_json(rundir.spec)
    job = _find_job(facts or {})
    lock = _take_lock(rundir, is_job=job is not None)
    was_stopped = (read_json(rundir.stop) or {}).get("carried_out")  # while its job waited: it has ended
    if lock is None or facts is None or was_stopped:
        return _NOT_OURS
    former = None
    if rundir.events.exists():
        from mcp_server.supervisor.jobs.slurm_job import read_former_supervision  # noqa: PLC0415 - 14 ms; few runs need it

        former = read_former_supervision(rundir)
        if former is None:
            return _NOT_OURS
    wakeup_fd = _catch_signals((*_WAKING, signal.SIGUSR1) if job else _WAKING)
    events = EventLog(rundir.events, durable=job is not None)
    control = ControlInputs(rundir, RunSpec.from_facts(facts), events, wakeup_fd, job, spare_guard)
    number = former.attempt + 1 if former else 1
    try:
        handover = _requeue(control, former) if former else receive_handover(rundir.handover, keep=job is not None)
        if job:
            handover = replace(handover, env=job.join_environment(handover.env))
        if handover.notify:
            _send_notices(control, handover)
        supervision = Supervision(control, handover, lock, former)
        supervision.obtain()
        first = supervision.start_attempt(number)
    except StoppedBeforeStart:
        by = f" ({control.stop_request.text})" if control.stop_request else ""
        return _refuse(control, lock, number, f"it was stopped before{by}", state="killed")
    except GpusUnavailable as error:
        return _refuse(control, lock, number, f"{error}", state="failed", not_free=f"{error}", never=error.never)
    except (HandoverError, ServiceEnded, OSError) as error:
        return _refuse(control, lock, number, f"{error}", state="failed")
    return supervision.run(first)  # tmux shows it to people who attach later


def _take_lock(rundir: RunDir, *, is_job: bool) -> int | None:
    """Return a descriptor that holds the run's lock, None if another process supervises the run.

    A job of Slurm, which runs once at a time, goes on without it: shared disks may have no locks, or keep that of a
    node that died.
    """
    if not is_job:
        return take_lock(rundir.lock, _LOCK_PATIENCE_S)
    with contextlib.suppress(OSError):
        if (lock := take_lock(rundir.lock, _LOCK_PATIENCE_S)) is not None:
            return lock
    return os.open(os.devnull, os.O_RDWR)


def _find_job(facts: Mapping[str, Any]) -> SlurmJob | None:
    """Return the scheduler's job that this process is in, None for a run that was launched in tmux."""
    if facts.get("backend") != "slurm":
        return None
    from mcp_server.supervisor.jobs.slurm_job import SlurmJob  # noqa: PLC0415 - 14 ms, of runs that are jobs

    return SlurmJob.of(RunSpec.from_facts(facts), os.environ)


def _send_notices(control: ControlInputs, handover: Handover) -> None:
    from mcp_server.supervisor.notifier import start_notifier  # noqa: PLC0415 - 2 ms, where notices are configured

    try:
        notifier = start_notifier(handover.notify, control.rundir, control.spec, handover)
    except OSError as error:
        control.events.append("observer_error", f"Notices are not sent: {error.strerror}.")
    else:
        control.events.on_event = notifier.add


def _requeue(control: ControlInputs, former: FormerSupervision) -> Handover:
    """Report that a run continues with another attempt, and return the environment for it."""
    handover, note = former.take_environment(control.rundir, control.spec)
    when = f"during attempt {former.attempt}" if former.attempt else "before the first attempt"
    why = f" after attempt {former.attempt}" if former.attempt_ended else f": its supervisor died {when}"
    text = f"Requeued{why}; attempt {former.attempt + 1} follows. {note}".strip()
    control.show(text)
    control.events.append("requeued", text, at_start=supervisor_identity())
    return handover


def _refuse(control: ControlInputs, lock: int, number: int, why: str, **facts: object) -> int:
    """End the run, because attempt ``number`` is not started, and return the exit status."""
    text = f"{'Never started' if number == 1 else 'Not started again'}: {why.rstrip('.')}."
    control.show(text)
    attempts = max(1, number - 1)
    _write_results(control, state=str(facts["state"]), text=text, failure=None, attempts=attempts, elapsed_s=0.0)
    _remove_handover(control)
    control.events.append("refused", text, **facts)
    control.await_record()
    release_lock(lock)
    return 1


def _remove_handover(control: ControlInputs) -> None:
    """Remove the environment and the secrets that a scheduler's job has in a file."""
    if control.job:
        with contextlib.suppress(OSError):
            control.rundir.handover.unlink(missing_ok=True)


def _write_results(control: ControlInputs, *, is_told: bool = True, **end: Any) -> None:
    """Write the end into the result directory of a blueprint's run.

    Call it before the event that reports the end; after that ``is_told`` is False: nobody is left to hear of errors.
    """
    if control.spec.result_dir:
        try:
            from mcp_server.record.results.experiment_log import write_end  # noqa: PLC0415 - 3 ms, of a blueprint's runs

            problem = write_end(control.spec.facts(), control.rundir, **end)
        except Exception as error:  # the end must be reported in any case
            problem = f"The result directory lacks the end of the run: {error!r}."
        if problem is not None and is_told:
            control.events.append("observer_error", problem)


class Supervision:
    """The attempts of one run, one after the other. A requeued run continues where the former supervisor died.

    The time limit and the ceilings of the recovery policy count from the requeue.
    """

    def __init__(
        self, control: ControlInputs, handover: Handover, lock: int, former: FormerSupervision | None = None
    ) -> None:
        self._control, self._handover, self._lock, self._spec = control, handover, lock, control.spec
        self._allocation: GpuAllocation | None = None
        self._params: dict[str, object] = dict(self._spec.params)
        self._changed: dict[str, str] = {}  # environment variables that retries changed
        self._report = AttemptsReport(control.rundir, former.attempt if former else 0)
        if former is not None:
            self._params, self._changed = former.params or self._params, former.environment
            if former.attempt and not former.attempt_ended:
                self._report.add_lost(former.attempt, former.started_at, "requeued")
        self._retries: Retries | None = None
        self._recovers = bool((self._spec.recovery or {}).get("rules"))
        self._began_s: float | None = None  # when the first attempt began: to wait in line is no part of the run
        self._services: Services | None = None
        self._code: CodeWatch | None = None
        self._waits = self._spec.queue or bool(self._spec.needs)
        if self._waits or self._recovers or (control.rundir.path / CODE_STATE).exists():
            from mcp_server.supervisor.code.code_watch import CodeWatch  # noqa: PLC0415 - 9 ms; most runs start at once, and once

            self._code = CodeWatch(control.rundir, self._spec, handover.env, recovers=self._recovers)
        if self._spec.needs:
            from mcp_server.supervisor.services.needed_runs import Services  # noqa: PLC0415 - 31 ms; few runs need others

            self._services = Services(control)

    def obtain(self) -> None:
        """Wait for the runs that this one needs, and lease the GPUs or cpu slots that it requested.

        A run that queues for GPUs holds none while it waits. One that does not has them since its launch.
        """
        if self._code is not None and self._waits:
            self._code.look()
        if self._services is not None and self._spec.queue:
            self._services.await_answers()
        if self._spec.gpus is not None and self._spec.backend != "ray":  # Ray gives them by its environment
            self._get_allocation().obtain()
        if self._services is not None:
            self._services.await_answers()
            self._control.watch_services(self._services.find_end)

    def start_attempt(self, number: int) -> Attempt:
        """Start attempt ``number``, or raise as ``start_command`` does."""
        if self._began_s is None:
            self._began_s = time.monotonic()
        placeholders = self._allocation.placeholders if self._allocation else {}
        placeholders = {**placeholders, **name_attempt(self._control.rundir.run_id, number)}
        inputs = AttemptInputs(self._params, number > 1, self._changed, placeholders)
        if self._code is not None:
            self._code.begin(number, inputs)
        attempt = Attempt.start(self._control, self._handover, self._allocation, number, inputs)
        if self._code is not None:
            self._code.report(self._control.events, number)
        return attempt

    def run(self, attempt: Attempt) -> int:
        """Supervise ``attempt`` and those that follow until the run has ended, and return the last exit status."""
        while True:
            attempt.supervise()
            ending, failure = self._diagnose(attempt)
            planned, why, failure = self._decide(attempt, ending, failure)
            if self._control.job_stop is not None and self._leave_to_scheduler(attempt, failure, planned, why):
                return ending.status
            if planned is not None and self._control.job_stop is None:
                following, why = self._retry(attempt, failure, planned, why)
                if following is not None:
                    attempt.close()
                    attempt = following
                    continue
            request = self._control.stop_request
            if request is not None and _may_be_retried(ending) and self._recovers:
                # It failed by itself, but no retry followed because of the stop request.
                ending, failure = replace(ending, state=request.state, stop_request=request), None
            if ending.state == "failed" and self._services is not None and (end := self._services.find_end()):
                why = f"{why} {end.reason}.".strip()
            self._end(attempt, ending, failure, why)
            return ending.status

    def _leave_to_scheduler(
        self, attempt: Attempt, failure: Diagnosis | None, planned: NextAttempt | None, why: str
    ) -> bool:
        """Let the scheduler start the job again, as it said or as the policy wants, and return whether it will.

        The attempt that follows is another job's, whose supervisor reads here how this one ended.
        """
        job = self._control.job
        if job is None or self._control.stop_request is not None:
            return False
        if not job.is_requeued and (planned is None or not job.requeue()):
            return False
        following = planned or NextAttempt(self._params, self._changed, 0.0)
        self._announce(attempt, failure, following, f"Slurm starts its job again. {why}".strip())
        attempt.close()
        return True

    def _leave_flag(self, end: Mapping[str, Any]) -> None:
        """Write the flag of a failed run unless it is repaired: launched again, or finished by its executor."""
        control, spec = self._control, self._spec
        with contextlib.suppress(Exception):
            from mcp_server.record.results.experiment_log import is_repaired  # noqa: PLC0415 - 3 ms, of a blueprint's runs

            result_dir, run_id = str(spec.result_dir), control.rundir.run_id
            control.wait_after_end(spec.repair_grace_s, lambda: is_repaired(result_dir, run_id))
            if not is_repaired(result_dir, run_id):
                _write_results(control, is_told=False, **end)

    def _diagnose(self, attempt: Attempt) -> tuple[Ending, Diagnosis | None]:
        """Return how the attempt ended and why it failed: an end that was requested from outside is not a failure."""
        ending, control = attempt.ending, self._control
        if ending.state == "failed" and ending.stop_request is None and control.job and control.learn_job_stop():
            attempt.blame(control.stop_request or control.job_stop or _UNKNOWN)  # Slurm's SIGTERM was faster than ours
            ending = attempt.ending
        if control.job and control.job_stop and ending.stop_request is control.job_stop:
            return ending, control.job.find_failure(control.job_stop)
        by_policy = ending.stopped_by == "policy"
        if ending.state not in ("failed", "finished") and not by_policy:
            return ending, None
        failure = attempt.observer.failure(ending)
        if failure is None and ending.state == "finished":
            hidden = attempt.observer.hidden_failure()
            if hidden is not None:
                self._control.events.append("exception_printed", hidden)
        if failure is None or ending.state != "failed":
            return ending, failure
        if failure.far_side:
            return ending.lose(failure.far_side), failure
        if failure.is_of_scheduler:
            ending = replace(ending, stop_request=StopRequest(ending.state, "", "", "scheduler"))
        return ending, failure

    def _retry(
        self, attempt: Attempt, failure: Diagnosis | None, planned: NextAttempt, why: str
    ) -> tuple[Attempt | None, str]:
        """Report the next attempt, wait, and start it. When it does not start, return None and the reason."""
        self._announce(attempt, failure, planned, why)
        if not self._control.wait(planned.wait_s):
            return None, _CALLED_OFF
        self._params, self._changed = planned.params, planned.environment
        try:
            if self._services is not None:
                self._services.await_answers()
            return self._start_once_there_is_room(attempt.number + 1), ""
        except StoppedBeforeStart:
            self._control.request_stop(StopRequest("killed", "stop.json", "requested before the retry"))
            return None, _CALLED_OFF
        except (ServiceEnded, OSError) as error:
            return None, f"Attempt {attempt.number + 1} could not be started: {error}."

    def _start_once_there_is_room(self, number: int) -> Attempt:
        """Start attempt ``number``, once the state directory takes writes: a retry that is owed is made up."""
        control, until_s, is_shown = self._control, time.monotonic() + self._control.held_s, False
        while True:
            try:
                return self.start_attempt(number)
            except OSError as error:
                if error.errno not in _NO_WRITES or time.monotonic() >= until_s:
                    raise
                if not is_shown:
                    control.show(f"Attempt {number} waits: {error.strerror}. It starts once the disk takes writes.")
                    is_shown = True
            if not control.wait(_ROOM_S):
                raise StoppedBeforeStart

    def _decide(
        self, attempt: Attempt, ending: Ending, failure: Diagnosis | None
    ) -> tuple[NextAttempt | None, str, Diagnosis | None]:
        """Ask the recovery policy what follows a failed attempt. After an internal error nothing follows.

        Return the next attempt, the reason, and ``failure`` with advice that agrees with both.
        """
        job, request = self._control.job, ending.stop_request
        is_of_job = job is not None and request is not None and request is self._control.job_stop
        may_be_retried = ending.state != "killed" if is_of_job else _may_be_retried(ending)
        is_of_policy = self._recovers or attempt.observer.stopped_for is not None
        if not may_be_retried or not is_of_policy or (job and job.is_requeued):
            return None, "", failure
        try:
            self._control.check_services()
            self._control.handle_pending()  # inputs that came while leftovers were stopped and the log was diagnosed
            if self._retries is None:
                from mcp_server.supervisor.retries import Retries  # noqa: PLC0415 - 21 ms, of failed runs

                self._retries = Retries(self._control, self._get_allocation)
            retries, params, changed = self._retries, self._params, self._changed
            env = {**self._handover.env, **self._spec.env, **changed}
            outcome = within(_DECISION_LIMIT_S, lambda: retries.decide(attempt, failure, params, env, changed))
        except Exception as error:
            self._control.report_error(error)
            return None, "What comes next could not be decided.", failure
        return outcome.planned, outcome.why, outcome.failure

    def _get_allocation(self) -> GpuAllocation:
        """Return the run's GPU allocation, which holds nothing at first."""
        if self._allocation is None:
            from mcp_server.supervisor.gpus.gpu_allocation import GpuAllocation, SlurmGpus  # noqa: PLC0415 - 16 ms, of runs with GPUs

            kind = SlurmGpus if self._control.job else GpuAllocation
            self._allocation = kind(self._control, self._handover.env, self._handover.snapshot)
        return self._allocation

    def _announce(self, attempt: Attempt, failure: Diagnosis | None, planned: NextAttempt, why: str) -> None:
        text = f"Attempt {attempt.number} failed: {word_cause(failure, attempt.ending)}. {why}"
        self._report.add(attempt, failure, why)
        self._control.show(text)
        self._control.events.append(
            "retrying",
            text,
            then=why,
            attempt=attempt.number,
            failure=describe_failure(failure, attempt.ending),
            wait_s=planned.wait_s,
            params=planned.params or None,
            environment=planned.environment or None,
            **attempt.end_facts(),
        )
        attempt.close_outputs()

    def _end(self, attempt: Attempt, ending: Ending, failure: Diagnosis | None, why: str) -> None:
        """Release the GPUs and write the run's end. The pane stays for reading."""
        control, pane = self._control, self._control.pane
        then = " ".join(filter(None, (why, ending.remedy)))
        text = f"{ending.text(attempt.leftover_count, attempt.relay.log.lost_bytes)} {then}".strip()
        elapsed_s = attempt.ended_s - (self._began_s or attempt.ended_s)
        self._report.close(attempt, failure, why or "the end")
        _remove_handover(control)
        if pane:
            pane.write(closing_line(control.rundir.log(attempt.number), ending, elapsed_s))
        end_facts = attempt.end_facts()
        survivors = attempt.living() if end_facts["survivors"] else []
        if self._allocation is not None and not survivors:
            self._allocation.release()
        elif self._allocation is not None:
            text = f"{text} {self._allocation.release_once_ended(survivors)}".strip()
        end: dict[str, Any] = {
            "state": ending.state,
            "failure": describe_failure(failure, ending),
            "elapsed_s": round(elapsed_s, 3),
        }
        # Who waits for the flag must not take an experiment for over while its executor repairs it.
        waits = bool(self._spec.result_dir and self._spec.repair_grace_s and _may_be_retried(ending) and not survivors)
        results = {**end, "text": text, "attempts": attempt.number}
        _write_results(control, **results, flag=not waits)
        if waits:
            follows = f"finish.flag follows in {duration(self._spec.repair_grace_s)}, unless it is launched again."
            control.show(f"{follows} Ctrl-C writes it now.")
            text = f"{text} {follows}"
        facts = {**end_facts, "stopped_by": ending.stopped_by, "far_side": ending.far_side or None}
        control.events.append("ended", text, then=then or None, attempt=attempt.number, **end, **facts)
        if control.await_record() and self._spec.result_dir and not waits:
            _write_results(control, is_told=False, **results)  # that directory may have taken no writes either
        release_lock(self._lock)  # until here a reader sees a living supervisor, and believes no end
        attempt.close_outputs()
        if waits:
            self._leave_flag(results)
        if pane and pane.is_open:
            pane.restore()


def _may_be_retried(ending: Ending) -> bool:
    """Return whether the recovery policy has a say: the attempt failed by itself, or the policy stopped it."""
    return ending.state == "failed" or (ending.state == "killed" and ending.stopped_by == "policy")


def _catch_signals(waking: Sequence[signal.Signals]) -> int:
    """Turn signals into bytes on a pipe and return its reading end."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in waking:
        signal.signal(number, lambda *_: None)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    return read_fd
