"""Noise and verdicts, by value."""

import random

import pytest

from mcp_server.sweeps.trials.statistics import Noise, chance_above, drifts, find_quantile, pool, pool_near
from mcp_server.sweeps.trials.verdicts import Rule, TrialEvidence, judge

LOSS = Rule(sign=-1)
BASE = (1.00, 1.01, 0.99, 1.00)
NOISE = Noise(0.01, 8)


def seen(screen: float = 0.96, *pairs: tuple[float, float | None], **more: object) -> TrialEvidence:
    return TrialEvidence(screen, more.pop("incumbent", BASE), NOISE, pairs, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chance", "df", "t"), [(0.05, 10, 1.8125), (0.025, 3, 3.1824), (0.05, 1, 6.3138), (0.01, 30, 2.4573)]
)
def test_quantiles_are_those_of_the_tables(chance: float, df: int, t: float) -> None:
    assert find_quantile(chance, df) == pytest.approx(t, abs=1e-4)
    assert chance_above(t, df) == pytest.approx(chance, abs=1e-5)
    assert chance_above(-t, df) == pytest.approx(1 - chance, abs=1e-5)


def test_noise_is_pooled_inside_of_groups_and_a_single_run_says_nothing() -> None:
    assert pool([[1.0, 2.0, 3.0], [11.0, 13.0], [7.0]]) == Noise(pytest.approx((4 / 3) ** 0.5), 3)  # type: ignore[arg-type]
    assert pool([[1.0], []]) == Noise()


def test_noise_is_that_of_the_code_that_is_judged_and_less_of_code_before_it() -> None:
    own = [(0, (1.0, 1.1)), (0, (2.0,))]
    assert pool_near(own) == pool([(1.0, 1.1)])
    near = pool_near([*own, (1, (5.0, 5.3, 5.6))])
    assert near.sd**2 == pytest.approx((0.005 + 0.5 * 0.18) / 2), "each trial kept between them takes half"
    assert near.df == pytest.approx(2**2 / (1 + 2 / 4))
    quiet = [(0, (1.0, 1.01, 0.99, 1.0, 1.01)), (1, (5.0, 9.0, 2.0, 7.0, 3.0, 8.0))]
    assert pool_near(quiet) == pool([quiet[0][1]]), "a change has cut the noise"
    assert pool_near([(0, (1.0,)), (1, (5.0, 5.3, 5.6))]).sd == pytest.approx(0.3), "nothing else is known"
    assert pool_near([]) == Noise()


