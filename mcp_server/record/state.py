"""The state of a run, derived from its record and from whether its supervisor lives. Pure."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from mcp_server.record.attempt_params import AttemptParams, describe_earlier_ends, find_attempt_params
from mcp_server.record.codec import encode
from mcp_server.record.events import CLEARING, ENDING, LIVE_STATES, LiveState, RecordEvent
from mcp_server.record.exit_status import STOPPERS
from mcp_server.record.script import ATTEMPT, AttemptInputs, command_text, name_attempt
from mcp_server.record.spec import RunSpec
from mcp_server.text.formatting import parse_time

EndedState = Literal["finished", "failed", "killed", "timed_out", "lost", "imported"]
RunState = Literal[LiveState, EndedState]
ENDED: frozenset[str] = frozenset(get_args(EndedState))
IMPORTED: EndedState = "imported"  # nobody supervised it: its end is known as far as its tracker or log says

# A launcher and a supervisor need well under a second; a supervisor that is not there by then does not come.
STARTING_S = 15.0
_UNHEARD_S, _LATE = 7.0, 3  # seconds, and steps: a supervisor notes a step within 6 s
_UNNOTED_S, _LONGEST_PAUSE = 5.0, 100  # seconds, and times its pace, for which no step need be noted
_LETS_GO_WITHIN_S = 10.0  # a supervisor that wrote its end ends, under load too


class Liveness(enum.Enum):
    """Whether a run's supervisor lives, as its backend reports it."""

    ALIVE = "alive"
    DEAD = "dead"
    PENDING = "pending"  # accepted, and not started yet: by its session, or by a scheduler
    UNKNOWN = "unknown"  # nothing on this host can find out
    UNREACHABLE = "unreachable"  # the host or scheduler that knows does not answer now


