"""A wait as a value: it survives a file unchanged, and one look at the runs says whether it goes on."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.events import RecordEvent
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run, RunState
from mcp_server.runs.wait.cursors import Cursor, MetricPosition
from mcp_server.runs.wait.metric_wait import name_source
from mcp_server.runs.wait.selection import Selection, WaitSpec, look_once
from mcp_server.scalars.formats.detect import ScalarSource
from mcp_server.scalars.locate import EventFiles

A, B = "cfm-7kqz", "gen-2mxw"


def run(state: RunState, seq: int = 1, run_id: str = A) -> Run:
    return Run(
        RunSpec(run_id=run_id), state, tuple(RecordEvent(seq=n, at="", kind="started") for n in range(1, seq + 1))
    )


def through_a_file(spec: WaitSpec) -> WaitSpec:
    return WaitSpec.from_facts(json.loads(json.dumps(spec.to_facts())))


def test_a_wait_survives_a_file() -> None:
    cursors = {A: Cursor(4, "running", 2, 1), B: Cursor()}
    spec = WaitSpec((A, B), cursors, "loss < 0.5", 3600, {A: MetricPosition("loss", None, 12, (3, 4), 1, 17.5)})
    assert through_a_file(spec) == spec
    assert through_a_file(WaitSpec((A,), {A: Cursor()})) == WaitSpec((A,), {A: Cursor()})
    selection = Selection((A,), ("sweep-a",), live=True, left_out=frozenset({B}))
    joined = WaitSpec((A,), {A: Cursor()}, "decision", selection=selection, since="cabcdefghjk")
    assert through_a_file(joined) == joined


@pytest.mark.parametrize(
    "location",
    [Path("/logs"), EventFiles(Path("/logs"), {"a": 1}, "one"), ScalarSource("mlflow", Path("/db"), "p/r")],
    ids=["directory", "files of a run", "database"],
)
def test_where_a_condition_was_checked_survives_a_file(location: Any) -> None:
    source = name_source(location, "train/loss")
    spec = WaitSpec((A,), {A: Cursor()}, positions={A: MetricPosition("loss", source, 3)})
    assert through_a_file(spec) == spec


def test_a_position_that_a_former_version_kept_is_read() -> None:
    kept = {"tag": "loss", "checked": 3, "restarts": [2], "late": 0, "wall": None}
    kept["source"] = {"tag": "train/loss", "path": "/db", "name": "p/r", "kind": "mlflow"}
    facts = WaitSpec((A,), {A: Cursor()}).to_facts() | {"positions": {A: kept}, "layout": 1, "owner": None}
    source = name_source(ScalarSource("mlflow", Path("/db"), "p/r"), "train/loss")
    assert WaitSpec.from_facts(facts).positions == {A: MetricPosition("loss", source, 3, (2,))}


@pytest.mark.parametrize(
    "damage",
    [
        {"run_ids": []},
        {"run_ids": 3},
        {"cursors": {}},
        {"cursors": None},
        {"cursors": {A: {"seq": "x", "state": "", "heartbeats": 0, "repeated": 0}}},
        {"cursors": {A: {"seq": math.inf, "state": "", "heartbeats": 0, "repeated": 0}}},
        {"positions": 3},
        {"timeout_s": "soon"},
    ],
)
def test_damaged_facts_are_not_a_wait(damage: dict[str, Any]) -> None:
    facts = WaitSpec((A,), {A: Cursor()}).to_facts() | damage
    with pytest.raises(ValueError):  # noqa: PT011 - whatever its words
        WaitSpec.from_facts(facts)


@pytest.mark.anyio
async def test_a_wait_without_a_timeout_goes_on_until_there_is_news() -> None:
    spec = WaitSpec((A,), {A: Cursor(1, "running")})
    assert await look_once([run("running")], spec, waited_s=10**6) is None
    ended = await look_once([run("finished", 2)], spec, waited_s=3)
    assert ended is not None
    assert (ended.reason, ended.cursors[A], ended.waited_s) == ("ended", Cursor(2, "finished"), 3)


@pytest.mark.anyio
async def test_a_timeout_ends_a_wait_with_a_heartbeat() -> None:
    spec = WaitSpec((A,), {A: Cursor(1, "running")}, timeout_s=60)
    assert await look_once([run("running")], spec, waited_s=59) is None
    outcome = await look_once([run("running")], spec, waited_s=60)
    assert outcome is not None
    assert outcome.reason == "heartbeat"


@pytest.mark.anyio
async def test_a_condition_ends_a_wait_with_the_value_that_met_it() -> None:
    async def met(_: Any) -> str:
        return "loss = 0.4 at step 9"

    spec = WaitSpec((A,), {A: Cursor(1, "running")}, "loss < 0.5")
    outcome = await look_once([run("running")], spec, waited_s=1, check_condition=met)
    assert outcome is not None
    assert (outcome.reason, outcome.met) == ("condition_met", "loss = 0.4 at step 9")
