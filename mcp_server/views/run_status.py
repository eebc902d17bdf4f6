"""Response model for a run's status. Fields that are None are omitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from mcp_server.answer import Answer
from mcp_server.backends.base import backend_of
from mcp_server.command.shell import name_helpers, parse
from mcp_server.record.notices.notice import find_undelivered
from mcp_server.record.results.notes import NOTES, fold_notes, read_notes, tell_note
from mcp_server.record.results.result_page import TrackerLink, read_tracker_link
from mcp_server.record.run_directory import boot_id
from mcp_server.record.run_processes import RunProcess
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import NO_END, UNKNOWN_END, Run, RunState, posix
from mcp_server.store.run_store import RunStore
from mcp_server.system import processes
from mcp_server.text.formatting import (
    duration,
    fold_bars,
    join_some,
    printable,
    round_known,
    round_seconds,
    shorten_facts,
    shorten_line,
    shorten_middle,
    significant,
)
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.views.progress_text import first_metrics

# A failed run's whole status has 300 tokens.
_LINE_CHARS, _CONTEXT_LINES, _CONTEXT_CHARS, _EVENT_CHARS = 180, 2, 90, 160
_FEWEST_EVENT_CHARS, _STALL_CHARS = 100, 260  # of what happened, however long the rest is
_MOST_EVENTS, _MOST_EVENTS_OF_FAILED = 6, 2
_MOST_PARAMS, _PARAM_CHARS, _MOST_CHANGES, _CHANGE_CHARS = 16, 60, 4, 120
_MOST_COMMAND_CHARS = 4000
_PROGRAM_CHARS, _MOST_PROGRAMS = 60, 3
_MOST_PARAMS_OF_FAILED, _PARAM_CHARS_OF_FAILED, _MOST_CHANGES_OF_FAILED = 6, 30, 2


class Shown(NamedTuple):
    """Where a field of a status stands; an answer about one run has all that are known, but for some cases."""

    source: str = ""  # taken as it is from the "run", its "progress" or its "spec"; else ``describe`` makes it
    without: str = ""  # cases of ``_list_cases`` that leave it out: known to the reader, no room, perhaps stale
    heartbeat: int = 0  # 1: in each heartbeat; more: as far as it fits, the lowest first
    is_news: bool = False  # a heartbeat that has it must not be shortened
    row: str = ""  # in a row of a list of runs: "all", or "live" runs alone
    of_one: bool = False  # not in one of several statuses: a reader of many looks it up for one


class Event(Answer):
    """An event of the run, with its sequence number. ``again``: it was in your last answer, which may be lost."""

    seq: int
    at: str
    kind: str
    text: str
    again: bool | None = None


class Leftover(Answer):
    """A process of a run that outlived its supervisor."""

    pid: int
    command: str

    @classmethod
    def of(cls, process: RunProcess) -> Leftover:
        """Return the answer for ``process``. Its command is the program alone."""
        return cls(pid=process.pid, command=process.program)


class Tracker(Answer):
    """The page of the run in wandb, SwanLab or MLflow as it was printed; ``directory``: of an offline run."""

    url: str | None = None
    run_id: str | None = None
    directory: str | None = None

    @classmethod
    def of(cls, link: TrackerLink | None) -> Tracker | None:
        """Return the answer for ``link``."""
        if link is None:
            return None
        return cls(url=link.url or None, run_id=link.run_id or None, directory=link.directory or None)


class Failure(Answer):
    """Why a run failed: the line that proves it, the lines around it, and what to do."""

    kind: str
    line: str | None = None  # left out of short rows
    line_number: int | None = None
    retryable: bool | None = None
    action: str | None = None
    advice: str | None = None
    context: list[str] | None = None


class Unreachable(Answer):
    """The host of a run does not answer: its state is the last known one."""

    host: str
    since: str
    why: str


class RunStatus(Answer):
    """The state of one run. Durations in seconds, times in ISO 8601 UTC.

    ``round``: the present one of several trainings in the run, whose are step, total, times and metrics; absent for 1.
    ``earlier``: how the attempts before ended. ``params``: those of the newest attempt. ``params_changed``: which of
    them, and which variables, retries changed.
    ``read_from``: the file with step and metrics, where they are not printed. ``looked_at``: files without a step yet.
    ``command``, ``cwd``: as the newest attempt ran, in run://ID and in the list of one name.
    """

    run_id: Annotated[str, Shown("run", heartbeat=1, row="all")]
    name: Annotated[str | None, Shown("spec", without="brief, alone", of_one=True)] = None
    host: Annotated[str | None, Shown(without="brief")] = None
    backend: Annotated[str | None, Shown(without="brief")] = None
    job_id: Annotated[str | None, Shown("run", without="not in line", heartbeat=1, row="live")] = None
    state: Annotated[RunState, Shown("run", heartbeat=1, row="all")]
    unreachable: Annotated[Unreachable | None, Shown(heartbeat=1, row="live")] = None
    owner: Annotated[str | None, Shown(row="all")] = None
    sweep: Annotated[str | None, Shown("spec", without="brief", row="all")] = None
    cell: Annotated[str | None, Shown("spec", without="brief", row="all")] = None
    reason: Annotated[str | None, Shown(without="unreachable", heartbeat=1, row="live")] = None
    attempt: Annotated[int | None, Shown("run", without="first attempt", heartbeat=1)] = None
    earlier: Annotated[str | None, Shown("run", without="goes on")] = None
    exit_code: Annotated[int | None, Shown("run")] = None
    signal: Annotated[str | None, Shown("run")] = None
    stopped_by: Annotated[str | None, Shown("run")] = None
    started_at: Annotated[str | None, Shown("run", without="brief", of_one=True)] = None
    ended_at: Annotated[str | None, Shown("run", is_news=True, of_one=True)] = None
    elapsed_s: Annotated[float | None, Shown(without="unreachable", heartbeat=7)] = None
    queue_position: Annotated[int | None, Shown("run", heartbeat=1, row="live")] = None
    pending_reason: Annotated[str | None, Shown(heartbeat=1, row="live")] = None
    gpus: Annotated[list[int | str] | None, Shown(without="begun before, failed")] = None
    round: Annotated[int | None, Shown("progress", without="lost", heartbeat=1, row="live")] = None
    step: Annotated[int | None, Shown("progress", without="lost", heartbeat=1, row="live")] = None
    total_steps: Annotated[int | None, Shown("progress", without="lost", heartbeat=6)] = None
    step_s: Annotated[float | None, Shown(without="ended", heartbeat=8, of_one=True)] = None
    # That of a retried attempt is over: the next may begin at step 0.
    eta_s: Annotated[float | None, Shown(without="unreachable, ended, stalled, retrying", heartbeat=2)] = None
    metrics: Annotated[dict[str, float | str] | None, Shown(without="failed, listed, lost", heartbeat=3)] = None
    read_from: Annotated[str | None, Shown("progress", without="brief, failed, listed, lost", of_one=True)] = None
    looked_at: Annotated[str | None, Shown("progress", without="ended", is_news=True, of_one=True)] = None
    command: str | None = None
    cwd: str | None = None
    params: Annotated[dict[str, Any] | None, Shown(without="brief", of_one=True)] = None
    params_changed: Annotated[list[str] | None, Shown(without="begun before", is_news=True)] = None
    last_output_s: Annotated[float | None, Shown(without="unreachable", heartbeat=4, of_one=True)] = None
    tracker: Annotated[Tracker | None, Shown(is_news=True)] = None
    failure: Annotated[Failure | None, Shown(is_news=True)] = None
    note: Annotated[str | None, Shown(without="brief", row="all")] = None
    leftovers: Annotated[list[Leftover] | None, Shown(is_news=True)] = None
    events: Annotated[list[Event] | None, Shown(is_news=True)] = None
    tail: Annotated[list[str] | None, Shown(heartbeat=5)] = None


SHOWN = {
    name: next((m for m in field.metadata if isinstance(m, Shown)), Shown())
    for name, field in RunStatus.model_fields.items()
}


def status_of(
    store: RunStore,
    run: Run,
    *,
    since: int = 0,
    tail: list[str] | None = None,
    brief: bool = False,
    listed: bool = False,
) -> RunStatus:
    """Return the status of ``run`` as this machine sees it; ``listed``: without left-over processes and details."""
    # A process without a program, such as the guard, is about to exit.
    leftovers = [] if listed else [Leftover.of(one) for one in backend_of(run.spec).find_leftovers(run) if one.program]
    tracker = _read_tracker(store, run, since, brief=brief, listed=listed)
    unheard = [] if listed or brief else find_undelivered(store.directory_of(run.run_id))
    remarks = [] if brief else read_notes(store.record_of(run).path / NOTES)
    if run.spec.mirror and not run.ended:  # its host may have fallen silent over these questions
        report = backend_of(run.spec).liveness(store.run_directory(run.run_id), run.spec)
        run = replace(run, unreachable=report.unreachable, reason=None if run.unreachable else run.reason)
    now_s, output_at_s = store.now_s(run), store.output_at_s(run)
    return describe(
        run,
        now_s=now_s,
        since=since,
        last_output_at_s=output_at_s,
        tail=tail,
        brief=brief,
        listed=listed,
        running_s=_measure_running(run),
        lag_s=_measure_lag(run, now_s, output_at_s),
        leftovers=leftovers,
        tracker=tracker,
        unheard=unheard,
        remarks=remarks,
    )


def add_command(status: RunStatus, run: Run, chars: int = _MOST_COMMAND_CHARS) -> RunStatus:
    """Return ``status`` with the command of its run as it ran, in at most ``chars`` characters, and where."""
    command = shorten_middle(mask_secrets(run.command), chars)
    return status.model_copy(update={"command": command, "cwd": run.spec.cwd or None})


def _read_tracker(store: RunStore, run: Run, since: int, *, brief: bool, listed: bool) -> Tracker | None:
    """Return the run's page in a tracker, for whole answers and for the first step: others have no room for it."""
    is_news = any(e["kind"] == "first_step" and e["seq"] > since for e in run.events)
    if listed or run.failure is not None or not run.attempt or (brief and not is_news):
        return None
    return Tracker.of(read_tracker_link(store.fetch_log(run)))


