"""What is left of a sweep: right within a fifth in the median, and unknown where it is not known."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pytest

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, Run
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import Sweep, fold_sweep
from mcp_server.recovery.policy import normalize_policy
from mcp_server.text.formatting import format_posix
from mcp_server.views.length_fit import fit_lengths
from mcp_server.views.sweep_eta import estimate_rest_s

BEGUN_S = 1_795_000_000.0


def at(seconds: float) -> str:
    return format_posix(BEGUN_S + seconds)


def sweep_of(cells: list[Cell], events: list[dict[str, Any]], **spec: Any) -> Sweep:
    numbered: list[Any] = [
        {"seq": n, **event} for n, event in enumerate([{"kind": "conducting", "at": at(0)}, *events], 1)
    ]
    return fold_sweep(SweepSpec("s-abcd", "s", cells=tuple(cells), **spec), numbered, Liveness.ALIVE)


def live(begun_s: float, eta_s: float | None = None, state: Any = "running", **spec: Any) -> Run:
    progress: dict[str, Any] = {} if eta_s is None else {"step": 1, "total_steps": TOTAL, "eta_s": eta_s}
    return Run(RunSpec(run_id="r", **spec), state, started_at=at(begun_s), progress=progress)


def start(cell: str, seconds: float) -> dict[str, Any]:
    return {"kind": "cell_started", "cell": cell, "run_id": f"r-{cell}", "at": at(seconds)}


def end(cell: str, seconds: float, took_s: float, state: str = "finished") -> dict[str, Any]:
    return {
        "kind": "cell_ended",
        "cell": cell,
        "run_id": f"r-{cell}",
        "state": state,
        "elapsed_s": took_s,
        "at": at(seconds),
    }


Planned = tuple[str, dict[str, Any], float]  # phase, settings and seconds of a cell


@dataclass(frozen=True)
class Shape:
    """A sweep in virtual time. ``steps``: its cells say what is left. ``rungs``: those of its halving, at these shares.

    ``fail``: how many attempts fail, each cell once more. ``hang``: the cell that stands still for five lengths.
    ``ends``: how a cell's attempts end by its settings. ``resumed``: it ran before, and its failed cells start again,
    also those that were not planned then (``later``), which come first.
    """

    cells: list[Planned]
    slots: int
    steps: bool = True
    rungs: tuple[float, ...] = ()
    fail: float = 0.0
    hang: int = -1
    queues: bool = False  # for GPUs: two more are in line, and nobody knows how many run at once
    limit_s: float | None = None
    ends: Ends | None = None
    resumed: bool = False
    later: Callable[[dict[str, Any]], bool] = lambda _: False


@dataclass(frozen=True)
class Try:
    """An attempt of a run: its seconds with the wait after it, how it ended, and when its steps stopped coming."""

    took_s: float
    why: str = ""
    stuck_s: float = math.inf


Ends = Callable[[dict[str, Any], float, random.Random], list[Try]]


@dataclass(frozen=True)
class Span:
    """A run of a cell: when it began and how long it took, and would have taken."""

    cell: int
    begun_s: float
    took_s: float
    whole_s: float
    state: str
    again: bool = False
    value: float = 0.0
    tries: tuple[Try, ...] = ()
    is_former: bool = False

    @property
    def ended_s(self) -> float:
        return self.begun_s + self.took_s


def equal(seconds: float, count: int, phase: str = "1", **more: Any) -> list[Planned]:
    return [(phase, {"n": n, **more}, seconds) for n in range(count)]


def grid(lengths: dict[Any, float], seeds: int, name: str = "width") -> list[Planned]:
    return [("1", {name: value, "seed": seed}, seconds) for value, seconds in lengths.items() for seed in range(seeds)]


RATES = dict.fromkeys((1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2), 20.0)
SHAPES = {
    "0.3 s": Shape(equal(0.3, 40), 8, steps=False),
    "0.3 s with steps": Shape(equal(0.3, 24), 4),
    "half a second": Shape(equal(0.5, 24), 4, steps=False),
    "a second": Shape(equal(1, 24), 6),
    "two seconds": Shape(equal(2, 16), 4, steps=False),
    "ten seconds": Shape(equal(10, 16), 4, steps=False),
    "a minute": Shape(equal(60, 20), 8),
    "a minute in one slot": Shape(equal(60, 6), 1, steps=False),
    "rates": Shape(grid(RATES, 3, "lr"), 3, steps=False),
    "width": Shape(grid({w: w / 32 for w in (64, 128, 256, 512)}, 3), 4, steps=False),
    "width with steps": Shape(grid({w: w / 32 for w in (64, 128, 256, 512)}, 3), 4),
    "width, the largest first": Shape(grid({w: w / 32 for w in (512, 256, 128, 64)}, 3), 4, steps=False),
    "square of a width": Shape(grid({w: (w / 128) ** 2 * 5 for w in (64, 128, 256, 512)}, 2), 2, steps=False),
    "batch size": Shape(grid({b: 400 / b for b in (8, 16, 32, 64)}, 3, "batch"), 4, steps=False),
    "max_steps": Shape(grid({n: n / 50 for n in (100, 300, 1000)}, 4, "max_steps"), 3, steps=False),
    "halving": Shape(equal(20, 18), 3, rungs=(0.25,)),
    "halving of short cells": Shape(equal(12, 12), 4, rungs=(0.3,)),
    "halving twice": Shape(equal(60, 24), 4, rungs=(0.2, 0.5)),
    "halving of many": Shape(equal(30, 32), 8, rungs=(0.1, 0.3)),
    "retries": Shape(equal(6, 20), 4, steps=False, fail=0.3),
    "a hang": Shape(equal(5, 16), 4, hang=5),
    "a promotion": Shape([*equal(4, 12, "e"), ("final", {"n": 0, "iters": 600}, 20)], 4),
    "GPUs with a line": Shape(equal(12, 18), 4, queues=True),
    "a time limit": Shape(equal(40, 12), 4, steps=False, limit_s=20),
}


def end_as_in_the_night(settings: dict[str, Any], whole_s: float, chance: random.Random) -> list[Try]:
    """Return the attempts of a night's cell: half do not fit at first, a third hangs, a third diverges."""
    oom = [Try(chance.uniform(1.7, 2.2), "oom_gpu"), Try(chance.uniform(1.7, 2.2), "oom_gpu")]
    first = oom if settings.get("num_envs") == 8192 else []
    config = settings["config"]
    if config == "oom":
        return [Try(5, "oom_gpu"), Try(whole_s)]
    if config == "nan":
        return [*first, Try(12, "divergence")]
    hung = Try(0.5 * whole_s + 20, "stall", 0.5 * whole_s)
    return [*first, *({"hang": [hung] * 2, "hang3": [hung] * 3}.get(config, [Try(whole_s)]))]


