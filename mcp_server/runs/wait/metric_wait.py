"""Metric conditions for ``wait_run(until=…)``: checks every new point once, from one wait of a caller to the next."""

import contextlib
import difflib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp_server.diagnosis.progress.named_values import names_count
from mcp_server.errors import BadArgument
from mcp_server.record.state import Run, posix
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.runs.wait.cursors import MetricPosition, MetricSource
from mcp_server.runs.wait.waiting import WaitOutcome
from mcp_server.scalars import condition as conditions
from mcp_server.scalars.from_log import LogMetrics, count_alike
from mcp_server.scalars.locate import MetricLocation
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.scalars.series import Series
from mcp_server.scalars.tag_names import best_direction, find_headline, is_held_out, match_tags
from mcp_server.store.attribution.attribution import describe_uncertain
from mcp_server.text.near_names import find_near_names
from mcp_server.threads import run_in_thread, use_threads_for

FACTS = ("step", conditions.PROGRESS, "elapsed_s", "eta_s", "attempt")  # of a run, beside its metrics
SWEEP_FACTS = (conditions.PROGRESS, "elapsed_s")
_MOST_TAG_CHARS, _MOST_VALUES, _MOST_NAMED = 60, 3, 4
_PERCENT = 100.0
_MISSPELT = 0.8  # how alike a name and the one that is meant are
_REST_SHARE = 20.0  # times as long as it took to read a log until it is read again

ReadPrinted = Callable[[Run], LogMetrics]


@dataclass(frozen=True)
class MetPoint:
    """The point of a curve that met a condition. ``newest``: the curve's last value, which may be later."""

    run_id: str
    tag: str
    value: float
    step: int
    newest: float