@dataclass(frozen=True)
class JobEnd:
    """How a scheduler ended a job whose supervisor wrote no end."""

    state: EndedState
    reason: str
    ended_at: str | None = None
    stopped_by: str | None = None
    failure: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class LivenessReport:
    """Liveness, and what the backend adds to it, e.g. why a supervisor is dead or since when a host is silent."""

    liveness: Liveness
    reason: str = ""
    unreachable: Mapping[str, str] | None = None  # host, since, why: of a host that does not answer
    job_id: str = ""  # the scheduler's
    end: JobEnd | None = None  # what a scheduler says of a job that its supervisor did not outlive

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON values; what is empty is left out, but for liveness and reason."""
        whole_end = {} if self.end is None else {"end": asdict(self.end)}
        return {"reason": "", **encode(self), **whole_end}


_NO_SUPERVISOR = LivenessReport(Liveness.DEAD)
# The command may go on without it.
NO_END = "Its supervisor is gone and wrote no end"
NEVER_BEGAN = {"began": False}  # what a guard records of a command whose supervisor died before it let it begin
UNJUDGED = "Its supervisor died before it judged the end: why the command failed is not known."
UNKNOWN_END = f"{NO_END}: whether the command still runs, or how it ended, is unknown."


@dataclass(frozen=True)
class Evidence:
    """The record of a run, and its supervisor's liveness.

    ``events`` are the supervisor's, oldest first. ``exit`` and ``progress`` are the newest attempt's records of that
    name, ``stop`` is the run's stop request. ``age_s`` is the time since the launch. ``guard_exit``: the command's end
    as its guard saw it, without a supervisor.
    """

    spec: RunSpec
    events: tuple[RecordEvent, ...] = ()
    exit: dict[str, Any] | None = None
    progress: dict[str, Any] | None = None
    stop: dict[str, Any] | None = None
    supervisor: LivenessReport = _NO_SUPERVISOR
    age_s: float = 0.0
    guard_exit: dict[str, Any] | None = None


@dataclass(frozen=True)
class Run:
    """One run, as its evidence proves it.

    ``reason`` explains a state that no event explains, e.g. why a run is lost. ``abandoned``: the supervisor died
    without writing an end, although an exit record may exist.
    """

    spec: RunSpec
    state: RunState
    events: tuple[RecordEvent, ...] = ()
    exit_code: int | None = None
    signal: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    reason: str | None = None
    at_start: dict[str, Any] = field(default_factory=dict)
    attempt: int = 1
    progress: dict[str, Any] = field(default_factory=dict)
    failure: dict[str, Any] | None = None
    gpus: tuple[str, ...] = ()  # UUIDs that its newest attempt has, or had; cpu slots by name
    gpu_indices: tuple[int, ...] = ()  # of ``gpus``, in their order; empty in records of former layouts
    queue_position: int | None = None
    abandoned: bool = False
    guard_ended_at: str | None = None  # when its guard saw the command end, after the supervisor's death
    stopped_by: str | None = None  # one of exit_status.STOPPERS
    unreachable: Mapping[str, str] | None = None  # host, since, why: the state is the last known one
    measured_s: float | None = None  # the seconds it took, by a clock that nobody sets
    job_id: str | None = None
    pending_reason: str | None = None  # why a scheduler lets it wait, or for which runs it waits

    @property
    def run_id(self) -> str:
        """The run's id, also the name of its directory."""
        return self.spec.run_id

    @cached_property
    def attempt_params(self) -> AttemptParams:
        """The parameters of its newest attempt."""
        return find_attempt_params(self.spec, self.events)

    @property
    def earlier(self) -> str | None:
        """How the attempts before ended: ``attempt 1 oom_gpu, 2-3 stall``. None without a retry."""
        return describe_earlier_ends(self.events)

    @cached_property
    def command(self) -> str:
        """The command of its newest attempt as it ran: with its parameters, and its own names and GPUs filled in."""
        changed, placeholders = self.attempt_params, name_attempt(self.run_id, self.attempt)
        if self.gpus:
            indices = ",".join(map(str, self.gpu_indices))
            placeholders |= {"{gpus}": ",".join(self.gpus)} | ({"{gpu_indices}": indices} if indices else {})
        inputs = AttemptInputs(changed.params, self.attempt > 1, changed.environment, placeholders)
        return command_text(self.spec, inputs)

    @property
    def code_change(self) -> str | None:
        """The sentences that say which files of its code changed before an attempt, None without a change."""
        changes = (event.get("text") for event in self.events if event["kind"] == "code_changed")
        return " ".join(dict.fromkeys(filter(None, changes))) or None

    @property
    def gpu_names(self) -> tuple[int | str, ...]:
        """Its GPUs as people name them: by index where that is known, else by UUID. Cpu slots as ``cpu-1``."""
        if len(self.gpu_indices) != len(self.gpus):
            return self.gpus
        return tuple(uuid if uuid.startswith("cpu-") else index for uuid, index in zip(self.gpus, self.gpu_indices))

    @property
    def news(self) -> tuple[RecordEvent, ...]:
        """The events that a wait for it may answer."""
        return self.events

    @property
    def stop_on(self) -> Sequence[str]:
        """The words for trouble at which its recovery policy stops an attempt by itself."""
        return (self.spec.recovery or {}).get("stop_on") or ()

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state in ENDED

    @property
    def may_go_on(self) -> bool:
        """Whether its command may go on elsewhere, although its supervisor has ended: a later word may be final."""
        return self.state == "lost" and bool(self.events) and bool(self.events[-1].get("far_side"))

    @property
    def stepped(self) -> bool:
        """Whether the present attempt has made its first training step."""
        kinds = [e["kind"] for e in self.events if e["kind"] in ("started", "first_step", "retrying")]
        return kinds[-1:] == ["first_step"]

    @property
    def made_a_step(self) -> bool:
        """Whether any attempt has made a training step, as far as its output says."""
        return isinstance(self.progress.get("step"), int) or any(e["kind"] == "first_step" for e in self.events)

    @property
    def last_known_step(self) -> str | None:
        """The step of a lost run that its supervisor noted last, and when: it may have gone on since."""
        step, at = self.progress.get("step"), self.progress.get("at")
        if self.state != "lost" or not isinstance(step, int):
            return None
        return f"{step}, noted {at[:19]}Z" if isinstance(at, str) else f"{step}, noted at an unknown time"

    @property
    def last_seq(self) -> int:
        """Number of the newest event."""
        return int(self.events[-1]["seq"]) if self.events else 0

    @property
    def still(self) -> str:
        """The state of a live run in words, e.g. ``is still running``; its last one where its host does not answer."""
        if self.unreachable:
            return f"was {self.state} when {self.unreachable['host']} was last heard of"
        return f"is still {self.state}"

    def elapsed_s(self, now_s: float) -> float | None:
        """Return the seconds from the command's start to its end, or to ``now_s`` (POSIX time). None: unknown."""
        if self.started_at is None or self.state == "lost" or self.unreachable:
            return None
        if self.measured_s is not None:
            return self.measured_s
        if self.ended and self.ended_at is None:
            return None
        until_s = posix(self.ended_at) if self.ended_at else now_s
        return max(0.0, until_s - posix(self.started_at))

    def paused_s(self, now_s: float) -> float | None:
        """Return for how long no step was noted, where steps come no more or take a hundred times as long; else None.

        Not known of other hosts, whose clocks may differ.
        """
        left_s, step_s, at = (self.progress.get(name) for name in ("eta_s", "step_s", "at"))
        limits = [left_s, step_s * _LONGEST_PAUSE if isinstance(step_s, (int, float)) else None]
        known = [limit for limit in limits if isinstance(limit, (int, float))]
        if self.state != "running" or not isinstance(at, str) or self.spec.mirror or not known:
            return None
        paused_s = max(0.0, now_s - posix(at))
        return paused_s if paused_s > min(known) + _UNNOTED_S else None

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds that its own steps say are left; None where they do not, or have stopped coming.

        Where a run trains several times they say when the present training ends, and how many follow is not known.
        """
        left_s, at = self.progress.get("eta_s"), self.progress.get("at")
        is_heard = self.state == "running" and not self.unreachable and self.paused_s(now_s) is None
        if not isinstance(left_s, (int, float)) or not is_heard or "round" in self.progress:
            return None
        step_s, age_s = self.progress.get("step_s"), now_s - posix(at) if isinstance(at, str) else 0.0
        if self.spec.mirror or age_s > max(_UNHEARD_S, _LATE * (step_s if isinstance(step_s, (int, float)) else 0.0)):
            return left_s  # no step came meanwhile: all that were left are left
        return max(0.0, left_s - max(0.0, age_s))

    def attempts_s(self, now_s: float) -> list[float]:
        """Return the seconds of each attempt with the wait after it, of the newest until the end, or ``now_s``."""
        starts = [event["at"] for event in self.events if event["kind"] == "started" and "at" in event]
        starts = starts or ([self.started_at] if self.started_at else [])
        times = [*map(posix, starts), posix(self.ended_at) if self.ended_at else now_s]
        return [max(0.0, end_s - begin_s) for begin_s, end_s in zip(times, times[1:])] if starts else []


def fold(evidence: Evidence) -> Run:
    """Return the run that ``evidence`` proves. A written end comes first, then liveness. Nothing is invented."""
    end_of_job, events = evidence.supervisor.end, evidence.events
    if end_of_job is not None and end_of_job.state != "lost" and events and events[-1]["kind"] == "retrying":
        evidence = replace(evidence, exit=None)  # between two attempts: the last one's exit is not the run's
    state, reason = _state_and_reason(evidence)
    told = events
    if state not in ENDED and reason is None and events and events[-1]["kind"] in ENDING:
        told = events[:-1]  # for the moment until its supervisor has let go: no answer says both
    starts: Sequence[Mapping[str, Any]] = [e for e in evidence.events if e["kind"] == "started"] or [{}]
    last: Mapping[str, Any] = next((e for e in reversed(evidence.events) if e["kind"] in ENDING), {})
    end = evidence.exit or last
    ended_at = end.get("ended_at") or last.get("at")
    carried_out = (evidence.stop or {}).get("carried_out") or {}
    is_pending = evidence.supervisor.liveness is Liveness.PENDING and state == "queued"
    by_job = _find_job_end(evidence, last) if state in ENDED else None
    end_is_known = state in ENDED and state != "lost"
    attempt, spec = attempt_of(evidence.events), evidence.spec
    if spec.tensorboard and ATTEMPT in spec.tensorboard:
        spec = replace(spec, tensorboard=spec.tensorboard.replace(ATTEMPT, str(attempt)))
    return Run(
        spec=spec,
        state=state,
        events=told,
        exit_code=end.get("exit_code") if end_is_known else None,
        signal=end.get("signal") if end_is_known else None,
        started_at=starts[0].get("at") or end.get("started_at"),
        ended_at=end.get("ended_at")
        if state == IMPORTED
        else (ended_at or carried_out.get("at") or (by_job.ended_at if by_job else None))
        if end_is_known
        else None,
        reason=None if is_pending else reason,
        at_start=next((e["at_start"] for e in reversed(evidence.events) if "at_start" in e), {}),
        attempt=attempt,
        progress=evidence.progress or {},
        failure=dict(by_job.failure) if by_job and by_job.failure else _last_failure(evidence.events),
        gpus=tuple(map(str, starts[-1].get("gpus", ()))),
        gpu_indices=tuple(starts[-1].get("gpu_indices") or ()),
        queue_position=evidence.events[-1].get("position") if state == "queued" and evidence.events else None,
        abandoned=state in ENDED
        and evidence.supervisor.liveness is not Liveness.ALIVE
        and not last
        and not carried_out,
        guard_ended_at=(evidence.guard_exit or {}).get("ended_at"),
        stopped_by=_find_stopper(state, evidence, last),
        unreachable=None if state in ENDED else evidence.supervisor.unreachable,
        measured_s=_measured_s(evidence.events, last) if end_is_known else None,
        job_id=evidence.supervisor.job_id or None,
        pending_reason=reason if is_pending else _find_wait(evidence.events) if state == "queued" else None,
    )


def _find_wait(events: Sequence[RecordEvent]) -> str | None:
    """Return what a run says of those that it waits for, as it needs them. A queue for GPUs has positions instead."""
    newest = next((event for event in reversed(events) if event["kind"] == "queued"), None)
    return newest.get("text") if newest is not None and newest.get("needs") else None


def _find_job_end(evidence: Evidence, end: Mapping[str, Any]) -> JobEnd | None:
    """Return what a scheduler says of the end, unless the run's own record says how it ended."""
    carried_out = (evidence.stop or {}).get("carried_out")
    return None if end or evidence.exit is not None or carried_out else evidence.supervisor.end


