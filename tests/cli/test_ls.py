"""Rows of runs on a terminal: which columns fit, and how ids and figures are shortened."""

import itertools
from typing import Any

import pytest
from rich.cells import cell_len

from mcp_server.cli.ls import COLUMNS, draw_cells, lay_out, shorten_ids
from mcp_server.views.people_rows import ListedRun

NOW_S = 1_795_000_000.0
LONG = "b200-cfm-humanoid-walk-very-long-name-lr3e-4-seed1-zx45"


def row(run_id: str, state: str = "running", **cells: str) -> dict[str, str]:
    return {"RUN": run_id, "STATE": state, "WHEN": "for 12 min" if state == "running" else "12 min ago", **cells}


FULL = {"STEP": "98304/1000000", "LEFT": "2.4 h", "METRIC": "val_loss 0.01234", "GPUS": "0-3", "OWNER": "maria"}


def test_all_columns_stand_in_80_cells_whatever_the_ids_and_figures_are() -> None:
    worst = {"STEP": "123456789/9876543210 (round 12)", "METRIC": f"{'x' * 300} -1.235e+300", "GPUS": "GPU-5d1" * 40}
    rows = [
        row(LONG, **FULL),
        row("a" * 120, "timed_out", **worst),
        row("wide", **{**FULL, "METRIC": f"{'漢字' * 30} 1.5"}),
    ]
    lines = [line.plain for line in lay_out(rows, 80)]
    assert lines[0].split() == list(COLUMNS)
    assert max(map(cell_len, lines)) <= 80
    assert lines[1:] == [
        "b200-cfm…-zx45 running   98304/1000000 2.4 h val_loss 0.01234 0-3     for 12 min",
        "aaaaaaaa…aaaaa timed_out 123M/9.88G          xx…x -1.235e+300 GPU-…d1 12 min ago",
        "wide           running   98304/1000000 2.4 h 漢字漢字…字 1.5  0-3     for 12 min",
    ]


def test_a_wide_terminal_shows_more_and_a_pipe_all_of_it_whole() -> None:
    rows = [row(LONG, **FULL), row("cfm-7kqz", "failed", METRIC="oom_gpu", EXIT="oom_gpu", HOST="node7")]
    piped = [line.plain for line in lay_out(rows, None)]
    assert piped[0].split() == [*COLUMNS, "EXIT", "HOST", "OWNER", "ELAPSED", "LAST", "OUTPUT", "STARTED"]
    assert piped[1].startswith(f"{LONG}  running  98304/1000000  2.4 h  val_loss 0.01234")
    assert "OWNER" in lay_out(rows, 150)[0].plain
    assert "HOST" not in lay_out([rows[0]], None)[0].plain, "only where a run has one"


@pytest.mark.parametrize("width", [1, 8, 20, 39, 40, 60, 79])
def test_a_narrow_terminal_keeps_the_id_and_the_state_longest(width: int) -> None:
    header, line = (text.plain for text in lay_out([row("cfm-7kqz", **FULL)], width))
    assert header.split()[:2] == ["RUN", "STATE"]
    assert line.startswith("cfm-7kqz") or width < 20
    assert cell_len(line) <= max(width, 18)


@pytest.mark.parametrize(
    "ids",
    [
        [f"night-lr0.3-seed{n}-batch64-humanoid-walk-run" for n in range(40)],  # they differ in the middle
        [f"{n}-night-humanoid-walk-batch64-7kqz" for n in range(40)],
        [f"night-humanoid-walk-batch64-{n}" for n in range(40)],
        [f"{a}-x{'y' * 60}-{b}" for a, b in itertools.product("abc", "def")],
        ["x" * 30, "x" * 31, "x" * 32],
        ["same", "same", "other-that-is-longer-than-that"],
    ],
)
def test_no_two_ids_are_shortened_to_one_text(ids: list[str]) -> None:
    for chars in range(1, 60):
        short = shorten_ids(ids, chars)
        assert len(set(short)) == len(set(ids))
        assert all(len(one) <= max(len(other) for other in ids) for one in short)
    assert shorten_ids([LONG], 16) == ["b200-cfm-h…-zx45"]


def test_a_row_says_how_a_run_goes_and_of_a_failed_one_why() -> None:
    where: dict[str, Any] = {"created_at": "2026-11-21T15:30:45.123Z", "owner": "a\x1b[31m\u202eb", "gpus": [0, 1]}
    how: dict[str, Any] = {"step": 812, "total": 5000, "eta_s": 8640.0, "metric": {"tag": "loss", "value": 1.93456}}
    shown = draw_cells(ListedRun(id="cfm-7kqz", name="cfm", state="running", live=True, **where, **how), NOW_S)
    assert shown["OWNER"] == "a·[31m·b"
    assert [shown[name] for name in ("STEP", "LEFT", "METRIC", "GPUS")] == ["812/5000", "2.4 h", "loss 1.935", "0-1"]
    failed = ListedRun(id="gen-2mxw", name="gen", state="failed", live=False, kind="oom_gpu", **where)
    shown = draw_cells(failed, NOW_S)
    assert (shown["METRIC"], shown["GPUS"]) == ("oom_gpu", "")
    away = {"host": "node7", "since": "2026-11-21T15:30:45Z", "why": "no route"}
    shown = draw_cells(
        ListedRun(id="a", name="a", state="running", live=True, host="node7", unreachable=away, **where), NOW_S
    )
    assert (shown["STATE"], shown["LAST OUTPUT"]) == ("running?", "node7 is away")
