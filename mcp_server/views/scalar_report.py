"""What is told of scalars to whoever asks, an agent or a person: which, and in how much detail."""

from __future__ import annotations

import difflib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_server.answer import Answer
from mcp_server.errors import BadArgument
from mcp_server.scalars import text
from mcp_server.scalars.condition import match_tags
from mcp_server.scalars.plot import MOST_PANELS, POINTS, Line, Panel
from mcp_server.scalars.run_scalars import LATEST, NoScalars, ScalarReading, Scalars, Target, resolve_target
from mcp_server.store.run_store import RunStore

if TYPE_CHECKING:
    from mcp_server.scalars.locate import MetricLocation
    from mcp_server.scalars.series import Series
    from mcp_server.scalars.summary import SeriesSummary

POINTS_TOLD = 20

_IN_FULL = 4  # tags that are told as objects, with points; more are told as lines
_WITH_TRENDS, _NAMED_WITH_TRENDS = 20, 40  # tags of an overview, and tags query for; of more only the last values
_MOST_LISTED = 20  # runs
_MOST_COMPARED, _MOST_BENEATH = 16, 8  # runs that are named, and of those that only lie beneath a directory
_MOST_NOTES, _NOTE_CHARS = 6, 240
_MOST_ODD = 200  # marks of NaN in a picture
_MIDDLE_BUCKETS, _ROUGH_FROM = 150, 300


class ScalarReport(Answer):
    """Scalars of a run, of several side by side, or the runs beneath a directory.

    ``tags``: one line a tag, as ``columns`` says; ``values``: the same in full; ``step``: the last step, where a line
    names no other; ``age_s``: seconds since the newest point.
    """

    source: str
    run_id: str | None = None
    step: int | None = None
    age_s: float | None = None
    columns: str | None = None
    tags: list[str] | None = None
    values: dict[str, text.TagFigures] | None = None
    runs: list[str] | None = None
    total: int | None = None
    notes: list[str] | None = None
    next_step: str | None = None


@dataclass(frozen=True)
class ScalarQuery:
    """What somebody wants to know. ``points``: None takes 20 where there is room."""

    target: str | None = None
    tags: tuple[str, ...] = ()
    points: int | None = None
    since_step: int | None = None
    smooth: float = 0.6
    compare: tuple[str, ...] = ()
    plot: bool = False


@dataclass(frozen=True, eq=False)
class ReportWithPanels:
    """An answer, what to draw beside it, and the figures it was made of, by run and tag."""

    answer: ScalarReport
    panels: Sequence[Panel] = ()
    told: Mapping[str, Mapping[str, SeriesSummary]] | None = None


def build_report(query: ScalarQuery, scalars: Scalars, store: RunStore) -> ReportWithPanels:
    """Return what ``query`` asks for. Reads files: to be called in a thread.

    Raises:
        BadArgument: a path is none, or no tag is meant.
        NoScalars: there is nothing to read; says where was looked.
        RunNotFound: there is no such run.
    """
    now_s = time.time()
    if query.compare:
        wanted = list(dict.fromkeys([*([query.target] if query.target else []), *query.compare]))
        targets = [resolve_target(target, scalars, store) for target in wanted]
    else:
        targets = [resolve_target(query.target or LATEST, scalars, store)]
    # One run may be meant twice: by its id and by its path, or by two paths.
    targets = list({tuple(map(_real, target.locations)): target for target in reversed(targets)}.values())[::-1]
    first, most = targets[0], _MOST_COMPARED
    if first.choices and len(targets) == 1:
        if not (query.tags or query.plot):
            return ReportWithPanels(_choices(first, now_s))
        targets = [Target(name, [location]) for (name, _), location in zip(first.choices, first.locations, strict=True)]
        most = _MOST_BENEATH
    elif len(targets) > 1:
        targets = _briefly(targets)
    readings = [_reading(target, scalars, query.since_step) for target in targets[:most]]
    picked, unknown = _picked(query, readings)
    told = [_figures(reading, picked, now_s, query.smooth) for reading in readings]
    panels = _panels(readings, told, picked, query) if query.plot else ()
    notes = [
        *([f"Not among the tags: {', '.join(unknown)}."] if unknown else []),
        *([f"Only {most} of {len(targets)} runs are told; the others were left out."] if len(targets) > most else []),
        *(["Points are told of one run at a time."] if query.points and len(readings) > 1 else []),
        *([f"The picture shows {len(panels)} of {len(picked)} tags."] if panels and len(panels) < len(picked) else []),
    ]
    answer = (
        _alone(first, readings[0], told[0], query, notes) if len(readings) == 1 else _compared(readings, told, notes)
    )
    by_run = {reading.name: one for reading, one in zip(readings, told, strict=True)}
    return ReportWithPanels(answer, panels, by_run)


