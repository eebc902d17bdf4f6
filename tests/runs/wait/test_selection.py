"""Which runs a call is about: names, tags, what lives, and what a caller saw alive."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from mcp_server.errors import BadArgument, RunNameAmbiguous, RunNotFound
from mcp_server.record.sweeps.sweep_state import Watched
from mcp_server.runs.wait.selection import Selection, select
from mcp_server.store.run_store import RunStore
from tests.support.ended_runs import Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    runs = Runs(tmp_path)
    runs.add("cfm-7kqz", name="cfm", tags=["sweep-a", "lr"], created_at="2026-11-21T15:30:01.000Z")
    runs.add("dp3-b3xq", name="dp3", tags=["sweep-a"], created_at="2026-11-21T15:30:02.000Z")
    runs.add("old-mm2k", name="old", created_at="2026-11-21T15:30:00.000Z")
    return runs


def ids(runs: Sequence[Watched]) -> list[str]:
    return [run.run_id for run in runs]


def test_names_ids_and_tags_mean_each_run_once(runs: Runs) -> None:
    selection, chosen = select(runs.store, ["old", "tag:sweep-a", "cfm-7kqz", "old-mm2k"])
    assert ids(chosen) == ["old-mm2k", "cfm-7kqz", "dp3-b3xq"]
    assert selection == Selection(("old-mm2k", "cfm-7kqz"), ("sweep-a",))
    assert selection.is_open
    assert not select(runs.store, ["old"])[0].is_open


def test_a_run_that_gets_the_tag_later_joins_and_one_that_is_removed_leaves(runs: Runs) -> None:
    store = runs.store
    selection, chosen = select(store, ["tag:sweep-a"])
    runs.add("gen-x2mw", tags=["sweep-a"])
    assert set(ids(selection.observe(store, ids(chosen)))) == {"cfm-7kqz", "dp3-b3xq", "gen-x2mw"}
    shutil.rmtree(runs.home.runs / "dp3-b3xq")
    assert "dp3-b3xq" not in ids(selection.observe(store, ids(chosen)))


@pytest.mark.parametrize(
    ("name", "near"),
    [("cfm-7kq", "cfm-7kqz"), ("lives", "live"), ("tags:lr", "tag:lr"), ("ol", "old"), ("tag:sweepa", "tag:sweep-a")],
)
def test_an_unknown_selector_names_near_ones(runs: Runs, name: str, near: str) -> None:
    with pytest.raises((RunNotFound, BadArgument), match=rf"Did you mean {near}\b"):
        select(runs.store, [name])


def test_an_unknown_tag_or_name_is_an_error_and_an_ambiguous_name_names_its_runs(runs: Runs) -> None:
    with pytest.raises(BadArgument, match=r"no run has the tag 'zzz'. Nothing was done. Call list_runs."):
        select(runs.store, ["tag:zzz"])
    with pytest.raises(RunNotFound, match="Call list_runs"):
        select(runs.store, ["zzzzzzzz"])
    runs.add("cfm-222z", name="cfm")
    with pytest.raises(RunNameAmbiguous, match="2 runs are named 'cfm'"):
        select(runs.store, ["cfm"])


def test_live_is_what_lives_and_what_the_caller_saw_alive(runs: Runs) -> None:
    store = runs.store
    with_memory = select(store, ["live"], was_alive=lambda run_id: run_id == "dp3-b3xq")
    assert ids(with_memory[1]) == ["dp3-b3xq"]
    assert with_memory[0].left_out == {"cfm-7kqz", "old-mm2k"}
    assert ids(select(store, ["live"])[1]) == []


def test_with_a_cursor_live_is_also_what_began_and_ended_since(runs: Runs) -> None:
    left_out = frozenset({"cfm-7kqz", "old-mm2k"})
    assert ids(select(RunStore(runs.home), ["live"], left_out=left_out)[1]) == ["dp3-b3xq"]
