"""The answer to a wait: one run in full; of several those that changed, as far as they fit, the others as counts."""

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mcp_server.answer import Answer
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.state import Run, posix
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.results.figures import RANKINGS, measure
from mcp_server.runs.wait.cursors import Cursor
from mcp_server.runs.wait.metric_wait import MetPoint, MetricWait, show_moment
from mcp_server.runs.wait.selection import WaitSpec
from mcp_server.runs.wait.waiting import Reason, WaitOutcome, find_cursor
from mcp_server.scalars.from_log import LogMetrics, read_log_metrics
from mcp_server.store.freshness import refresh
from mcp_server.store.run_index import RunQuery
from mcp_server.store.told_news import SeenRuns
from mcp_server.sweeps.trials.open_plan import BASELINE
from mcp_server.sweeps.trials.trials import OpenSweep, OpenTrial, read_trials
from mcp_server.text.formatting import round_known, shorten_facts, significant
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import ServerContext
from mcp_server.views import brevity
from mcp_server.views.log_excerpt import FAILED_BYTES, FAILED_LINES, read_tail, share_lines
from mcp_server.views.run_status import RunStatus, status_of
from mcp_server.views.sweep_status import KeptTrial, SweepStatus, TrialsStatus, describe_sweep

# Lines and bytes of output in an answer: a failure has 300 tokens, a heartbeat 45.
_TAIL = {"failed": (6, 440), "lost": (6, 440), "finished": (8, 600), "timed_out": (8, 600)}
_HEARTBEAT_TAIL, _TAIL_OF_SEVERAL, _TAIL_OF_FEW = (1, 80), (1, 120), (4, 320)
_FEW = 3  # ends in one answer
_NO_DECISION = frozenset({"queued", "first_step", "retrying", "resumed", "requeued"})
_MOST_BESIDE, _MOST_SHARED = 100, 2  # live runs that are looked at, and directories that are named
_MOST_ROWS = 8  # of more runs, those without news are only counted, and of more news one is in full


class WaitResult(Answer):
    """Why the wait returned, and the runs that changed.

    ``brief``: further runs that changed, a line each. ``unchanged``: the others by state. ``cursor``: pass it as since.
    ``note`` says why a condition is not met: no run has the metric, or its value at the end.
    """

    reason: Reason
    runs: list[RunStatus]
    sweep: SweepStatus | None = None
    brief: list[str] | None = None
    unchanged: dict[str, int] | None = None
    more: str | None = None
    met: str | None = None
    note: str | None = None
    warnings: list[str] | None = None
    waited_s: float | None = None
    next_timeout_s: float | None = None
    cursor: str | None = None


class Described(NamedTuple):
    """An answer, and what its caller has seen of each run once it has it."""

    answer: WaitResult
    cursors: Mapping[str, Cursor]


async def describe_outcome(
    server: ServerContext, spec: WaitSpec, outcome: WaitOutcome, metric: MetricWait | None, *, shows_owner: bool = False
) -> Described:
    """Return the answer to a wait that has ended so."""
    outcome = outcome if metric is None else metric.settle(outcome)
    is_heartbeat = outcome.reason == "heartbeat"
    if outcome.runs and isinstance(outcome.runs[0], Sweep):
        return await run_in_thread(_describe_sweep, server, spec, outcome, outcome.runs[0])
    runs = [run for run in outcome.runs if isinstance(run, Run)]
    if metric is not None and metric.met is not None:
        runs = await run_in_thread(_show_moment, server, runs, metric.met)
    elif outcome.met is None:  # else the runs are those that met it: a later step beside it is of another moment
        runs = await run_in_thread(refresh, server.store, runs)
    if len(runs) == 1:
        (run,) = runs
        status = await run_in_thread(_describe_run, server, run, spec, shows_owner)
        answer = WaitResult(
            reason=outcome.reason,
            runs=[brevity.shorten_failure(status)],
            waited_s=round(outcome.waited_s, 1),
            next_timeout_s=outcome.next_timeout_s,
        )
        if is_heartbeat:
            if spec.mode == "decision":  # what is not a decision stays unseen, and comes with the next one
                status = status.model_copy(update={"events": None})
            status, next_timeout_s = brevity.shorten_heartbeat(status, outcome.next_timeout_s)
            answer = answer.model_copy(update={"runs": [status], "next_timeout_s": next_timeout_s, "waited_s": None})
        cursors = outcome.cursors
    else:
        answer, cursors = await run_in_thread(_describe_several, server, spec, outcome, runs, shows_owner)
    note = metric.describe_unmet(runs, ended=not is_heartbeat) if metric is not None and outcome.met is None else None
    cursor = await run_in_thread(_keep_cursor, server, spec, cursors) if spec.gives_cursor else None
    shared = await run_in_thread(describe_shared, server, runs)
    update = {"met": outcome.met, "note": note, "warnings": shared or None, "cursor": cursor}
    return Described(answer.model_copy(update=update), cursors)


