"""Healthy output of many frameworks: the right first step, place and metrics, and no alarm, live and at the end.

The samples are short and written for these tests, in the words of each framework. `labels.json` has what is right:
`points` of a name, each with its step, and names that are `never` those of a metric; a `command` with a total.
"""

import json
import re
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.live.output_monitor import OutputEvent, OutputMonitor
from mcp_server.diagnosis.log_file import examine_log
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.scalars.from_log import read_log_metrics
from mcp_server.text.lines import split_lines
from tests.support.logs import DATA
from tests.support.rows import for_each

LOGS = DATA / "framework_logs"
LABELS: dict[str, dict[str, Any]] = json.loads((LOGS / "labels.json").read_text())
LINE = re.compile(rb"[^\n\r]*[\n\r]|[^\n\r]+$")
EVERY_S = 3.0


def monitor_log(name: str, times: int = 1) -> tuple[OutputMonitor, list[OutputEvent]]:
    """Return the monitor after a log that is printed ``times`` times, and all events."""
    monitor, events, at_s = OutputMonitor({"command": LABELS[name].get("command")}, 0.0), [], 0.0
    for line in LINE.findall((LOGS / f"{name}.log").read_bytes() * times):
        at_s += EVERY_S
        events += monitor.read_output(line, at_s)
    return monitor, events + monitor.read_end(at_s)


@for_each(LABELS)
def test_the_place_and_the_metrics_are_right_and_nothing_is_an_alarm(name: str) -> None:
    label, (monitor, events) = LABELS[name], monitor_log(name)
    progress = monitor.progress
    (first,) = split_lines(progress.first_step_line)
    assert label["first"] in first
    expected = label["round"], label["step"], label["total"]
    assert (progress.round, progress.step, progress.total_steps) == expected
    assert {m: progress.metrics.get(m) for m in label["metrics"]} == pytest.approx(label["metrics"])
    assert [event.kind for event in events] == ["first_step"]


@for_each(LABELS)
def test_each_printed_number_is_at_its_step_and_nothing_else_is_a_metric(name: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        rundir, label = RunDir(Path(directory)), LABELS[name]
        rundir.log(1).parent.mkdir(parents=True)
        rundir.log(1).write_bytes((LOGS / f"{name}.log").read_bytes())
        run = Run(RunSpec(label.get("command", "train")), "finished", attempt=1)
        metrics = read_log_metrics(run, rundir)
    names = {*metrics.points, *metrics.printed}
    assert not {found for found in names if found.lower() in {one.lower() for one in label.get("never", ())}}
    for metric, points in label.get("points", {}).items():
        found = metrics.points.get(metric) or metrics.printed[metric]
        if len(points) < len(found):  # some of them
            found = [point for point in found if point[0] in dict(points)]
        assert [step for step, _ in found] == [step for step, _ in points], metric
        assert [value for _, value in found] == pytest.approx([value for _, value in points]), metric


@pytest.mark.slow
@for_each(product(LABELS, [None, 0]))
def test_nothing_failed(name: str, exit_code: int | None) -> None:
    assert examine_log(LOGS / f"{name}.log", exit_code).failure is None


@pytest.mark.parametrize(
    "name", ["keras_2", "keras_verbose_2", "lightning", "hf_trainer", "timm", "ultralytics", "seeds"]
)
def test_a_log_that_is_printed_again_is_as_many_rounds_more(name: str) -> None:
    monitor, events = monitor_log(name, times=3)
    label = LABELS[name]
    assert monitor.progress.round == 3 * label["round"]
    assert (monitor.progress.step, monitor.progress.total_steps) == (label["step"], label["total"])
    assert [event.kind for event in events] == ["first_step"]
