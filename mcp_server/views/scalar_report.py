"""Selects which scalars an answer shows, and in how much detail: for read_tb and ``runward tb``."""

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.scalars import text
from mcp_server.scalars.curve_answers import ScalarReport
from mcp_server.scalars.curve_questions import CurveQuestion, describe_figure, parse_question
from mcp_server.scalars.curve_questions import answer as answer_question
from mcp_server.scalars.downsample import median_curve, nonfinite_steps, pick_points
from mcp_server.scalars.from_log import read_printed
from mcp_server.scalars.locate import EventFiles, MetricLocation
from mcp_server.scalars.picture import CURVE_POINTS, MOST_PANELS, Curve, Panel
from mcp_server.scalars.run_scalars import (
    LATEST,
    NoScalars,
    ScalarReading,
    Scalars,
    ScalarTarget,
    location_path,
    resolve_target,
)
from mcp_server.scalars.series import ScalarsUnreadable, Series
from mcp_server.scalars.summary import Detail, SeriesSummary, summarise_series
from mcp_server.scalars.tag_names import best_direction, match_tags, rank_headline
from mcp_server.scalars.tensorboard.find import list_event_files
from mcp_server.scalars.tensorboard.other_data import list_other_data
from mcp_server.store.run_store import RunStore
from mcp_server.text.formatting import ago, join_some, round_seconds, shorten_facts
from mcp_server.text.near_names import find_near_names
from mcp_server.threads import stop_if_abandoned

DEFAULT_POINTS = 20

_IN_FULL = 4  # tags shown as objects with points; more tags are shown as lines
_WITH_TRENDS, _NAMED_WITH_TRENDS = 20, 40  # tags of an overview, and named tags; of more only the last values
_MOST_SUMMARISED = 5_000  # tags: 0.1 ms each, or 0.02 ms for the last value alone
_MOST_SIDE_BY_SIDE = 200  # tags: an answer has room for fewer
_MOST_LISTED = 20  # runs
_MOST_OWNERS = 300  # runs whose records are searched for the files of a directory
_SHARED = "Several programs wrote event files into one directory: see one alone by its run_id, or its file in logdir."
_PRINTED_OF = 3  # the newest runs whose logs are read for printed numbers
_MOST_COMPARED, _MOST_BELOW = 16, 8  # runs that are named, and runs that are only stored below a directory
_MOST_NOTES, _NOTE_CHARS = 6, 240
_MOST_ODD = 200  # marks of NaN in a picture
_MEDIAN_BUCKETS, _NOISY_FROM = 150, 300


@dataclass(frozen=True)
class ScalarQuery:
    """The arguments of read_tb. ``points``: None shows 20 where tags are shown in full."""

    target: str | None = None
    tags: tuple[str, ...] = ()
    points: int | None = None
    since_step: int | None = None
    smooth: float = 0.6
    compare: tuple[str, ...] = ()
    plot: bool = False


@dataclass(frozen=True, eq=False)
class DrawableReport:
    """An answer, the panels of its picture, and the summaries it was made of, by run and tag."""

    answer: ScalarReport
    panels: Sequence[Panel] = ()
    summaries: Mapping[str, Mapping[str, SeriesSummary]] | None = None


