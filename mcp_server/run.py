"""A run: what was asked for, what is known of it, and how it is told. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

LiveState = Literal["queued", "starting", "running", "stalled", "retrying"]
EndedState = Literal["finished", "failed", "killed", "timed_out", "lost"]
RunState = Literal[LiveState, EndedState]
ENDED: frozenset[str] = frozenset(get_args(EndedState))

# A launcher and a supervisor need well under a second; after this nobody is coming any more.
STARTING_S = 15.0


class RunSpec(BaseModel):
    """What was asked for, as ``spec.json`` keeps it: secrets by name only.

    Every field has a default, so that directories of former layouts stay readable.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    layout: int = 0
    run_id: str = ""
    name: str = ""
    command: str | list[str] = ""
    cwd: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    secrets: list[str] = Field(default_factory=list)
    owner: str = ""
    tags: list[str] = Field(default_factory=list)
    time_limit_s: float | None = None
    stop_grace_s: float = 5.0
    idempotency_key: str | None = None
    created_at: str = ""
    host: str = ""
    boot_id: str = ""
    session: str = ""
    tmux_socket: str = "default"


@dataclass(frozen=True)
class Evidence:
    """Everything on disk that tells how a run fares.

    ``events`` are the supervisor's, oldest first; ``exit`` and ``stop`` the records of that name;
    ``held``: the supervisor's lock is held; ``here``: this kernel can tell; ``rebooted``: another boot.
    """

    spec: RunSpec
    events: tuple[dict[str, Any], ...] = ()
    exit: dict[str, Any] | None = None
    stop: dict[str, Any] | None = None
    held: bool = False
    here: bool = True
    rebooted: bool = False
    age_s: float = 0.0


@dataclass(frozen=True)
class Run:
    """One run as the evidence tells it.

    ``reason`` says what no event does: why a run is lost. ``here``: it can be told, and stopped, on this host.
    """

    spec: RunSpec
    state: RunState
    events: tuple[dict[str, Any], ...] = ()
    exit_code: int | None = None
    signal: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    reason: str | None = None
    at_start: dict[str, Any] = field(default_factory=dict)
    attempt: int = 1
    here: bool = True
    # Its supervisor is gone and wrote no end, although an exit record may be there.
    abandoned: bool = False

    @property
    def run_id(self) -> str:
        """The id, also the session's name."""
        return self.spec.run_id

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in ENDED

    @property
    def last_seq(self) -> int:
        """Number of the newest event."""
        return int(self.events[-1]["seq"]) if self.events else 0

    def elapsed_s(self, now_s: float) -> float | None:
        """Seconds from the command's start to its end, or to ``now_s`` (POSIX time); unknown for a lost run."""
        if self.started_at is None or self.state == "lost":
            return None
        until_s = posix(self.ended_at) if self.ended_at else now_s
        return max(0.0, until_s - posix(self.started_at))


def fold(evidence: Evidence) -> Run:
    """Turn evidence into a run. An end on disk is believed first, then the lock; nothing is invented."""
    state, reason = _state(evidence)
    started = next((e for e in evidence.events if e["kind"] == "started"), {})
    last: dict[str, Any] = next((e for e in reversed(evidence.events) if e["kind"] in _ENDS), {})
    end = evidence.exit or last
    ended_at = end.get("ended_at") or last.get("at")
    carried_out = (evidence.stop or {}).get("carried_out") or {}
    known = state in ENDED and state != "lost"
    return Run(
        spec=evidence.spec,
        state=state,
        events=evidence.events,
        exit_code=end.get("exit_code") if known else None,
        signal=end.get("signal") if known else None,
        started_at=started.get("at") or end.get("started_at"),
        ended_at=(ended_at or carried_out.get("at")) if known else None,
        reason=reason,
        at_start=started.get("at_start", {}),
        here=evidence.here or evidence.rebooted,
        abandoned=state in ENDED and not evidence.held and not last and not carried_out,
    )


_ENDS = frozenset({"ended", "refused"})


def _state(evidence: Evidence) -> tuple[RunState, str | None]:
    """First match wins."""
    ends = [e for e in evidence.events if e["kind"] in _ENDS]
    if ends and ends[-1].get("state") in ENDED:
        return ends[-1]["state"], None
    if evidence.held:
        return ("running" if evidence.events else "starting"), None
    if evidence.exit is not None:
        recorded = evidence.exit.get("state")
        if recorded in ENDED:
            return recorded, None
        return ("finished" if evidence.exit.get("exit_code") == 0 else "failed"), None
    if not evidence.here and not evidence.rebooted:
        return (
            "running",
            f"Supervised on {evidence.spec.host}: whether it still lives can be told only there.",
        )
    if not evidence.events and evidence.age_s < STARTING_S and not evidence.rebooted:
        return "starting", None
    if evidence.stop is not None and evidence.stop.get("carried_out"):
        return "killed", None
    if evidence.rebooted:
        return "lost", "The machine was rebooted while it ran."
    if not evidence.events:
        return "lost", "Its launch was cut off: the command never started."
    return "lost", "Its supervisor is gone and wrote no end: how the command ended is unknown."


class Answer(BaseModel):
    """Base of everything that a tool returns: absent values are left out."""

    model_config = ConfigDict(frozen=True)

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class Event(Answer):
    """A fact with a sequence number."""

    seq: int
    at: str
    kind: str
    text: str


class Leftover(Answer):
    """A process of a run that outlived its supervisor."""

    pid: int
    command: str


class RunStatus(Answer):
    """How one run fares. Durations in seconds, times in ISO 8601 UTC."""

    run_id: str
    name: str | None = None
    state: RunState
    reason: str | None = None
    attempt: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    elapsed_s: float | None = None
    last_output_s: float | None = None
    leftovers: list[Leftover] | None = None
    events: list[Event] | None = None
    tail: list[str] | None = None


def describe(
    run: Run,
    *,
    now_s: float,
    since: int = 0,
    last_output_at_s: float | None = None,
    tail: list[str] | None = None,
    leftovers: list[Leftover] | None = None,
    brief: bool = False,
    most_events: int = 6,
) -> RunStatus:
    """Return what an agent is told of ``run``: the events after ``since``, newest kept.

    ``brief``: without what whoever launched it knows already; a heartbeat has 100 tokens.
    ``last_output_at_s`` is POSIX time; it is told for live runs only.
    """
    elapsed_s = run.elapsed_s(now_s)
    silent_s = now_s - last_output_at_s if last_output_at_s is not None and not run.ended else None
    new = [e for e in run.events if e["seq"] > since and e["kind"] != "started"][-most_events:]
    return RunStatus(
        run_id=run.run_id,
        name=None if brief else run.spec.name,
        state=run.state,
        reason=run.reason,
        attempt=run.attempt if run.started_at and (run.attempt > 1 or not brief) else None,
        exit_code=run.exit_code,
        signal=run.signal,
        started_at=None if brief else run.started_at,
        ended_at=run.ended_at,
        elapsed_s=_short(elapsed_s),
        last_output_s=_short(silent_s),
        leftovers=leftovers or None,
        events=[Event(seq=e["seq"], at=e.get("at", ""), kind=e["kind"], text=e.get("text", "")) for e in new] or None,
        tail=tail or None,
    )


def _short(seconds: float | None) -> float | None:
    """Round to what a reader needs: tenths below a minute, whole seconds above."""
    if seconds is None:
        return None
    return round(max(0.0, seconds), 1) if seconds < 60 else float(round(seconds))  # noqa: PLR2004


def posix(at: str) -> float:
    """Return the POSIX time of an ISO 8601 text."""
    return datetime.fromisoformat(at).timestamp()
