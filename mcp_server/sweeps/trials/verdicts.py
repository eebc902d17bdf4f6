"""The verdict on a trial by its runs and those of the incumbent, the trial that it has to beat. Pure.

A first run, the screen, only says whether more are worth their time: the best of many screens is lucky, so it never
counts. Then the trial and the incumbent run in pairs, side by side. From the second pair on, the trial is kept once its
mean is better than that of all runs of the incumbent by more than chance: one-sided t, the deviation pooled over all
trials, 5 % divided over the looks. It is given up where the pairs that are left would hardly prove it. Where the
machine drifts, older runs of the incumbent say nothing about now, and the differences of pairs count alone; so on
several hosts, on one of which both runs of a pair are. Where the seed decides, those of runs with one seed do.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from mcp_server.sweeps.trials.statistics import Noise, find_quantile, pool
from mcp_server.text.formatting import significant

CHANCE = 0.05  # of a trial that is no better, over all looks
_LEAST_SD = 0.75  # by which a first run, and then the mean, has to be better, else the trial is not worth more runs
_HOPE = 0.1  # the least chance to be kept in the end that is worth another pair
_FEWEST_DIFFERENCES = 3  # degrees of freedom, from which on the noise between runs of a pair is known
_FEWEST = 2  # pairs before a trial is kept

Kind = Literal["pair", "better", "discarded", "undecided", "suspect"]


@dataclass(frozen=True)
class Rule:
    """How a sweep judges. ``sign``: 1 where more is better, else -1."""

    sign: int = 1
    repeats: int = 4
    min_gain: float = 0.0
    suspect_sd: float = 8.0


@dataclass(frozen=True)
class TrialEvidence:
    """The values of a trial and of its incumbent, in the order in which the runs began.

    ``pairs``: the trial's value and the incumbent's beside it, None where that run failed. ``differences``: the noise
    of these differences over all trials. ``alone``: why they count alone, else empty. ``is_seeded``: they are of runs
    with one seed. ``rivals``: the incumbent's values for the screen, if not all, and ``which`` they are.
    ``is_cleared``: somebody looked at a gain that was too good.
    """

    screen: float
    incumbent: Sequence[float]
    noise: Noise
    pairs: Sequence[tuple[float, float | None]] = ()
    differences: Noise = field(default_factory=Noise)
    alone: str = ""
    is_seeded: bool = False
    rivals: Sequence[float] = ()
    which: str = ""
    is_cleared: bool = False

    @property
    def unit(self) -> float:
        """The deviation in which gains are measured that are worth more runs: as pairs see it, which prove them.

        What two runs side by side share, a load of the machine, hides no gain from them. Nor does the noise of other
        code: where the incumbent's own runs are more alike, by chance or not, more of them say which.
        """
        own = pool([self.incumbent])
        least = min(self.noise.sd, self.of_pairs.sd / math.sqrt(2), own.sd if own.df else math.inf)
        return self.differences.sd if self.is_seeded else least

    @property
    def of_pairs(self) -> Noise:
        """The noise of differences, before that is known as if the runs of a pair had nothing in common: not above."""
        if self.is_seeded or self.differences.df >= _FEWEST_DIFFERENCES:
            return self.differences
        return Noise(math.sqrt(2) * self.noise.sd, self.noise.df)


@dataclass(frozen=True)
class Judgement:
    """The next thing to do with a trial: another ``pair``, or an end. ``gain``: how much better, in the metric."""

    kind: Kind
    why: str
    mean: float
    n: int
    gain: float
    t: float | None = None


def judge(rule: Rule, seen: TrialEvidence, name: str = "the incumbent") -> Judgement:
    """Return what follows for a trial that was screened, and whose pairs so far have all ended."""
    if not seen.pairs:
        return _judge_screen(rule, seen, name)
    own, looks = [one for one, _ in seen.pairs], len(seen.pairs)
    differences = [one - other for one, other in seen.pairs if other is not None]
    runs, mean = looks, statistics.fmean(own)
    if seen.alone and differences:
        gain, noise, others = rule.sign * statistics.fmean(differences), seen.of_pairs, math.inf
        runs = len(differences)
    else:
        gain = rule.sign * (mean - statistics.fmean(seen.incumbent))
        noise, others = seen.noise, len(seen.incumbent)
    error = noise.sd * math.sqrt(1 / runs + 1 / others)
    above = gain - rule.min_gain
    t = above / error if error else math.copysign(math.inf, above) if above else 0.0
    most = find_quantile(CHANCE / max(1, rule.repeats - _FEWEST + 1), noise.df) if noise.df else math.inf
    told = _tell(rule, seen, name, own, seen.incumbent, gain) + (seen.alone and f", by pairs alone: {seen.alone}")
    proof, end = f"{told}, t {t:.3g} of {most:.3g}", partial(Judgement, mean=mean, n=looks, gain=gain, t=t)
    beside = rule.sign * statistics.fmean(differences) if differences else gain
    # The machine may have been another one when the incumbent's other runs were made: nothing is given up for that.
    best = max(gain, beside)
    if best <= max(rule.min_gain, _LEAST_SD * seen.unit):
        return end("discarded", f"{told}: not better by {_LEAST_SD:g} sd")
    if looks >= min(_FEWEST, rule.repeats) and noise.df and t >= most:
        return end("better", proof)
    if looks >= rule.repeats:
        return end("undecided", f"{proof} after {looks} pairs")
    if noise.df and _find_hope(best - rule.min_gain, most * noise.sd, noise.sd, looks, others, rule.repeats) < _HOPE:
        return end("discarded", f"{told}: more pairs would hardly prove it")
    return end("pair", told)


def _find_hope(gain: float, most: float, sd: float, looks: int, others: float, repeats: int) -> float:
    """Return the chance that a trial is kept by its last pair, if the gain so far is all that is known of it.

    ``most``: what a gain must be above, for an error of one. ``others``: how many runs the incumbent has.
    """
    needed = most * math.sqrt(1 / repeats + 1 / (others + repeats - looks))
    spread = sd * math.sqrt((repeats - looks) / (repeats * looks))
    return math.erfc((needed - gain) / spread / math.sqrt(2)) / 2 if spread else 1.0


def _judge_screen(rule: Rule, seen: TrialEvidence, name: str) -> Judgement:
    rivals = seen.rivals or seen.incumbent
    gain = rule.sign * (seen.screen - statistics.fmean(rivals))
    told = _tell(rule, seen, name, [seen.screen], rivals, gain, seen.which and f", {seen.which}")
    end = partial(Judgement, mean=seen.screen, n=1, gain=gain)
    if seen.noise.sd and gain > rule.suspect_sd * seen.noise.sd and not seen.is_cleared:
        return end("suspect", f"{told}, above {rule.suspect_sd:g} sd: too good")
    if rule.repeats == 0:
        return end("better" if gain > rule.min_gain else "discarded", f"{told}, by one run")
    if gain <= max(rule.min_gain, _LEAST_SD * seen.unit):
        return end("discarded", f"{told}: its first run is not better by {_LEAST_SD:g} sd")
    return end("pair", told)


def _tell(
    rule: Rule,
    seen: TrialEvidence,
    name: str,
    own: Sequence[float],
    others: Sequence[float],
    gain: float,
    which: str = "",
) -> str:
    """Return both means, n, and the gain in units of the noise."""
    by = f"{gain / seen.noise.sd:+.2g} sd" if seen.noise.sd else f"{significant(rule.sign * gain):+g}, noise 0"
    mean, other = (significant(statistics.fmean(values)) for values in (own, others))
    return f"{mean:g} (n {len(own)}) against {name} {other:g} (n {len(others)}{which}): {by}"
