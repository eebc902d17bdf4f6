"""A sweep as a picture: learning curves by setting with a band over seeds, parallel coordinates, means with deviations.

Whole trainings alone count, as in tables; of a setting that has none yet, those under way are drawn.
"""

import contextlib
import math
from collections.abc import Sequence

import numpy as np

from mcp_server.errors import RunwardError
from mcp_server.record.sweeps.sweep_ranking import Group, average, find_differing, rank_groups
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.results.comparison_cells import shorten_names
from mcp_server.results.figures import Points, read_points
from mcp_server.scalars.picture import CURVE_POINTS, Axis, Bar, Curve, Panel, draw_picture
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.tables.columns import MOST_READ, observe_cell
from mcp_server.text.formatting import plain_value

FORMS = ("png", "svg", "pdf")
_MOST_SETTINGS, _MOST_LINES, _MOST_AXES = 12, 60, 8
_LABEL_SETTINGS = 3
_LOG_FROM = 20  # largest by smallest value of a setting


def draw_sweep(sweep: Sweep, store: RunStore, scalars: Scalars, form: str) -> bytes:
    """Return the picture, as ``form`` of FORMS. Reads files.

    Raises:
        RunwardError: the sweep has no metric or no value yet, or nothing can be drawn here.
    """
    panels = make_panels(sweep, store, scalars)
    if not panels:
        why = "has no metric" if sweep.spec.metric is None else f"has no value of {sweep.spec.metric} yet"
        raise RunwardError(f"{sweep.sweep_id} {why}.", "No picture was written.")
    return draw_picture(panels, form)


def make_panels(sweep: Sweep, store: RunStore, scalars: Scalars) -> list[Panel]:
    """Return the panels that have something to show, of the best settings."""
    metric = sweep.spec.metric
    if metric is None:
        return []
    groups = rank_groups(sweep.cells, sweep.spec.goal)
    names = find_differing(groups)
    labels = [_label(group, names) for group in groups]
    labels = [label if labels.count(label) == 1 else f"{label} {n}" for n, label in enumerate(labels, 1)]
    named = dict(zip(labels, groups, strict=True))
    shown = dict(list(named.items())[:_MOST_SETTINGS])
    curves, left = [], MOST_READ
    for label, group in shown.items():
        members = list(group.results or group.cells)[:left]
        left -= len(members)
        read = []
        for run in (run for cell in members if (run := observe_cell(cell, store)) is not None):
            with contextlib.suppress(RunwardError, OSError):
                read.append(read_points(run, store, scalars, metric))
        if curve := join_seeds(label, [points for points in read if points]):
            curves.append(curve)
    bars = [
        Bar(label, group.mean, group.deviation, group.values)
        for label, group in shown.items()
        if group.mean is not None
    ]
    more = f", the best {_MOST_SETTINGS} of {len(groups)}" if len(groups) > _MOST_SETTINGS else ""
    ranked = {label: group for label, group in named.items() if group.mean is not None}
    panels = [Panel(f"{metric}: mean ± sd over seeds{more}", curves)] if curves else []
    panels += [Panel(f"{sweep.spec.ranked_by}: mean ± sd, each seed{more}", bars=bars)] if bars else []
    lines = dict(list(ranked.items())[:_MOST_LINES])
    return [*panels, make_parallel(lines, names[:_MOST_AXES], f"{sweep.spec.ranked_by}")] if names and lines else panels


def join_seeds(label: str, runs: Sequence[Points]) -> Curve | None:
    """Return the mean of curves as far as all of them reach, with the deviation of the sample as a band. Pure.

    Where they were logged at other steps, values between two are interpolated. NaN is drawn where any has it.
    """
    finite, odd = [], set[int]()
    for points in runs:
        stepped = {n if step is None else step: value for n, (step, value) in enumerate(points)}
        finite.append({step: value for step, value in sorted(stepped.items()) if math.isfinite(value)})
        odd |= {step for step, value in stepped.items() if not math.isfinite(value)}
    finite = [curve for curve in finite if curve]
    if not finite:
        return None
    low, high = max(min(curve) for curve in finite), min(max(curve) for curve in finite)
    steps = sorted({step for curve in finite for step in curve if low <= step <= high})
    steps = steps[:: -(-len(steps) // CURVE_POINTS) or 1]
    if not steps:  # they have no step in common
        return None
    figures = [
        average(values)
        for values in zip(*(np.interp(steps, list(c), list(c.values())).tolist() for c in finite), strict=True)
    ]
    means = [mean or 0.0 for mean, _ in figures]
    deviations = [deviation for _, deviation in figures if deviation is not None]
    band: tuple[Sequence[float], Sequence[float]] = ((), ())
    if len(deviations) == len(means):
        pairs = list(zip(means, deviations, strict=True))
        band = [mean - each for mean, each in pairs], [mean + each for mean, each in pairs]
    return Curve(label, steps, means, sorted(odd), band=band)


def make_parallel(groups: dict[str, Group], names: Sequence[str], ranked_by: str) -> Panel:
    """Return a line for each setting across an axis for each parameter that differs, and one for the mean. Pure."""
    short = shorten_names(names, {ranked_by})
    axes, heights = [], []
    columns = [[group.settings.get(name) for group in groups.values()] for name in names]
    columns.append([group.mean for group in groups.values()])
    for name, column in zip([*(short[name] for name in names), ranked_by], columns, strict=True):
        ticks, own = _place(column)
        axes.append(Axis(name, ticks))
        heights.append(own)
    lines = {label: [own[n] for own in heights] for n, label in enumerate(groups)}
    return Panel("settings and their means", axes=axes, lines=lines)


def _place(column: Sequence[object]) -> tuple[list[tuple[float, str]], list[float]]:
    numbers = [float(v) for v in column if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(column) and max(numbers) > min(numbers):
        scale = math.log10 if min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_FROM else float
        low, high = scale(min(numbers)), scale(max(numbers))
        at = {number: (scale(number) - low) / (high - low) for number in numbers}
        known = sorted(at) if len(at) <= _MOST_AXES else [min(numbers), max(numbers)]
        return [(at[number], f"{number:.4g}") for number in known], [at[number] for number in numbers]
    texts = [plain_value(value) for value in column]
    distinct = sorted(dict.fromkeys(texts))
    places = {text: n / (len(distinct) - 1) if len(distinct) > 1 else 0.5 for n, text in enumerate(distinct)}
    return [(place, text) for text, place in places.items()], [places[text] for text in texts]


def _label(group: Group, names: Sequence[str]) -> str:
    short = shorten_names(names, ())
    texts = [f"{short[name]} {group.show(name)}" for name in names[:_LABEL_SETTINGS]]
    return ", ".join(texts) or group.first.cell.phase