def _measure_running(run: Run) -> float | None:
    """Return for how long a live run has run, by a clock that nobody sets; None where only the other clock is known."""
    started, boot = run.at_start.get("pid_started"), run.at_start.get("boot_id")
    if run.ended or run.attempt > 1 or not isinstance(started, int) or boot != boot_id():
        return None
    return max(0.0, processes.up_s() - processes.started_up_s(started))


def _measure_lag(run: Run, now_s: float, output_at_s: float | None) -> float:
    """Return how old the step and metrics of a live run are, where it has printed since: its time is of that moment."""
    at = run.progress.get("at")
    noted_s = posix(at) if isinstance(at, str) and not run.ended else now_s
    return max(0.0, now_s - noted_s) if output_at_s is not None and output_at_s > noted_s else 0.0


def describe(
    run: Run,
    *,
    now_s: float,
    since: int = 0,
    last_output_at_s: float | None = None,
    running_s: float | None = None,
    lag_s: float = 0.0,
    tail: list[str] | None = None,
    leftovers: list[Leftover] | None = None,
    tracker: Tracker | None = None,
    unheard: Sequence[str] = (),
    remarks: Sequence[Mapping[str, Any]] = (),
    brief: bool = False,
    listed: bool = False,
) -> RunStatus:
    """Return the status of ``run``, with the newest events after ``since``. Pure.

    ``brief`` omits what the launch has already answered: a heartbeat has 100 tokens. ``listed``: one line among many.
    A failure has 300 tokens and no room for other facts; the name is part of the run's id. ``last_output_at_s`` is
    POSIX time, and used for live runs only. ``running_s``: for how long it has run, where that is measured. ``lag_s``:
    the age of its step and metrics, so that its time is of the same moment.
    ``unheard``: the notices that never arrived. ``remarks``: notes on the run, the newest of which stands in a list.
    """
    progress, failed = run.progress, run.failure is not None
    cases = _list_cases(run, since, brief=brief, listed=listed)
    silent_s = max(0.0, now_s - last_output_at_s) if last_output_at_s is not None and not run.ended else None
    elapsed_s = run.elapsed_s(now_s) if running_s is None else running_s
    facts: dict[str, Any] = {
        **{name: getattr(run, name) for name, shown in SHOWN.items() if shown.source == "run"},
        **{name: getattr(run.spec, name) for name, shown in SHOWN.items() if shown.source == "spec"},
        **{name: progress.get(name) for name, shown in SHOWN.items() if shown.source == "progress"},
        "host": run.spec.host if run.spec.mirror else None,
        "backend": None if run.spec.backend == RunSpec.backend else run.spec.backend,
        "unreachable": Unreachable(**run.unreachable) if run.unreachable else None,
        "reason": _reason(run, len(leftovers or ())),
        "elapsed_s": None if elapsed_s is None else round_seconds(elapsed_s - lag_s),
        "pending_reason": shorten_facts(run.pending_reason, _EVENT_CHARS) if run.pending_reason else None,
        "gpus": list(run.gpu_names) or None,
        "step_s": significant(progress["step_s"]) if "step_s" in progress else None,
        "eta_s": round_known(run.left_s(now_s)) or None,  # at its last step others may follow, or an evaluation
        "metrics": _metrics(progress.get("metrics") or {}, brief=brief),
        "params": _params(run, short=failed or listed),
        "params_changed": _changed_params(run, short=failed),
        "last_output_s": round_known(silent_s),
        "tracker": tracker,
        "failure": _failure(run.failure, run.spec.sweep, listed=listed) if run.failure else None,
        "note": _join_notes(_note(run, short=listed), unheard, remarks if listed else ()),
        "leftovers": leftovers or None,
        "events": _events(run, since, () if listed else remarks) or None,
        "tail": tail or None,
    }
    return RunStatus(
        **{name: value for name, value in facts.items() if cases.isdisjoint(SHOWN[name].without.split(", "))}
    )


