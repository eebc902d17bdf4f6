"""Summarises a series: last value, extremes, slope, plateau and so on. Pure, and exact over all points."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from mcp_server.scalars.downsample import Floats, Ints, shape_digits, step_offsets
from mcp_server.scalars.series import Series

PER_STEPS = 1000  # the unit of a slope

Trend = Literal["up", "down", "flat"]
Detail = Literal["all", "range", "last"]

_LEAST_TAIL = 10  # points; fewer make no slope
_SURE_T = 3.0  # |t| below this is noise
_ERRORS = 2.0  # standard errors by which a slope may be wrong
# A shorter end has at least so many points, such a |t|, and ends beyond all but this share of the points before it.
_LEAST_END, _SURE_END_T, _BEYOND = 32, 6.0, 0.01
# A plateau is detected on the medians of so many equal parts, each of at least so many points.
_PARTS, _LEAST_PART, _FEWEST_PARTS = 64, 4, 8
_PLATEAU_OF_ALL = 0.25  # of the parts; fewer are too short for a plateau
_PLATEAU_BAND = 0.05  # of the range of the medians
_NOISE_BAND = 4.0  # standard errors of a median; 64 parts of pure noise stay within
_MEDIAN_ERROR = 1.2533  # of a median to the error of a mean, for normal noise: sqrt(pi / 2)
_MAD_TO_SIGMA = 1.4826
_BLOCKS, _FEWEST_SHARED, _SURE_APART = 32, 4, 3.0  # of two curves that are compared
_WEIGHTLESS = 1e-17  # below double precision: older points do not change an average


@dataclass(frozen=True)
class SeriesSummary:
    """The summary of one series: of its finite values, but for ``last``, ``count``, ``nan`` and ``inf``.

    ``slope``: units per 1,000 steps by least squares over the last tenth of the points (at least 10), where it is no
    noise. ``trend``: its direction; ``flat`` where the tenth surely moved less than its points scatter; None where
    neither is sure. Without a slope both are of a shorter end that has left the level before. ``ema``: TensorBoard's
    smoothing. ``plateau``: the step since which the medians of 64 equal parts, a quarter or more, stay within 5 % of
    their range, or their noise, around the last ones. ``age_s``: since the newest point. ``restarts``: where a restart
    continued.
    """

    count: int
    first: float | None = None
    first_step: int | None = None
    last: float | None = None
    last_step: int | None = None
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    mean: float | None = None
    ema: float | None = None
    slope: float | None = None
    trend: Trend | None = None
    plateau: int | None = None
    nan: int = 0
    first_nan_step: int | None = None
    inf: int = 0
    first_inf_step: int | None = None
    shape: str = ""
    age_s: float | None = None
    steps_per_s: float | None = None
    restarts: tuple[int, ...] = ()
    writers: int = 1


def slope_unit(summaries: Iterable[SeriesSummary]) -> int:
    """Return of how many steps a slope is told: 1,000, or a smaller power of ten that the runs have come to."""
    most = max((one.last_step for one in summaries if one.last_step is not None), default=PER_STEPS)
    return next(unit for unit in (PER_STEPS, 100, 10, 1) if unit <= most or unit == 1)


# Of series that nobody has extended since, as an ended run's: a million points take 50 ms, beside others' calls.
_known: WeakKeyDictionary[Series, tuple[float, SeriesSummary]] = WeakKeyDictionary()


def summarise_series(series: Series, *, now_s: float, smooth: float = 0.6, detail: Detail = "all") -> SeriesSummary:
    """Return the summary of ``series`` at ``now_s`` (POSIX time). ``smooth`` in [0, 1) as TensorBoard's slider.

    ``detail`` leaves the slower fields out: ``last`` has count, last value, age, NaN and infinite values; ``range``
    first value, minimum and maximum too.
    """
    if detail != "all":
        return _summarise(series, now_s, smooth, detail)
    known_smooth, summary = _known.get(series) or (None, None)
    if summary is None or known_smooth != smooth:
        summary = _summarise(series, now_s, smooth, detail)
        _known[series] = smooth, summary
    return summary if summary.age_s is None else replace(summary, age_s=_age(series.walls, now_s))


def _summarise(series: Series, now_s: float, smooth: float, detail: Detail) -> SeriesSummary:
    steps, values = series.steps, series.values
    if not values.size:
        return SeriesSummary(0, restarts=series.certain_restarts, writers=series.writers)
    finite = np.isfinite(values)
    good, at = (values, steps) if finite.all() else (values[finite], steps[finite])
    facts: dict[str, Any] = {
        "count": values.size,
        "last": float(values[-1]),
        "last_step": int(steps[-1]),
        "age_s": _age(series.walls, now_s),
        "restarts": series.certain_restarts,
        "writers": series.writers,
    }
    if good is not values:
        nans = np.isnan(values)
        facts |= {"nan": int(nans.sum()), "first_nan_step": _first(steps, nans)}
        facts |= {"inf": values.size - good.size - facts["nan"], "first_inf_step": _first(steps, ~(finite | nans))}
    if detail != "last" and good.size:
        facts |= _find_range(at, good)
    if detail != "all":
        return SeriesSummary(**facts)
    # Scaled by a power of two, which rounds nothing: sums and squares of 1e300 would overflow.
    exponent = max(-1000, math.frexp(float(np.abs(good).max()))[1]) if good.size else 0
    unit = math.ldexp(1.0, -exponent)
    tail = _tail(values.size)
    facts |= {"shape": shape_digits(steps, values * unit), "steps_per_s": _rate(steps[-tail:], series.walls[-tail:])}
    if good.size:
        facts |= _summarise_finite(at, good, good * unit, exponent, smooth) | _unknown_end(finite[-tail:])
    return SeriesSummary(**facts)


def _find_range(steps: Ints, values: Floats) -> dict[str, Any]:
    low, high = int(values.argmin()), int(values.argmax())
    return {
        "first": float(values[0]),
        "first_step": int(steps[0]),
        "min": float(values[low]),
        "min_step": int(steps[low]),
        "max": float(values[high]),
        "max_step": int(steps[high]),
    }


def _unknown_end(finite: NDArray[np.bool_]) -> dict[str, Any]:
    """Return slope and trend as unknown where the last tenth, which they are about, holds few numbers."""
    return {} if 2 * finite.sum() >= finite.size else {"slope": None, "trend": None, "plateau": None}


def _summarise_finite(steps: Ints, values: Floats, scaled: Floats, exponent: int, smooth: float) -> dict[str, Any]:
    """Return the fields of finite values. ``scaled`` are the same values times ``2**-exponent``."""
    least, most = float(values.min()), float(values.max())
    tail = _tail(scaled.size)
    line = _fit_line(steps[-tail:], scaled[-tail:], exponent)
    end = None if line.is_sure else _departure(steps[-tail:], scaled[-tail:], exponent)
    line = end or line
    return {
        # Rounding must not lift a mean above the maximum.
        "mean": min(max(math.ldexp(float(scaled.mean()), exponent), least), most),
        "ema": min(max(math.ldexp(_ema(scaled, smooth), exponent), least), most),
        "slope": line.slope if line.is_sure or line.slope == 0 else None,
        "trend": line.trend,
        "plateau": None if end else _plateau(steps, scaled),
    }


def _first(steps: Ints, which: NDArray[np.bool_]) -> int | None:
    index = int(which.argmax())
    return int(steps[index]) if which[index] else None


def _tail(count: int) -> int:
    return max(count // 10, min(count, _LEAST_TAIL))


@dataclass(frozen=True)
class _Line:
    """A line: its slope per 1,000 steps, its t, and how far it may drift, in standard deviations of its residuals."""

    slope: float | None = None
    t: float = 0.0
    most_drift: float = math.inf

    @property
    def is_sure(self) -> bool:
        return abs(self.t) >= _SURE_T

    @property
    def trend(self) -> Trend | None:
        if self.slope is not None and self.is_sure:
            return "up" if self.slope > 0 else "down"
        return "flat" if self.most_drift < 1 else None


def _departure(steps: Ints, scaled: Floats, exponent: int) -> _Line | None:
    """Return the line through the longest end that has left the level before it, which a longer line hides, or None."""
    size = scaled.size
    while (size := int(size / 3)) >= _LEAST_END:
        line = _fit_line(steps[-size:], scaled[-size:], exponent)
        if line.slope is None or abs(line.t) < _SURE_END_T:
            continue
        level = float(np.median(scaled[-size // 4 :]))
        low, high = np.quantile(scaled[:-size], (_BEYOND, 1 - _BEYOND))
        if level > high if line.slope > 0 else level < low:
            return line
    return None


def _fit_line(steps: Ints, y: Floats, exponent: int) -> _Line:
    tail = y.size
    x = step_offsets(steps)
    width = float(x.max())
    if tail < 2 or not width:  # noqa: PLR2004 - a line needs two points
        return _Line()
    if float(y.min()) == float(y.max()):
        return _Line(0.0, most_drift=0.0)
    x = x / width
    x, y = x - x.mean(), y - y.mean()
    spread = _dot(x, x)
    rise = _dot(x, y) / spread
    residual = y - rise * x
    freedom = _freedom(residual)
    error = math.sqrt(_dot(residual, residual) / freedom / spread) if freedom else math.inf
    t = rise / error if error else math.copysign(math.inf, rise) if rise else 0.0
    scatter = math.sqrt(_dot(residual, residual) / tail)
    most_drift = (abs(rise) + _ERRORS * error) / scatter if scatter else math.inf
    return _Line(_product(rise, PER_STEPS / width, exponent), t, most_drift)


def _freedom(residual: Floats) -> float:
    """Return the effective degrees of freedom of a line's residuals, at least 1.

    Neighbours that resemble each other, as in a random walk, carry less information: they count as
    n (1 - r) / (1 + r) points with their correlation r, after Santer et al. 2000, doi:10.1029/1999JD901105, section 5.
    """
    count, square = residual.size, _dot(residual, residual)
    if count < 4 or not square:  # noqa: PLR2004 - too few for a correlation
        return float(count - 2)
    correlation = min(max(0.0, _dot(residual[1:], residual[:-1]) / square), 1.0)
    return max(1.0, count * (1 - correlation) / (1 + correlation) - 2)


def _dot(one: Floats, other: Floats) -> float:
    """Return the scalar product. BLAS, which ``@`` calls, lets no other thread run meanwhile, and takes all cores."""
    return float(np.einsum("i,i->", one, other))


def _product(value: float, factor: float, exponent: int) -> float:
    try:
        return math.ldexp(value * factor, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


def _ema(values: Floats, smooth: float) -> float:
    """Return TensorBoard's debiased moving average: ``sum w^k v[n-1-k] / sum w^k``."""
    reach = 1 if smooth <= 0 else min(values.size, math.ceil(math.log(_WEIGHTLESS) / math.log(smooth)))
    weights = smooth ** np.arange(reach - 1, -1, -1, dtype=np.float64)
    return _dot(weights, values[-reach:]) / float(weights.sum())


