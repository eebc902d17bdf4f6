"""What is left of a sweep: right within a fifth in the median, and unknown where it is not known."""

from __future__ import annotations

import heapq
import random
from datetime import UTC, datetime
from statistics import median
from typing import Any

import pytest

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, Run
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import Sweep, fold_sweep
from mcp_server.text.formatting import format_time
from mcp_server.views.sweep_eta import estimate_rest_s

BEGUN_S = 1_795_000_000.0


def at(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(BEGUN_S + seconds, UTC))


def sweep_of(cells: list[Cell], events: list[dict[str, Any]]) -> Sweep:
    numbered: list[Any] = [
        {"seq": n, **event} for n, event in enumerate([{"kind": "conducting", "at": at(0)}, *events], 1)
    ]
    return fold_sweep(SweepSpec("s-abcd", "s", cells=tuple(cells)), numbered, Liveness.ALIVE)


def live(begun_s: float, eta_s: float | None = None, state: Any = "running", **spec: Any) -> Run:
    progress: dict[str, Any] = {} if eta_s is None else {"step": 1, "eta_s": eta_s}
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


def simulate(
    length_s: float, cells: int, slots: int, overhead_s: float, *, steps: bool, chance: random.Random
) -> list[float]:
    """Return the relative errors of the estimate at a quarter, half and three quarters of a simulated sweep."""
    free, spans = [(0.0, n) for n in range(slots)], []
    for number in range(cells):
        free_s, slot = heapq.heappop(free)
        begun_s = free_s + overhead_s * chance.uniform(0.5, 1.5)
        took_s = length_s * chance.uniform(0.85, 1.15)
        spans.append((f"c{number}", begun_s, took_s))
        heapq.heappush(free, (begun_s + took_s, slot))
    whole_s = max(begun_s + took_s for _, begun_s, took_s in spans)
    errors = []
    for share in (0.25, 0.5, 0.75):
        now_s = whole_s * share
        events = [start(name, b) for name, b, _ in spans if b <= now_s]
        events += [end(name, b + t, t) for name, b, t in spans if b + t <= now_s]
        events.sort(key=lambda event: str(event["at"]))
        runs = {n: live(b, b + t - now_s if steps else None) for n, b, t in spans if b <= now_s < b + t}
        sweep = sweep_of([Cell(f"c{number}", "1") for number in range(cells)], events)
        estimate_s = estimate_rest_s(sweep, runs, BEGUN_S + now_s)
        if estimate_s is not None:
            errors.append(abs(estimate_s - (whole_s - now_s)) / (whole_s - now_s))
    return errors


@pytest.mark.parametrize("steps", [False, True])
def test_the_median_error_is_below_a_fifth_from_a_quarter_of_the_sweep_on(steps: bool) -> None:
    chance = random.Random(7)
    errors: list[float] = []
    for _ in range(200):
        length_s, slots = 10 ** chance.uniform(-0.5, 1.8), chance.randint(1, 8)
        cells = chance.randint(2 * slots, 60)
        errors += simulate(length_s, cells, slots, chance.uniform(0.05, 1.0), steps=steps, chance=chance)
    assert len(errors) > 300
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


def test_a_parameter_that_sets_the_length_scales_it() -> None:
    cells = [Cell("a", "1", {"max_steps": 100}), Cell("b", "1", {"max_steps": 100}), Cell("c", "1", {"max_steps": 300})]
    sweep = sweep_of(cells, [start("a", 0), end("a", 20, 20), start("b", 20)])
    assert estimate_rest_s(sweep, {"b": live(20)}, BEGUN_S + 25) == pytest.approx(15 + 60)


def test_before_the_first_end_live_cells_tell_how_long_waiting_ones_take() -> None:
    cells = [Cell("a", "1"), Cell("b", "1"), Cell("c", "1")]
    sweep = sweep_of(cells, [start("a", 0)])
    assert estimate_rest_s(sweep, {"a": live(0, eta_s=30)}, BEGUN_S + 10) == 30 + 2 * 40
    assert estimate_rest_s(sweep, {"a": live(0)}, BEGUN_S + 10) is None


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
    runs = {f"c{n}": live(0, eta_s=1) for n in range(1, 2)}
    spec = SweepSpec("s-abcd", "s", cells=tuple(cells), max_parallel=4)
    numbered: list[Any] = [{"seq": n, **e} for n, e in enumerate([{"kind": "conducting", "at": at(0)}, *events], 1)]
    sweep = fold_sweep(spec, numbered, Liveness.ALIVE)
    assert estimate_rest_s(sweep, runs, BEGUN_S + 1) == pytest.approx(3)
