"""Takes over a run: the lock, the signals, the environment, then its attempts, as its recovery policy says."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_server.record.command_arguments import arguments
from mcp_server.record.events import EventLog
from mcp_server.record.exit_status import Ending, StopRequest, closing_line
from mcp_server.record.handover import Handover, HandoverError, StoppedBeforeStart, receive_handover
from mcp_server.record.run_directory import RunDir, read_json
from mcp_server.supervisor.attempt import Attempt
from mcp_server.supervisor.attempts_report import Account
from mcp_server.supervisor.control import Desk
from mcp_server.supervisor.gpu_allocation import Allotment, NotAllotted
from mcp_server.supervisor.observer import TOLD_LINE, event_facts
from mcp_server.system.lock_files import take_lock
from mcp_server.system.time_limit import within

if TYPE_CHECKING:
    from mcp_server.diagnosis.failure.diagnose import Failure
    from mcp_server.supervisor.retries import Next, Retries

_NOT_OURS = 75
_LOCK_PATIENCE_S = 2.0
_DECIDED_WITHIN_S = 30.0  # a rule's pattern is the user's; asking for a GPU takes a while
_CALLED_OFF = "The retry was called off."
_WAKING = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGPIPE)


def supervise(path: Path) -> int:
    """Run what ``path`` holds to its end; return the command's exit status.

    75: somebody else supervises this run, or it has been supervised before. 1: the command never started.
    """
    rundir = RunDir(path)
    if not rundir.spec.is_file():  # its launch was given up
        return _NOT_OURS
    lock = take_lock(rundir.lock, _LOCK_PATIENCE_S)
    if lock is None or rundir.events.exists():
        return _NOT_OURS
    spec = read_json(rundir.spec)
    if spec is None:
        return _NOT_OURS
    woken = _listen()
    events = EventLog(rundir.events)
    desk = Desk(rundir, spec, events, woken)
    try:
        handover = receive_handover(rundir.handover)
        allotted = _allotment(desk, handover)
        allotted.obtain()
        supervision = Supervision(desk, handover, allotted)
        first = supervision.attempt(1)
    except StoppedBeforeStart:
        by = f" ({desk.asked.text})" if desk.asked else ""
        return _refuse(desk, f"it was stopped before{by}", state="killed")
    except NotAllotted as error:
        return _refuse(desk, f"{error}", state="failed", not_free=f"{error}", never=error.never)
    except (HandoverError, OSError) as error:
        return _refuse(desk, f"{error}", state="failed")
    status = supervision.carry_out(first)
    os.close(lock)  # last: until here a reader sees a living supervisor
    return status  # tmux shows it to whoever attaches later


def _refuse(desk: Desk, why: str, **facts: object) -> int:
    """Tell that the command never starts; return the exit status."""
    text = f"Never started: {why.rstrip('.')}."
    desk.say(text)
    _leave_results(desk, state=str(facts["state"]), text=text, failure=None, attempts=1, elapsed_s=0.0)
    desk.events.append("refused", text, **facts)
    return 1


def _leave_results(desk: Desk, **end: Any) -> None:
    """Leave log, plain results and flag where the run's blueprint wants them, before its end is told."""
    if desk.spec.get("result_dir"):
        from mcp_server.record.result_directory import write_end  # noqa: PLC0415 - few runs need it

        if (problem := write_end(desk.spec, desk.rundir, **end)) is not None:
            desk.events.append("observer_error", problem)


def _allotment(desk: Desk, handover: Handover) -> Allotment:
    """Return what the run is to have of the machine; nothing is taken yet."""

    def leased() -> Allotment:
        from mcp_server.supervisor.gpu_lease import Leased  # noqa: PLC0415 - takes 10 ms, which most runs need not wait

        return Leased(desk, handover.env, handover.snapshot)

    return Allotment(leased) if desk.spec.get("gpus") is None else leased()


