"""Metrics of a diverged run prove its divergence, and disturbances of healthy runs do not."""

import math
import random
from collections.abc import Mapping

import pytest

from mcp_server.diagnosis.live.divergence import DivergenceDetector
from mcp_server.diagnosis.progress.tracker import MetricLine, ProgressTracker

NAN, INF = math.nan, math.inf
BAR = "Epoch 0:  12%|#2   | {0}/900 [00:30<03:00, 4.9it/s, loss=x]"


def row(step: int | None, metrics: Mapping[str, float], line: str = "", skipped: int | None = None) -> MetricLine:
    return MetricLine(step, dict(metrics), line or f"step {step}: {dict(metrics)}", skipped)


def after(*metric_lines: MetricLine) -> DivergenceDetector:
    divergence = DivergenceDetector()
    for metric_line in metric_lines:
        divergence.read_metrics(metric_line)
    return divergence


def losses(*values: float, name: str = "loss", **others: float) -> list[MetricLine]:
    return [row(step, {name: value, **others}) for step, value in enumerate(values, 1)]


# --- losses that are NaN or infinite


@pytest.mark.parametrize(
    "name",
    [
        *("loss", "lm loss", "train/loss", "train_loss", "total_loss", "value_loss", "loss_cls", "actor/pg_loss"),
        *("NLL", "denoise_mse", "recon_rmse", "xent", "train/elbo"),
    ],
)
def test_a_loss_that_is_nan_five_times_in_a_row_is_proof_and_three_times_at_the_end(name: str) -> None:
    healthy, ended = losses(2.0, 1.9, NAN, NAN, name=name), losses(2.0, 1.9, NAN, NAN, NAN, name=name)
    assert (after(*healthy).line, after(*healthy).text) == (None, None)
    assert (after(*ended).line, after(*ended).text) == (ended[-1].line, None)
    ill = losses(2.0, 1.9, *[NAN] * 5, name=name)
    divergence = after(*ill)
    assert divergence.text == f"{name} has been nan in 5 readings in a row, since step 3."
    assert (divergence.line, divergence.since_step, divergence.recovered) == (ill[-1].line, 3, False)


def test_the_proof_of_a_stop_says_what_held_with_its_count_and_nothing_else() -> None:
    lasting = after(*losses(2.0, 1.9, *[NAN] * 20))
    assert lasting.is_certain
    assert lasting.proof == "loss has been nan in 20 readings in a row, since step 3."
    both = after(*losses(2.0, 1.9), *[row(n, {"loss": NAN, "grad_norm": NAN}) for n in range(3, 10)])
    assert both.is_certain
    assert both.proof == (
        "loss has been nan in 7 readings in a row, since step 3. "
        "The gradient norm has been nan in 7 readings in a row while the loss is nan, since step 3."
    )


def test_a_loss_by_a_name_of_its_own_with_its_gradient_is_proof_and_beside_a_finite_total_none() -> None:
    ill = [row(n, {"denoise_mse": NAN, "gnorm": NAN}) for n in range(3, 9)]
    both = after(row(1, {"denoise_mse": 0.4, "gnorm": 1.0}), row(2, {"denoise_mse": 0.3, "gnorm": 1.0}), *ill)
    assert both.is_certain
    assert both.proof == (
        "denoise_mse has been nan in 6 readings in a row, since step 3. "
        "The gradient norm has been nan in 6 readings in a row while the loss is nan, since step 3."
    )
    beside = after(*[row(n, {"denoise_mse": NAN, "gnorm": NAN, "loss": 1 / n}) for n in range(1, 99)])
    assert (beside.text, beside.line) == (None, None)


def test_a_short_run_whose_every_loss_was_nan_ends_diverged_and_the_newest_line_shows_it() -> None:
    lines = [f"{n:03} | loss: nan | lr: 0.1 | dt: 200 ms" for n in range(1, 6)]
    metric_lines = [row(n, {"loss": NAN}, line) for n, line in enumerate(lines, 1)]
    two = after(*metric_lines[:2])
    assert (two.line, two.text) == (lines[1], None)  # the end of a log, but no proof while it goes on
    five = after(*metric_lines)
    assert (five.line, five.since_step) == (lines[4], 1)
    assert five.text == "loss has been nan in 5 readings in a row, since step 1."
    assert after(*metric_lines[:2], row(3, {"loss": 0.5})).line is None


