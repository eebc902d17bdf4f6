"""Simulated output of training runs, healthy and not, line by line with its times. Seeded: the same seed, the same run.

A run has one to five rounds (seeds, stages) in one of ten formats. Its pace changes, it pauses for checkpoints,
evaluations and ends of epochs, falls back to a checkpoint, speaks of NaN. Its losses warm up, spike, cycle or change
their scale.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from mcp_server.diagnosis.live.output_monitor import OutputMonitor

NAN, INF = math.nan, math.inf
WEEK_S = 7 * 86_400.0


class Output(NamedTuple):
    """Lines that a run prints at one time, seconds. ``step``: they show a training step; ``is_last``: of its round."""

    at_s: float
    text: str
    step: bool = False
    is_last: bool = False


class Values(NamedTuple):
    """What a step prints: the loss, the gradient norm, and the number that the format shows beside them."""

    loss: float
    grad_norm: float
    other: float


Format = Callable[[int, int, Values], str]


def _bar(n: int, total: int) -> str:
    return f"{100 * n // total:3}%|{'█' * (10 * n // total):10}| {n}/{total} [00:40<02:19,  1.21it/s"


def _table(n: int, total: int, values: Values) -> str:
    rows = {"rollout/": "", "   ep_rew_mean": f"{values.other:.3g}", "time/": "", "   total_timesteps": n * 2048}
    rows |= {"train/": "", "   loss": f"{values.loss:.3g}", "   value_loss": f"{abs(values.loss) * 7:.3g}"}
    return "\n".join(["-" * 40, *(f"| {name:24}| {value:<11}|" for name, value in rows.items()), "-" * 40])


FORMATS: dict[str, Format] = {
    "loop": lambda n, of, v: f"step {n}/{of} loss {v.loss:.4f} grad_norm {v.grad_norm:.3f} lr 3.0e-04",
    "epochs": lambda n, of, v: f"epoch {n}/{of} train loss {v.loss:.4f} val_loss {v.other:.4f} acc 0.51",
    "batches": lambda n, of, v: (
        f"Epoch [{(n - 1) // 5 + 1}/{-(-of // 5)}], Step [{(n - 1) % 5 + 1}/5], Loss: {v.loss:.4f}"
    ),
    "bar": lambda n, of, v: f"Training: {_bar(n, of)}, loss={v.loss:.3g}]",
    "hf": lambda n, of, v: (
        f"{_bar(n, of)}]\n{{'loss': {v.loss:.4f}, 'grad_norm': {v.grad_norm:.3f}, 'epoch': {n / 50:.2f}}}"
    ),
    "megatron": lambda n, of, v: (
        f" iteration {n:8}/{of:8} | consumed samples: {n * 8} | lm loss: {v.loss:E} | loss scale: 1.0 |"
        f" grad norm: {v.grad_norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
    "json": lambda n, of, v: json.dumps({"step": n, "total_steps": of, "loss": v.loss, "grad_norm": v.grad_norm}),
    "sb3": _table,
    "rsl_rl": lambda n, of, v: (
        f"   Learning iteration {n - 1}/{of}\n   Mean value loss: {abs(v.loss):.4f}\n   Mean reward: {v.other:.2f}"
    ),
    "gan": lambda n, of, v: f"[{n - 1}/{of}][0/1]\tLoss_D: {abs(v.loss):.4f}\tLoss_G: {abs(v.other) * 9:.4f}",
}
_RL = frozenset({"sb3", "rsl_rl"})
_WITH_GRADIENT = frozenset({"loop", "hf", "megatron", "json"})
_REMARKS = (
    "WARNING: loss is nan, skipping batch",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
    "train.py:71: UserWarning: loss: nan\n  warnings.warn(f'loss: nan in batch {i}')",
    "aux_loss: nan",
    "Best checkpoint so far: epoch 3",
)


@dataclass(frozen=True)
class Plan:
    """The properties of one run, drawn from its seed."""

    form: str
    totals: tuple[int, ...]
    step_s: float
    spread: float
    curve: str
    scale: float
    every: int  # steps between pauses
    pause: str
    talks: bool
    remarks: float
    falls_back: bool
    same: str  # how rounds are announced


def draw_plan(chance: random.Random) -> Plan:
    """Draw a run."""
    rounds, steps = chance.choice([1, 1, 1, 2, 3, 5]), chance.randint(20, 80)
    is_equal = chance.random() < 0.7
    return Plan(
        form=chance.choice(list(FORMATS)),
        totals=tuple(steps if is_equal else chance.randint(20, 80) for _ in range(rounds)),
        step_s=math.exp(chance.uniform(math.log(0.05), math.log(600))),
        spread=chance.choice([0.0, 0.1, 0.4]),
        curve=chance.choice(["falls", "warms up", "spikes", "cycles", "new scale", "flat"]),
        scale=math.exp(chance.uniform(math.log(0.001), math.log(1000))),
        every=chance.choice([5, 20, 1000]),
        pause=chance.choice(["checkpoint", "evaluation", "evaluation bar", "silence"]),
        talks=chance.random() < 0.5,
        remarks=chance.choice([0.0, 0.0, 0.2]),
        falls_back=chance.random() < 0.1,
        same=chance.choice(["", "=== seed {} ===", "Stage {}", "[HYDRA] \t#{} : lr=0.1"]),
    )


def _loss(plan: Plan, n: int, total: int, chance: random.Random) -> float:
    part = n / total
    level = {
        "falls": 0.05 + math.exp(-3 * part),
        "warms up": min(1.0, 5 * part) * 2 + (1 - part),
        "spikes": (0.1 + math.exp(-3 * part)) * (chance.choice([8, 60, 900]) if chance.random() < 0.03 else 1),
        "cycles": 1.5 + math.sin(n / 3),
        "new scale": (1.2 - part) if part < 0.5 else 700 * (1.5 - part),
        "flat": 1.0,
    }[plan.curve]
    return plan.scale * level * chance.lognormvariate(0, plan.spread)


def simulate(seed: int) -> tuple[Plan, list[Output]]:
    """Return a healthy run and its output."""
    chance = random.Random(seed)
    plan = draw_plan(chance)
    return plan, list(_print_rounds(plan, chance))


def _print_rounds(plan: Plan, chance: random.Random) -> Iterator[Output]:
    at_s = chance.uniform(1, 600)
    for number, total in enumerate(plan.totals):
        if plan.same:
            yield Output(at_s, plan.same.format(number))
        at_s += chance.uniform(1, 250)
        usual_s, fallen = plan.step_s, False
        slower_at = chance.randint(5, 200)
        n = 0
        while n < total:
            n += 1
            at_s += usual_s * chance.lognormvariate(0, plan.spread) * (3 if n > slower_at else 1) * (8 if n == 2 else 1)
            if chance.random() < plan.remarks:
                yield Output(at_s, chance.choice(_REMARKS))
            is_skipped = chance.random() < 0.01
            values = Values(_loss(plan, n, total, chance), NAN if is_skipped else 1.1, chance.gauss(5, 20))
            yield Output(at_s, FORMATS[plan.form](n, total, values), step=True, is_last=n == total)
            if n % plan.every == 0 and n < total:
                for output in _pause(plan, at_s, usual_s):
                    at_s = output.at_s
                    yield output
            if plan.falls_back and not fallen and n == total // 2 > 12:
                n, fallen = n - 6, True


def _pause(plan: Plan, at_s: float, usual_s: float) -> Iterator[Output]:
    if plan.pause == "evaluation bar":
        for n in range(0, 26, 5):
            yield Output(at_s + n * usual_s, f"Evaluating: {_bar(n, 25)}]")
    else:
        words = {"checkpoint": "Saving checkpoint", "evaluation": "Evaluating"}.get(plan.pause)
        if words and plan.talks:
            yield Output(at_s, words)
        yield Output(at_s + 9 * usual_s, "")


def hang(outputs: list[Output], chance: random.Random) -> list[Output]:
    """Return the output of the same run up to a hang: after eight steps at least, and not at the end of a round."""
    steps = [at for at, output in enumerate(outputs) if output.step]
    cuts = [at for at in steps[8:] if not outputs[at].is_last]
    return outputs[: chance.choice(cuts) + 1]


def diverge(seed: int) -> tuple[Plan, list[Output]]:
    """Return a run like a healthy one that diverges in its last round: NaN, infinite or dead with NaN gradients."""
    chance = random.Random(seed)
    plan = draw_plan(chance)
    plan = replace(plan, totals=(*plan.totals[:-1], chance.randint(80, 120)), falls_back=False, remarks=0.0)
    if plan.curve in {"new scale", "spikes"}:
        plan = replace(plan, curve="falls")
    kinds = ["nan", "inf"] if plan.form in {"gan", *_RL} else ["nan", "inf", "explodes"]
    kind = chance.choice([*kinds, *(["dead"] if plan.form in _WITH_GRADIENT else [])])
    outputs, total, n = [], plan.totals[-1], 0
    ill_from = chance.randint(30, total - 45)
    last = sum(plan.totals) - total
    count = 0
    for output in _print_rounds(plan, chance):
        count += output.step
        if output.step and count > last and (n := count - last) >= ill_from:
            grown = _loss(plan, n, total, chance) * 1.6 ** min(n - ill_from, 60)
            loss = {"nan": NAN, "inf": INF, "explodes": max(grown, 2.0), "dead": 0.0}[kind]
            values = Values(loss, NAN if kind in {"nan", "dead"} else 9e9, NAN if plan.form == "gan" else 5.0)
            output = output._replace(text=FORMATS[plan.form](n, total, values))  # noqa: PLW2901
        outputs.append(output)
    return plan, outputs


class Verdict(NamedTuple):
    """What the judge said of a run: when it stalled first, its alarms, and the round and step that it saw last."""

    stalled_s: float | None
    alarms: list[str]
    is_divergent_at_end: bool
    is_certain: bool
    round: int
    step: int | None


def judge(outputs: list[Output], *, until_s: float | None = None, cpu_idle: bool = True) -> Verdict:
    """Replay a run, check at every deadline, and go on until ``until_s``."""
    monitor, alarms = OutputMonitor({"first_step_timeout_s": WEEK_S}, 0.0), []
    stalled_s, certain = None, False
    for output in [*outputs, Output(until_s if until_s is not None else outputs[-1].at_s, "")]:
        while (due_s := monitor.stall_check_s) is not None and due_s <= output.at_s:
            if monitor.stall_detector.detect_stall(due_s, cpu_idle):
                stalled_s = due_s if stalled_s is None else stalled_s
        if output.text:
            events = monitor.read_output(f"{output.text}\n".encode(), output.at_s)
            alarms += [event.text for event in events if event.kind == "error_seen"]
        certain = certain or monitor.divergence.is_certain
    monitor.read_end(outputs[-1].at_s)
    divergence, progress = monitor.divergence, monitor.progress
    is_divergent = divergence.line is not None and not divergence.recovered
    return Verdict(stalled_s, alarms, is_divergent, certain, progress.round, progress.step)