class MetricWait:
    """One wait for a condition on metrics. ``positions``: by run id, where the caller's last such wait stopped."""

    def __init__(
        self,
        scalars: Scalars,
        condition: conditions.Condition,
        run_ids: Sequence[str],
        positions: Mapping[str, MetricPosition],
        read_printed: ReadPrinted | None = None,
    ) -> None:
        self._condition = condition
        self.met: MetPoint | None = None  # the point that met the condition, where it has a step
        self._checks = {
            run_id: MetricCheck(scalars, condition, positions.get(run_id, MetricPosition()), read_printed)
            for run_id in run_ids
        }

    @property
    def positions(self) -> dict[str, MetricPosition]:
        """By run id, how far the condition has been checked by now."""
        return {run_id: check.position for run_id, check in self._checks.items()}

    def settle(self, outcome: WaitOutcome) -> WaitOutcome:
        """Return how a wait ended: by its condition, where a sweep's cells had all ended and its end was not noted."""
        due = next((check.due for check in self._checks.values()), None) if outcome.reason == "heartbeat" else None
        return outcome if due is None else replace(outcome, reason="condition_met", met=due)

    async def check(self, runs: Sequence[Watched]) -> str | None:
        """Return the value that meets the condition, of the first run that has one. BadArgument: several tags match."""
        for run in runs:
            with use_threads_for(run.spec.cwd if isinstance(run, Run) else ""):
                match = await run_in_thread(self._checks[run.run_id].check, run)
            if match is not None:
                self.met = self._checks[run.run_id].met
                return f"{run.run_id}: {match}" if len(runs) > 1 else match
        return None

    def tell_unknown(self, runs: Sequence[Watched]) -> bool:
        """Return whether to say now, once, that no run has the metric: it is misspelt, or all others were written.

        An evaluation or a reward may come later, unless its name is nearly that of a metric which is there.
        """
        checks, wanted = [self._checks[run.run_id] for run in runs], self._condition.tag
        tags = [tag.lower() for check in checks for tag in check.other_tags or ()]
        if any(check.position.told for check in checks):
            return False
        if not any(check.is_off_scale for check in checks):
            if wanted.lower() in FACTS or names_count(wanted) or any(not check.other_tags for check in checks):
                return False
            if not all(isinstance(run, Run) and run.made_a_step and not run.ended for run in runs):
                return False
            may_come = is_held_out(wanted) or best_direction(wanted) == "max"
            if may_come and not difflib.get_close_matches(wanted.lower(), tags, n=1, cutoff=_MISSPELT):
                return False
        for check in checks:
            check.position = replace(check.position, told=True)
        return True

    def describe_unmet(self, runs: Sequence[Watched], *, ended: bool) -> str | None:
        """Return why the condition is not met: the newest values, or that no run has the metric, or none ever will."""
        checks = list(self._checks.values())
        condition = self._condition
        if checks and all(check.counts_steps for check in checks):  # by the program's own word, such as `iteration`
            condition = replace(condition, tag="step")
        if not ended and (why := find_impossible(condition, runs)) is not None:
            return f"It is never met: {why}."
        tells = ended or self._condition.tag.lower() not in FACTS  # of live runs the answer has these anyway
        if tells and (values := [check.newest for check in checks if check.newest]):
            scale = " All its values are from 0 to 1." if any(check.is_off_scale for check in checks) else ""
            return f"Not met: {', '.join(values[:_MOST_VALUES])}.{scale}"
        other_tags = [check.other_tags for check in checks]
        if not all(tags is not None for tags in other_tags):
            return None
        present: dict[str, str] = {}  # one name where the file's and the log's differ in case alone
        for tag in (tag for tags in other_tags for tag in tags or ()):
            present.setdefault(tag.casefold(), tag)
        tags = list(present.values())
        wanted = self._condition.tag
        if wanted.lower() in FACTS:
            why = ", as its total of steps is not" if wanted.lower() == conditions.PROGRESS else ""
            if any(isinstance(run, Run) and "round" in run.progress for run in runs):
                why = ": it trains several times, and its counts are of one"
            return f"{wanted.lower()} is not known{'' if ended else ' so far'}{why}."
        near = difflib.get_close_matches(wanted, FACTS, n=1) or list(find_near_names(wanted, tags))
        named = [*near, *(tag for tag in tags if tag not in near and not names_count(tag))]
        names = ", ".join(tag[:_MOST_TAG_CHARS] for tag in named[:_MOST_NAMED])
        names += f" ({len(named) - _MOST_NAMED} more)" if len(named) > _MOST_NAMED else ""
        left_out = describe_uncertain([path for check in checks for path in check.uncertain])
        places = list(dict.fromkeys(check.places for check in checks))[:_MOST_VALUES]
        known = f"Present: {names}." if names else left_out or f"No scalars seen: {'; '.join(places)}."
        is_told = any(check.position.told for check in checks) and not ended
        told = " If one of them is meant, name it; the same call waits, should it come." if is_told else ""
        return f"No {wanted[:_MOST_TAG_CHARS]!r} {'in it' if ended else 'so far'}. {known}{told}"


def check_possible(condition: conditions.Condition, runs: Sequence[Watched]) -> None:
    """Refuse a condition that no run can meet: each ends before, by its steps or its time limit."""
    if (why := find_impossible(condition, runs)) is not None:
        raise BadArgument("until", f"{condition.text!r} is never met: {why}.", "Wait for less, or for its end.")


def find_impossible(condition: conditions.Condition, runs: Sequence[Watched]) -> str | None:
    """Return why no live run can meet a condition any more, None where one can or nothing is known."""
    live = [run for run in runs if isinstance(run, Run) and not run.ended]
    if condition.sign not in (">=", ">", "==") or not live:
        return None
    totals: dict[str, list[float | None]] = {
        "step": [_find_total(run) for run in live],
        "elapsed_s": [run.spec.time_limit_s for run in live],
    }
    most = totals.get(condition.tag.lower(), [None])
    if all(isinstance(one, int | float) and one < condition.number for one in most):
        named = ", ".join(f"{run.run_id}: {one:g}" for run, one in zip(live, most, strict=True))
        return f"{'total_steps' if condition.tag.lower() == 'step' else 'time_limit_s'} of {named}"
    return None


def _find_total(run: Run) -> Any:
    """Return the steps of a run, None also where it trains several times: other trainings may have others."""
    return None if "round" in run.progress else run.progress.get("total_steps")