@pytest.mark.parametrize(
    "metric_lines",
    [
        losses(NAN),
        losses(1.0, NAN, 1.0, NAN, NAN, 1.0),
        losses(*[NAN] * 9, name="reward"),
        losses(*[NAN] * 9, name="ep_rew_mean"),
        losses(*[NAN] * 9, name="val_loss"),
        losses(*[NAN] * 9, name="eval/loss"),
        losses(*[NAN] * 9, name="accuracy"),
        losses(*[NAN] * 9, name="mIoU"),
        losses(*[INF] * 9, name="best_loss"),
        losses(*[INF] * 9, name="loss scale"),
        losses(*[NAN] * 9, name="number of nan iterations"),
        losses(*[INF] * 9, name="loss")[:2],
        losses(*[0.7] * 9, grad_norm=NAN),
        losses(*[0.0] * 99),
        losses(*[0.0] * 9, grad_norm=0.0),
        losses(*[NAN] * 9, name="loss_q0", loss=0.4),  # an average over nothing
        losses(*[NAN] * 19, reward=3.0),  # learning has not started
        [row(7, {"loss": NAN}, f"[rank{rank}] loss nan") for rank in range(8)] + losses(0.5),
    ],
    ids=str,
)
def test_metrics_of_healthy_runs_are_not_a_divergence(metric_lines: list[MetricLine]) -> None:
    divergence = after(*metric_lines)
    assert (divergence.line, divergence.text, divergence.since_step) == (None, None, None)


def test_an_infinite_loss_needs_ten_readings_while_the_run_goes_on() -> None:
    nine, ten = after(*losses(3.0, *[INF] * 9)), after(*losses(3.0, *[INF] * 10))
    assert (nine.text, ten.text) == (None, "loss has been inf in 10 readings in a row, since step 2.")
    assert nine.line is not None  # enough at the end of a log


def test_a_bar_needs_more_readings_than_its_mean_has_steps() -> None:
    bars = [row(n, {"loss": NAN}, BAR.format(n)) for n in range(2, 27)]
    first = row(1, {"loss": 0.5}, BAR.format(1))
    assert after(first, *bars[:4]).line is None
    assert after(first, *bars[:24]).text is None
    assert after(first, *bars).text is not None
    assert after(*bars).text is None  # its loss may wait for accumulated gradients
    logged = "  1%|1    | 3/300 [00:03<05:00, 1.0it/s]{'loss': nan}"
    assert after(*(row(n, {"loss": NAN}, logged) for n in range(5))).text is not None


def test_lines_without_a_step_are_all_counted() -> None:
    assert after(*(row(None, {"loss": NAN}, "loss: nan") for _ in range(5))).text is not None


def test_a_hundred_nan_losses_are_too_many_in_reinforcement_learning_too() -> None:
    assert after(*losses(*[NAN] * 20, reward=3.0)).line is not None
    assert after(*losses(*[NAN] * 100, reward=3.0)).text is not None
    assert after(*losses(0.5, *[NAN] * 5, reward=3.0)).text is not None