def describe_shared(server: ServerContext, runs: Sequence[Run]) -> list[str]:
    """Return where live ones of ``runs`` write the same files as each other, or as other live runs. Reads records."""
    own = [run for run in runs if not run.ended]
    live = server.store.list_runs(RunQuery("live"), _MOST_BESIDE) if own else []
    return list(server.scalars.attribution.describe_shared(own, live).values())[:_MOST_SHARED] if live[1:] else []


def _show_moment(server: ServerContext, runs: Sequence[Run], met: MetPoint) -> list[Run]:

    def show(run: Run) -> Run:
        if run.run_id != met.run_id or run.ended:
            return run
        if "round" in run.progress:  # steps of two rounds do not compare
            return refresh(server.store, [run])[0]
        if met.step <= run.progress.get("step", met.step):
            return show_moment(run, met, LogMetrics({}))
        server.store.fetch_log(run)
        return show_moment(run, met, read_log_metrics(run, server.store.run_directory(run.run_id)))

    return list(map(show, runs))


def _describe_sweep(server: ServerContext, spec: WaitSpec, outcome: WaitOutcome, run: Sweep) -> Described:
    is_heartbeat = outcome.reason == "heartbeat"
    # Its counts and lists are told anew each time: nothing is repeated in case that an answer was lost.
    status = describe_sweep(run, server.store, since=find_cursor(spec.cursors, run).seq)
    if run.spec.open is not None:
        status = status.model_copy(update={"trials": describe_trials(run)})
    answer = WaitResult(
        reason=outcome.reason,
        runs=[],
        sweep=status,
        met=outcome.met,
        waited_s=None if is_heartbeat else round(outcome.waited_s, 1),
        next_timeout_s=outcome.next_timeout_s,
    )
    return Described(answer, outcome.cursors)