def hang_at_times(_: dict[str, Any], whole_s: float, chance: random.Random) -> list[Try]:
    """Return attempts that hang now and then, whatever their settings are, and are tried again."""
    tries = [Try(0.3 * whole_s + 20, "stall", 0.3 * whole_s) for _ in range(2) if chance.random() < 0.15]
    return [*tries, Try(whole_s)]


def be_killed_at_times(_: dict[str, Any], whole_s: float, chance: random.Random) -> list[Try]:
    killed = [Try(chance.uniform(0.2, 0.9) * whole_s, "killed by SIGKILL")] if chance.random() < 0.1 else []
    return [*killed, Try(whole_s)]


def shrink_wide_ones(settings: dict[str, Any], whole_s: float, _: random.Random) -> list[Try]:
    return [Try(3, "oom_gpu")] * (settings["width"] >= 256) + [Try(whole_s)]


def mix(counts: dict[str, int], seconds: float = 17.0) -> list[Planned]:
    return [("1", {"config": config, "seed": n}, seconds) for config, count in counts.items() for n in range(count)]


NIGHT = [
    ("1", {"config": config, "num_envs": envs, "seed": seed}, 17.0)
    for config in ("fine", "hang", "nan")
    for envs in (2048, 8192)
    for seed in (1, 2, 3)
]
SHUFFLED = [NIGHT[n * 7 % len(NIGHT)] for n in range(len(NIGHT))]