def test_names_of_one_quantity_end_each_others_streak() -> None:
    for one, other in (("loss", "train/loss"), ("avg loss", "loss"), ("train_loss", "epoch loss")):
        rows = [row(n, {one: NAN if n % 2 else 0.5 / n}) for n in range(1, 3)]
        rows += [row(n // 2, {one: NAN} if n % 2 else {other: 1 / n}) for n in range(4, 80)]
        assert after(*rows).line is None, (one, other)
    components = [row(n, {"train/aux_loss": NAN} if n % 3 else {"aux_loss": 0.1}) for n in range(80)]
    assert after(*components).line is None


@pytest.mark.parametrize("first", [0.5, NAN])
def test_a_component_on_lines_of_its_own_proves_nothing_while_the_loss_is_finite(first: float) -> None:
    rows = [row(0, {"aux_loss": first})]
    for n in range(1, 100):
        rows += [row(n, {"loss": 2.0 / n}), row(None, {"aux_loss": NAN}), row(None, {"z_loss": INF})]
    assert (after(*rows).line, after(*rows).text) == (None, None)
    beside = [row(n, {"q1_loss": NAN} if n % 2 else {"q2_loss": 0.2}) for n in range(100)]
    assert after(*beside).line is None


# --- two independent signs


@pytest.mark.parametrize(
    ("metric_lines", "certain_after"),
    [
        (losses(0.5, *[NAN] * 40), 21),
        (losses(0.5, *[NAN] * 40, grad_norm=NAN), 6),
        (losses(2.0, *[0.0] * 40, grad_norm=NAN), 6),
        (losses(0.5, *[NAN] * 40, reward=NAN), 6),
        ([*losses(0.5, *[NAN] * 5), row(6, {"val_loss": NAN})], 7),
        (losses(*[2.5] * 30, *(30 * 1.3**n for n in range(60))), 70),
    ],
)
def test_a_stop_needs_two_independent_signs(metric_lines: list[MetricLine], certain_after: int) -> None:
    divergence = DivergenceDetector()
    certain = []
    for metric_line in metric_lines:
        divergence.read_metrics(metric_line)
        certain.append(divergence.is_certain)
    assert certain.index(True) + 1 == certain_after
    assert not any(certain[: certain_after - 1])


def test_a_recovery_takes_the_certainty_back() -> None:
    divergence = after(*losses(0.5, *[NAN] * 40, *[0.4] * 5))
    assert divergence.recovered
    assert not divergence.is_certain


# --- gradients


def test_a_gradient_norm_that_is_nan_with_a_loss_of_zero_is_proof_after_five() -> None:
    start = losses(2.1, 1.8, grad_norm=1.0)
    ill = [row(step, {"loss": 0.0, "grad_norm": NAN}) for step in range(3, 8)]
    assert after(*start, *ill[:4]).text is None
    divergence = after(*start, *ill)
    assert divergence.text == "The gradient norm has been nan in 5 readings in a row while the loss is 0, since step 3."
    assert (divergence.line, divergence.since_step) == (ill[-1].line, 3)


def test_a_gradient_norm_alone_is_proof_only_where_the_loss_does_not_fall() -> None:
    noise = random.Random(1)
    flat = losses(*(11.7 + noise.uniform(-0.1, 0.1) for _ in range(40)), grad_norm=NAN)
    falling = losses(*(11.7 * 0.97**n for n in range(200)), grad_norm=NAN)
    never = [row(n, {"grad_norm": INF, "lr": 0.1}) for n in range(99)]
    assert after(*flat[:39]).text is None
    assert (
        after(*flat).text
        == "The gradient norm has been nan in 40 readings in a row while the loss does not fall, since step 1."
    )
    assert after(*falling).line is None
    assert after(*never).line is None


def test_a_loss_of_zero_is_a_divergence_when_the_held_out_loss_is_nan() -> None:
    zeros = losses(1.3, *[0.0] * 5)
    evaluation = row(6, {"eval_loss": NAN}, "{'eval_loss': 'nan'}")
    assert after(*zeros, evaluation).text == "The loss is 0 and NaN on held-out data, since step 2."
    assert after(*losses(1.3, 1.2, 1.1), evaluation).line is None
    assert after(*losses(*[0.0] * 9, reward=0.1), evaluation).line is None  # GRPO begins with a loss of 0


# --- steps that were skipped


def skips(*pairs: tuple[int, int]) -> list[MetricLine]:
    return [row(step, {}, f"[Rank 0] step={step}, skipped={skipped}, lr=[0.1]", skipped) for step, skipped in pairs]


def test_skipping_every_step_counts_at_the_end_after_20_and_is_proven_after_40() -> None:
    every_ten = skips(*((n, n) for n in range(10, 130, 10)))
    assert after(*every_ten[:1]).line is None
    assert (after(*every_ten[:2]).line, after(*every_ten[:2]).text) == (every_ten[1].line, None)
    divergence = after(*every_ten)
    assert divergence.text == "Every optimizer step since step 1 was skipped, 120 of them."
    assert (divergence.line, divergence.since_step) == (every_ten[-1].line, 1)


def test_a_tail_of_skipped_steps_counts_from_its_beginning() -> None:
    divergence = after(*skips((500, 3), (510, 3), (520, 13), (530, 23), (540, 33), (550, 43)))
    assert (divergence.text, divergence.since_step) == (
        "Every optimizer step since step 511 was skipped, 40 of them.",
        511,
    )


@pytest.mark.parametrize(
    "pairs",
    [
        [(n, 0) for n in range(10, 500, 10)],
        [(n, min(n, 18)) for n in range(10, 500, 10)],  # a loss scale that began high
        [(n, n // 2) for n in range(10, 500, 10)],
        [(10, 10)] * 9,  # each rank prints it
        [(n, 7) for n in range(10, 500, 10)],
    ],
)
def test_a_loss_scale_that_settles_is_healthy(pairs: list[tuple[int, int]]) -> None:
    divergence = after(*skips(*pairs))
    assert (divergence.line, divergence.text) == (None, None)


# --- losses that explode


def test_a_loss_that_leaves_its_scale_and_goes_on_to_rise_is_proof() -> None:
    ill = losses(*[2.5, 2.4, 2.3, 2.6] * 6, *(30 * 1.2**n for n in range(20)))
    assert after(*ill[:-1]).text is None
    divergence = after(*ill)
    assert divergence.text == "The loss has exploded to 958; it never was above 2.6 before."
    assert (divergence.line, divergence.since_step) == (ill[-1].line, 29)


@pytest.mark.parametrize("scale", [20, 100, 3_000])
def test_a_jump_to_another_scale_that_then_falls_or_stays_is_another_stage(scale: float) -> None:
    noise = random.Random(3)
    for decay in (1.0, 0.9995, 0.97):
        stage_2 = [2.5 * scale * decay**n * noise.lognormvariate(0, 0.3) for n in range(400)]
        ramp = [2.5 * scale * n / 12 for n in range(1, 12)]  # its weight grows at first
        divergence = after(*losses(*[2.5, 2.4, 2.3, 2.6] * 30, *ramp, *stage_2))
        assert (divergence.line, divergence.text) == (None, None)


def test_an_exponential_rise_does_not_count_as_history() -> None:
    divergence = after(*losses(*[2.0, 1.8] * 200, *(1.05**n for n in range(200))))
    assert divergence.text is not None


@pytest.mark.parametrize(
    "metric_lines",
    [
        losses(*[2.5] * 30, 90, 90, 90, 90, 2.4, *[2.4] * 30),
        losses(*[2.5] * 10, 90, 90, 90, 90, 90),  # too short a history
        losses(*[0.001] * 50, *[0.05] * 50),  # a curriculum
        losses(*[0.0] * 50, *[0.4] * 50),
        losses(*[-3.0] * 50, *[-20.0] * 50),
        losses(*(0.1 * n for n in range(600))),  # rises, and always has
        losses(*[2.5] * 50, *[900.0] * 50, name="value_loss"),
        losses(*[2.5] * 50, *[900.0] * 50, name="critic/vf_loss"),
        losses(*[2.5] * 50, *[900.0] * 50, reward=1.0),
        losses(*[2.5] * 50) + losses(*[900.0] * 50),  # the steps restart: a new phase
        [row(7, {"loss": 1e9}, f"[rank{rank}] loss 1e9") for rank in range(99)],
        losses(*[90.0, 2.5] * 20, *[500.0] * 20),
    ],
    ids=lambda metric_lines: str(metric_lines[-1].line),
)
def test_a_loss_with_spikes_slow_growth_or_little_meaning_is_healthy(metric_lines: list[MetricLine]) -> None:
    assert after(*metric_lines).text is None


# --- as frameworks print it


@pytest.mark.parametrize(
    ("template", "steps"),
    [
        ("step {n:05}/00006 ({n}.00%) | loss: nan | lrm: 1.00 | dt: 300.00ms | tok/sec: 3,000", 5),
        ("[Rank 0] step={n}0, skipped={n}0, lr=[1e-05], mom=[(0.9, 0.99)]", 6),
        ("{{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.{n}}}", 6),
        ("{{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'epoch': '0.{n}'}}", 6),
        ("epoch {n} | train loss nan | val loss nan | acc 0.10", 6),
        ("step:  {n}  loss: nan  grad_norm: nan  memory: 60.10GiB(75.00%)  tps: 1,360", 6),
        (" iteration  {n}/  500 | lm loss: NAN | loss scale: 1.0 | number of nan iterations:   0 |", 6),
    ],
)
def test_formats_of_frameworks_are_read(template: str, steps: int) -> None:
    progress, lines = ProgressTracker(), [template.format(n=n) for n in range(1, steps + 1)]
    divergence = after(*progress.read_lines(lines))
    assert divergence.line == lines[-1]
    assert divergence.text is not None


# --- afterwards


def test_a_run_recovers_with_its_fifth_healthy_reading_and_may_diverge_again() -> None:
    ill = losses(1.0, *[NAN] * 5)
    well = [row(step, {"loss": 0.9}) for step in range(7, 12)]
    assert not after(*ill, *well[:4]).recovered
    divergence = after(*ill, *well)
    assert divergence.recovered
    assert divergence.line == ill[-1].line
    for step in range(12, 17):
        divergence.read_metrics(row(step, {"loss": NAN}))
    assert (divergence.recovered, divergence.since_step) == (False, 12)


def test_another_healthy_metric_is_not_a_recovery() -> None:
    divergence = after(*losses(1.0, *[NAN] * 5), *(row(n, {"fps": 90.0, "value_loss": 0.1}) for n in range(7, 50)))
    assert not divergence.recovered


def test_a_flood_of_metric_names_is_read_quickly_and_in_little_memory() -> None:
    divergence, noise = DivergenceDetector(), random.Random(0)
    for step in range(3_000):
        divergence.read_metrics(row(step, {f"loss_{step}": NAN, "loss": noise.lognormvariate(0, 1)}))
    assert divergence.line is None
    assert len(divergence._roles) <= 256


def test_no_random_healthy_loss_diverges() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        level, noise, decay = chance.choice([0.01, 1.0, 11.0]), chance.choice([0.05, 0.3, 0.8]), chance.uniform(0.98, 1)
        values = [level * decay**n * chance.lognormvariate(0, noise) for n in range(400)]
        for _ in range(chance.randint(0, 6)):  # spikes
            values[chance.randrange(400)] *= chance.choice([5, 50, 500])
        assert after(*losses(*values)).text is None, seed


# --- rewards and held-out losses that stay NaN


@pytest.mark.parametrize("name", ["reward", "train/mean_reward", "ep_rew_mean", "val_loss"])
def test_a_reward_or_held_out_loss_that_stays_nan_is_a_doubt_and_never_proof(name: str) -> None:
    finite, ill = (
        [row(n, {"loss": 0.5, name: 1.0}) for n in (1, 2)],
        [row(n, {"loss": 0.5, name: NAN}) for n in range(3, 363)],
    )
    assert after(*finite, *ill[:4]).doubts == {}
    (short,) = after(*finite, *ill[:19]).doubts.values()
    assert (short.name, short.since, short.text) == (name, 3, "")
    (doubt,) = after(*finite, *ill[:20]).doubts.values()
    assert (doubt.text, doubt.line) == (f"{name} has been nan in 20 readings in a row, since step 3.", ill[19].line)
    divergence = after(*finite, *ill)
    assert (divergence.line, divergence.text, divergence.is_certain) == (None, None, False)
    assert after(*finite, *ill, row(400, {name: 0.1})).doubts == {}


def test_a_reward_is_no_doubt_before_the_first_episodes_have_ended() -> None:
    ill = [row(n, {"loss": 0.5, "reward": NAN, "episode_length": 7.0}) for n in range(1, 101)]
    assert all(doubt.text == "" for doubt in after(*ill[:99]).doubts.values())
    assert after(*ill).doubts["REWARD"].text == "reward has been nan in 100 readings in a row, since step 1."


def test_a_reward_and_a_held_out_loss_that_both_stay_nan_are_two_independent_signs() -> None:
    lines = [row(n, {"loss": 0.5, "reward": v, "val_loss": v}) for n, v in enumerate([1.0, *[NAN] * 20], 1)]
    assert not after(*lines[:-1]).is_certain
    assert after(*lines).is_certain
    assert not after(*lines, *[row(n, {"reward": 1.0, "val_loss": 1.0}) for n in range(22, 28)]).is_certain


# --- measures of any name, where nothing is named a loss


def measures(*values: tuple[float, ...], names: str = "box cls ap50", **others: float) -> list[MetricLine]:
    return [row(step, dict(zip(names.split(), each, strict=True)) | others) for step, each in enumerate(values, 1)]


def test_two_measures_of_any_name_that_are_nan_from_one_line_on_are_a_divergence() -> None:
    healthy, ill = [(0.9, 0.7, 0.1)] * 3, (NAN, NAN, 0.0)
    ended = after(*measures(*healthy, *[ill] * 3))
    assert (ended.summary, ended.text) == ("box, cls have been nan in 3 readings in a row, since step 4.", None)
    assert after(*measures(*healthy, *[ill] * 5)).is_proven
    assert not after(*measures(*healthy, *[ill] * 19)).is_certain
    assert after(*measures(*healthy, *[ill] * 20)).is_certain
    assert after(*measures(*healthy, *[ill] * 5, *healthy, *healthy)).recovered


@pytest.mark.parametrize(
    "metric_lines",
    [
        measures(*[(0.9, 0.7, 0.1)] * 3, *[(NAN, 0.7, 0.1)] * 30),  # one alone
        measures(*[(0.9, 0.7, 0.1)] * 2, *[(NAN, NAN, 0.1)] * 30),  # finite by chance
        measures(*([(0.9, 0.7, 0.1)] + [(NAN, NAN, 0.1)] * 9) * 9),  # an evaluation now and then
        measures(*([(NAN, NAN, 0.1)] * 9 + [(0.9, 0.7, 0.1)] * 5) * 9),
        measures(*[(0.9, 0.7, 0.1)] * 3, *[(NAN, NAN, 0.1)] * 30, loss=0.5),
        measures(*[(0.9, 0.7, 0.1)] * 3, *[(NAN, NAN, 0.1)] * 30, names="length entropy value", reward=0.5),
    ],
)
def test_other_measures_that_are_nan_prove_nothing(metric_lines: list[MetricLine]) -> None:
    assert (after(*metric_lines).line, after(*metric_lines).text) == (None, None)