def _measured_s(events: Sequence[RecordEvent], end: Mapping[str, Any]) -> float | None:
    """Return the duration that the supervisor measured; None where it measured another time than the command's."""
    elapsed_s = end.get("elapsed_s")
    if isinstance(elapsed_s, bool) or not isinstance(elapsed_s, (int, float)) or elapsed_s < 0:
        return None
    # Former versions counted the time in the queue, and a requeued run is measured from its requeue on.
    return None if any(e["kind"] in ("queued", "requeued", "refused") for e in events) else elapsed_s


def _find_stopper(state: RunState, evidence: Evidence, end: Mapping[str, Any]) -> str | None:
    """Return who or what stopped an ended run: by its end, its exit record, else by the stop request."""
    if state not in ENDED:
        return None
    records: list[Mapping[str, Any]] = [end, evidence.exit or {}]
    if state == "killed":
        records.append(evidence.stop or {})
    if by_job := _find_job_end(evidence, end):
        records.append({"stopped_by": by_job.stopped_by})
    stopper = next((record["stopped_by"] for record in records if record.get("stopped_by")), None)
    return stopper if stopper in STOPPERS else None


def attempt_of(events: Sequence[RecordEvent]) -> int:
    """Return the number of the attempt that began last, from 1."""
    return next((e.get("attempt", 1) for e in reversed(events) if e["kind"] == "started"), 1)