def is_third_seed(settings: dict[str, Any]) -> bool:
    return bool(settings["seed"] == 3)


FOURTEEN = {"oom": 4, "hang3": 4, "nan": 4, "fine": 2}
SHAPES |= {
    "a night": Shape(NIGHT, 3, ends=end_as_in_the_night),
    "a night in another order": Shape(SHUFFLED, 4, ends=end_as_in_the_night),
    "a night that says no steps": Shape(SHUFFLED, 3, steps=False, ends=end_as_in_the_night),
    "a night that goes on": Shape(NIGHT, 3, ends=end_as_in_the_night, resumed=True),
    "a night that goes on with more seeds": Shape(
        NIGHT, 3, ends=end_as_in_the_night, resumed=True, later=is_third_seed
    ),
    "fourteen cells": Shape(mix(FOURTEEN), 3, ends=end_as_in_the_night),
    "fourteen cells, hangs first": Shape(mix({"hang3": 4, "fine": 2, "nan": 4, "oom": 4}), 4, ends=end_as_in_the_night),
    "fourteen cells that go on": Shape(mix(FOURTEEN), 3, ends=end_as_in_the_night, resumed=True),
    "fourteen cells that go on in one slot": Shape(mix(FOURTEEN), 1, ends=end_as_in_the_night, resumed=True),
    "hangs at random": Shape(equal(15, 24), 4, ends=hang_at_times),
    "kills from outside": Shape(equal(20, 16), 4, ends=be_killed_at_times),
    "wide ones that shrink": Shape(grid(dict.fromkeys((64, 128, 256, 512), 12), 4), 3, ends=shrink_wide_ones),
}


TOTAL = 100  # steps of each cell
LEAST, JUDGED_S = 4, 2.5  # of a halving: cells that are compared, and how long after a rung a cell stops


def play(shape: Shape, chance: random.Random) -> list[Span]:
    """Return the runs of a simulated sweep; those of a round before end at time 0."""
    if not shape.resumed:
        return play_round(shape, range(len(shape.cells)), chance)
    old = [number for number, cell in enumerate(shape.cells) if not shape.later(cell[1])]
    former = play_round(shape, old, chance)
    over_s = max(span.ended_s for span in former) + 1
    former = [replace(span, begun_s=span.begun_s - over_s, is_former=True) for span in former]
    failed = {span.cell for span in former if span.state == "failed"}
    new = [number for number in range(len(shape.cells)) if number not in old]
    return [*former, *play_round(shape, [*new, *(number for number in old if number in failed)], chance)]


