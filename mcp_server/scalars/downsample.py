"""A series in buckets of steps: its shape in digits, its median curve, and the points that keep its extremes. Pure."""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcp_server.scalars.series import Series

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SHAPE_DIGITS = 32
_FAR_SPREADS = 3.0  # an outlier is farther away than this many typical spreads of a bucket


def pick_points(series: Series, points: int) -> tuple[Ints, Floats]:
    """Return at most ``points`` finite points in order: the ends, the lowest and highest of buckets of equal steps."""
    chosen = pick_finite(series, points)
    return series.steps[chosen], series.values[chosen]


def pick_finite(series: Series, points: int) -> Ints:
    """Return the indices of these points, by rising step."""
    finite = np.flatnonzero(np.isfinite(series.values))
    steps = series.steps[finite]
    if steps.size > 1 and not bool((steps[1:] >= steps[:-1]).all()):
        finite = finite[steps.argsort(kind="stable")]
    steps, values = series.steps[finite], series.values[finite]
    if values.size <= points:
        return finite
    indices = [values.size - 1, int(values.argmax()), int(values.argmin()), 0][:points]
    buckets = (points - 2) // 2
    if buckets > 1:
        edges = bucket_edges(steps, buckets)
        indices = [0, values.size - 1]
        for low, high in itertools.pairwise(edges):
            if high > low:
                part = values[low:high]
                indices += [low + int(part.argmin()), low + int(part.argmax())]
    return finite[np.unique(indices)]


def median_curve(series: Series, buckets: int) -> tuple[Floats, Floats]:
    """Return the mean step and the median of the finite values of each bucket of equal width in steps."""
    finite = np.isfinite(series.values)
    steps, values = sort_by_step(series.steps[finite], series.values[finite])
    if not values.size or not buckets:
        return np.empty(0), np.empty(0)
    edges = bucket_edges(steps, buckets)
    spans = [slice(low, high) for low, high in itertools.pairwise(edges) if high > low]
    # Halved, since the median of an even number of values adds two of them.
    return (
        np.array([steps[span].astype(np.float64).mean() for span in spans]),
        np.array([2 * np.median(values[span] / 2) for span in spans]),
    )


def nonfinite_steps(series: Series, most: int) -> Ints:
    """Return at most ``most`` of the steps, evenly chosen, at which the value is NaN or infinite."""
    steps = series.steps[~np.isfinite(series.values)]
    return steps[:: -(-steps.size // most) or 1]


def shape_digits(steps: Ints, values: Floats) -> str:
    """Return one character per bucket of steps: 0 lowest … 9 highest, ``x`` has a NaN or infinity, ``.`` has no point.

    A bucket shows its median, on a scale from the lowest to the highest median, so that one spike does not
    flatten the rest. But the buckets of the minimum and the maximum show 0 and 9, as does every bucket with a
    value far outside the scale: farther than the scale is wide and than three typical spreads of a bucket.
    """
    steps, values = sort_by_step(steps, values)
    edges = bucket_edges(steps, min(SHAPE_DIGITS, values.size))
    parts = [values[low:high] for low, high in itertools.pairwise(edges)]
    finite = [part for part in parts if part.size and bool(np.isfinite(part).all())]
    if not finite:
        return "".join("x" if part.size else "." for part in parts)
    medians = [float(np.median(part)) for part in finite]
    spread = float(np.median([float(part.max()) - float(part.min()) for part in finite]))
    least, most = min(float(part.min()) for part in finite), max(float(part.max()) for part in finite)
    scale = _Scale(min(medians), max(medians), least, most, spread)
    digits = iter([scale.digit(part, median) for part, median in zip(finite, medians, strict=True)])
    return "".join("." if not part.size else next(digits) if bool(np.isfinite(part).all()) else "x" for part in parts)


@dataclass(frozen=True)
class _Scale:
    """The scale from the lowest to the highest median of a bucket. ``spread``: the typical range within a bucket."""

    low: float
    high: float
    least: float
    most: float
    spread: float

    def digit(self, part: Floats, median: float) -> str:
        if self.least == self.most:
            return "5"
        low, high, width = float(part.min()), float(part.max()), self.high - self.low
        far = max(width, _FAR_SPREADS * self.spread)
        above = high == self.most or high > self.high + far
        below = low == self.least or low < self.low - far
        if above and below:
            above = high - median >= median - low
        if above or below:
            return "9" if above else "0"
        return str(min(9, int(10 * ((median - self.low) / width)))) if width else "5"


def step_offsets(steps: Ints) -> Floats:
    """Return the distance of each step from the lowest, exactly even where the distance does not fit an int64."""
    lowest = np.array([steps.min()]).view(np.uint64)
    return (np.ascontiguousarray(steps).view(np.uint64) - lowest).astype(np.float64)


def sort_by_step(steps: Ints, values: Floats) -> tuple[Ints, Floats]:
    """Return the points by rising step. Points of one step keep their order."""
    if steps.size < 2 or bool((steps[1:] >= steps[:-1]).all()):  # noqa: PLR2004 - already sorted
        return steps, values
    order = steps.argsort(kind="stable")
    return steps[order], values[order]


def bucket_edges(steps: Ints, buckets: int) -> NDArray[np.int64]:
    """Return the edges of ``buckets`` of equal width in steps, as indices into ascending ``steps``."""
    x = step_offsets(steps)
    if not x[-1]:
        return np.arange(buckets + 1) * steps.size // buckets
    return np.searchsorted(x, np.append(np.arange(buckets) * (x[-1] / buckets), np.inf))