def _describe_several(
    server: ServerContext, spec: WaitSpec, outcome: WaitOutcome, runs: Sequence[Run], shows_owner: bool
) -> Described:
    """Return the answer about several runs. What does not fit is not answered, stays unseen, and comes next."""
    changed = brevity.sort_by_urgency([run for run in runs if run.run_id in outcome.news])
    full: list[RunStatus] = []
    spent = 0
    for run in changed:
        size = _TAIL_OF_FEW if len(changed) <= _FEW else _TAIL_OF_SEVERAL
        status = _describe_one_of_several(server, run, spec, shows_owner, size)
        tokens = brevity.estimate_answer(status)
        if full and (spent + tokens > brevity.FULL_TOKENS or len(changed) > _MOST_ROWS):
            break
        full.append(status)
        spent += tokens
    full = _add_tails(server, changed, full, brevity.FULL_TOKENS - spent)
    spent = sum(brevity.estimate_answer(status) for status in full)
    lines = [brevity.line_of(run) for run in changed[len(full) :]]
    lines = lines[: brevity.fit(lines, brevity.MANY_TOKENS - spent)]
    answered = {run.run_id for run in changed[: len(full) + len(lines)]}
    left = len(changed) - len(answered)
    others = [run for run in runs if run.run_id not in outcome.news]
    if spec.mode != "decision" and len(runs) <= _MOST_ROWS:
        full += [brevity.row_of(status_of(server.store, run, since=run.last_seq, brief=True)) for run in others]
        others = []
    order = {run.run_id: number for number, run in enumerate(runs)}
    is_heartbeat = outcome.reason == "heartbeat"
    answer = WaitResult(
        reason=outcome.reason,
        runs=sorted(full, key=lambda status: order[status.run_id]),
        brief=lines or None,
        unchanged=brevity.count_states(others) or None,
        more=f"{left} more have news: call again" if left else None,
        waited_s=None if is_heartbeat else round(outcome.waited_s, 1),
        next_timeout_s=outcome.next_timeout_s,
    )
    unseen = outcome.news - answered
    cursors = {
        run.run_id: find_cursor(spec.cursors, run) if run.run_id in unseen else outcome.cursors[run.run_id]
        for run in runs
    }
    return Described(answer, cursors)


def _add_tails(
    server: ServerContext, runs: Sequence[Run], statuses: Sequence[RunStatus], tokens: int
) -> list[RunStatus]:
    """Return the statuses of ``runs``, those of failed ones with the last lines of their output, as far as they fit."""
    pairs = list(zip(runs, statuses, strict=False))
    is_failed = [run.ended and run.failure is not None for run, _ in pairs]
    tails = [
        read_tail(server.store, run, FAILED_LINES, FAILED_BYTES) if failed else []
        for (run, _), failed in zip(pairs, is_failed, strict=True)
    ]
    shared = share_lines(tails, tokens)
    return [brevity.add_tail(status, lines) for (_, status), lines in zip(pairs, shared, strict=True)]


def _keep_cursor(server: ServerContext, spec: WaitSpec, cursors: Mapping[str, Cursor]) -> str | None:
    """Return the word for what the caller has seen then; None where it cannot be kept."""
    before = SeenRuns()
    with contextlib.suppress(BadArgument):  # too old by now: its runs of other waits are answered again
        before = server.cursor_files.read(spec.since) if spec.since is not None else before
    left_out = before.left_out
    if spec.selection is not None and spec.selection.live:
        left_out = spec.selection.left_out
    positions = {run_id: (cursor.seq, cursor.state) for run_id, cursor in cursors.items()}
    with contextlib.suppress(OSError):
        return server.cursor_files.keep(SeenRuns({**before.runs, **positions}, left_out))
    return None


def _describe_one_of_several(
    server: ServerContext, run: Run, spec: WaitSpec, shows_owner: bool, tail: tuple[int, int]
) -> RunStatus:
    status = brevity.without_details(_describe_run(server, run, spec, shows_owner, finished_tail=tail))
    if spec.mode != "decision":
        return status
    trivial = f"{run.state}: exit code {run.exit_code}."
    events = [event for event in status.events or () if event.kind not in _NO_DECISION and event.text != trivial]
    return status.model_copy(update={"events": events or None})


def _describe_run(
    server: ServerContext, run: Run, spec: WaitSpec, shows_owner: bool, *, finished_tail: tuple[int, int] | None = None
) -> RunStatus:
    # A failure has its own lines, and a step says more than the line that it was read from.
    explained = run.failure is not None or (not run.ended and "step" in run.progress)
    size = _TAIL.get(run.state, _HEARTBEAT_TAIL)
    if finished_tail is not None and run.state == "finished":
        size = finished_tail
    tail = [] if explained else read_tail(server.store, run, *size)
    cursor = find_cursor(spec.cursors, run)
    status = status_of(server.store, run, since=cursor.listed_after(run), tail=tail, brief=not run.ended)
    if run.spec.sweep and run.ended and run.failure is None:
        status = _add_ranked(server, run, run.spec.sweep, status)
    if again := [event.model_copy(update={"again": event.seq <= cursor.seq or None}) for event in status.events or ()]:
        status = status.model_copy(update={"events": again})
    return status.model_copy(update={"owner": run.spec.owner or None}) if shows_owner else status


