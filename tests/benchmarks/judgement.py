"""How the judge fares on simulated training: healthy runs called stalled or diverged, hangs and divergences found."""

from __future__ import annotations

import random
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import anyio

from tests.benchmarks.harness import Sandbox
from tests.benchmarks.report import Row, Table
from tests.support.simulated_training import WEEK_S, diverge, hang, judge, simulate

_HEALTHY, _ILL, _SHARE = 10_000, 1_000, 250
_LEAST_PERCENT = 97.0


class Counts(NamedTuple):
    """Of some runs: how many the judge, and the baseline, called stalled or diverged, found, or placed rightly."""

    stalled: int = 0
    diverged: int = 0
    wrong_round: int = 0
    silent: int = 0  # the baseline: 60 s without output
    said_nan: int = 0  # the baseline: a line with the word


def count_healthy(seeds: Iterable[int]) -> Counts:
    """Judge healthy runs. None should stall or diverge, and each should end in its last round."""
    counts = [0] * len(Counts._fields)
    for seed in seeds:
        plan, outputs = simulate(seed)
        verdict = judge(outputs, cpu_idle=seed % 2 == 0)
        facts = (
            verdict.stalled_s is not None,
            bool(verdict.alarms) or verdict.is_divergent_at_end or verdict.is_certain,
            verdict.round != len(plan.totals),
            any(later.at_s - earlier.at_s > 60 for earlier, later in zip(outputs, outputs[1:], strict=False)),  # noqa: RUF007
            any("nan" in output.text.lower() for output in outputs),
        )
        counts = [count + fact for count, fact in zip(counts, facts, strict=True)]
    return Counts(*counts)


def count_hangs(seeds: Iterable[int]) -> int:
    """Return how many hangs are found, and not before they begin."""
    found = 0
    for seed in seeds:
        outputs = hang(simulate(seed)[1], random.Random(seed))
        stalled_s = judge(outputs, until_s=outputs[-1].at_s + WEEK_S).stalled_s
        found += stalled_s is not None and stalled_s >= outputs[-1].at_s
    return found


def count_divergences(seeds: Iterable[int]) -> tuple[int, int]:
    """Return how many divergences are found, and how many of them by two independent signs."""
    verdicts = [judge(diverge(seed)[1]) for seed in seeds]
    return sum(bool(v.alarms) or v.is_divergent_at_end for v in verdicts), sum(v.is_certain for v in verdicts)


async def measure(_: Sandbox) -> Table:
    """Judge 10,000 healthy runs, and 1,000 with a hang and 1,000 with a divergence, on all cores."""
    shares = [range(at, at + _SHARE) for at in range(0, _HEALTHY, _SHARE)]
    ill = [range(at, at + _SHARE) for at in range(_HEALTHY, _HEALTHY + _ILL, _SHARE)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        count = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)
        healthy = await count(lambda: list(pool.map(count_healthy, shares)))
        hangs = await count(lambda: sum(pool.map(count_hangs, ill)))
        divergences = await count(lambda: list(pool.map(count_divergences, ill)))
    total = Counts(*map(sum, zip(*healthy, strict=True)))
    found, certain = map(sum, zip(*divergences, strict=True))
    return Table(
        "Judgement",
        (
            _never("healthy simulated runs called stalled", total.stalled, total.silent),
            _never("the same called diverged", total.diverged, total.said_nan),
            Row(f"the same in their last round, of {_HEALTHY:,}", f"{_HEALTHY - total.wrong_round:,}"),
            _share("hangs found, and not before", hangs),
            _share("divergences found", found),
            Row("found by two independent signs, which stop a run", f"{100 * certain / _ILL:.1f} %"),
        ),
        (
            "Simulated (tests/support/simulated_training.py): ten formats, one to five rounds, "
            "steps of 0.05 s to 30 min, "
            "pauses of 9 steps, slow-downs, falls to a checkpoint; losses that warm up, spike, cycle, or change their "
            "scale; sentences about NaN.",
            "Baselines: a limit of 60 s without output; a line with the word NaN.",
        ),
    )


def _never(what: str, count: int, baseline: int) -> Row:
    return Row(f"{what}, of {_HEALTHY:,}", f"{count}", f"{baseline:,}", bar="0", ok=count == 0)


def _share(what: str, found: int) -> Row:
    percent = 100 * found / _ILL
    bar = f"≥ {_LEAST_PERCENT:g} %"
    return Row(f"{what}, of {_ILL:,}", f"{percent:.1f} %", bar=bar, ok=percent >= _LEAST_PERCENT)