def test_runs_that_are_like_their_neighbours_drift() -> None:
    assert drifts([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    assert not drifts([[0.0, 3.0, 1.0, 4.0, 0.5, 3.5]])
    assert not drifts([[0.0, 1.0, 2.0]]), "too few to say so"
    assert not drifts([[1.0] * 9])


def test_what_chance_does_to_six_runs_is_no_drift() -> None:
    assert not drifts([[0.557, 0.546, 0.497, 0.487, 0.485, 0.457]])
    chance = random.Random(7)
    told = sum(drifts([[chance.gauss(0, 1) for _ in range(number)]]) for number in (6, 9, 12, 20) for _ in range(500))
    assert told <= 2000 * 0.015


def test_a_screen_that_is_no_better_ends_a_trial_and_a_good_one_only_begins_pairs() -> None:
    assert judge(LOSS, seen(1.0)).kind == "discarded"
    assert judge(LOSS, seen(0.995)).kind == "discarded", "less than three quarters of a deviation"
    assert judge(LOSS, seen(0.96)).kind == "pair"
    assert judge(Rule(sign=1), seen(0.96)).kind == "discarded", "where more is better"


def test_one_pair_keeps_nothing_and_two_keep_a_clear_gain() -> None:
    assert judge(LOSS, seen(0.96, (0.95, 1.0))).kind == "pair"
    kept = judge(LOSS, seen(0.96, (0.95, 1.0), (0.96, 1.0)), "t0")
    assert (kept.kind, kept.n) == ("better", 2)
    assert kept.mean == pytest.approx(0.955)
    assert kept.why.startswith("0.955 (n 2) against t0 1 (n 4): +4.5 sd, t 5.2 of ")


def test_the_screen_is_never_counted() -> None:
    lucky = judge(LOSS, seen(0.93, (0.999, 1.0), (1.001, 1.0)))
    assert lucky.kind == "discarded"
    assert lucky.mean == pytest.approx(1.0)


def test_pairs_that_say_neither_end_undecided() -> None:
    pairs = [(0.985, 1.0)] * 4
    assert judge(LOSS, seen(0.98, *pairs[:3])).kind == "pair"
    assert judge(LOSS, seen(0.98, *pairs)).kind == "undecided"


def test_a_trial_that_the_pairs_left_would_hardly_prove_is_given_up_sooner() -> None:
    pairs = [(0.992, 1.0)] * 3
    assert judge(LOSS, seen(0.98, *pairs[:1])).kind == "pair"
    given_up = judge(LOSS, seen(0.98, *pairs))
    assert (given_up.kind, given_up.why.endswith("more pairs would hardly prove it")) == ("discarded", True)
    assert judge(Rule(-1, repeats=12), seen(0.98, *pairs)).kind == "pair", "more of them are left"
    assert judge(Rule(-1, min_gain=0.004), seen(0.98, *pairs[:2])).kind == "discarded", "nor that it gains so much"


def test_a_gain_has_to_be_above_the_least_that_is_asked_for() -> None:
    pairs = ((0.95, 1.0), (0.95, 1.0))
    assert judge(LOSS, seen(0.96, *pairs)).kind == "better"
    assert judge(Rule(-1, min_gain=0.06), seen(0.93, *pairs)).kind == "discarded"


def test_where_the_incumbent_drifts_the_differences_of_pairs_count_alone() -> None:
    old_and_new = (0.90, 0.92, 0.94, 0.96, 0.98, 1.0, 1.02)
    pairs = ((0.97, 1.0), (0.98, 1.02), (0.96, 1.0))
    drifting = {"incumbent": old_and_new, "differences": Noise(0.006, 6), "alone": "a drift"}
    found = judge(LOSS, seen(0.96, *pairs, **drifting))
    assert found.kind == "better"
    assert "by pairs alone: a drift" in found.why
    unknown = judge(LOSS, seen(0.96, *pairs, incumbent=old_and_new))
    assert unknown.kind == "pair", "by all runs it is no better, but pairs give it hope"


def test_a_gain_is_worth_pairs_by_the_noise_that_they_see_where_both_runs_share_a_load() -> None:
    wide = {"incumbent": (1.0, 1.02, 0.98, 1.0)}
    assert judge(LOSS, seen(0.9935, **wide)).kind == "discarded"
    assert judge(LOSS, seen(0.9935, **wide, differences=Noise(0.01, 8))).kind == "pair"
    assert judge(LOSS, seen(0.9935, **wide, differences=Noise(0.01, 2))).kind == "discarded", "too few to say so"
    assert judge(LOSS, seen(0.9935, **wide, differences=Noise(0.02, 8))).kind == "discarded", "no more than single runs"


def test_a_gain_is_worth_pairs_where_the_incumbents_own_runs_are_more_alike_than_others() -> None:
    quiet = judge(LOSS, seen(0.997, incumbent=(1.0, 1.002)), "t1")
    assert (quiet.kind, quiet.why) == ("pair", "0.997 (n 1) against t1 1.001 (n 2): +0.4 sd")


def test_a_screen_says_which_runs_it_was_compared_with() -> None:
    found = judge(LOSS, seen(1.0, rivals=[1.04], which="its run with this seed"), "t0")
    assert found.why == "1 (n 1) against t0 1.04 (n 1, its run with this seed): +4 sd"


def test_a_gain_that_is_too_good_waits_for_somebody_unless_the_noise_is_unknown() -> None:
    assert judge(LOSS, seen(0.5)).kind == "suspect"
    assert judge(LOSS, seen(0.5, is_cleared=True)).kind == "pair"
    exact = TrialEvidence(0.5, (1.0, 1.0), Noise(0.0, 1))
    assert judge(LOSS, exact).kind == "pair"
    assert judge(LOSS, TrialEvidence(0.5, (1.0, 1.0), Noise(0.0, 1), ((0.5, 1.0), (0.5, 1.0)))).kind == "better"
    assert judge(LOSS, TrialEvidence(0.5, (1.0,), Noise(), ((0.5, 1.0),))).kind == "pair", "no noise is known yet"


def test_without_repeats_the_first_run_decides() -> None:
    first = Rule(-1, repeats=0)
    assert judge(first, seen(0.999)).kind == "better"
    assert judge(first, seen(1.001)).kind == "discarded"
