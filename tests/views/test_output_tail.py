"""Several tails share the room that an answer has, newest lines first, and a sweep's answer keeps its 600 tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.text.formatting import estimate_tokens
from mcp_server.views.log_excerpt import share_lines
from mcp_server.views.sweep_status import describe_sweep
from tests.support.ended_runs import Runs
from tests.support.sweeps import cell_events, write_sweep

COST = estimate_tokens("aaaa") + 1


@pytest.mark.parametrize(
    ("lines", "shared"),
    [
        (0, [[], []]),
        (1, [["a2"], []]),
        (2, [["a2"], ["b3"]]),
        (3, [["a1", "a2"], ["b3"]]),
        (5, [["a1", "a2"], ["b1", "b2", "b3"]]),
        (99, [["a1", "a2"], ["b1", "b2", "b3"]]),
    ],
)
def test_each_tail_gets_its_newest_line_before_any_gets_a_second(lines: int, shared: list[list[str]]) -> None:
    tails = [["a1", "a2"], ["b1", "b2", "b3"]]
    cost = estimate_tokens("a1") + 1
    assert share_lines(tails, lines * cost) == shared


def test_a_line_that_does_not_fit_ends_its_tail_and_no_other() -> None:
    assert share_lines([["old", "x " * 500], ["b1", "b2"]], 5 * COST) == [[], ["b1", "b2"]]


def test_there_is_no_tail_where_nothing_is_left_of_the_answer() -> None:
    assert share_lines([["a"]], -20) == [[]]
    assert share_lines([], 100) == []


@pytest.mark.parametrize("line", ["step {n} reward {n}.5 loss 0.25", "日志行 {n} " * 60, "x" * 3000])
def test_the_end_of_a_sweep_of_200_cells_tells_last_lines_and_has_600_tokens(tmp_path: Path, line: str) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    runs = Runs(tmp_path)
    home = runs.home.path
    names = [f"lr{number}-seed{number % 7}" for number in range(200)]
    failure = {"kind": "python_error", "line": "ValueError: " + "bad " * 20, "advice": "The error at train.py:8. " * 3}
    events = [
        event
        for number, name in enumerate(names)
        for event in cell_events(name, None if number % 2 else number / 7, failure if number % 2 else None)
    ]
    for name in names[-8:]:
        runs.add(f"night-{name}-k7qz", "failed", failure=failure)
        log = runs.store.run_directory(f"night-{name}-k7qz").log(1)
        log.write_text("".join(line.format(n=n) + "\n" for n in range(30)))
    events.append({"kind": "ended", "state": "finished", "text": "200 of 200 cells are done, 100 failed."})
    write_sweep(home, [Cell(name, "main", {"lr": 0.1}) for name in names], events, metric="reward")
    store = runs.store
    status = describe_sweep(store.sweeps.observe("night-ab3d"), store).model_dump()
    answer = {"reason": "ended", "runs": [], "sweep": status, "waited_s": 1234.5, "next_timeout_s": 960}
    count = openai.o200k_base().count(json.dumps(answer, ensure_ascii=False, separators=(",", ":")))
    assert count <= 600, (count, answer)
    assert len(status["failed"]) == 3
    if line.startswith("step"):
        assert all(cell["tail"][-1] == "step 29 reward 29.5 loss 0.25" for cell in status["failed"])