class Supervision:
    """The attempts of one run, one after the other."""

    def __init__(self, desk: Desk, handover: Handover, allotted: Allotment) -> None:
        self.desk, self.handover, self.spec, self.allotted = desk, handover, desk.spec, allotted
        self.params: dict[str, object] = dict(self.spec.get("params") or {})
        self.changed: dict[str, str] = {}  # environment variables that retries have set
        self.account = Account(desk.rundir)
        self._retries: Retries | None = None
        self._recovers = bool((self.spec.get("recovery") or {}).get("rules"))
        self._began_s = time.monotonic()

    def carry_out(self, attempt: Attempt) -> int:
        """Try until the run has ended, ``attempt`` first; write its end; return the last one's exit status."""
        while True:
            attempt.loop()
            ending = attempt.ending
            failure = attempt.observer.failure(ending) if ending.state in ("failed", "finished") else None
            following, why = self._decide(attempt, ending, failure)
            if following is not None:
                again, why = self._again(attempt, failure, following, why)
                if again is not None:
                    attempt.close()
                    attempt = again
                    continue
            if (asked := self.desk.asked) is not None and ending.state == "failed" and self._recovers:
                # It failed by itself, but that it goes no further is what was asked for.
                ending, failure = replace(ending, state=asked.state, stop_request=asked), None
            self._end(attempt, ending, failure, why)
            return ending.status

    def attempt(self, number: int) -> Attempt:
        """Start an attempt.

        Raises:
            OSError, StoppedBeforeStart: it was not started.
        """
        resume = self.spec.get("resume_args") or [] if number > 1 else []
        words = arguments(self.params, self.spec.get("param_style") or "--k v", resume)
        return Attempt(self.desk, self.handover, self.allotted, number, words, self.changed)

    def _again(
        self, attempt: Attempt, failure: Failure | None, following: Next, why: str
    ) -> tuple[Attempt | None, str]:
        """Announce the next attempt, and start it in time; None, and why, if it does not come to that."""
        self._announce(attempt, failure, following, why)
        if not self.desk.wait(following.wait_s):
            return None, _CALLED_OFF
        self.params, self.changed = following.params, following.changed
        try:
            return self.attempt(attempt.number + 1), ""
        except StoppedBeforeStart:
            self.desk.ask(StopRequest("killed", "stop.json", "it was asked for before the retry"))
            return None, _CALLED_OFF
        except OSError as error:
            return None, f"Attempt {attempt.number + 1} could not be started: {error}."

    def _decide(self, attempt: Attempt, ending: Ending, failure: Failure | None) -> tuple[Next | None, str]:
        """Ask the policy what comes after a failed attempt; an error of its own starts nothing."""
        if ending.state != "failed" or not self._recovers:
            return None, ""
        try:
            self.desk.catch_up()  # what came while the attempt was cleared away and judged
            if self._retries is None:
                from mcp_server.supervisor.retries import Retries  # noqa: PLC0415 - few runs need it

                self._retries = Retries(self.desk, self.allotted)
            env = {**self.handover.env, **(self.spec.get("env") or {}), **self.changed}
            retries = self._retries
            return within(_DECIDED_WITHIN_S, lambda: retries.decide(attempt, failure, self.params, env, self.changed))
        except Exception as error:
            self.desk.trouble(error)
            return None, "What comes next could not be decided."

    def _announce(self, attempt: Attempt, failure: Failure | None, following: Next, why: str) -> None:
        """Tell that the attempt has failed, and what comes next."""
        what = f"{failure.kind}: {failure.line[:TOLD_LINE]}" if failure else attempt.ending.text()
        text = f"Attempt {attempt.number} failed: {what.rstrip('.')}. {why}"
        self.account.add(attempt, failure, why)
        self.desk.say(text)
        self.desk.events.append(
            "retrying",
            text,
            attempt=attempt.number,
            failure=event_facts(failure),
            wait_s=following.wait_s,
            params=following.params or None,
            environment=following.changed or None,
            **attempt.facts(),
        )

    def _end(self, attempt: Attempt, ending: Ending, failure: Failure | None, why: str) -> None:
        """Write the run's end; the pane stays for reading."""
        text = ending.text(len(attempt.leftovers), attempt.relay.log.lost_bytes)
        self.account.close(attempt, failure, why or "the end")
        desk = self.desk
        if desk.pane:
            desk.pane.write(closing_line(desk.rundir.log(attempt.number), ending, attempt.ended_s - self._began_s))
        self.allotted.release()
        text, elapsed_s, facts = (
            f"{text} {why}".strip(),
            round(attempt.ended_s - self._began_s, 3),
            event_facts(failure),
        )
        _leave_results(desk, state=ending.state, text=text, failure=facts, attempts=attempt.number, elapsed_s=elapsed_s)
        desk.events.append(
            "ended",
            text,
            state=ending.state,
            attempt=attempt.number,
            elapsed_s=elapsed_s,
            failure=facts,
            **attempt.facts(),
        )
        if desk.pane and desk.pane.open:
            desk.pane.leave()


def _listen() -> int:
    """Turn signals into bytes on a pipe; return its reading end."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in _WAKING:
        signal.signal(number, lambda *_: None)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    return read_fd