def _last_failure(events: Sequence[RecordEvent]) -> dict[str, Any] | None:
    """Return the last failure, unless the run has recovered since."""
    newest: Mapping[str, Any] = next(
        (e for e in reversed(events) if "failure" in e or e["kind"] in CLEARING | ENDING), {}
    )
    return newest.get("failure")


def _state_by_exit_record(
    exit_record: dict[str, Any], events: Sequence[RecordEvent], *, is_dead: bool
) -> tuple[RunState, str | None]:
    """Return state and reason of a run whose supervisor wrote an attempt's end, and then died, if it did."""
    state: RunState = exit_record.get("state") or "failed"
    if events and events[-1]["kind"] == "retrying" and exit_record.get("stopped_by") == "policy":
        state = "failed"  # the policy stopped the attempt for the sake of the next one
    if state not in ENDED or exit_record.get("state") is None:
        state = "finished" if exit_record.get("exit_code") == 0 else "failed"
    if state == "failed" and events and events[-1]["kind"] == "retrying":
        return state, "Its supervisor is gone: the retry that was due did not start."
    # Runs of former layouts wrote no events, or no state: their record is all that there ever was.
    is_unjudged = exit_record.get("state") == "failed" and bool(events) and is_dead
    return state, UNJUDGED if is_unjudged else None


