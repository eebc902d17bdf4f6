"""Simulated training: no healthy run is called stalled or diverged; hangs and divergences are found. Virtual time.

`python -m tests.benchmarks judgement` judges 10,000 such runs; here are a few of them.
"""

import random

import pytest

from tests.support.simulated_training import FORMATS, WEEK_S, diverge, hang, judge, simulate

pytestmark = pytest.mark.slow

RUNS = 120


def test_no_healthy_run_is_called_stalled_or_diverged_and_each_ends_in_its_last_round() -> None:
    forms = set()
    for seed in range(RUNS):
        plan, outputs = simulate(seed)
        verdict = judge(outputs)
        forms.add(plan.form)
        assert (verdict.stalled_s, verdict.alarms) == (None, []), plan
        assert (verdict.is_divergent_at_end, verdict.is_certain) == (False, False), plan
        assert verdict.round == len(plan.totals), plan
    assert forms == set(FORMATS)


def test_hangs_are_found_in_every_round_and_not_before_they_begin() -> None:
    found, rounds = 0, set()
    for seed in range(RUNS):
        outputs = hang(simulate(seed)[1], random.Random(seed))
        verdict = judge(outputs, until_s=outputs[-1].at_s + WEEK_S)
        assert verdict.stalled_s is None or verdict.stalled_s > outputs[-1].at_s, seed
        found += verdict.stalled_s is not None
        rounds.add(verdict.round)
    assert found >= 0.97 * RUNS
    assert rounds >= {1, 2, 3}


def test_divergences_are_found() -> None:
    verdicts = [judge(diverge(seed)[1]) for seed in range(RUNS)]
    assert sum(bool(verdict.alarms) or verdict.is_divergent_at_end for verdict in verdicts) >= 0.97 * RUNS
    assert sum(verdict.is_certain for verdict in verdicts) >= 0.9 * RUNS


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_of_the_simulation_is_read(form: str) -> None:
    plan, outputs = next(run for run in map(simulate, range(1_000)) if run[0].form == form)
    assert judge(outputs).step is not None, plan