def _add_ranked(server: ServerContext, run: Run, sweep_id: str, status: RunStatus) -> RunStatus:
    """Return ``status`` with the value by which the run's sweep ranks it, where its metrics do not show that.

    They do also where a file has a share (0.7872) of which the output prints the per cent (78.72 %).
    """
    metrics = dict(status.metrics or {})
    with contextlib.suppress(RunwardError, OSError):  # the sweep's directory was removed
        spec = server.store.sweeps.observe(sweep_id).spec
        if spec.metric and not spec.open:
            value = measure(run, server.store, server.scalars, spec.metric, spec.goal, spec.ranking).value
            if value is not None and {significant(value), significant(value / 100)}.isdisjoint(metrics.values()):
                metrics[spec.metric if spec.ranking == RANKINGS[0] else str(spec.ranked_by)] = significant(value)
    return status.model_copy(update={"metrics": metrics or None})


_TEXT_CHARS, _WHY_CHARS = 80, 120


def describe_trials(sweep: Sweep) -> TrialsStatus:
    """Return the counts by verdict, the best trial, the noise, and for how long no run lived."""
    seen = read_trials(sweep)
    counts = Counter(trial.state for name, trial in seen.trials.items() if name != BASELINE)
    return TrialsStatus(
        counts=dict(sorted(counts.items())),
        kept=describe_kept_trial(seen),
        noise_sd=significant(seen.noise.sd, 2) if seen.noise.df else None,
        note=_doubt_noise(seen),
        no_run_lived_s=round_known(_count_idle_s(sweep, time.time())),
    )


def describe_kept_trial(seen: OpenSweep) -> KeptTrial:
    """Return the trial that others have to beat, by all of its runs that count."""
    values, trial = seen.list_counted(seen.tip), seen.trials[seen.tip]
    return KeptTrial(
        trial=trial.name,
        commit=trial.commit[:10] or None,
        mean=significant(sum(values) / len(values)) if values else None,
        sd=significant(statistics.stdev(values), 2) if len(values) > 1 else None,
        n=len(values),
        params=dict(trial.params) or None,
    )


def line_of_trial(trial: OpenTrial, *, with_why: bool = False) -> str:
    """Return a trial in one line: ``t3 discarded: momentum .9 | 0.14 (n 1) against t0 …``."""
    why = f" | {shorten_facts(trial.why, _WHY_CHARS)}" if with_why and trial.why else ""
    state = f" {trial.state}" if with_why else f" ({trial.by})"
    return f"{trial.name}{state}: {shorten_facts(trial.text, _TEXT_CHARS)}{why}"


def _doubt_noise(seen: OpenSweep) -> str | None:
    if seen.noise.df and not seen.noise.sd:
        return "Repeated runs are identical: is it measured at all, or is the seed fixed?"
    return f"Differences of pairs count alone: {seen.alone}." if seen.alone else None


def _count_idle_s(sweep: Sweep, now_s: float) -> float | None:
    """Return the seconds of this round in which none of its runs lived, from the first on."""
    live, idle_s, since_s = set[str](), 0.0, None
    for event in sweep.round_events:
        kind, run_id = event["kind"], event.get("run_id", "")
        if kind == "cell_started":
            idle_s += posix(event["at"]) - since_s if since_s is not None and not live else 0.0
            live.add(run_id)
        elif kind in ("cell_ended", "cell_failed") and run_id in live:
            live.discard(run_id)
            since_s = posix(event["at"])
    if since_s is not None and not live and not sweep.ended:
        idle_s += max(0.0, now_s - since_s)
    return idle_s
