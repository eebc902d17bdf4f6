"""What a sweep refuses before it is written, by value."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.sweeps.sweep_spec import Cell, SweepDir, SweepSpec
from mcp_server.record.sweeps.sweep_state import fold_sweep
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.plan.plan import expand, parse_phases
from mcp_server.sweeps.plan.values import check_values
from mcp_server.sweeps.tables.log import SweepLog

COMMON = {"command": "python train.py --opt {opt}", "cwd": "/w"}
KEY = "sk-ant-api03-" + "A1b2C3d4" * 11 + "-AA"


def refuse(home: Path, environ: dict[str, str] | None = None, searches: Any = None, **only: Any) -> str:
    cells = expand(parse_phases(None, only, COMMON), "night-abcd")
    spec = SweepSpec("night-abcd", "night", "me", "", cells, searches=searches or {})
    with pytest.raises(RunwardError) as refused:
        check_values(spec, StateHome(home), environ or {})
    return str(refused.value)


def test_a_key_in_any_cell_is_refused_without_a_word_of_it(tmp_path: Path) -> None:
    cells: list[list[dict[str, Any]]] = [
        [{"opt": "a"}, {"opt": KEY}],
        [{"opt": "a"}, {"opt": "b", "token": KEY}],
        [{"opt": "a"}, {"opt": "b", "launch": {"env": {"HF_TOKEN": KEY}}}],
    ]
    for each in cells:
        text = refuse(tmp_path, cells=each)
        assert "Cell 2 of 2: " in text
        assert "holds what looks like a key" in text
        assert KEY[:20] not in text
    space = {"1": {"space": {"token": [KEY, "x"]}}}
    assert KEY[:20] not in refuse(tmp_path, searches=space, grid={"opt": ["a"]})
    mine = {"MY_TOKEN": "correct-horse-battery"}
    assert "holds the value of a secret, MY_TOKEN" in refuse(tmp_path, mine, grid={"opt": list(mine.values())})


def test_a_value_that_no_launch_takes_is_refused_with_its_cell(tmp_path: Path) -> None:
    text = refuse(tmp_path, cells=[{"opt": "a"}, {"opt": "b", "launch": {"command": "a; b"}, "n": 1}])
    assert text.startswith("Cell opt-b-n1: params: has no position in this command")


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([{"grid": {"n": [1]}, "common": {"command": 5}}], "phases[0].common: command: "),
        ([{"grid": {"n": [1]}, "common": {"env": [1]}}], "phases[0].common: env: "),
        ([{"blueprints": 3}], "phases[0]: blueprints: "),
        ([{"promote": 3}], "phases[0]: promote: "),
        ([{"cells": [{"launch": "x"}]}], "cells[].launch: must be an object"),
        ([{"name": "a\n# b", "grid": {"n": [1]}}], "phases[0].name must have 1 to 40 printable characters"),
    ],
)
def test_an_argument_of_another_type_is_refused_by_its_name(phases: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(BadArgument) as refused:
        expand(parse_phases(phases, {}, COMMON), "night-abcd")
    assert words in str(refused.value)


def test_control_characters_and_tabs_reach_no_row_of_the_results() -> None:
    cells = [Cell(f"n{n}", "1", {"opt": value}) for n, value in enumerate(["a\tb\nc", "\x1b[2Jd"])]
    sweep = fold_sweep(SweepSpec(cells=tuple(cells)), [])
    rows = SweepLog(SweepDir(Path("home/sweeps/s"))).render_results(sweep, {"n0": "keep\x1b[31m\tthis"}).splitlines()
    assert len(rows) == 3
    assert [row.split("\t")[4] for row in rows] == ["opt", "a b c", "·[2Jd"]
    assert rows[1].endswith("\tkeep·[31m this")


def test_what_a_later_phase_reads_may_be_made_by_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "eval.py").touch()
    common = {"cwd": str(tmp_path), "command": f"{sys.executable} eval.py --ckpt_dir /none/outputs/run"}
    phases = [
        {"name": "train", "common": {"command": "python3 -c 1 {params}"}, "grid": {"n": [1]}},
        {"name": "eval", "grid": {"n": [1]}},
    ]
    for given, is_refused in ((phases, False), (phases[1:], True)):
        spec = SweepSpec("a-abcd", "a", "me", "", expand(parse_phases(given, {}, common), "a-abcd"))
        refusal = pytest.raises(RunwardError, match="no checkpoint") if is_refused else contextlib.nullcontext()
        with refusal:
            check_values(spec, StateHome(tmp_path), {})