def _list_cases(run: Run, since: int, *, brief: bool, listed: bool) -> set[str]:
    """Return the cases in which a run's answer leaves fields out."""
    failed = run.failure is not None
    begun_before = brief and not any(e["kind"] == "started" and e["seq"] > since for e in run.events)
    cases = {
        "goes on": brief and not run.ended,
        "brief": brief,
        "begun before": begun_before,
        "not in line": brief and run.state != "queued",
        "first attempt": run.started_at is None or (brief and run.attempt == 1),
        "failed": failed,
        "alone": failed and not listed,
        "listed": listed or not run.made_a_step,
        "lost": run.state == "lost",
        "unreachable": bool(run.unreachable),
        "ended": run.ended,
        "stalled": run.state == "stalled",
        "retrying": run.state == "retrying",
    }
    return {case for case, holds in cases.items() if holds}


def _events(run: Run, since: int, remarks: Sequence[Mapping[str, Any]]) -> list[Event]:
    """Return the newest events after ``since``, and the notes. Who reads a failure or a step need not hear of a start.

    A note on an ended run has no event behind it, and is told whenever somebody asks.
    """
    most = _MOST_EVENTS if run.failure is None else _MOST_EVENTS_OF_FAILED
    is_old = run.failure is not None and run.progress.get("step") is not None
    old_news = {"started", "first_step"} if is_old else {"started"}
    told = fold_notes(run.events, remarks)
    return [_event(e) for e in told if e["seq"] + (e["kind"] == "note") > since and e["kind"] not in old_news][-most:]