def read_facts(run: Watched, now_s: float) -> dict[str, float]:
    """Return what wait_run tells of a run beside its metrics: step, progress, elapsed_s, eta_s, attempt. Pure."""
    facts: dict[str, Any] = {"elapsed_s": run.elapsed_s(now_s), "attempt": None}
    if isinstance(run, Sweep):
        facts[conditions.PROGRESS] = sum(cell.done for cell in run.cells) / max(1, len(run.cells))
    else:
        facts["attempt"] = run.attempt if run.started_at else None
        step, total = run.progress.get("step"), _find_total(run)
        facts |= {"step": step, "eta_s": run.left_s(now_s)}
        if isinstance(step, int | float) and isinstance(total, int | float) and total > 0:
            facts[conditions.PROGRESS] = step / total
    return {name: float(value) for name, value in facts.items() if isinstance(value, int | float)}


class MetricCheck:
    """Checks a condition on one run during one wait: every point that is new since ``position``, so none is missed.

    The first check of a caller takes the newest point alone; of a condition on NaN or infinity, every point. The first
    check of every further wait takes the newest point again. A run without scalars is checked by the metrics that it
    prints. A tag once chosen stays, in its location, whatever other tags and directories appear.
    """

    def __init__(
        self,
        scalars: Scalars,
        condition: conditions.Condition,
        position: MetricPosition,
        read_printed: ReadPrinted | None = None,
    ) -> None:
        self.position = position
        self.other_tags: Sequence[str] | None = None  # the run's, where the last check did not find the condition's
        self.uncertain: Sequence[str] = ()  # paths of scalars that may be another run's
        self.places = ""  # where they were looked for
        self.newest = ""  # the newest value, as text
        self.met: MetPoint | None = None
        self.is_off_scale = False  # a number above 1 is compared with values from 0 to 1
        self.counts_steps = False  # the condition is on what the program calls its step
        self.due: str | None = None  # what meets the condition of a sweep whose end is about to be noted
        self._scalars, self._condition = scalars, condition
        self._is_first = True
        self._read_printed, self._printed_points = read_printed, 0
        self._next_read_s = 0.0
        self._is_percent = False  # the run prints it in per cent

    def check(self, run: Watched) -> str | None:
        """Return e.g. ``Train/mean_reward = 20.4 at step 900`` where the condition holds, else None. Blocks."""
        self.other_tags = None
        facts = read_facts(run, time.time())
        if isinstance(run, Sweep) and self._condition.tag.lower() not in SWEEP_FACTS:
            raise BadArgument(
                "until",
                f"{run.run_id} is a sweep, which has no {self._condition.tag[:_MOST_TAG_CHARS]!r}.",
                f"A sweep has {', '.join(SWEEP_FACTS)}. For a cell name its run, from list_runs(sweep={run.run_id!r}).",
            )
        if isinstance(run, Sweep):
            return self._check_sweep(run, facts)
        if (name := self._condition.tag.lower()) in facts:
            step = int(facts["step"]) if name in (conditions.PROGRESS, "eta_s") and "step" in facts else None
            self.newest = conditions.describe_value(name, facts[name], step)
            return self.newest if self._condition.is_reached(facts[name]) else None
        if name in (conditions.PROGRESS, "eta_s"):  # a printed `progress: 30%` is another number
            self.other_tags = []
            return None
        series = self._find_series(run)
        if self.position.tag is not None:
            return None if series is None else self._check_points(self.position.tag, series, run)
        self.position = replace(self.position, checked=0)  # every point that appears from now on is new
        printed = _printed_metrics(run)
        if (tag := conditions.resolve_tag(self._condition, list(printed))) is not None:
            step, value = printed[tag]
            self.newest, self.other_tags = conditions.describe_value(tag, value, step), None
            return self.newest if self._condition(value) else None
        return self._check_log(run, [*(self.other_tags or ()), *printed])

    def _check_sweep(self, run: Sweep, facts: Mapping[str, float]) -> str | None:
        """Return which share of its cells have ended, or its time. Once all have, it is ``due``: its end says more."""
        name, done = self._condition.tag.lower(), sum(cell.done for cell in run.cells)
        if name not in facts:
            return None
        is_share = name == conditions.PROGRESS
        self.newest = (
            f"{done} of {len(run.cells)} cells have ended"
            if is_share
            else (conditions.describe_value(name, facts[name], None))
        )
        met = None if run.ended or not self._condition.is_reached(facts[name]) else self.newest
        self.due = met if done == len(run.cells) else None
        return met if self.due is None else None

    def _check_log(self, run: Run, others: Sequence[str]) -> str | None:
        """Check the numbers that a run prints under names of its own. A long log is read seldom."""
        begun_s = time.monotonic()
        if self._read_printed is None or (begun_s < self._next_read_s and not run.ended):
            self.other_tags = None if self._printed_points else others
            return None
        log = self._read_printed(run)
        named = {**log.counts, **log.printed, **log.points}
        self._next_read_s = time.monotonic() + _REST_SHARE * (time.monotonic() - begun_s)
        if (tag := conditions.resolve_tag(self._condition, list(named))) is None:
            self.other_tags = [*others, *(name for name in named if name not in others)]
            return None
        self.other_tags, points = None, named[tag]
        first = self._printed_points if self._printed_points or self._condition.includes_past else len(points) - 1
        first, self._printed_points = min(first, len(points) - 1), len(points)
        step, value = points[-1]
        self.counts_steps = tag in log.counts and value == log.step
        sign = " %" if tag in log.percents and tag not in log.points else ""
        self.newest = conditions.describe_value(tag, value, step, sign)
        met = next((point for point in points[max(0, first) :] if self._condition(point[1])), None)
        if met is None:
            return None
        self.met = None if met[0] is None else MetPoint(run.run_id, tag, met[1], met[0], value)
        return conditions.describe_value(tag, met[1], met[0], sign)

    def _find_scale(self, series: Series, run: Run) -> float:
        """Return 100 for a curve from 0 to 1 that the run prints in per cent, where the number is meant so; else 1."""
        number = self._condition.number
        self.is_off_scale = False
        is_share = bool(((series.values >= 0) & (series.values <= 1)).all())
        if not (self._condition.sign and 1 < number <= _PERCENT and is_share):
            return 1.0
        self._is_percent = self._is_percent or (
            self._read_printed is not None and bool(match_tags(self._condition.tag, self._read_printed(run).percents))
        )
        if self._is_percent:
            return _PERCENT
        self.is_off_scale = True
        return 1.0

    def _find_series(self, run: Run) -> Series | None:
        """Return the condition's series, None where there is none yet; choose its tag."""
        # Always read: another reader may have taken the news of a change, and reading nothing new costs little.
        run_locations = self._scalars.locate(run)
        locations, self.uncertain, self.places = run_locations.locations, run_locations.uncertain, run_locations.places
        source = self.position.source
        known = [each for each in locations if source is not None and name_source(each, source.tag) == source]
        if source is not None and known:
            parts, _ = self._scalars.read_parts(known[:1])
            if parts and (series := parts[0].series.get(source.tag)) is not None:
                return series
        found = {
            part.names[tag]: (part.location, tag, series)
            for part in self._scalars.read_parts(locations)[0]
            for tag, series in part.series.items()
        }
        try:
            name = conditions.resolve_tag(self._condition, list(found))
        except BadArgument:
            if self.position.tag is None:
                raise
            return None  # the chosen one will come back
        if name is None:
            self.other_tags = list(found)
            return None
        location, tag, series = found[name]
        chosen = name_source(location, tag)
        position = MetricPosition(checked=0) if source not in (None, chosen) else self.position
        self.position = replace(position, tag=name, source=chosen)
        return series

    @property
    def _wall_s(self) -> float:
        return -math.inf if self.position.wall is None else self.position.wall

    def _check_points(self, tag: str, series: Series, run: Run) -> str | None:
        """Check the new points. What files count otherwise than the run's output is told as that."""
        count = len(series.values)
        if not count:
            return None
        first = self.position.checked
        if first < 0:
            first = 0 if self._condition.includes_past else count - 1
        elif series.restarts != self.position.restarts or count < first:
            restarts = series.restarts[len(self.position.restarts) :] or series.restarts or (int(series.steps[0]),)
            written_again = series.steps >= min(restarts)
            first = int(written_again.argmax()) if written_again.any() else count
        points = series
        if first > 0 and series.late > self.position.late:  # a late point is sorted in among those checked before
            points, first = _points_after(series, self._wall_s, first), 0
        if self._is_first:
            first, self._is_first = min(first, len(points.values) - 1), False
        wall = max(self._wall_s, float(series.walls.max(initial=-math.inf, where=series.walls == series.walls)))
        self.position = replace(
            self.position,
            checked=count,
            restarts=tuple(map(int, series.restarts)),
            late=int(series.late),
            wall=wall if math.isfinite(wall) else None,
        )
        scale = self._find_scale(series, run)
        known, last = run.progress.get("step"), int(series.steps[-1])
        is_other = _counts_otherwise(run) and not (isinstance(known, int) and count_alike(last, known))
        counted = ", as its files count" if is_other else ""

        def describe(among: Series, at: int) -> str:
            value = float(among.values[at])
            percent = f" ({scale * value:.4g} %)" if scale > 1 else ""
            return conditions.describe_value(tag, value, int(among.steps[at]), percent) + counted

        self.newest = describe(series, -1)
        index = conditions.first_match(replace(self._condition, number=self._condition.number / scale), points, first)
        if index is None:
            return None
        point = float(points.values[index]), int(points.steps[index])
        self.met = MetPoint(run.run_id, tag, *point, float(series.values[-1]))
        return describe(points, index)


