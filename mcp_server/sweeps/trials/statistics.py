"""Noise of a metric, whether it drifts, and how likely a difference is by chance. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mcp_server.record.sweeps.sweep_ranking import beta_fraction

_DRIFT, _FEWEST_STEPS = 2.0, 5  # of the variance, in that of neighbours' differences; between runs of one code


@dataclass(frozen=True)
class Noise:
    """The deviation of single runs of one code, and how many degrees of freedom it is known with; 0: not known."""

    sd: float = 0.0
    df: int = 0


def pool(groups: Iterable[Sequence[float]]) -> Noise:
    """Return the deviation inside of groups, as if all had the same."""
    squares, df = 0.0, 0
    for values in groups:
        if len(values) > 1:
            mean = math.fsum(values) / len(values)
            squares += math.fsum((value - mean) ** 2 for value in values)
            df += len(values) - 1
    return Noise(math.sqrt(squares / df), df) if df else Noise()


def drifts(groups: Iterable[Sequence[float]]) -> bool:
    """Return whether runs of one code, in the order in which they began, are more alike than far ones are.

    Von Neumann's ratio: without a drift half of the mean square of neighbours' differences is the variance.
    """
    groups = list(groups)
    noise = pool(groups)
    steps = [later - earlier for values in groups for earlier, later in pairwise(values)]
    if len(steps) < _FEWEST_STEPS:
        return False
    return noise.sd**2 > _DRIFT * math.fsum(step * step for step in steps) / (2 * len(steps))


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