def _join_notes(note: str | None, unheard: Sequence[str], remarks: Sequence[Mapping[str, Any]]) -> str | None:
    lost = shorten_facts(f"Not notified ({len(unheard)}): {printable(unheard[0])}.", _EVENT_CHARS) if unheard else None
    said = shorten_facts(tell_note(remarks[-1]), _CONTEXT_CHARS) if remarks else None
    return " ".join(filter(None, (note, lost, said))) or None


def _reason(run: Run, leftovers: int) -> str | None:
    """Return the reason of a state, with the last known step of a lost run: how far it came is not known."""
    reason = run.reason
    if run.state == "lost" and leftovers and (reason or "").startswith(NO_END):
        what = "a process of it still runs" if leftovers == 1 else f"{leftovers} processes of it still run"
        reason = f"{NO_END}: {what}, and nobody watches." if reason == UNKNOWN_END else f"{reason} Yet {what}."
    last_step = f"Its last known step: {run.last_known_step}." if run.last_known_step else ""
    return " ".join(filter(None, (reason, last_step))) or None


def printed_exception(run: Run) -> str | None:
    """Return the sentence about an exception in the output of a run that ended with exit code 0, None without one."""
    if run.state != "finished":
        return None
    return next((e.get("text", "") for e in reversed(run.events) if e["kind"] == "exception_printed"), None)