def play_round(shape: Shape, numbers: Iterable[int], chance: random.Random) -> list[Span]:
    spans: list[Span] = []
    phases = dict.fromkeys(shape.cells[number][0] for number in numbers)
    for phase in phases:
        queue = [number for number in numbers if shape.cells[number][0] == phase]
        free = [max((span.ended_s for span in spans), default=0.0)] * shape.slots
        while queue:
            number = queue.pop(0)
            begun_s = heapq.heappop(free) + 0.4 * chance.uniform(0.5, 1.5)
            whole_s = took_s = shape.cells[number][2] * chance.uniform(0.88, 1.12)
            state, again, value = "finished", False, chance.random()
            tries: list[Try] = []
            if shape.ends is not None:
                tries = shape.ends(shape.cells[number][1], whole_s, chance)
                took_s, state = sum(one.took_s for one in tries), "failed" if tries[-1].why else "finished"
            elif number == shape.hang:
                took_s, state = 5 * whole_s, "failed"
            elif (stop_s := halve(shape, spans, begun_s, whole_s, value)) is not None:
                took_s, state = stop_s, "stopped"
            elif chance.random() < shape.fail:
                again = all(span.cell != number for span in spans)
                took_s, state = chance.uniform(0.05, 0.9) * whole_s, "failed"
            if shape.limit_s is not None and took_s > shape.limit_s:
                took_s, state = shape.limit_s, "timed_out"
            queue += [number] if again else []
            spans.append(Span(number, begun_s, took_s, whole_s, state, again, value, tuple(tries)))
            heapq.heappush(free, begun_s + took_s)
    return spans


def halve(shape: Shape, spans: list[Span], begun_s: float, whole_s: float, value: float) -> float | None:
    """Return after how many seconds a cell stops, because it is in the worse half of those that reached a rung."""
    for share in shape.rungs:
        at_s = begun_s + share * whole_s
        others = [span.value for span in spans if reached_s(span, share) <= at_s]
        if len(others) + 1 >= LEAST and sum(each > value for each in others) >= (len(others) + 1) // 2:
            return min(whole_s, share * whole_s + JUDGED_S)
    return None


def reached_s(span: Span, share: float) -> float:
    """Return when an attempt reached the step at a share of it."""
    return span.begun_s + share * span.whole_s if share * span.whole_s <= span.took_s else math.inf


def watch_run(shape: Shape, span: Span, now_s: float) -> Run:
    """Return the live run of a span, as it is seen at a time."""
    tries = span.tries or (Try(span.whole_s, stuck_s=0.0 if span.cell == shape.hang else math.inf),)
    begun_s, events = span.begun_s, list[Any]()
    for number, one in enumerate(tries, 1):
        events.append({"kind": "started", "attempt": number, "at": at(begun_s)})
        if begun_s + one.took_s > now_s or number == len(tries):
            break
        begun_s += one.took_s
        kind = "killed" if one.why.startswith("killed") else one.why
        events.append({"kind": "retrying", "attempt": number, "at": at(begun_s), "failure": {"kind": kind}})
    said_s = min(now_s - begun_s, one.stuck_s)
    left_s = span.whole_s - said_s if shape.steps and said_s > 0.12 * span.whole_s else None
    run = live(span.begun_s, left_s, time_limit_s=shape.limit_s)
    return replace(run, events=tuple(events), progress={**run.progress, "at": at(begun_s + said_s)})


def estimate(shape: Shape, spans: list[Span], now_s: float) -> float | None:
    """Return what the sweep says is left at a time."""
    events, runs = list[dict[str, Any]](), dict[str, Run]()
    for span in (span for span in spans if span.begun_s <= now_s):
        name = f"c{span.cell}"
        events.append(start(name, span.begun_s))
        if span.ended_s <= now_s:
            done = end(name, span.ended_s, span.took_s, span.state)
            if len(span.tries) > 1:
                done |= {"attempts_s": [one.took_s for one in span.tries]}
                done |= {"tries": [one.why for one in span.tries[:-1]]}
            events.append({**done, **({"then": "again"} if span.again else {})})
        else:
            runs[name] = watch_run(shape, span, now_s)
        for share in shape.rungs:
            if (rung_s := reached_s(span, share)) <= now_s:
                rung = {"rung": round(share * TOTAL), "value": span.value, "run_id": f"r-{name}"}
                events.append({"kind": "rung_reached", "cell": name, **rung, "at": at(rung_s)})
    if shape.resumed:
        failed = [f"c{span.cell}" for span in spans if span.is_former and span.state == "failed"]
        events.append({"kind": "ended", "at": at(-0.5), "total": len({s.cell for s in spans if s.is_former})})
        events += [{"kind": "cell_resumed", "cell": name, "at": at(-0.1)} for name in failed]
        events.append({"kind": "conducting", "at": at(0)})
    if shape.queues:
        begun = {event["cell"] for event in events}
        line = [f"c{number}" for number in range(len(shape.cells)) if f"c{number}" not in begun][:2]
        events += [start(name, now_s) for name in line]
        runs |= {name: live(now_s, state="queued") for name in line}
    events.sort(key=lambda event: (str(event["at"]), event["kind"] == "conducting"))
    cells = [Cell(f"c{number}", phase, settings) for number, (phase, settings, _) in enumerate(shape.cells)]
    most = None if shape.queues else shape.slots
    halving = {"steps": [round(share * TOTAL) for share in shape.rungs]} if shape.rungs else None
    return estimate_rest_s(sweep_of(cells, events, max_parallel=most, halving=halving), runs, BEGUN_S + now_s)


