"""The runs of an open sweep's trials: the place of each in a comparison, and what its end means for its trial. Pure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_server.record.events import RecordEvent
from mcp_server.record.sweeps.sweep_state import LIVE, SKIPPED, WAITING, CellState, Sweep
from mcp_server.sweeps.trials.open_plan import BASELINE, OpenPlan
from mcp_server.text.formatting import shorten_facts

MOST_AGAIN = 2  # repeats of a run that is contended, or that failed
_CONTENDED = 0.8  # of the incumbent's steps
_LINE_CHARS = 200


@dataclass(frozen=True)
class TrialRun:
    """A cell of a trial. ``role``: baseline, screen, pair, incumbent (in a pair of ``against``) or idle.

    ``host``: where it began, in a sweep of several hosts. ``end``: None until it is over and measured; ``counted``,
    ``contended``, or the verdict that it means for its trial.
    """

    cell: CellState
    trial: str
    role: str
    against: str = ""
    pair: int = 0
    end: str | None = None
    why: str = ""
    steps: int | None = None
    host: str = ""

    @property
    def slot(self) -> tuple[str, str, str, int]:
        """Its place in the comparison, which a repeated run has too."""
        return self.trial, self.role, self.against, self.pair

    @property
    def seed(self) -> int:
        """The number of the cell, which a command may name as its seed."""
        return int(self.cell.params.get("seed") or 0)

    @property
    def value(self) -> float:
        """Its value, where it counts."""
        return self.cell.value if self.cell.value is not None else float("nan")


def list_runs(sweep: Sweep, plan: OpenPlan, trials: Iterable[str]) -> dict[str, tuple[TrialRun, ...]]:
    """Return the runs of each of these trials, in the order in which they were added."""
    added, measured, hosts = dict[str, RecordEvent](), dict[str, RecordEvent](), dict[str, str]()
    for event in sweep.events:
        if event["kind"] == "cell_added":
            added.setdefault(event.get("cell", ""), event)
        elif event["kind"] == "cell_measured":
            measured[event.get("run_id", "")] = event
        elif event["kind"] == "cell_started":
            hosts[event.get("run_id", "")] = event.get("host", "")
    runs: dict[str, list[TrialRun]] = {name: [] for name in trials}
    is_timed = not any(cell.state == "finished" for cell in sweep.cells[: plan.baseline_runs])
    for cell in sweep.cells:
        place: Mapping[str, Any] = added.get(cell.cell.name, {"trial": BASELINE, "role": "baseline"})
        name = place.get("trial", "")
        if name in runs:
            role, against, pair = place.get("role", ""), place.get("against", ""), place.get("pair", 0)
            figure: Mapping[str, Any] | None = measured.get(cell.run_id or "")
            end = _judge_end(cell, figure, plan, sweep.spec.metric or "", is_timed=is_timed)
            steps = (figure or {}).get("step", cell.end.get("step"))
            runs[name].append(TrialRun(cell, name, role, against, pair, *end, steps, hosts.get(cell.run_id or "", "")))
    return {name: _find_contended(own, runs) for name, own in runs.items()}


def _judge_end(
    cell: CellState, measured: Mapping[str, Any] | None, plan: OpenPlan, metric: str, *, is_timed: bool
) -> tuple[str | None, str]:
    """Return what the end of a run means, and why, failures before values: one of a run that broke a rule is none.

    ``is_timed``: every run of the base ended at its time limit, which is the length of a training then.
    """
    end = cell.end
    if cell.state in (WAITING, LIVE, SKIPPED):
        return None, ""
    if cell.state not in ("finished", "timed_out"):
        failure = end.get("failure") or {}
        told = ": ".join(filter(None, (failure.get("kind"), failure.get("line"))))
        told = (told or str(end.get("text") or cell.state).removeprefix(f"{cell.cell.name}: ")).rstrip(". ")
        advice = failure.get("correction") or failure.get("advice")  # another proposal follows, no launch
        why = f"{told}{' ' if told[-1:] in {*'?!'} else '. '}{advice}" if advice else told
        return "stopped" if cell.state == "killed" else "crash", shorten_facts(why, _LINE_CHARS)
    if measured is None:
        return None, ""
    if end.get("params"):
        return "crash", "a retry changed what it ran with, so it is not what was proposed"
    if changed := measured.get("changed_files"):
        return "invalid", f"changed while it ran: {', '.join(changed[:3])}"
    peak, most = end.get("peak_mib"), plan.limits.get("peak_gpu_mib")
    if most is not None and peak is not None and peak > most:
        return "over_limit", f"peak GPU memory {peak:g} MiB, the limit is {most:g}"
    if cell.bad_end:
        line = (end.get("failure") or {}).get("line")
        what = f"its training diverged: {line}" if cell.has_diverged else f"{metric} ended as {cell.bad_end}"
        return "not_finite", shorten_facts(what, _LINE_CHARS)
    if cell.state == "timed_out" and not is_timed:
        return "timed_out", "its time limit ended it; the base takes less"
    if cell.value is None:
        end_of = "timed_out" if cell.state == "timed_out" else "no_metric"
        return end_of, f"{'measure printed' if plan.measure else 'it gave'} no number named so, e.g. {metric}: 0.5"
    return "counted", ""


def _find_contended(own: Sequence[TrialRun], runs: Mapping[str, Sequence[TrialRun]]) -> tuple[TrialRun, ...]:
    """Return runs of a trial, those that made fewer steps than the base as ``contended``, at most twice of a slot.

    A trial whose whole runs all make fewer steps is slower by itself.
    """
    usual = _usual_steps([run for run in runs[BASELINE] if run.end == "counted"])
    counts: dict[tuple[str, str, str, int], int] = {}
    found: list[TrialRun] = []
    for run in own:
        if usual is None or run.end != "counted" or run.role == "baseline":
            found.append(run)
            continue
        least = min(
            filter(None, (usual, _usual_steps([each for each in found if each.end == "counted"]))), default=None
        )
        is_slow = least is not None and run.steps is not None and run.steps < _CONTENDED * least
        if is_slow and counts.get(run.slot, 0) < MOST_AGAIN:
            counts[run.slot] = counts.get(run.slot, 0) + 1
            run = replace(run, end="contended", why=f"{run.steps} steps, others {least:g}")  # noqa: PLW2901 - the same run
        found.append(run)
    return tuple(found)


def _usual_steps(runs: Sequence[TrialRun]) -> float | None:
    steps = [run.steps for run in runs if run.steps is not None]
    return statistics.median(steps) if steps else None
