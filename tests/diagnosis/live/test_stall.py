"""Silence is a stall only when it exceeds the usual gaps of the run itself. Time is virtual."""

import math
import random
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from statistics import median
from typing import NamedTuple

import pytest

from mcp_server.diagnosis.live.stall import StallDetector

HISTORIES = 300  # of each type; 20,000 were run to choose the constants


class Sign(NamedTuple):
    """A sign of life: a step, or a line without one."""

    at_s: float
    step: bool
    text: str = ""


def run(*, every_s: float, steps: int, start_s: float = 0.0, stall_timeout_s: float | None = None) -> StallDetector:
    """Return the detector of a run that printed ``steps`` steps, the last at ``start_s + every_s * steps``."""
    detector = StallDetector(0.0, stall_timeout_s)
    for n in range(1, steps + 1):
        detector.note_step(start_s + n * every_s)
    return detector


def first_stall_s(detector: StallDetector, signs: Iterable[Sign], until_s: float, *, cpu_idle: bool) -> float | None:
    """Replay ``signs``, check at every deadline, and return the time of the first stall."""
    for sign in [*signs, Sign(until_s, False)]:
        while (due_s := detector.due_s()) is not None and due_s <= sign.at_s:
            if detector.detect_stall(due_s, cpu_idle):
                return due_s
        if sign.step:
            detector.note_step(sign.at_s)
        elif sign.at_s < until_s:
            detector.note_output(sign.at_s, sign.text)
    return None


# --- the rules, by value


def test_no_deadline_runs_before_the_first_step() -> None:
    detector = StallDetector(100.0)
    assert (detector.due_s(), detector.median_gap_s, detector.is_stalled) == (None, None, False)
    detector.note_output(101.0, "Loading data")
    assert detector.due_s() is None


def test_a_limit_needs_three_gaps_and_the_one_after_the_first_step_does_not_count() -> None:
    detector = StallDetector(0.0)
    for at_s in (60.0, 900.0, 901.0, 902.0):  # the second step compiles
        detector.note_step(at_s)
    assert detector.due_s() == 902 + 60 * 840, "too few gaps yet"
    detector.note_step(903.0)
    assert (detector.median_gap_s, detector.due_s()) == (1.0, 903.0 + 300)


@pytest.mark.parametrize(("pace_s", "usual"), [(0.25, "one in 0.25 s"), (1.5, "one in 1.5 s"), (3, "one in 3 s")])
def test_steps_that_come_together_are_told_as_one_or_more(pace_s: float, usual: str) -> None:
    detector = StallDetector(0.0)
    for step in range(1, 41):
        detector.note_step(step * pace_s)
    assert detector.describe_gap(pace_s) == usual


@pytest.mark.parametrize(
    ("every_s", "limit_s"), [(0.01, 300), (1, 300), (7.5, 300), (8, 320), (107, 4_280), (230, 9_200), (1_140, 45_600)]
)
def test_the_limit_is_forty_steps_and_never_less_than_five_minutes(every_s: float, limit_s: float) -> None:
    detector = run(every_s=every_s, steps=1_000)
    assert detector.due_s() == pytest.approx(1_000 * every_s + limit_s)


def test_the_limit_is_at_least_three_times_the_longest_gap() -> None:
    detector = run(every_s=10, steps=50)
    detector.note_step(500 + 400)
    assert detector.due_s() == 900 + 3 * 400


def test_a_slow_down_raises_the_limit_within_two_steps() -> None:
    detector = run(every_s=60, steps=100)
    detector.note_step(6_000 + 180)
    detector.note_step(6_000 + 360)
    assert detector.due_s() == 6_360 + 40 * 180


def test_steps_that_arrive_together_are_one_print() -> None:
    detector = StallDetector(0.0)
    for flush in range(1, 8):
        for line in range(80):
            detector.note_step(flush * 600 + line * 0.001)
    assert detector.median_gap_s == pytest.approx(600, rel=0.001)


def test_a_busy_silence_has_three_times_the_limit_and_no_more() -> None:
    detector = run(every_s=1, steps=20)
    assert not detector.detect_stall(320.0, cpu_idle=False)  # a silent evaluation
    assert detector.due_s() == 20 + 900
    assert not detector.detect_stall(919.9, cpu_idle=False)
    assert detector.detect_stall(920.0, cpu_idle=False)  # ranks that wait for each other spin