def name_source(location: MetricLocation, tag: str) -> MetricSource:
    """Return the place of a tag. The files of a run may have become more since."""
    if isinstance(location, Path):
        return MetricSource(tag, str(location))
    return MetricSource(tag, str(location.path), location.name, getattr(location, "kind", None))


def _points_after(series: Series, wall: float, first: int) -> Series:
    is_new = series.walls > wall
    is_new[first:] = True
    return replace(series, steps=series.steps[is_new], walls=series.walls[is_new], values=series.values[is_new])


def _printed_metrics(run: Run) -> dict[str, tuple[int | None, float]]:
    """Return step and value of the newest metrics that a run printed; a run without a step has none."""
    metrics: Mapping[str, Any] = (run.progress.get("metrics") or {}) if run.made_a_step else {}
    step = run.progress.get("step")
    printed = {}
    for name, value in metrics.items():
        with contextlib.suppress(TypeError, ValueError):
            printed[name] = (step if isinstance(step, int) else None, float(value))
    return printed


def show_moment(run: Run, met: MetPoint, log: LogMetrics) -> Run:
    """Return a live ``run`` at the moment of its ``log``, or of ``met`` where that is further on. Pure.

    Step and metrics are then of one moment, and the metric that met the condition is not older. A step that counts
    something else, such as samples, changes nothing.
    """
    known = run.progress.get("step")
    if run.ended or not isinstance(known, int) or "round" in run.progress:
        return run
    step, metrics = known, run.progress.get("metrics") or {}
    is_read_from_file = bool(run.progress.get("read_from")) and not _counts_otherwise(run)
    if met.step <= known:  # printed metrics are as new as the step
        named = metrics if is_read_from_file else ()
        newer = {name: _plain(met.newest) for name in named if name in (met.tag, find_headline(met.tag))}
        return replace(run, progress={**run.progress, "metrics": {**metrics, **newer}})
    if log.step is not None and log.step >= step:
        step, metrics = log.step, {name: _plain(value) for name, value in log.headlines.items()}
    if met.step > step and (is_read_from_file or count_alike(met.step, step)):
        step, metrics = met.step, {met.tag: _plain(met.value)}
    return replace(run, progress={**run.progress, "step": step, "metrics": metrics, **_shorten_rest(run, step - known)})


def _counts_otherwise(run: Run) -> bool:
    """Return whether its supervisor has found that a run's files count other steps than its output."""
    return str(run.progress.get("read_from") or "").startswith("output; ")


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _shorten_rest(run: Run, steps: int) -> Mapping[str, Any]:
    """Return the time left, and its moment, as they are so many steps later."""
    eta_s, step_s, at = (run.progress.get(name) for name in ("eta_s", "step_s", "at"))
    if not isinstance(eta_s, int | float) or not isinstance(step_s, int | float):
        return {}
    later = datetime.fromtimestamp(posix(at) + steps * step_s, UTC).isoformat() if isinstance(at, str) else at
    return {"eta_s": max(0.0, eta_s - steps * step_s), "at": later}
