"""Welch's test: whether two means differ by more than chance. Pure, and without a library."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_TERMS = 10_000  # of the continued fraction: about the root of the degrees of freedom are needed
_EPSILON, _TINY = 1e-15, 1e-300


@dataclass(frozen=True)
class Welch:
    """The statistic ``t``, its degrees of freedom, and the two-sided ``p``."""

    t: float
    df: float
    p: float

    @property
    def text(self) -> str:
        """The test as papers write it: ``Welch t 2.45, df 1.9, p 0.14``."""
        return f"Welch t {self.t:.3g}, df {self.df:.3g}, p {self.p:.2g}"


def compare_means(one: Sequence[float], other: Sequence[float]) -> Welch | None:
    """Return Welch's test of two samples, or None below two values each, or where no float holds their variances.

    Two samples without any deviation have none: chance is unknown there.
    """
    if min(len(one), len(other)) < 2:  # noqa: PLR2004 - a variance takes two
        return None
    try:
        errors = [statistics.variance(values) / len(values) for values in (one, other)]
    except OverflowError:
        return None
    error = sum(errors)
    if not (error > 0 and math.isfinite(error)):
        return None
    t = (statistics.fmean(one) - statistics.fmean(other)) / math.sqrt(error)
    shares = [each / error for each in errors]  # not the squares of the errors: those may be too small for a float
    df = 1 / (shares[0] ** 2 / (len(one) - 1) + shares[1] ** 2 / (len(other) - 1))
    return Welch(t, df, _beta_fraction(df / 2, 0.5, df / (df + t * t)))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # beyond it the fraction converges slowly
        return 1 - _beta_fraction(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    value, c, d = 1.0, 1.0, 0.0
    for number in range(_TERMS):
        half = number // 2
        if number == 0:
            term = 1.0
        elif number % 2:
            term = -(a + half) * (a + b + half) * x / ((a + number - 1) * (a + number))
        else:
            term = half * (b - half) * x / ((a + number - 1) * (a + number))
        d = 1 / (1 + term * d or _TINY)
        c = 1 + term / c or _TINY
        value *= c * d
        if abs(1 - c * d) < _EPSILON:
            break
    return front * (value - 1)