def test_a_stall_is_detected_once_and_a_step_ends_it() -> None:
    detector = run(every_s=1, steps=20)
    assert not detector.detect_stall(319.9, cpu_idle=True)
    assert detector.detect_stall(320.0, cpu_idle=True)
    assert (detector.is_stalled, detector.due_s()) == (True, None)
    assert not detector.detect_stall(999.0, cpu_idle=True)
    assert not detector.note_output(1_000.0, "still here")
    assert detector.note_step(1_001.0)
    assert not detector.note_step(1_002.0)
    assert (detector.is_stalled, detector.due_s()) == (False, 1_002.0 + 3 * (1_001 - 20))


@pytest.mark.parametrize(
    ("text", "due_s"),
    [
        ("", 320),
        ("[monitor] alive, GPU 0 at 100 %", 320),
        ("2026/11/21 15:30:45 waiting", 320),
        ("Evaluating on 5,000 prompts", 920),
        ("Running validation", 920),
        ("INFO Saving checkpoint to step_20", 920),
        ("loading shard", 920),
        ("torch.compile: compiling graph 3", 920),
        ("Generating rollouts", 920),
    ],
)
def test_a_line_about_work_that_delays_steps_triples_the_limit_once(text: str, due_s: float) -> None:
    detector = run(every_s=1, steps=20)
    for at_s in (30.0, 200.0, 310.0):
        assert not detector.note_output(at_s, text)
    assert detector.due_s() == due_s
    detector.note_step(311.0)
    assert detector.due_s() == 311 + 3 * 291  # and holds until the next step only


def test_a_moving_bar_keeps_a_long_evaluation_alive_and_a_still_one_does_not() -> None:
    detector = run(every_s=1, steps=20)
    for n in range(60):
        assert not detector.detect_stall(20 + 60.0 * n, cpu_idle=True)
        detector.note_output(20 + 60.0 * n, f" {n}%|##   | {n}/100 [{n}:00<40:00, 60.1s/it]")
    moved_s = 20 + 60.0 * 59
    assert detector.due_s() == moved_s + 300
    for later_s in range(10, 300, 10):
        detector.note_output(moved_s + later_s, f" 59%|##   | 59/100 [59:{later_s}<40:00, 60.1s/it]")
    assert detector.detect_stall(moved_s + 300, cpu_idle=False)


def test_two_bars_redrawn_in_turn_do_not_move() -> None:
    detector = run(every_s=1, steps=20)
    for n in range(30):
        detector.note_output(20.0 + n, ("rank 0: 37/100 [01:00<02:00]", "rank 1: 41/100 [01:00<02:00]")[n % 2])
    assert detector.due_s() == 21 + 300


def test_a_fixed_limit_counts_all_output_before_the_first_step_and_steps_after_it() -> None:
    detector = StallDetector(100.0, stall_timeout_s=60)
    assert detector.due_s() == 160
    assert not detector.note_output(110.0, "Loading")
    assert detector.due_s() == 170
    assert detector.detect_stall(170.0, cpu_idle=False)
    assert detector.note_output(180.0, "Loaded")
    assert not detector.note_step(200.0)
    assert not detector.note_output(230.0, "Evaluating 3/10 [00:10<00:20]")
    assert detector.due_s() == 260
    assert detector.detect_stall(260.0, cpu_idle=False)
    assert detector.note_step(261.0)


def test_a_hang_before_three_gaps_is_found_while_the_processes_idle() -> None:
    detector = StallDetector(0.0)
    detector.note_step(30.0)
    detector.note_step(40.0)
    assert detector.due_s() == 40 + 3_600
    assert not detector.detect_stall(3_640.0, cpu_idle=False)
    assert detector.detect_stall(3_940.0, cpu_idle=True)


def test_a_run_without_steps_stalls_only_when_silent_and_idle() -> None:
    detector = StallDetector(0.0)
    for n in range(1, 10):
        detector.note_output(n * 5.0, "working")
    assert detector.due_s() is None
    detector.note_output(50.0, "working")
    assert detector.due_s() == 50 + 1_800
    assert not detector.detect_stall(1_850.0, cpu_idle=False)
    assert detector.due_s() == 1_850 + 300
    assert detector.detect_stall(2_150.0, cpu_idle=True)
    assert detector.note_output(2_200.0, "working")
    assert (detector.last_sign_s, detector.due_s()) == (2_200, 2_200 + 3 * 2_150)