def build_report(query: ScalarQuery, scalars: Scalars, store: RunStore, *, in_full: bool = False) -> DrawableReport:
    """Return the answer to ``query``, or why there is none: BadArgument, NoScalars, RunNotFound. Blocks.

    ``in_full``: the summaries have all fields, also of tags that the answer shows the last value of, or leaves out.
    """
    now_s = time.time()
    printed: dict[str, ScalarReading] = {}
    if query.compare:
        names = list(dict.fromkeys([*([query.target] if query.target else []), *query.compare]))
        targets = [_resolve(name, scalars, store, printed) for name in names]
    else:
        targets = [_resolve(query.target or LATEST, scalars, store, printed)]
    first, most, root = targets[0], _MOST_COMPARED, ""
    if first.choices and len(targets) == 1:
        if not (query.tags or query.plot):
            return DrawableReport(_list_choices(first, now_s))
        targets = [ScalarTarget(name, [one]) for (name, _), one in zip(first.choices, first.locations, strict=True)]
        most, root = _MOST_BELOW, first.name
    parts = [_split_programs(target, scalars, store) for target in targets]
    # One run may be named twice: by its id and by its path, or by two paths.
    all_parts = [target for part in parts for target in part]
    by_files = {tuple(map(_real, target.locations)): target for target in reversed(all_parts)}
    targets = list(by_files.values())[::-1]
    if len(targets) > 1 and not root:
        targets, root = _shorten_names(targets)
    readings = [_read_target(target, scalars, store, printed, query) for target in targets[:most]]
    has_ended = all(target.run_id and store.find(target.run_id).ended for target in targets[:most])
    answers, query = _answer_questions(query, readings)
    selected, unmatched = (
        ([], [])
        if answers and not query.tags
        else _select_tags(query, readings, has_ended=has_ended, is_answered=bool(answers))
    )
    tags = selected[: _MOST_SUMMARISED if len(readings) == 1 or in_full else _MOST_SIDE_BY_SIDE]
    with_trends = _count_with_trends(query, len(tags)) if len(readings) == 1 and not in_full else len(tags)
    summaries = [_summarise(reading, tags, now_s, query.smooth, with_trends) for reading in readings]
    panels = _build_panels(readings, summaries, tags, query) if query.plot else ()
    notes = [
        *([f"Not among the tags: {', '.join(unmatched)}."] if unmatched else []),
        *([_describe_rest(len(selected), query)] if len(selected) > _MOST_SUMMARISED and len(readings) == 1 else []),
        *([_SHARED] if any(len(part) > 1 for part in parts) else []),
        *([f"Only {most} of {len(targets)} runs are shown."] if len(targets) > most else []),
        *([f"{first.left_out} more directories below it were left out."] if first.left_out else []),
        *(target.note for target in targets[:most] if target.note),
        *(_name_other_data(targets[0]) if len(targets) == 1 and not query.tags and not answers else ()),
        *(["Points are shown for one run at a time."] if query.points and len(readings) > 1 else []),
        *([f"The picture shows {len(panels)} of {len(tags)} tags."] if panels and len(panels) < len(tags) else []),
    ]
    if len(readings) == 1:
        answer = _report_one(targets[0], readings[0], summaries[0], query, notes)
    else:
        answer = _report_side_by_side(readings, summaries, notes, root, len(selected) - len(tags))
    if len(selected) > len(tags) and len(readings) == 1:
        answer = answer.model_copy(update={"total": len(selected)})
    if len(readings) > 1 and len(tags) <= _IN_FULL:
        answers += _compare_at_one_step(readings, tags)
    answer = answer.model_copy(update={"answers": answers or None})
    by_run = {reading.name: summary for reading, summary in zip(readings, summaries, strict=True)}
    return DrawableReport(answer, panels, by_run)


def _describe_rest(count: int, query: ScalarQuery) -> str:
    remedy = "narrow the globs" if query.tags else "name them in tags, globs allowed"
    rest = f"{count - _MOST_SUMMARISED:,}"
    return f"Only the first {_MOST_SUMMARISED:,} tags are looked at, {rest} more are not: {remedy}."


def _resolve(name: str, scalars: Scalars, store: RunStore, printed: dict[str, ScalarReading]) -> ScalarTarget:
    """Return the target of a name. What a run printed, added to ``printed``, stands in for files that it lacks."""
    try:
        return resolve_target(name, scalars, store)
    except NoScalars as error:
        if "/" in name or name.startswith("~"):
            raise
        runs = store.list_runs(most=_PRINTED_OF) if name == LATEST else [store.find(name)]
        for run in runs:
            if (of_output := read_printed(run, store)) is not None:
                target, printed[run.run_id] = of_output
                return replace(target, note=scalars.locate(run).note)
        remedy = f"{error.remedy} compare_runs shows evaluations and checkpoints.".strip()
        raise NoScalars(error.cause, error.state, remedy) from error