def describe_nan_end(run: Run) -> str | None:
    """Return which reward or held-out loss of a finished run was NaN up to its end, None where none was."""
    since = run.progress.get("nan_since")
    if run.state != "finished" or not isinstance(since, Mapping):
        return None
    texts = [
        f"{name} ended as nan" + (f" since step {step}." if isinstance(step, int) else ".")
        for name, step in since.items()
    ]
    return " ".join(texts) or None


def describe_left_behind(run: Run, *, short: bool = False) -> str | None:
    """Return what the command of a finished run left behind, which was stopped: perhaps the training itself."""
    end: Mapping[str, Any] = run.events[-1] if run.events else {}
    left = [one for one in end.get("leftovers") or () if isinstance(one, Mapping)]
    if run.state != "finished" or not left:
        return None
    what = f"{len(left)} {'process' if len(left) == 1 else 'processes'}"
    helpers = ", ".join(name_helpers(run.spec.command)[:_MOST_PROGRAMS])
    if short:
        return f"left {what} behind, stopped" + (" (starts helpers)" if helpers else "")
    programs = dict.fromkeys(shorten_middle(fold_bars(str(one.get("command"))), _PROGRAM_CHARS) for one in left)
    named = join_some(list(programs), _MOST_PROGRAMS)
    after = f" after {duration(end['elapsed_s'])}" if "elapsed_s" in end and run.attempt == 1 else ""
    if run.attempt > 1:  # the time of the run counts all its attempts, and the waits between them
        after = f" in attempt {run.attempt}"
    fate = "not all of which could be stopped" if end.get("survivors") else "which runward stopped"
    text = f"The command ended{after} and left {what} behind, {fate}: {named}."
    if helpers:
        text += f" The command itself starts {helpers} in the background: such a helper ends with the run."
    command = parse(run.spec.command)
    if command.ends_in_background or not {"nohup", "setsid", "disown"}.isdisjoint(command.words):
        text += " If that was the training, launch it again without &, nohup or setsid: a run ends with its command."
    return text