def _real(location: MetricLocation) -> MetricLocation:
    return Path(os.path.realpath(location)) if isinstance(location, Path) else location


def _briefly(targets: Sequence[Target]) -> list[Target]:
    """Return the same with paths cut to where they differ."""
    paths = [target.name for target in targets if target.name.startswith("/")]
    root = f"{os.path.commonpath(paths)}/" if len(paths) > 1 else paths[0].rpartition("/")[0] + "/" if paths else ""
    return [replace(target, name=target.name.removeprefix(root)) for target in targets]


def _choices(target: Target, now_s: float) -> ScalarReport:
    shown = [f"{name}, {_ago(now_s - newest_s)}" for name, newest_s in target.choices[:_MOST_LISTED]]
    return ScalarReport(
        source=target.name,
        runs=shown,
        total=len(target.choices),
        next_step=f"Pass logdir={target.name}/NAME ({LATEST}: the newest), several in compare, or tags for all.",
    )


def _ago(age_s: float) -> str:
    for unit_s, sign in ((86400, "d"), (3600, "h"), (60, "min")):
        if age_s >= unit_s:
            return f"{age_s / unit_s:.0f} {sign} ago"
    return f"{max(0.0, age_s):.0f} s ago"


def _reading(target: Target, scalars: Scalars, since_step: int | None) -> ScalarReading:
    from mcp_server.scalars.summary import points_since  # noqa: PLC0415 - as above

    reading = scalars.read(target.locations, target.name)
    if since_step is None:
        return reading
    later = {tag: points_since(series, since_step) for tag, series in reading.series.items()}
    kept = {tag: series for tag, series in later.items() if len(series.values)}
    return ScalarReading(reading.name, kept, (*reading.notes, f"Only steps from {since_step} on."))


def _picked(query: ScalarQuery, readings: Sequence[ScalarReading]) -> tuple[list[str], list[str]]:
    """Return the tags that are meant, in the order query for, all where none was named; and what means none."""
    known = list(dict.fromkeys(tag for reading in readings for tag in reading.series))
    if not known:
        if query.since_step is not None:
            raise NoScalars(f"No scalars in {readings[0].name} from step {query.since_step} on. Ask for earlier steps.")
        raise NoScalars(f"No scalars in {readings[0].name} yet. Call again later.")
    meant = {pattern: match_tags(pattern, known) for pattern in query.tags}
    picked = list(dict.fromkeys(tag for tags in meant.values() for tag in tags)) if meant else known
    if not picked:
        near = difflib.get_close_matches(query.tags[0], known, n=5, cutoff=0.3) or known[:5]
        raise BadArgument("tags", f"none of {len(known)} tags is meant; near are {', '.join(near)}.")
    return picked, [pattern for pattern, tags in meant.items() if not tags]


def _figures(reading: ScalarReading, picked: Sequence[str], now_s: float, smooth: float) -> dict[str, SeriesSummary]:
    from mcp_server.scalars.summary import summarise_series  # noqa: PLC0415 - as above

    series = {tag: reading.series[tag] for tag in picked if tag in reading.series}
    return {tag: summarise_series(one, now_s=now_s, smooth=smooth) for tag, one in series.items()}