def _state_and_reason(evidence: Evidence) -> tuple[RunState, str | None]:
    """Return the state and the reason for it. First match wins."""
    liveness, reason = evidence.supervisor.liveness, evidence.supervisor.reason or None
    ends: list[Mapping[str, Any]] = [e for e in evidence.events if e["kind"] in ENDING]
    doubt = _doubt_of_end(evidence, ends)
    if ends and ends[-1].get("state") in ENDED and doubt is None:
        if ends[-1]["state"] == "lost" and ((evidence.stop or {}).get("carried_out") or {}).get("far_side_ended"):
            return "killed", None
        return ends[-1]["state"], ends[-1].get("then") if ends[-1]["state"] in ("lost", IMPORTED) else None
    newest: RunState | None = next(
        (LIVE_STATES[e["kind"]] for e in reversed(evidence.events) if e["kind"] in LIVE_STATES), None
    )
    if liveness is Liveness.ALIVE:
        return newest or ("running" if evidence.events else "starting"), doubt or None
    # Neither is an end: a host that is silent may run on, and a scheduler may start a requeued run again.
    if liveness is Liveness.UNREACHABLE:
        return newest or "starting", doubt or reason or "Its host does not answer: this is the last known state."
    if doubt and liveness is Liveness.PENDING:
        return newest or "running", doubt
    if liveness is Liveness.PENDING:
        is_fresh = evidence.age_s < STARTING_S and not evidence.events
        return "starting" if is_fresh and reason is None else "queued", reason
    is_unconfirmed = liveness is Liveness.UNKNOWN and (newest == "retrying" or evidence.spec.backend == "slurm")
    if evidence.exit is not None and not is_unconfirmed:
        state, why = _state_by_exit_record(evidence.exit, evidence.events, is_dead=liveness is Liveness.DEAD)
        was_stopped = (evidence.stop or {}).get("carried_out") and (evidence.spec.recovery or {}).get("rules")
        return ("killed", None) if state == "failed" and was_stopped else (state, why)  # no retry followed: the stop
    if liveness is Liveness.UNKNOWN:
        # Runs of former layouts wrote no events.
        return (
            newest or "running",
            doubt or reason or "Whether it still lives is unknown: this is the last known state.",
        )
    return _state_without_supervisor(evidence)


def _doubt_of_end(evidence: Evidence, ends: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why a written end is not believed, empty for a moment, and None where it is.

    The command can write one too. A supervisor releases its lock right after the end that it wrote. A look at Slurm
    reads the record first, so any other word than ``dead`` is older than the end, or doubts it.
    """
    report = evidence.supervisor
    if not ends or report.liveness is Liveness.DEAD:
        return None
    said = f"Its record says {ends[-1].get('state', 'ended')}, but"
    if report.liveness is Liveness.ALIVE:
        if _age_of_end_s(evidence, ends[-1]) < _LETS_GO_WITHIN_S:
            return ""
        return f"{said} its supervisor lives: the command may have written that line itself, or the supervisor hangs."
    is_silent_host = report.unreachable is not None and report.unreachable.get("host") != "Slurm"
    if evidence.spec.backend != "slurm" or is_silent_host:
        return None
    return f"{said} Slurm has not confirmed that its supervisor is gone: the command may have written that line itself."


def _age_of_end_s(evidence: Evidence, end: Mapping[str, Any]) -> float:
    """Return the age of a written end, infinite where its times do not say."""
    try:
        return abs(posix(evidence.spec.created_at) + evidence.age_s - posix(str(end.get("at"))))
    except ValueError:
        return math.inf


def _state_without_supervisor(evidence: Evidence) -> tuple[RunState, str | None]:
    """Return the state of a run whose supervisor died and wrote no end."""
    if evidence.stop is not None and evidence.stop.get("carried_out"):
        return "killed", None
    if evidence.stop is not None and evidence.stop.get("killed_paused"):
        return "killed", "A stop killed it while it was paused: it ended when it was resumed."
    if (by_job := evidence.supervisor.end) is not None:
        return by_job.state, by_job.reason
    if evidence.supervisor.reason:
        return "lost", evidence.supervisor.reason
    if not evidence.events:
        return "lost", "Its launch was cut off: the command never started."
    if evidence.events[-1]["kind"] == "queued":
        what = "the runs that it needs" if evidence.events[-1].get("needs") else "GPUs"
        return "lost", f"Its supervisor is gone: when it was last heard of, it waited for {what}."
    return "lost", _describe_guard_exit(evidence.guard_exit or {}) or UNKNOWN_END


def _describe_guard_exit(end: Mapping[str, Any]) -> str:
    """Return how a command ended that nobody watched any more; empty where its guard recorded nothing."""
    if end == NEVER_BEGAN:
        return f"{NO_END}: it died before it let the command begin, and nothing of it ran."
    code, name, at = end.get("exit_code"), end.get("signal"), end.get("ended_at")
    how = f"exit code {code}" if code is not None else name
    if not how or at is None:
        return ""
    return f"{NO_END}: the command went on without a terminal, and ended with {how} at {at}."


def posix(at: str) -> float:
    """Return the POSIX time of an ISO 8601 text."""
    return parse_time(at).timestamp()