def measure(shape: Shape, seed: str) -> list[tuple[float, float | None]]:
    """Return the share of the sweep and the relative error of the estimate, None where it is unknown."""
    spans = play(shape, random.Random(seed))
    whole_s = max(span.ended_s for span in spans)
    found: list[tuple[float, float | None]] = []
    for share in (0.25, 0.5, 0.75):
        left_s, said_s = whole_s * (1 - share), estimate(shape, spans, whole_s * share)
        found.append((share, None if said_s is None else abs(said_s - left_s) / left_s))
    return found


@pytest.mark.slow
def test_the_median_error_is_below_a_fifth_at_each_quarter_of_twenty_sweeps() -> None:
    looks = [each for name, shape in SHAPES.items() for n in range(8) for each in measure(shape, f"{name} {n}")]
    for share in (0.25, 0.5, 0.75):
        errors = [error for at_share, error in looks if at_share == share and error is not None]
        assert len(errors) > 100
        assert median(errors) <= 0.2, share


# Nothing tells beforehand which cell will hang, or how much shorter those are that come last.
OPEN = {"a hang", "batch size", "width, the largest first", "hangs at random"}
# Nor which settings fail that have not run yet: known once, that is known for good.
OPEN |= {"a night", "a night in another order", "a night that says no steps", "fourteen cells, hangs first"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHAPES.keys() - OPEN))
def test_the_median_error_of_each_sweep_is_below_a_fifth_whatever_its_cells_are_like(name: str) -> None:
    errors = [error for n in range(12) for _, error in measure(SHAPES[name], f"{name} {n}") if error is not None]
    assert len(errors) >= 18
    assert median(errors) <= 0.2


def test_a_promotion_without_a_like_cell_is_unknown_until_its_own_steps_tell() -> None:
    cells = [Cell("a", "explore", {"iters": 100}), Cell("best", "final", {"iters": 600})]
    events = [start("a", 0), end("a", 20, 20), start("best", 20)]
    assert estimate_rest_s(sweep_of(cells, events), {"best": live(20)}, BEGUN_S + 30) is None
    assert estimate_rest_s(sweep_of(cells, events), {"best": live(20, eta_s=90)}, BEGUN_S + 30) == 90


def test_a_hang_is_no_cell_of_usual_length() -> None:
    cells = [Cell("a", "1"), Cell("hang", "1")]
    sweep = sweep_of(cells, [start("a", 0), start("hang", 0), end("a", 20, 20)])
    assert estimate_rest_s(sweep, {"hang": live(0)}, BEGUN_S + 22) == 0
    assert estimate_rest_s(sweep, {"hang": live(0)}, BEGUN_S + 40) is None
    assert estimate_rest_s(sweep, {"hang": live(0, eta_s=5, state="stalled")}, BEGUN_S + 22) is None
    assert estimate_rest_s(sweep, {"hang": live(0, time_limit_s=100)}, BEGUN_S + 40) == 60


