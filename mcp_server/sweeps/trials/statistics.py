"""Noise of a metric, whether it drifts, and how likely a difference is by chance. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from mcp_server.record.sweeps.sweep_ranking import beta_fraction

_DRIFT = 2.33  # deviations of Von Neumann's ratio: 1 of 100 by chance
_FADING = 0.5  # the weight of runs, per trial that was kept between them and those that are judged
_UNLIKE = 0.02  # the chance of variances so unequal, below which they are taken for different ones


@dataclass(frozen=True)
class Noise:
    """The deviation of single runs of one code, and how many degrees of freedom it is known with; 0: not known."""

    sd: float = 0.0
    df: float = 0


def pool(groups: Iterable[Sequence[float]]) -> Noise:
    """Return the deviation inside of groups, as if all had the same."""
    squares, df = 0.0, 0
    for values in groups:
        if len(values) > 1:
            mean = math.fsum(values) / len(values)
            squares += math.fsum((value - mean) ** 2 for value in values)
            df += len(values) - 1
    return Noise(math.sqrt(squares / df), df) if df else Noise()


def pool_near(groups: Iterable[tuple[int, Sequence[float]]]) -> Noise:
    """Return the deviation inside of groups where it changes with the code, mostly by those at distance 0.

    ``groups``: with how many trials were kept between them and what is judged. The farther ones count less (their
    degrees of freedom as Satterthwaite has them), and not at all where an F test tells their variance from that at 0.
    """
    groups = list(groups)
    own = pool(values for distance, values in groups if not distance)
    others = ((_FADING**distance, pool([values])) for distance, values in groups if distance)
    counted = [(1.0, own), *((weight, other) for weight, other in others if _may_equal(other, own))]
    df = math.fsum(weight * noise.df for weight, noise in counted)
    squares = math.fsum(weight * noise.df * noise.sd**2 for weight, noise in counted)
    return Noise(math.sqrt(squares / df), df**2 / math.fsum(w**2 * noise.df for w, noise in counted)) if df else Noise()


@lru_cache(4096)  # each look at a sweep asks the same again
def _may_equal(one: Noise, other: Noise) -> bool:
    if not (one.sd and other.sd):
        return True
    ratio = one.df * one.sd**2 / (other.df * other.sd**2)
    below = beta_fraction(one.df / 2, other.df / 2, ratio / (1 + ratio))
    return _UNLIKE / 2 < below < 1 - _UNLIKE / 2


def drifts(groups: Iterable[Sequence[float]]) -> bool:
    """Return whether runs of one code, in the order in which they began, are more alike than far ones are.

    Von Neumann's ratio: without a drift half of the mean square of neighbours' differences is the variance, by chance
    off by about one in the root of their number and three.
    """
    groups = list(groups)
    noise = pool(groups)
    steps = [later - earlier for values in groups for earlier, later in pairwise(values)]
    ratio = math.fsum(step * step for step in steps) / (2 * len(steps) * noise.sd**2) if noise.sd else 1.0
    return (1 - ratio) * math.sqrt(len(steps) + 3) > _DRIFT


def chance_above(t: float, df: float) -> float:
    """Return the probability that Student's t with ``df`` degrees of freedom is above ``t``."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = beta_fraction(df / 2, 0.5, df / (df + t * t)) / 2
    return half if t >= 0 else 1 - half


def find_quantile(chance: float, df: float) -> float:
    """Return the ``t`` above which Student's t is with this probability, below a half."""
    low, high = 0.0, 1.0
    while chance_above(high, df) > chance:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance_above(middle, df) > chance else (low, middle)
    return high