# --- the rules against random runs


def healthy(chance: random.Random) -> Iterator[Sign]:
    """Yield the signs of an endless run: steps of 0.01 s to 20 min, with all irregularities of healthy runs."""
    step_s = math.exp(chance.uniform(math.log(0.01), math.log(1_200)))
    spread = chance.choice([0.0, 0.1, 0.3, 0.6])  # of a lognormal
    epoch, pauses = chance.choice([7, 50, 200]), chance.choice([0.0, 0.003, 0.03])
    slower_at, growth = chance.randint(5, 400), chance.choice([1.0, 1.0, 1.004])
    slower = chance.choice([1.0, 1.0, 3.0])
    buffered, talks = chance.choice([1, 1, 1, 12]), chance.random() < 0.5
    at_s = chance.uniform(1, 1_200) + step_s  # start-up
    yield Sign(at_s, True)
    at_s += step_s * chance.choice([1, 5, 50])  # compiles
    held = []
    for n in range(1, 10**9):
        usual_s = step_s * min(growth**n, 5.0) * (slower if n >= slower_at else 1.0)
        at_s += usual_s * chance.lognormvariate(0, spread)
        if n % epoch == 0 or chance.random() < pauses:
            if talks:
                yield Sign(at_s, False, chance.choice(["Evaluating", "Saving checkpoint"]))
            at_s += 10 * usual_s
        held.append(at_s)
        if len(held) >= buffered:
            yield from (Sign(at_s, True) for _ in held)
            held.clear()


def test_no_healthy_run_is_called_stalled() -> None:
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        signs = list(islice(healthy(chance), chance.choice([20, 600])))
        assert first_stall_s(StallDetector(0.0), signs, signs[-1].at_s, cpu_idle=True) is None, seed


def test_hangs_are_found_within_three_times_the_limit() -> None:
    found = 0
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        signs = list(islice(healthy(chance), 600))
        signs = signs[: chance.randint(30, 600)]
        hung_s = signs[-1].at_s
        times = sorted({sign.at_s for sign in signs if sign.step})
        gaps = [b - a for a, b in pairwise(times)]
        bound_s = 3 * max(300, 40 * max(1.0, median(gaps), median(gaps[-64:]), median(gaps[-3:])), 3 * max(gaps))
        if beats := chance.random() < 0.5:
            line = chance.choice(["[monitor] alive", "train: 37/100 [01:00<02:00, 1.2s/it]", "Saving checkpoint"])
            signs += [Sign(hung_s + bound_s * n / 40, False, line) for n in range(1, 40)]
        stall_s = first_stall_s(StallDetector(0.0), signs, hung_s + bound_s + 1, cpu_idle=not beats)
        found += stall_s is not None and stall_s >= hung_s
    assert found >= 0.95 * HISTORIES


def test_no_healthy_run_without_recognised_steps_is_called_stalled() -> None:
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        signs = [Sign(sign.at_s, False, "tick") for sign in islice(healthy(chance), 300)]
        assert first_stall_s(StallDetector(0.0), signs, signs[-1].at_s + 86_400, cpu_idle=False) is None, seed


def stalls_in_turns(detector: StallDetector, until_s: int) -> list[int]:
    """A step every 60 s, under a limit of 30 s: when each stall was reported."""
    stalls = []
    for at_s in range(until_s):
        if at_s % 60 == 0:
            detector.note_step(at_s)
        if detector.detect_stall(at_s, cpu_idle=True):
            stalls.append(at_s)
    return stalls


def test_a_run_that_stalls_and_resumes_wakes_an_agent_three_times_and_then_once_in_ten_minutes() -> None:
    detector = StallDetector(0.0, stall_timeout_s=30)
    stalls = stalls_in_turns(detector, 7200)
    assert stalls[:3] == [30, 90, 150]
    assert [later - earlier for earlier, later in pairwise(stalls[2:])] == [600] * (len(stalls) - 3)
    assert len(stalls) == 14
    assert "once in 600 s" in detector.report_limit.remark


def test_a_hang_after_stalls_in_turns_is_reported_when_the_ten_minutes_are_over() -> None:
    detector = StallDetector(0.0, stall_timeout_s=30)
    assert stalls_in_turns(detector, 181) == [30, 90, 150]
    assert detector.due_s() == 750
    assert not detector.detect_stall(749, cpu_idle=True)
    assert detector.detect_stall(750, cpu_idle=True)
