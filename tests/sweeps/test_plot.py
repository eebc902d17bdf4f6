"""The picture of a sweep: a mean curve is that of the seeds, a line of parallel coordinates that of its setting."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from mcp_server.record.sweeps.sweep_ranking import rank_groups
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.results.figures import Points
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.tables.plot import join_seeds, make_panels, make_parallel
from tests.support.sweeps import cell_events, write_sweep


def test_the_band_is_the_deviation_of_the_seeds_at_every_step() -> None:
    seeds: list[Points] = [[(1, 1.0), (2, 4.0)], [(1, 3.0), (2, 8.0)], [(1, 2.0), (2, 3.0)]]
    curve = join_seeds("a", seeds)
    assert curve is not None
    assert (list(curve.steps), list(curve.values)) == ([1, 2], [2.0, 5.0])
    sd = statistics.stdev([4.0, 8.0, 3.0])
    assert curve.band == ([1.0, pytest.approx(5 - sd)], [3.0, pytest.approx(5 + sd)])


def test_a_mean_ends_where_the_shortest_seed_does_and_reads_between_its_steps() -> None:
    curve = join_seeds("a", [[(0, 0.0), (10, 10.0)], [(0, 2.0), (5, 7.0), (20, 30.0)]])
    assert curve is not None
    assert (list(curve.steps), list(curve.values)) == ([0, 5, 10], [1.0, 6.0, pytest.approx((10 + 7 + 23 / 3) / 2)])


def test_a_single_seed_has_no_band_and_nan_is_marked() -> None:
    curve = join_seeds("a", [[(1, 1.0), (2, math.nan), (3, 2.0)]])
    assert curve is not None
    assert (list(curve.steps), list(curve.odd), curve.band) == ([1, 3], [2], ((), ()))
    assert join_seeds("a", [[(1, math.nan)]]) is None


def test_panels_have_the_means_of_the_table_and_a_height_on_every_axis(tmp_path: Path) -> None:
    params = [{"lr": lr, "opt": opt, "seed": n} for lr, opt in ((0.001, "b"), (0.1, "a"), (0.01, "a")) for n in (1, 2)]
    cells = [Cell(f"c{n}", "1", each) for n, each in enumerate(params)]
    events = [event for n, cell in enumerate(cells) for event in cell_events(cell.name, float(n))]
    directory = write_sweep(tmp_path, cells, events, metric="reward", ranking="last")
    store = RunStore(StateHome(directory.path.parents[1]))
    sweep = store.sweeps.find("night")
    bars, parallel = make_panels(sweep, store, Scalars(store.home, store))
    assert [(bar.label, bar.mean, sorted(bar.values)) for bar in bars.bars] == [
        ("lr 0.01, opt a", 4.5, [4.0, 5.0]),
        ("lr 0.1, opt a", 2.5, [2.0, 3.0]),
        ("lr 0.001, opt b", 0.5, [0.0, 1.0]),
    ]
    groups = {group.first.cell.name: group for group in rank_groups(sweep.cells, "max")}
    assert make_parallel(groups, ["lr", "opt"], "reward").axes[0].ticks == [(0.0, "0.001"), (0.5, "0.01"), (1.0, "0.1")]
    assert [axis.name for axis in parallel.axes] == ["lr", "opt", "reward (last)"]
    assert {label: [round(at, 6) for at in line] for label, line in parallel.lines.items()} == {
        "lr 0.01, opt a": [0.5, 0.0, 1.0],
        "lr 0.1, opt a": [1.0, 0.0, 0.5],
        "lr 0.001, opt b": [0.0, 1.0, 0.0],
    }
