"""How the length of a training depends on its settings, learnt from those that have ended. Pure."""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import is_seed
from mcp_server.record.sweeps.sweep_state import CellState, Sweep

LENGTH = re.compile(
    r"(?:^|[._])(?:(?:max|num|total|n|train|training|env|learning)_?)*(?:steps?|iters?|iterations?|epochs?|timesteps?|updates?)$",
    re.IGNORECASE,
)
_RIDGE = 0.02  # the variance of the logarithm of a length, by that of a slope before anything is known
SHORTEST_S, _MOST_LEARNT = 0.01, 4.0  # of a logarithm: 55 times as long
_MOST_FEATURES, _MOST_TEXTS = 16, 8


def fit_lengths(cells: Sequence[CellState], whole: Sequence[tuple[CellState, float]]) -> Callable[[CellState], float]:
    """Return how long each of ``cells`` takes by the lengths of some, in seconds.

    The logarithm of a length is linear in the logarithms of settings that are positive numbers, and each text has a
    factor of its own. As long as few cells say otherwise, a length is in proportion to settings that count steps or
    epochs, and depends on no others (ridge regression towards that).
    """
    features = _list_features(cells)
    rows = [[read(cell) for _, read in features] for cell, _ in whole]
    logs = [math.log(max(s, SHORTEST_S)) - _sum_prior(features, row) for (_, s), row in zip(whole, rows, strict=True)]
    centre = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    mean = statistics.fmean(logs)
    off = [[value - middle for value, middle in zip(row, centre, strict=True)] for row in rows]
    slopes = _solve_ridge(off, [each - mean for each in logs], _RIDGE)

    def estimate(cell: CellState) -> float:
        row = [read(cell) for _, read in features]
        learnt = sum(s * (v - c) for s, v, c in zip(slopes, row, centre, strict=True))
        return math.exp(mean + _sum_prior(features, row) + max(-_MOST_LEARNT, min(learnt, _MOST_LEARNT)))

    scale = sum(s for _, s in whole) / sum(estimate(cell) for cell, _ in whole)  # a mean, not one of logarithms
    return lambda cell: estimate(cell) * scale


def add_rests(sweep: Sweep, runs: Mapping[str, Run]) -> dict[str, Run]:
    """Return the runs, those whose program names no total with what is left by the step at which all their like ended.

    A slow cell is as long as its own steps say, not as fast ones were.
    """
    lasts: dict[object, set[object]] = {}
    for cell in sweep.cells:
        if cell.state == "finished":
            lasts.setdefault(_name_length(cell), set()).add(cell.end.get("step"))
    found = dict(runs)
    for cell in sweep.cells:
        if (run := runs.get(cell.cell.name)) is None or "eta_s" in run.progress:
            continue
        step, step_s, ends = run.progress.get("step"), run.progress.get("step_s"), lasts.get(_name_length(cell), set())
        last = next(iter(ends)) if len(ends) == 1 else None
        if isinstance(last, int) and isinstance(step, int) and isinstance(step_s, int | float) and step <= last:
            found[cell.cell.name] = replace(run, progress={**run.progress, "eta_s": (last - step) * step_s})
    return found


def _name_length(cell: CellState) -> object:
    """Return what cells of as many steps have in common, before any says how many."""
    names = sorted(name for name in cell.settings if LENGTH.search(name))
    return cell.cell.phase, cell.cell.variant, *((name, str(cell.planned(name))) for name in names)


_Feature = tuple[float, Callable[[CellState], float]]  # the slope that is expected, and how a cell's value is read


def _list_features(cells: Sequence[CellState]) -> list[_Feature]:
    """Return the settings on which the length may depend: those that differ, but for seeds."""
    found: list[_Feature] = []
    for name in dict.fromkeys(name for cell in cells for name in cell.settings if not is_seed(name)):
        values = [cell.planned(name) for cell in cells]
        if all(_is_positive(value) for value in values):
            if len(set(values)) > 1:
                found.append((1.0 if LENGTH.search(name) else 0.0, partial(_read_log, name)))
        elif 1 < len(texts := set(map(str, values))) <= _MOST_TEXTS:
            found += [(0.0, partial(_is_text, name, text)) for text in sorted(texts)]
    return found[:_MOST_FEATURES]


def _read_log(name: str, cell: CellState) -> float:
    return math.log(cell.planned(name))


def _is_text(name: str, text: str, cell: CellState) -> float:
    return float(str(cell.planned(name)) == text)


def _sum_prior(features: Sequence[_Feature], row: Sequence[float]) -> float:
    return sum(slope * value for (slope, _), value in zip(features, row, strict=True))


def _solve_ridge(rows: Sequence[Sequence[float]], ends: Sequence[float], penalty: float) -> list[float]:
    """Return the slopes that fit ``ends`` best, each slope's square at a ``penalty``: Gauss, as it is positive."""
    size = len(rows[0]) if rows else 0
    left = [[sum(row[i] * row[j] for row in rows) + penalty * (i == j) for j in range(size)] for i in range(size)]
    right = [sum(row[i] * end for row, end in zip(rows, ends, strict=True)) for i in range(size)]
    for i in range(size):
        for k in range(i + 1, size):
            factor = left[k][i] / left[i][i]
            left[k] = [a - factor * b for a, b in zip(left[k], left[i], strict=True)]
            right[k] -= factor * right[i]
    slopes = [0.0] * size
    for i in reversed(range(size)):
        slopes[i] = (right[i] - sum(left[i][j] * slopes[j] for j in range(i + 1, size))) / left[i][i]
    return slopes


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