def test_a_cell_that_is_tried_again_takes_as_long_as_cells_usually_run_and_not_until_its_time_limit() -> None:
    cells = [Cell(name, "1") for name in "abcd"]
    events = [start("a", 0), end("a", 20, 20), start("b", 20)]
    sweep = sweep_of(cells, events, max_parallel=1)
    retried = live(20, eta_s=3, state="retrying", time_limit_s=600)
    assert estimate_rest_s(sweep, {"b": retried}, BEGUN_S + 27) == pytest.approx(3 * 20)
    stopped = live(20, eta_s=3, state="stalled", time_limit_s=600, recovery=normalize_policy("default"))
    assert estimate_rest_s(sweep, {"b": stopped}, BEGUN_S + 27) == pytest.approx(3 * 20)
    second = replace(live(20, time_limit_s=600), events=attempts(20, 65, "stall"))
    assert estimate_rest_s(sweep, {"b": second}, BEGUN_S + 70) == pytest.approx(15 + 2 * 32.5), "no hang"
    assert estimate_rest_s(sweep_of(cells, [start("a", 0)]), {"a": live(0, 9, "retrying")}, BEGUN_S + 9) is None


def attempts(first_s: float, second_s: float, why: str) -> tuple[Any, ...]:
    """Return the events of a run whose first attempt ended so."""
    began = [{"kind": "started", "attempt": number, "at": at(s)} for number, s in ((1, first_s), (2, second_s))]
    return (began[0], {"kind": "retrying", "attempt": 1, "at": at(second_s), "failure": {"kind": why}}, began[1])


def test_an_attempt_that_was_killed_from_outside_makes_no_other_cell_longer() -> None:
    cells = [Cell(name, "1") for name in "abcd"]
    sweep = sweep_of(cells, [start("a", 0), end("a", 20, 20), start("b", 20)], max_parallel=1)
    killed = replace(live(20, eta_s=15), events=attempts(20, 38, "killed"))
    assert estimate_rest_s(sweep, {"b": killed}, BEGUN_S + 43) == pytest.approx(15 + 2 * 20)
    done = {**end("b", 58, 38), "attempts_s": [18, 20], "tries": ["killed by SIGKILL"]}
    before: Any = sweep.events[1:]
    later = sweep_of(cells, [*before, done, start("c", 58)], max_parallel=1)
    assert estimate_rest_s(later, {"c": live(58, eta_s=20)}, BEGUN_S + 58) == pytest.approx(20 + 20)


def test_a_cell_that_starts_again_takes_as_long_as_it_did_when_it_failed() -> None:
    cells = [Cell(name, "1", {"config": name}) for name in ("fine", "hang", "nan")]
    hung = {**end("hang", 62, 62, "failed"), "attempts_s": [31, 31], "tries": ["stall"]}
    former = [
        start("fine", 0),
        start("hang", 0),
        start("nan", 0),
        end("nan", 11, 11, "failed"),
        end("fine", 20, 20),
        hung,
    ]
    again = [{"kind": "ended", "at": at(62)}, {"kind": "cell_resumed", "cell": "hang"}]
    events = [*former, *again, {"kind": "cell_resumed", "cell": "nan"}, {"kind": "conducting", "at": at(90)}]
    sweep = sweep_of(cells, [*events, start("hang", 90)], max_parallel=1)
    stuck = replace(live(90, eta_s=7), progress={"eta_s": 7, "at": at(99)})
    assert estimate_rest_s(sweep, {"hang": stuck}, BEGUN_S + 110) == pytest.approx(62 - 20 + 11, rel=0.1)
    assert estimate_rest_s(sweep, {"hang": live(90, eta_s=12)}, BEGUN_S + 95) == pytest.approx(62 - 5 + 11, rel=0.1)