def _plateau(steps: Ints, values: Floats) -> int | None:
    if float(values.min()) == float(values.max()):
        return int(steps[0]) if values.size >= _FEWEST_PARTS else None
    count = min(_PARTS, values.size // _LEAST_PART)
    if count < _FEWEST_PARTS:
        return None
    size = values.size // count
    parts = values[values.size - count * size :].reshape(count, size)
    medians = np.median(parts, axis=1)
    noise = float(np.median(np.abs(parts - medians[:, None]))) * _MAD_TO_SIGMA
    band = max(
        _PLATEAU_BAND * float(medians.max() - medians.min()), _NOISE_BAND * _MEDIAN_ERROR * noise / math.sqrt(size)
    )
    level = float(np.median(medians[-max(1, count // 8) :]))
    outside = np.flatnonzero(np.abs(medians - level) > band)
    begins = int(outside[-1]) + 1 if outside.size else 0
    if count - begins < _PLATEAU_OF_ALL * count:
        return None
    return int(steps[values.size - (count - begins) * size])


def _age(walls: Floats, now_s: float) -> float | None:
    newest = float(np.fmax.reduce(walls))  # the last point by step may not be the newest one
    return max(0.0, now_s - newest) if math.isfinite(newest) else None


def _rate(steps: Ints, walls: Floats) -> float | None:
    elapsed_s, count = float(walls[-1]) - float(walls[0]), int(steps[-1]) - int(steps[0])
    return count / elapsed_s if elapsed_s > 0 and count > 0 and math.isfinite(count / elapsed_s) else None


def share_steps(one: Series, other: Series) -> tuple[NDArray[np.int64], Floats, Floats] | None:
    """Return the steps that both series cover, those of the one with fewer points, and the values of both there."""
    series = [(each.steps[keep], each.values[keep]) for each in (one, other) for keep in [np.isfinite(each.values)]]
    if min(len(steps) for steps, _ in series) < _FEWEST_SHARED:
        return None
    low, high = max(steps[0] for steps, _ in series), min(steps[-1] for steps, _ in series)
    steps = np.unique(min(series, key=lambda each: len(each[0]))[0])
    steps = steps[(steps >= low) & (steps <= high)]
    if len(steps) < _FEWEST_SHARED:
        return None
    values = [np.interp(steps, own_steps, own_values) for own_steps, own_values in series]
    return steps, values[0], values[1]


def find_parting(before: Floats, now: Floats) -> int | None:
    """Return the index from which two curves stay apart by more than they scatter, None where they never do."""
    gap = now - before
    if not gap.any():
        return None
    jumps = np.diff(gap)
    noise = _MAD_TO_SIGMA * float(np.median(np.abs(jumps - np.median(jumps)))) / math.sqrt(2)
    blocks = np.array_split(np.arange(len(gap)), min(_BLOCKS, len(gap)))
    apart, side = None, math.copysign(1.0, float(np.mean(gap[blocks[-1]])))
    for block in reversed(blocks):
        if side * float(np.mean(gap[block])) <= _SURE_APART * noise / math.sqrt(len(block)):
            break
        apart = int(block[0])
    return apart