def _note(run: Run, *, short: bool) -> str | None:
    notes = []
    if text := printed_exception(run):
        notes.append("printed an exception" if short else shorten_facts(text, _EVENT_CHARS))
    if text := describe_nan_end(run):
        notes.append(text.rstrip(".") if short else text)
    if text := describe_left_behind(run, short=short):
        notes.append(text)
    if text := run.progress.get("left_out"):
        notes.append("its files are left out: unknown whose" if short else f"Left out: {text}.")
    if text := run.code_change:
        notes.append("code changed before its start" if short else shorten_facts(text, _EVENT_CHARS))
    return ("; " if short else " ").join(notes) or None


def _params(run: Run, *, short: bool) -> dict[str, Any] | None:
    """Return the parameters of the newest attempt, those that retries changed first, with long values shortened."""
    params, changed = run.attempt_params.settings, run.attempt_params.changed
    most, chars = (_MOST_PARAMS_OF_FAILED, _PARAM_CHARS_OF_FAILED) if short else (_MOST_PARAMS, _PARAM_CHARS)
    names = sorted(params, key=lambda name: name not in changed)
    values = {name: _param(params[name], chars) for name in names[:most]}
    return values | ({"…": f"{len(names) - most} more"} if len(names) > most else {}) or None


def _param(value: object, chars: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return shorten_middle(str(value), chars)


def _changed_params(run: Run, *, short: bool) -> list[str] | None:
    phrases, most = list(run.attempt_params.changed.values()), _MOST_CHANGES_OF_FAILED if short else _MOST_CHANGES
    left = [f"{len(phrases) - most} more"] if len(phrases) > most else []
    return [*(shorten_facts(phrase, _CHANGE_CHARS) for phrase in phrases[:most]), *left] or None


def _event(event: Mapping[str, Any]) -> Event:
    """Return ``event`` with a short text. What is cut is what happened, never what happens next or what to do."""
    text, then = str(event.get("text", "")), str(event.get("then") or "")
    if then and text.endswith(f" {then}"):
        happened = text.removesuffix(f" {then}")
        fewest = _STALL_CHARS if event["kind"] in ("stalled", "first_step_timeout") else _FEWEST_EVENT_CHARS
        text = f"{shorten_facts(happened, max(fewest, _EVENT_CHARS - len(then) - 1))} {then}"
    else:
        text = shorten_facts(text, _EVENT_CHARS)
    return Event(seq=event["seq"], at=event.get("at", ""), kind=event["kind"], text=text)


def _failure(failure: Mapping[str, Any], sweep_id: str | None, *, listed: bool) -> Failure:
    whole = str(failure.get("line", ""))
    line = shorten_line(fold_bars(whole), _LINE_CHARS)
    if listed:
        return Failure(kind=str(failure.get("kind")), line=line)
    lines = [str(text) for text in failure.get("context") or ()]
    around = [shorten_line(fold_bars(text), _CONTEXT_CHARS) for text in lines if not whole.endswith(text.strip())]
    facts = {name: failure.get(name) for name in ("line_number", "retryable", "action", "advice")}
    if sweep_id:
        facts["advice"] = advise_on_cell(failure, sweep_id)
    return Failure(kind=str(failure.get("kind")), line=line, context=around[-_CONTEXT_LINES:] or None, **facts)


def _metrics(metrics: Mapping[str, Any], *, brief: bool) -> dict[str, float | str] | None:
    newest = list(metrics.items())
    if brief:
        newest = first_metrics(metrics)
    return {name: significant(v) if isinstance(v, int | float) else str(v) for name, v in newest} or None


def advise_on_cell(failure: Mapping[str, Any], sweep_id: str) -> str | None:
    """Return the advice about a run, for a cell of this sweep."""
    said = failure.get("correction")
    return f"{said} {restart_advice(sweep_id)}" if said else failure.get("advice")


def restart_advice(sweep_id: str, *, ended: bool = False) -> str:
    """Return how cells without result start again after a correction."""
    after = "" if ended else "once the sweep has ended, "
    return f'After a correction, {after}launch_sweep(name="{sweep_id}", resume="continue") starts failed cells again.'
