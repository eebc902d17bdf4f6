"""Sweeps as their directories prove them, also damaged and long ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_server.errors import RunNotFound, RunUnreadable
from mcp_server.record.events import EventLog
from mcp_server.record.run_directory import write_json
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.conductor.conductor import Conductor
from tests.support.ended_runs import Runs
from tests.support.sweeps import cell_events, write_sweep


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_damaged_spec_is_unreadable_and_no_sweep_without_cells(tmp_path: Path, text: str) -> None:
    directory = write_sweep(tmp_path, [Cell("a", "1")], [])
    directory.spec.write_text(text)
    store = RunStore(StateHome(tmp_path))
    with pytest.raises(RunUnreadable, match=r"its spec\.json is damaged"):
        store.sweeps.observe(directory.sweep_id)
    assert store.sweeps.list_sweeps() == []


def test_no_event_of_a_long_sweep_is_forgotten(tmp_path: Path) -> None:
    cells = [Cell(f"n{n}", "1") for n in range(400)]
    failure = {"kind": "other", "line": "x" * 20_000}
    events = [event for cell in cells for event in cell_events(cell.name, 1.0, failure)]
    directory = write_sweep(tmp_path, cells, events)
    assert directory.events.stat().st_size > 6 * 2**20
    store = RunStore(StateHome(tmp_path))
    assert store.sweeps.observe(directory.sweep_id).count() == {"total": 400, "failed": 400}


def test_a_continuation_that_is_cut_off_leaves_a_sweep_that_has_ended(tmp_path: Path) -> None:
    directory = write_sweep(tmp_path, [Cell("a", "1"), Cell("b", "1")], [{"kind": "ended", "state": "killed"}])
    store = RunStore(StateHome(tmp_path))
    Conductor(directory, store, {}, EventLog(directory.events), "night")._begin()
    kinds = [event["kind"] for event in store.sweeps.observe(directory.sweep_id).events]
    assert kinds == ["conducting", "ended", "cell_resumed", "cell_resumed", "conducting"]
    assert store.sweeps.observe(directory.sweep_id).count() == {"total": 2, "queued": 2}
    whole = directory.events.read_text().splitlines(keepends=True)
    directory.events.write_text("".join(whole[:-2]))
    cut_off = RunStore(StateHome(tmp_path)).sweeps.observe(directory.sweep_id)
    assert (cut_off.state, cut_off.count()) == ("killed", {"total": 2, "queued": 1, "skipped": 1})


@pytest.mark.anyio
async def test_a_sweep_outlives_a_fault_of_its_display_and_tells_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def divide(*_: object) -> None:
        raise TypeError("must be real number")

    cells = [Cell("a", "1"), Cell("b", "1")]
    directory = write_sweep(
        tmp_path, cells, [{"kind": "cell_ended", "cell": c.name, "state": "finished"} for c in cells]
    )
    store = RunStore(StateHome(tmp_path))
    conductor = Conductor(directory, store, {}, EventLog(directory.events), "night")
    monkeypatch.setattr(conductor.log, "write", divide)
    with anyio.fail_after(20):
        await conductor.run()
    conductor.file_watch.close()
    conductor._show()
    sweep = store.sweeps.observe(directory.sweep_id)
    assert sweep.state == "finished"
    assert [e["text"] for e in sweep.events if e["kind"] == "observer_error"] == [
        "The sweep's log is not up to date: TypeError('must be real number'). The sweep goes on."
    ]


@pytest.mark.anyio
async def test_cells_added_as_a_stop_ends_a_sweep_are_left_to_the_next_conductor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_sweep(tmp_path, [Cell("a", "1")], [{"kind": "cell_ended", "cell": "a", "state": "killed"}])
    directory.requests.mkdir(exist_ok=True)
    write_json(directory.stop, {"by": "agent", "reason": "enough", "stopped_by": "agent"})
    store = RunStore(StateHome(tmp_path))
    conductor = Conductor(directory, store, {}, EventLog(directory.events), "night")
    end = conductor._end

    def end_and_add(sweep: Sweep, state: str, text: str) -> None:
        end(sweep, state, text)
        write_json(directory.spec, replace(sweep.spec, cells=(*sweep.spec.cells, Cell("b", "1"))).facts())

    monkeypatch.setattr(conductor, "_end", end_and_add)
    with anyio.fail_after(20):
        await conductor.run()
    conductor.file_watch.close()
    sweep = store.sweeps.observe(directory.sweep_id)
    assert [event["kind"] for event in sweep.events][-2:] == ["stopping", "ended"]
    assert sweep.is_paused
    assert sweep.count() == {"total": 2, "killed": 1, "queued": 1}


@pytest.mark.parametrize("word", ["burow-night", "burrow-nigth", "burrow_night"])
def test_a_sweep_that_a_wrong_name_may_mean_is_proposed_before_its_cells(tmp_path: Path, word: str) -> None:
    runs = Runs(tmp_path)
    for seed in range(4):
        runs.add(f"burrow-night-depth1-gain0-1-seed{seed}-ysx{seed}", sweep="burrow-night-f79f")
    write_sweep(runs.home.path, [Cell("a", "1")], [], sweep_id="burrow-night-f79f", name="burrow-night")
    with pytest.raises(RunNotFound) as refused:
        runs.store.find_any(word)
    assert refused.value.near[0] == "burrow-night-f79f"