def _split_programs(target: ScalarTarget, scalars: Scalars, store: RunStore) -> list[ScalarTarget]:
    """Return a target for each program that wrote event files into a directory, or the one of a file that is named."""
    programs: dict[str, EventFiles] = {}
    whole: list[MetricLocation] = []
    for location in target.locations if target.run_id is None and not target.choices else ():
        try:
            found = (
                scalars.find_programs(location, store.list_runs(most=_MOST_OWNERS))
                if isinstance(location, Path)
                else {}
            )
        except (ScalarsUnreadable, OSError):  # reading says why
            found = {}
        if len(found) > 1:
            programs |= found
        else:
            whole += found.values() or [location]
    path = Path(target.name)
    here = {name: files for name, files in programs.items() if path.parent == files.path}
    if own := {name: files for name, files in here.items() if path.name in files.attempts}:
        return [replace(target, locations=list(own.values()))]
    if not programs:
        return [replace(target, locations=whole or target.locations)]
    parts = [ScalarTarget(name, [files], None if "/" in name else name) for name, files in programs.items()]
    return [*parts, *(ScalarTarget(str(location_path(one)), [one]) for one in whole)]


def _real(location: MetricLocation) -> object:
    """Return what two equal locations have in common: two runs may have their event files in one directory."""
    if isinstance(location, EventFiles):
        with contextlib.suppress(OSError):
            if {path.name for path in list_event_files(location.path)} != location.attempts.keys():
                return os.path.realpath(location.path), frozenset(location.attempts)
        return os.path.realpath(location.path)
    return os.path.realpath(location) if isinstance(location, Path) else location


def _shorten_names(targets: Sequence[ScalarTarget]) -> tuple[list[ScalarTarget], str]:
    paths = [target.name for target in targets if target.name.startswith("/")]
    root = f"{os.path.commonpath(paths)}/" if len(paths) > 1 else paths[0].rpartition("/")[0] + "/" if paths else ""
    return [replace(target, name=target.name.removeprefix(root)) for target in targets], root.rstrip("/")


def _list_choices(target: ScalarTarget, now_s: float) -> ScalarReport:
    return ScalarReport(
        source=target.name,
        runs=[f"{name}, {ago(now_s - newest_s)}" for name, newest_s in target.choices[:_MOST_LISTED]],
        total=len(target.choices),
        next_step=f"Pass logdir={target.name}/NAME ({LATEST}: the newest), several in compare, or tags for all.",
    )


def _read_target(
    target: ScalarTarget, scalars: Scalars, store: RunStore, printed: Mapping[str, ScalarReading], query: ScalarQuery
) -> ScalarReading:
    try:
        reading = printed.get(target.run_id or "") or scalars.read(target.locations, target.name)
    except NoScalars as error:  # files in a format that needs a package, or that another user keeps private
        of_output = read_printed(store.find(target.run_id), store) if target.run_id else None
        if of_output is None or not of_output[1].series:
            raise
        why = str(error).replace(f"{target.path.parent}/", "")  # a long note is cut, and the remedy is its end
        reading = replace(of_output[1], notes=(why, *of_output[1].notes), source=str(of_output[0].path))
    if not reading.series and target.run_id and (of_output := read_printed(store.find(target.run_id), store)):
        reading = replace(of_output[1], source=str(of_output[0].path))  # its event file has no scalars yet
    reading, since_step = _add_printed(reading, target, store, query.tags), query.since_step
    if since_step is None:
        return reading
    later = {tag: series.where(series.steps >= since_step) for tag, series in reading.series.items()}
    later = {tag: series for tag, series in later.items() if len(series.values)}
    return replace(reading, series=later, notes=(*reading.notes, f"Only steps from {since_step} on."))


def _add_printed(reading: ScalarReading, target: ScalarTarget, store: RunStore, words: Sequence[str]) -> ScalarReading:
    """Return a reading of files with what is asked for beyond them, and printed."""
    asked = [word for word in words if not match_tags(word, reading.series)]  # `recall@10` is a name or a question
    tags = [one for word in asked for one in (word, parse_question(word).tag) if not match_tags(one, reading.series)]
    of_output = read_printed(store.find(target.run_id), store, tags) if tags and target.run_id else None
    series = of_output[1].series if of_output is not None else {}
    more = {name: series[name] for tag in tags for name in match_tags(tag, series)}
    note = f"Printed, in no file: {', '.join(more)}."
    return replace(reading, series={**more, **reading.series}, notes=(*reading.notes, note)) if more else reading


