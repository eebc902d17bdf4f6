"""Usage figures and deviations from samples of a run's GPUs. Time is virtual."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mcp_server.gpus.deviations import Deviation, UsageTracker
from mcp_server.gpus.snapshot import Gpu, Snapshot, TroubleKind

EIGHT = tuple(f"GPU-{n:08x}-0000-4000-8000-00000000000{n}" for n in range(8))
TWO = EIGHT[:2]
HISTORIES = 40  # of each kind; 1,000 of each ran when the limits were chosen


def sample(utils: Sequence[int | None], **facts: Any) -> Snapshot:
    """Return GPUs at these utilisations, each with ``facts``."""
    return Snapshot(gpus=tuple(Gpu(index=n, uuid=EIGHT[n], utilisation=util, **facts) for n, util in enumerate(utils)))


def only(n: int, snapshot: Snapshot, **facts: Any) -> Snapshot:
    """Return ``snapshot`` with ``facts`` of GPU ``n`` alone."""
    return replace(snapshot, gpus=tuple(replace(gpu, **facts) if gpu.index == n else gpu for gpu in snapshot.gpus))


def play(
    usage: UsageTracker,
    snapshot: Snapshot | Callable[[float], Snapshot],
    from_s: float,
    until_s: float,
    every_s: float = 5,
) -> list[tuple[float, Deviation]]:
    """Add samples from ``from_s`` to before ``until_s``; return the deviations with their times."""
    deviations, at_s = [], from_s
    while at_s < until_s:
        now = snapshot if isinstance(snapshot, Snapshot) else snapshot(at_s)
        deviations += [(at_s, deviation) for deviation in usage.add_sample(now, at_s)]
        at_s += every_s
    return deviations


def whats(deviations: list[tuple[float, Deviation]]) -> list[tuple[float, str]]:
    return [(at_s, deviation.what) for at_s, deviation in deviations]


# --- figures


def test_means_are_weighed_by_time_and_peaks_are_peaks() -> None:
    usage = UsageTracker(TWO[:1])
    for at_s, util, mib, watts, degrees in ((0, 0, 100, 70, 30), (10, 90, 9000, 500, 60), (20, 30, 500, 200, 71)):
        usage.add_sample(sample([util], memory_used_mib=mib, power_w=float(watts), temperature_c=degrees), float(at_s))
    assert usage.figures() == {TWO[0]: {"mean_util": 60.0, "peak_mib": 9000, "mean_w": 350.0, "max_c": 71}}


def test_a_single_sample_is_its_own_mean_and_no_sample_has_no_figures() -> None:
    usage = UsageTracker(TWO)
    assert usage.figures() == {}
    usage.add_sample(sample([40]), 7.0)
    assert usage.figures() == {TWO[0]: {"mean_util": 40.0}}


def test_an_unknown_value_counts_neither_as_zero_nor_as_time() -> None:
    usage = UsageTracker(TWO[:1])
    for at_s, util in enumerate((80, None, 80, None, None)):
        usage.add_sample(sample([util], power_w=None), float(at_s))
    assert usage.figures() == {TWO[0]: {"mean_util": 80.0}}


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), -1])
def test_an_implausible_value_does_not_count(nonsense: float) -> None:
    usage = UsageTracker(TWO[:1])
    usage.add_sample(sample([50], power_w=300.0), 0.0)
    usage.add_sample(sample([50], power_w=nonsense, memory_used_mib=nonsense), 5.0)
    assert usage.figures() == {TWO[0]: {"mean_util": 50.0, "mean_w": 300.0}}


def test_a_gap_of_the_sampler_is_not_filled_with_the_sample_after_it() -> None:
    usage = UsageTracker(TWO[:1])
    play(usage, sample([100]), 0, 101)  # 100 s of 100 %
    usage.add_sample(sample([0]), 1_100.0)  # 15 s of 0 %: three usual gaps
    assert usage.figures()[TWO[0]]["mean_util"] == pytest.approx(100 * 100 / 115, abs=0.05)


def test_a_repeated_or_late_sample_adds_only_its_peaks() -> None:
    usage = UsageTracker(TWO[:1])
    usage.add_sample(sample([50]), 0.0)
    usage.add_sample(sample([50]), 10.0)
    assert usage.add_sample(sample([100], memory_used_mib=7), 10.0) == []
    assert usage.add_sample(sample([100], memory_used_mib=9), 4.0) == []
    assert usage.figures() == {TWO[0]: {"mean_util": 50.0, "peak_mib": 9}}


def test_gpus_of_other_runs_are_ignored() -> None:
    usage = UsageTracker(TWO[:1])
    usage.add_sample(only(1, sample([50, 0]), lost=True, xids=(79,)), 0.0)
    assert set(usage.figures()) == {TWO[0]}


def test_once_a_minute_there_are_the_figures_of_that_minute() -> None:
    usage = UsageTracker(TWO)
    deviations = []
    for at_s in range(0, 190, 10):
        usage.add_sample(sample([10 if at_s <= 60 else 90, None], memory_used_mib=at_s), float(at_s))
        if (minute := usage.minute_figures(float(at_s))) is not None:
            deviations.append((at_s, minute))
    assert deviations == [
        (60, {TWO[0]: (10.0, 60, None, None), TWO[1]: (None, 60, None, None)}),
        (120, {TWO[0]: (90.0, 120, None, None), TWO[1]: (None, 120, None, None)}),
        (180, {TWO[0]: (90.0, 180, None, None), TWO[1]: (None, 180, None, None)}),
    ]


def test_a_minute_without_samples_has_no_figures() -> None:
    usage = UsageTracker(TWO)
    assert usage.minute_figures(1e6) is None
    usage.add_sample(sample([50, 50]), 0.0)
    assert usage.minute_figures(60.0) is not None
    assert usage.minute_figures(120.0) is None


# --- imbalance


def test_a_gpu_below_seven_tenths_of_the_median_for_a_window_is_an_imbalance_reported_once() -> None:
    deviations = play(UsageTracker(EIGHT), sample([90] * 7 + [60]), 0, 1_000)
    assert whats(deviations) == [(120, "imbalance")]
    deviation = deviations[0][1]
    assert deviation.facts == {"gpu": EIGHT[7], "mean_util": 60.0, "median_util": 90.0}
    assert deviation.text == (
        "GPU 7 (GPU-00000007) worked at 60 % in the last 120 s; the median of the run's 8 GPUs is 90 %."
    )


@pytest.mark.parametrize(
    "utils",
    [
        [100, 100, 70],  # exactly at the limit
        [19, 19, 0],  # hardly any works
        [100, None, 100],  # not deviations
        [100],
        [100, 60],  # the median is 80
    ],
)
def test_no_imbalance(utils: list[int | None]) -> None:
    assert play(UsageTracker(EIGHT[: len(utils)]), sample(utils), 0, 600) == []


def test_an_imbalance_needs_a_window_full_of_samples() -> None:
    usage = UsageTracker(TWO)
    assert play(usage, sample([90, 10]), 0, 100) == []
    assert play(usage, sample([90, None]), 100, 200) == []  # one GPU silent for most of the window
    assert whats(play(usage, sample([90, 10]), 200, 400)) == [(295, "imbalance")]


def test_an_imbalance_is_reported_again_only_after_a_window_without_it() -> None:
    usage = UsageTracker(TWO)
    lags, well = sample([90, 10]), sample([90, 90])
    assert len(play(usage, lags, 0, 200)) == 1
    assert play(usage, well, 200, 300) == []  # its mean is balanced again at 265, but not for a window
    assert play(usage, lags, 300, 600) == []
    assert play(usage, well, 600, 900) == []
    assert len(play(usage, lags, 900, 1_100)) == 1


def test_gpus_are_compared_by_the_samples_that_have_all_of_them() -> None:
    usage = UsageTracker(EIGHT[:3])
    play(usage, sample([0, 0, 0]), 0, 200)
    # All work in the same 6 of 24 samples, and 3 of these lack GPU 1: 14 % in the mean, the others 25 %.
    assert play(usage, lambda at_s: sample([100, None if at_s < 215 else 100, 100]), 200, 230) == []
    assert play(usage, sample([0, 0, 0]), 230, 400) == []


# --- idle


def test_gpus_that_worked_and_then_idle_for_five_minutes_are_reported_once() -> None:
    usage = UsageTracker(TWO)
    assert play(usage, sample([95, 90]), 0, 100) == []
    assert whats(play(usage, sample([0, 0]), 100, 1_000)) == [(400, "idle")]
    assert usage.idle_s(1_005.0) == 905.0
    assert play(usage, sample([0, 50]), 1_000, 1_010) == []
    assert usage.idle_s(1_010.0) == 0.0


def test_a_shorter_window_reports_idle_gpus_sooner() -> None:
    usage = UsageTracker(TWO, window_s=2.0)
    play(usage, sample([95, 90]), 0, 1, every_s=0.5)
    assert whats(play(usage, sample([0, 0]), 1, 10, every_s=0.5)) == [(6.0, "idle")]


@pytest.mark.parametrize("worked", [0, 10, None])
def test_gpus_that_never_worked_are_not_idle(worked: int | None) -> None:
    usage = UsageTracker(TWO)
    play(usage, sample([worked, worked]), 0, 100)
    assert play(usage, sample([0, 0]), 100, 2_000) == []
    assert usage.idle_s(2_000.0) is None


def test_one_gpu_at_work_or_unknown_is_enough_not_to_be_idle() -> None:
    for other in (1, None):
        usage = UsageTracker(TWO)
        play(usage, sample([90, 90]), 0, 100)
        assert [what for _, what in whats(play(usage, sample([0, other]), 100, 1_000))] == []


def test_a_sample_without_all_gpus_does_not_end_an_idle_time() -> None:
    usage = UsageTracker(TWO)
    play(usage, sample([90, 90]), 0, 100)
    deviations = play(usage, lambda at_s: sample([0, None if at_s % 20 else 0]), 100, 500)
    assert whats(deviations) == [(400, "idle")]


def test_idle_time_without_samples_does_not_count() -> None:
    usage = UsageTracker(TWO)
    play(usage, sample([90, 90]), 0, 100)
    play(usage, sample([0, 0]), 100, 150)
    assert whats(play(usage, sample([0, 0]), 1_000, 1_400)) == [(1_300, "idle")]
    assert usage.idle_s(5_000.0) is None, "there have been no samples"
    play(usage, sample([0, 0]), 5_000, 5_010)
    play(usage, sample([None, None], lost=True), 5_010, 5_200)
    assert usage.idle_s(5_200.0) is None, "lost GPUs are not idle"


def test_idle_gpus_are_not_reported_again_after_a_burst_of_work() -> None:
    usage = UsageTracker(TWO)
    play(usage, sample([90, 90]), 0, 100)
    assert len(play(usage, lambda at_s: sample([50 * (at_s % 400 < 10)] * 2), 100, 4_000)) == 1


# --- Xid


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (13, "exception in a kernel, such as an illegal address or instruction: usually an error of the program."),
        (79, "fallen off the bus: a fault of the GPU or its driver."),
        (999, "NVIDIA's list of Xid errors explains it: a fault of the GPU or its driver."),
    ],
)
def test_an_xid_is_reported_with_its_number_and_meaning(number: int, text: str) -> None:
    (deviation,) = UsageTracker(TWO).add_sample(only(1, sample([5, 5]), xids=(number,)), 0.0)
    assert deviation.text == f"GPU 1 (GPU-00000001): Xid {number}, {text}"
    assert deviation.facts == {"gpu": TWO[1], "xid": number, "by_program": number == 13}


def test_each_xid_is_reported_once() -> None:
    usage = UsageTracker(TWO)
    deviations = play(usage, lambda at_s: only(0, sample([5, 5]), xids=(31,) if at_s < 50 else (31, 43)), 0, 100)
    assert [deviation.facts["xid"] for _, deviation in deviations] == [31, 43]
    assert play(usage, sample([5, 5]), 100, 200) == []
    assert play(usage, only(0, sample([5, 5]), xids=(31, 31)), 200, 205) == [], "it had not ended for a window"
    assert play(usage, sample([5, 5]), 205, 400) == []
    assert len(play(usage, only(0, sample([5, 5]), xids=(31,)), 400, 405)) == 1


def test_an_xid_in_a_late_sample_is_reported() -> None:
    usage = UsageTracker(TWO)
    usage.add_sample(sample([5, 5]), 100.0)
    assert [d.what for d in usage.add_sample(only(0, sample([5, 5]), xids=(48,)), 90.0)] == ["xid"]


# --- throttling, clocks, power


@pytest.mark.parametrize("reason", ["thermal", "hw_thermal", "power_brake", "hw_slowdown"])
def test_three_throttled_samples_in_ten_seconds_are_throttling(reason: str) -> None:
    hot = only(1, sample([90, 90]), throttle=(reason, "power_cap"), temperature_c=92, sm_clock_mhz=900)
    deviations = play(UsageTracker(TWO), hot, 0, 600)
    assert whats(deviations) == [(10.0, "throttling")]
    assert deviations[0][1].text == (
        f"GPU 1 (GPU-00000001) has been slowed down for 10 s: {reason}, 92 C, SM clock 900 MHz."
    )
    assert deviations[0][1].facts == {"gpu": TWO[1], "reasons": [reason], "temperature_c": 92, "sm_clock_mhz": 900}


@pytest.mark.parametrize(("every_s", "at_s"), [(1, 10), (5, 10), (7, 14), (10, 10), (30, 30)])
def test_two_throttled_samples_are_enough_where_samples_are_rare(every_s: float, at_s: float) -> None:
    deviations = play(UsageTracker(TWO), sample([90, 90], throttle=("thermal",)), 0, 100, every_s)
    assert whats(deviations) == [(at_s, "throttling")] * 2


@pytest.mark.parametrize("reason", ["power_cap", "sync_boost", "clocks_setting", "display"])
def test_a_setting_that_slows_a_gpu_down_is_not_a_deviation(reason: str) -> None:
    assert play(UsageTracker(TWO), sample([90, 90], throttle=(reason,)), 0, 600) == []


def test_throttling_now_and_then_is_not_a_deviation() -> None:
    hot = sample([90, 90], throttle=("thermal",))
    assert play(UsageTracker(TWO), lambda at_s: hot if at_s % 15 else sample([90, 90]), 0, 600) == []


def test_a_clock_above_the_required_one_is_reported_after_two_samples() -> None:
    usage = UsageTracker(TWO, max_sm_clock_mhz=1_410)
    assert play(usage, lambda at_s: sample([9, 9], sm_clock_mhz=1_980 if at_s % 10 else 1_410), 0, 95) == []
    deviations = play(usage, only(0, sample([9, 9], sm_clock_mhz=1_410), sm_clock_mhz=1_425), 100, 200)
    assert whats(deviations) == [(105, "clock")]
    assert deviations[0][1].text == "GPU 0 (GPU-00000000): SM clock 1425 MHz, above the required 1410 MHz."
    assert play(UsageTracker(TWO), sample([9, 9], sm_clock_mhz=1_980), 0, 100) == [], "nothing is required"


def test_a_raised_power_limit_is_reported_at_once() -> None:
    usage = UsageTracker(TWO, power_limit_w=500)
    assert play(usage, sample([9, 9], power_limit_w=500.4), 0, 100) == []
    deviations = play(usage, only(1, sample([9, 9], power_limit_w=500.0), power_limit_w=700.0), 100, 200)
    assert whats(deviations) == [(100, "power")]
    assert deviations[0][1].text == "GPU 1 (GPU-00000001): power limit 700 W, above the required 500 W."
    assert play(usage, sample([9, 9], power_limit_w=None), 200, 300) == []


# --- lost


def test_a_lost_or_hanging_gpu_is_reported_at_once_and_once() -> None:
    usage = UsageTracker(TWO)
    play(usage, sample([90, 90]), 0, 50)
    deviations = play(usage, only(0, sample([90, 90]), lost=True, utilisation=None), 50, 500)
    assert [(at_s, d.text) for at_s, d in deviations] == [(50, "GPU 0 (GPU-00000000) has fallen off the bus.")]
    (hangs,) = usage.add_sample(only(1, sample([90, 90]), failed={"memory": "hangs", "power": "unsupported"}), 500.0)
    assert hangs.text == "GPU 1 (GPU-00000001) does not answer; what hangs: memory."


def test_a_gpu_that_is_missing_for_a_window_is_lost_and_one_sample_without_it_is_nothing() -> None:
    usage = UsageTracker(TWO)
    play(usage, sample([90, 90]), 0, 50)
    assert play(usage, sample([90]), 50, 160) == []
    usage.add_sample(sample([90, 90]), 160.0)
    deviations = play(usage, sample([90]), 165, 500)
    assert [(at_s, d.text) for at_s, d in deviations] == [
        (285, "GPU 1 (GPU-00000001) is gone: the driver has not reported it for 120 s.")
    ]


def test_a_driver_that_hangs_is_reported_once_and_other_trouble_is_left_to_the_sampler() -> None:
    usage = UsageTracker(TWO)
    play(usage, sample([90, 90]), 0, 50)
    deviations = play(usage, Snapshot(trouble="hangs", text="NVML was asked 10 s ago."), 50, 500)
    assert [(at_s, d.text) for at_s, d in deviations] == [
        (50, "The GPU driver does not answer. NVML was asked 10 s ago.")
    ]
    others: tuple[TroubleKind, ...] = ("no_driver", "no_permission", "failed")
    for trouble in others:
        assert play(UsageTracker(TWO), Snapshot(trouble=trouble), 0, 500) == []


# --- histories


def stream(rng: random.Random) -> Iterator[tuple[Snapshot, float]]:
    """Yield random samples in any order."""
    at_s = rng.uniform(0, 1e6)
    for _ in range(rng.randrange(1, 150)):
        at_s += rng.choice((5, 5, 5, 1, 0, -20, 300, rng.uniform(0, 20)))
        yield (
            Snapshot(gpus=tuple(anything(rng) for _ in range(rng.randrange(12))), trouble=rng.choice((None, "hangs"))),
            at_s,
        )


def anything(rng: random.Random) -> Gpu:
    return Gpu(
        index=(n := rng.randrange(9)),
        uuid=(*EIGHT, "")[n],
        memory_used_mib=rng.choice((None, 0, 80_000)),
        utilisation=rng.choice((None, 0, 0, 50, 100)),
        temperature_c=rng.choice((None, 30, 95)),
        power_w=rng.choice((None, 0.0, 700.0, float("nan"))),
        power_limit_w=rng.choice((None, 700.0, 300.0)),
        sm_clock_mhz=rng.choice((None, 345, 1_980)),
        throttle=rng.choice(((), ("thermal",), ("power_cap", "hw_slowdown"), ("new_reason",))),
        xids=rng.choice(((), (), (), (31,), (79, 79), (10**9,))),
        failed=rng.choice((None, {}, {"memory": "hangs"}, {"ecc": "unsupported"})),
        lost=rng.random() < 0.1,
    )


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_stream_of_samples_raises_or_has_impossible_figures(seed: int) -> None:
    rng = random.Random(seed)
    uuids = rng.sample(EIGHT, rng.randrange(9))
    usage = UsageTracker(uuids, max_sm_clock_mhz=rng.choice((None, 1_410)), power_limit_w=rng.choice((None, 400.0)))
    for snapshot, at_s in stream(rng):
        for deviation in usage.add_sample(snapshot, at_s):
            assert deviation.text.endswith(".")
        assert (usage.idle_s(at_s) or 0) >= 0
        usage.minute_figures(at_s)
    for figures in usage.figures().values():
        assert 0 <= figures.get("mean_util", 0) <= 100
        assert 0 <= figures.get("mean_w", 0) <= 700


def healthy(rng: random.Random, gpus: int, hours: float) -> Iterator[tuple[Snapshot, float]]:
    """A run that loads, trains at 60 to 100 %, checkpoints for up to 100 s, evaluates; not all of it is deviations."""
    at_s, every_s, until_s = 0.0, rng.choice((2.0, 5.0, 10.0, 30.0)), hours * 3_600
    load_s, pause_s, pause_every_s = rng.uniform(0, 900), rng.uniform(0, 100), rng.uniform(150, 3_600)
    evaluates_s, evaluation, warm = rng.uniform(0, 600), rng.uniform(1, 60), False
    was_warm = False
    while at_s < until_s:
        at_s += every_s * rng.choice((1, 1, 1, 1, 1.2, 0.8, 2))
        phase_s = (at_s - load_s) % (pause_every_s + pause_s + evaluates_s)
        working = at_s > load_s and phase_s > pause_s
        level = evaluation / 80 if phase_s > pause_s + pause_every_s else 1.0
        utils = [round(rng.uniform(60, 100) * level) if working else 0 for _ in range(gpus)]
        deviations = [None if rng.random() < 0.01 else util for util in utils]
        was_warm, warm = warm, not warm and rng.random() < 0.02
        hot = (*(("power_cap",) if working else ()), *(("thermal",) if warm else ()))
        snapshot = sample(deviations, throttle=hot, memory_used_mib=70_000, power_limit_w=700.0)
        if not was_warm and rng.random() < 0.01:
            snapshot = replace(snapshot, gpus=snapshot.gpus[1:])
        yield snapshot, at_s


@pytest.mark.parametrize("seed", range(HISTORIES // 3))  # two hours each
def test_a_healthy_run_deviates_from_nothing(seed: int) -> None:
    rng = random.Random(seed)
    gpus = rng.choice((1, 2, 4, 8))
    usage = UsageTracker(EIGHT[:gpus], power_limit_w=700)
    deviations = [(at_s, d.text) for snapshot, at_s in healthy(rng, gpus, 2) for d in usage.add_sample(snapshot, at_s)]
    assert deviations == []


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_gpu_that_works_at_half_of_the_others_is_found_in_noise(seed: int) -> None:
    rng = random.Random(seed)
    gpus = rng.choice((3, 4, 8))
    usage, slow = UsageTracker(EIGHT[:gpus]), rng.randrange(gpus)

    def noisy(_: float) -> Snapshot:
        return sample([round(rng.uniform(60, 100) * (0.5 if n == slow else 1)) for n in range(gpus)])

    deviations = play(usage, noisy, 0, 1_000)
    assert [(d.what, d.facts["gpu"]) for _, d in deviations] == [("imbalance", EIGHT[slow])]