def test_steps_that_have_stopped_coming_say_nothing() -> None:
    sweep = sweep_of([Cell("a", "1")], [start("a", 0)])
    stuck = replace(live(0), progress={"eta_s": 10, "at": at(20)})
    assert estimate_rest_s(sweep, {"a": stuck}, BEGUN_S + 24) == pytest.approx(6)
    assert estimate_rest_s(sweep, {"a": stuck}, BEGUN_S + 60) is None


def test_a_slow_cell_takes_as_long_as_its_own_steps_say_up_to_its_limit() -> None:
    """Programs that name no total: the fast ones ended at step 60, and its own steps take ten times as long."""
    cells = [Cell(f"c{n}", "1", {"depth": n}) for n in range(4)]
    slow = Cell("slow", "1", {"depth": 4, "dt": 5})
    ended = [{**end(cell.name, 31, 31), "step": 60} for cell in cells]
    failed = [start("dead", 0), end("dead", 13, 13, "failed")]
    events = [*(start(cell.name, 0) for cell in cells), *failed, *ended, start("slow", 31)]
    sweep = sweep_of([*cells, Cell("dead", "1", {"depth": 9}), slow], events)

    def rest_s(step: int, now_s: float, **spec: Any) -> float | None:
        progress = {"step": step, "step_s": 5.0, "at": at(now_s - 1)}
        run = replace(live(31, **spec), progress=progress)
        return estimate_rest_s(sweep, {"slow": run}, BEGUN_S + now_s)

    assert rest_s(2, 44) == pytest.approx(58 * 5, rel=0.2), "some of its like fail"
    assert rest_s(2, 44, time_limit_s=120) == pytest.approx(107)
    assert rest_s(19, 127, time_limit_s=120) == pytest.approx(24)
    assert rest_s(61, 400) is None, "it goes on where the others ended: nobody knows how far"


def test_the_step_at_which_others_ended_is_not_that_of_a_cell_with_another_number_of_steps() -> None:
    cells = [Cell("a", "1", {"max_steps": 100}), Cell("b", "1", {"max_steps": 300})]
    sweep = sweep_of(cells, [start("a", 0), {**end("a", 20, 20), "step": 100}, start("b", 20)])
    run = replace(live(20), progress={"step": 50, "step_s": 0.2, "at": at(30)})
    assert estimate_rest_s(sweep, {"b": run}, BEGUN_S + 30) == pytest.approx(50)


def test_a_later_phase_without_the_settings_of_this_one_changes_no_estimate() -> None:
    cells = [Cell(f"{width}-{seed}", "1", {"width": width, "seed": seed}) for width in (8, 16) for seed in (1, 2)]
    later = [Cell(f"best-{seed}", "2", {"seed": seed}) for seed in (3, 4)]
    ended = [
        event for n, cell in enumerate(cells) for event in (start(cell.name, 20 * n), end(cell.name, 20 * n + 20, 20))
    ]
    now_s = BEGUN_S + 70
    alone, both = sweep_of(cells, ended[:-1]), sweep_of([*cells, *later], ended[:-1])
    assert estimate_rest_s(alone, {"16-2": live(60)}, now_s) == pytest.approx(10)
    assert estimate_rest_s(both, {"16-2": live(60)}, now_s) is None, "nobody knows how long its cells take"
    halving = {"metric": "loss", "steps": [30], "goal": "min"}
    halved = sweep_of([*cells, *later], ended[:-1], halving=halving)
    assert estimate_rest_s(halved, {"16-2": live(60)}, now_s) is None


def test_a_parameter_that_sets_the_length_scales_it() -> None:
    cells = [Cell("a", "1", {"max_steps": 100}), Cell("b", "1", {"max_steps": 100}), Cell("c", "1", {"max_steps": 300})]
    sweep = sweep_of(cells, [start("a", 0), end("a", 20, 20), start("b", 20)])
    assert estimate_rest_s(sweep, {"b": live(20)}, BEGUN_S + 25) == pytest.approx(15 + 60)