def _answer_questions(query: ScalarQuery, readings: Sequence[ScalarReading]) -> tuple[list[str], ScalarQuery]:
    """Return the answers to questions among the tags, such as `loss@300`, and the query with the other tags.

    A tag that has an @ or a colon of its own is itself. A question about no tag stays: it is named as unknown.
    """
    every = list(dict.fromkeys(tag for reading in readings for tag in reading.series))
    answers, rest = [], []
    for word in query.tags:
        question = CurveQuestion(word) if match_tags(word, every) else parse_question(word)
        found = [] if question == CurveQuestion(word) else match_tags(question.tag, every)
        rest += [] if found else [word]
        for tag in found:
            goal = best_direction(tag)
            said = {
                one.name: describe_figure(question, tag, one.series[tag], goal) for one in readings if tag in one.series
            }
            answers += [line if len(readings) == 1 else f"{name}: {line}" for name, line in said.items()]
    return answers, replace(query, tags=tuple(rest))


def _name_other_data(target: ScalarTarget) -> list[str]:
    """Return what event files hold beside scalars, as a note."""
    files: list[Path] = []
    for one in target.locations:
        with contextlib.suppress(OSError):
            if isinstance(one, EventFiles):
                files += [one.path / name for name in one.attempts]
            elif isinstance(one, Path):
                files += list_event_files(one)
    found = list_other_data(files)
    parts = [f"{kind} ({join_some(tags, 2)})" for kind, tags in found.items()]
    return [f"Beside scalars, which are shown here alone, its event files hold {', '.join(parts)}."] if parts else []


def _compare_at_one_step(readings: Sequence[ScalarReading], tags: Sequence[str]) -> list[str]:
    """Return the values of several runs at the last step that all have come to, where they differ in their last."""
    lines = []
    for tag in tags:
        series = [one.series[tag] for one in readings if tag in one.series and len(one.series[tag].steps)]
        ends = {int(one.steps.max()) for one in series}
        if len(series) == len(readings) and len(ends) > 1:
            question = CurveQuestion(tag, "at", min(ends))
            figures = [answer_question(question, one) for one in series]
            values = [f"{one.name} {figure.value:.4g}" for one, figure in zip(readings, figures, strict=True) if figure]
            lines.append(f"{tag} at step {min(ends)}: {', '.join(values)}")
    return lines


def _select_tags(
    query: ScalarQuery, readings: Sequence[ScalarReading], *, has_ended: bool, is_answered: bool
) -> tuple[list[str], list[str]]:
    """Return the tags that the query names, in its order, or all where it names none. And the patterns without one.

    ``is_answered``: a question of it has an answer, so that it need not have a tag too.
    """
    tags = list(dict.fromkeys(tag for reading in readings for tag in reading.series))
    name = readings[0].name
    if not tags and query.since_step is not None:
        raise NoScalars(f"No scalars in {name} from step {query.since_step} on.", remedy="Ask for earlier steps.")
    if not tags and has_ended:
        raise NoScalars(f"No scalars seen in {name}, which has ended.", remedy="read_log shows what it printed.")
    if not tags:
        raise NoScalars(f"No scalars seen in {name} so far.", remedy="Call again once more is written.")
    matches = {pattern: match_tags(pattern, tags) for pattern in query.tags}
    selected = list(dict.fromkeys(tag for matched in matches.values() for tag in matched)) if matches else tags
    if not selected and not is_answered:
        near = find_near_names(query.tags[0], tags, most=5) or tags[:5]
        cause = f"no tag matches {query.tags[0]!r}, of {len(tags)} that there are; the nearest are {', '.join(near)}."
        raise BadArgument("tags", cause)
    return selected, [pattern for pattern, matched in matches.items() if not matched]


def _count_with_trends(query: ScalarQuery, tags: int) -> int:
    """Return of how many tags an answer about one run shows more than the last value."""
    if tags <= (_NAMED_WITH_TRENDS if query.tags else _WITH_TRENDS):
        return tags
    return _WITH_TRENDS if query.points else 0


def _summarise(
    reading: ScalarReading, tags: Sequence[str], now_s: float, smooth: float, with_trends: int
) -> dict[str, SeriesSummary]:
    summaries = {}
    for number, tag in enumerate(tags):
        if (series := reading.series.get(tag)) is not None:
            stop_if_abandoned()
            detail: Detail = "all" if number < with_trends else "last"
            summaries[tag] = summarise_series(series, now_s=now_s, smooth=smooth, detail=detail)
    return summaries


