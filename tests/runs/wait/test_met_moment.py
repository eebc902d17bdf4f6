"""The row beside a met condition is of the moment that met it: step, metrics and time left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.runs.wait.metric_wait import MetPoint, MetricWait, show_moment
from mcp_server.scalars.condition import parse_condition
from mcp_server.scalars.from_log import LogMetrics
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.state_home import StateHome
from tests.support.scalar_runs import csv, live

pytestmark = pytest.mark.anyio
NOTED: dict[str, Any] = {"step": 62, "metrics": {"loss": 0.9}, "total_steps": 200, "step_s": 0.1, "eta_s": 13.8}


@pytest.mark.parametrize(
    ("step", "log", "expected"),
    [
        (89, LogMetrics({}, step=89, headlines={"loss": 0.5}), {"step": 89, "metrics": {"loss": 0.5}, "eta_s": 11.1}),
        (90, LogMetrics({}, step=88, headlines={"loss": 0.5}), {"step": 90, "metrics": {"reward": 3.0}, "eta_s": 11.0}),
        (70, LogMetrics({}), {"step": 70, "metrics": {"reward": 3.0}, "eta_s": 13.0}),
        (60, LogMetrics({}, step=89), {}),  # the row is past the point already
        (4096, LogMetrics({}, step=63, headlines={"loss": float("nan")}), {"step": 63, "metrics": {"loss": "nan"}}),
    ],
)
def test_the_row_has_the_newest_moment_that_is_known(
    tmp_path: Path, step: int, log: LogMetrics, expected: dict[str, Any]
) -> None:
    run = replace(live(tmp_path), progress=NOTED)
    shown = show_moment(run, MetPoint(run.run_id, "reward", 3.0, step, 3.0), log).progress
    expected = expected or NOTED
    assert shown["eta_s"] == pytest.approx(expected.get("eta_s", shown["eta_s"]))
    assert {name: shown[name] for name in expected if name != "eta_s"} == {
        name: value for name, value in expected.items() if name != "eta_s"
    }


def test_a_file_that_the_step_is_read_from_counts_as_the_run_does(tmp_path: Path) -> None:
    run = replace(live(tmp_path), progress={"step": 100, "metrics": {"wer": 30.11}, "read_from": "exp/history.json"})
    shown = show_moment(run, MetPoint(run.run_id, "wer", 22.82, 150, 22.82), LogMetrics({})).progress
    assert (shown["step"], shown["metrics"]) == (150, {"wer": 22.82})


def test_no_metric_beside_a_met_value_is_older_than_it(tmp_path: Path) -> None:
    noted = {"step": 160, "metrics": {"dev/wer": 30.11, "loss": 0.9}, "read_from": "exp/history.json"}
    run = replace(live(tmp_path), progress=noted)
    shown = show_moment(run, MetPoint(run.run_id, "dev/wer", 22.82, 150, 22.5), LogMetrics({})).progress
    assert (shown["step"], shown["metrics"]) == (160, {"dev/wer": 22.5, "loss": 0.9})
    shown = show_moment(run, MetPoint(run.run_id, "train/loss", 0.8, 150, 0.8), LogMetrics({})).progress
    assert shown["metrics"] == {"dev/wer": 30.11, "loss": 0.8}


def test_an_ended_run_and_one_of_several_trainings_stay_as_they_are(tmp_path: Path) -> None:
    log, point = LogMetrics({}, step=89), MetPoint("cfm-7kqz", "reward", 3.0, 89, 3.0)
    ended = replace(live(tmp_path), state="finished", progress=NOTED)
    second = replace(live(tmp_path), progress={**NOTED, "round": 2})
    assert [show_moment(run, point, log).progress["step"] for run in (ended, second)] == [62, 62]


async def test_a_wait_says_which_point_met_its_condition(tmp_path: Path) -> None:
    csv(tmp_path, "step,reward", "1,3", "4,50")
    wait = MetricWait(Scalars(StateHome(tmp_path / "state")), parse_condition("reward >= 20"), ["cfm-7kqz"], {})
    assert await wait.check([live(tmp_path)]) == "reward = 50 at step 4"
    assert wait.met == MetPoint("cfm-7kqz", "reward", 50.0, 4, 50.0)