def test_before_the_first_end_live_cells_tell_how_long_waiting_ones_take() -> None:
    cells = [Cell("a", "1"), Cell("b", "1"), Cell("c", "1")]
    sweep = sweep_of(cells, [start("a", 0)])
    assert estimate_rest_s(sweep, {"a": live(0, eta_s=30)}, BEGUN_S + 10) == 30 + 2 * 40
    assert estimate_rest_s(sweep, {"a": live(0)}, BEGUN_S + 10) is None


def test_an_open_sweep_has_no_time_left_since_more_trials_may_be_proposed() -> None:
    cells, events = [Cell("t0.0", "1"), Cell("t0.1", "1")], [start("t0.0", 0), end("t0.0", 20, 20), start("t0.1", 20)]
    runs = {"t0.1": live(20, eta_s=7)}
    assert estimate_rest_s(sweep_of(cells, events), runs, BEGUN_S + 33) == 7
    assert estimate_rest_s(sweep_of(cells, events, open={"budget": 5}), runs, BEGUN_S + 33) is None


def test_a_moment_between_two_short_cells_hides_no_estimate() -> None:
    cells = [Cell(f"c{n}", "1") for n in range(6)]
    events = [event for n in range(3) for event in (start(f"c{n}", n), end(f"c{n}", n + 0.5, 0.3))]
    sweep = sweep_of(cells, events)
    assert estimate_rest_s(sweep, {}, BEGUN_S + 3) == pytest.approx(3)
    assert estimate_rest_s(sweep, {}, BEGUN_S + 30) is None  # nothing has started for long
    waiting = sweep_of(cells, [*events, start("c3", 3)])
    assert estimate_rest_s(waiting, {"c3": live(3, state="queued")}, BEGUN_S + 3) is None


def test_a_short_cell_whose_end_is_not_noted_yet_is_no_hang() -> None:
    cells = [Cell(f"c{n}", "1") for n in range(4)]
    events = [event for n in range(2) for event in (start(f"c{n}", n), end(f"c{n}", n + 0.5, 0.3))]
    sweep = sweep_of(cells, [*events, start("c2", 2)])
    assert estimate_rest_s(sweep, {"c2": live(2, state="finished")}, BEGUN_S + 3) == pytest.approx(1)
    assert estimate_rest_s(sweep, {"c2": live(2)}, BEGUN_S + 3) == pytest.approx(1)


def test_slots_between_two_cells_count_where_the_sweep_says_how_many_run_at_once() -> None:
    cells = [Cell(f"c{n}", "1") for n in range(12)]
    events = [start(f"c{n}", 0) for n in range(5)] + [end("c0", 1, 1)]
    runs = {"c1": live(0, eta_s=0)}
    sweep = sweep_of(cells, events, max_parallel=4)
    assert estimate_rest_s(sweep, runs, BEGUN_S + 1) == pytest.approx(3)


def test_lengths_follow_the_settings_that_set_them_and_no_others() -> None:
    cells = [
        Cell(f"c{n}", "1", {"width": w, "opt": o, "lr": (0.1, 0.001)[n % 2], "seed": n})
        for n, (w, o) in enumerate(PAIRS)
    ]
    states = list(sweep_of(cells, []).cells)
    truth = {cell.cell.name: PAIRS[number] for number, cell in enumerate(states)}
    whole = [(cell, seconds(*truth[cell.cell.name])) for cell in states[:5]]
    fit = fit_lengths(states, whole)
    for cell in states:
        assert fit(cell) == pytest.approx(seconds(*truth[cell.cell.name]), rel=0.15), truth[cell.cell.name]


PAIRS = [(64, "adam"), (128, "adam"), (64, "lion"), (256, "adam"), (128, "lion"), (512, "adam"), (512, "lion")]


def seconds(width: int, optimizer: str) -> float:
    return width / 32 * (1.5 if optimizer == "lion" else 1.0)