def _report_one(
    target: ScalarTarget,
    reading: ScalarReading,
    summaries: Mapping[str, SeriesSummary],
    query: ScalarQuery,
    notes: Sequence[str],
) -> ScalarReport:
    full = bool(query.tags or query.points or not summaries) and len(summaries) <= _IN_FULL
    points = DEFAULT_POINTS if query.points is None and full else query.points or 0
    values = {
        tag: text.build_tag_figures(summary, _points(reading.series[tag], points))
        for tag, summary in list(summaries.items())[:_WITH_TRENDS]
        if full or points
    }
    lines, columns, next_step = None, None, None
    if not full:
        if _count_with_trends(query, len(summaries)) == len(summaries):
            lines, columns = text.tag_lines(summaries), text.name_columns(summaries.values())
        else:
            # Tags with NaN or infinite values first, then the most recently logged ones.
            odd = {tag: not summary.nan + summary.inf for tag, summary in summaries.items()}
            age = {tag: math.inf if one.age_s is None else round(one.age_s, -1) for tag, one in summaries.items()}
            order = sorted(summaries, key=lambda tag: (odd[tag], age[tag]))
            lines, next_step = text.last_value_lines({tag: summaries[tag] for tag in order})
            columns = "tag last[@step]"
    ages = [summary.age_s for summary in summaries.values() if summary.age_s is not None]
    return ScalarReport(
        source=reading.source or str(target.path),
        run_id=target.run_id,
        step=None if full else text.common_step(summaries),
        age_s=None if full or not ages else round_seconds(min(ages)),
        columns=columns,
        tags=lines,
        values=values or None,
        total=len(summaries) if next_step else None,
        notes=_merge_notes([reading], notes),
        next_step=next_step,
    )


def _points(series: Series, most: int) -> list[tuple[int, float]] | None:
    if not most:
        return None
    steps, values = pick_points(series, most)
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def _report_side_by_side(
    readings: Sequence[ScalarReading],
    summaries: Sequence[Mapping[str, SeriesSummary]],
    notes: Sequence[str],
    root: str,
    further: int,
) -> ScalarReport:
    lines, left_out = text.comparison_lines(summaries)
    left_out += further
    return ScalarReport(
        source=f"{len(readings)} runs side by side" + (f" in {root}" if root else ""),
        runs=[reading.name for reading in readings],
        columns=text.name_compared_columns(summaries),
        tags=lines,
        notes=_merge_notes(readings, notes),
        next_step=f"{left_out} more tags had no room: name fewer in tags." if left_out else None,
    )


def _merge_notes(readings: Sequence[ScalarReading], first: Sequence[str]) -> list[str] | None:
    notes = list(dict.fromkeys([*first, *(note for reading in readings for note in reading.notes)]))
    left = [f"{len(notes) - _MOST_NOTES} more notes."] if len(notes) > _MOST_NOTES else []
    return [*(shorten_facts(note, _NOTE_CHARS) for note in notes[:_MOST_NOTES]), *left] or None


def _build_panels(
    readings: Sequence[ScalarReading],
    summaries: Sequence[Mapping[str, SeriesSummary]],
    tags: Sequence[str],
    query: ScalarQuery,
) -> list[Panel]:
    """Return one panel per tag. Where the query names no tags, NaN and infinities first."""
    ordered = list(tags)
    if not query.tags:
        odd = {tag for one in summaries for tag, summary in one.items() if summary.nan or summary.inf}
        ordered.sort(key=lambda tag: (tag not in odd, rank_headline(tag)))
    return [
        Panel(tag, [_build_curve(reading, tag) for reading in readings if tag in reading.series])
        for tag in ordered[:MOST_PANELS]
    ]


def _build_curve(reading: ScalarReading, tag: str) -> Curve:
    series = reading.series[tag]
    steps, values = pick_points(series, CURVE_POINTS)
    at, medians = median_curve(series, _MEDIAN_BUCKETS if len(series.values) >= _NOISY_FROM else 0)
    odd = nonfinite_steps(series, _MOST_ODD)
    return Curve(reading.name, steps.tolist(), values.tolist(), odd.tolist(), (at.tolist(), medians.tolist()))