def _alone(
    target: Target, reading: ScalarReading, told: Mapping[str, SeriesSummary], query: ScalarQuery, notes: Sequence[str]
) -> ScalarReport:
    full = bool(query.tags or query.points) and len(told) <= _IN_FULL
    points = POINTS_TOLD if query.points is None and full else query.points or 0
    values = {
        tag: text.build_tag_figures(figures, _points(reading.series[tag], points))
        for tag, figures in list(told.items())[:_WITH_TRENDS]
        if full or points
    }
    made, columns, left = None, None, None
    if not full:
        if len(told) <= (_NAMED_WITH_TRENDS if query.tags else _WITH_TRENDS):
            made, columns = text.tag_lines(told), text.COLUMNS
        else:
            # What must not be overlooked first, then what was told last.
            order = sorted(told, key=lambda tag: (not told[tag].nan + told[tag].inf, _old(told[tag])))
            made, left = text.last_value_lines({tag: told[tag] for tag in order})
            columns = "tag last[@step]"
    ages = [figures.age_s for figures in told.values() if figures.age_s is not None]
    return ScalarReport(
        source=str(target.path),
        run_id=target.run_id,
        step=None if full else text.common_step(told),
        age_s=None if full else text.seconds(min(ages, default=None)),
        columns=columns,
        tags=made,
        values=values or None,
        total=len(told) if left else None,
        notes=_notes([reading], notes),
        next_step=left,
    )


def _old(figures: SeriesSummary) -> float:
    return math.inf if figures.age_s is None else round(figures.age_s, -1)


def _points(series: Series, most: int) -> list[tuple[int, float]] | None:
    from mcp_server.scalars.downsample import pick_points  # noqa: PLC0415 - as above

    if not most:
        return None
    steps, values = pick_points(series, most)
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def _compared(
    readings: Sequence[ScalarReading], told: Sequence[Mapping[str, SeriesSummary]], notes: Sequence[str]
) -> ScalarReport:
    made, left = text.comparison_lines(told)
    return ScalarReport(
        source=f"{len(readings)} runs side by side",
        runs=[reading.name for reading in readings],
        columns="tag | for each run: last@step slope/1k min..max shape",
        tags=made,
        notes=_notes(readings, notes),
        next_step=f"{left} more tags had no room: name fewer in tags." if left else None,
    )


def _notes(readings: Sequence[ScalarReading], first: Sequence[str]) -> list[str] | None:
    told = list(dict.fromkeys([*first, *(note for one in readings for note in one.notes)]))
    return [note[:_NOTE_CHARS] for note in told[:_MOST_NOTES]] or None


def _panels(
    readings: Sequence[ScalarReading],
    told: Sequence[Mapping[str, SeriesSummary]],
    picked: Sequence[str],
    query: ScalarQuery,
) -> list[Panel]:
    """Return one panel a tag; of an unasked choice first NaN and infinities, then rewards and losses."""
    tags = list(picked)
    if not query.tags:
        odd = {tag for one in told for tag, figures in one.items() if figures.nan or figures.inf}
        tags.sort(
            key=lambda tag: (
                tag not in odd,
                not any(word in tag.lower() for word in ("reward", "loss", "return", "acc")),
            )
        )
    return [
        Panel(tag, [_line(reading, tag) for reading in readings if tag in reading.series]) for tag in tags[:MOST_PANELS]
    ]


def _line(reading: ScalarReading, tag: str) -> Line:
    from mcp_server.scalars.downsample import median_curve, nonfinite_steps, pick_points  # noqa: PLC0415 - as above

    series = reading.series[tag]
    steps, values = pick_points(series, POINTS)
    at, mid = median_curve(series, _MIDDLE_BUCKETS if len(series.values) >= _ROUGH_FROM else 0)
    odd = nonfinite_steps(series, _MOST_ODD)
    return Line(reading.name, steps.tolist(), values.tolist(), odd.tolist(), (at.tolist(), mid.tolist()))
