"""`runward sweep NAME --csv` and `--latex`."""

from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path

import pytest

from mcp_server.cli import sweep as command
from mcp_server.cli.parser import make_parser
from mcp_server.errors import BadArgument
from mcp_server.record.sweep_spec import Cell
from tests.support.sweeps import cell_events, write_sweep

VALUES = {"a1": 1.25, "a2": 2.5, "b1": 7.0, "b2": 9.5}


def run(*words: str) -> int:
    return command.run(make_parser().parse_args(["sweep", *words]))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNWARD_HOME", str(tmp_path))
    cells = [Cell(name, "1", {"act": name[0], "seed": int(name[1])}) for name in VALUES]
    events = [event for name, value in VALUES.items() for event in cell_events(name, value)]
    write_sweep(tmp_path, cells, events, metric="score", ranking="last")


def test_csv_has_a_row_a_cell_with_the_numbers_of_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("night", "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["cell"]: float(row["value"]) for row in rows} == VALUES
    assert [row["seed"] for row in rows] == ["1", "2", "1", "2"]


def test_latex_has_the_means_of_the_cells(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("night", "--latex") == 0
    best = [VALUES["b1"], VALUES["b2"]]
    shown = f"b & $\\mathbf{{{statistics.fmean(best):.4g} \\pm {statistics.stdev(best):.2g}}}$ & 2 \\\\"
    assert shown in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("option", ["--csv", "--latex"])
def test_an_export_without_a_sweep_says_how_it_is_called(option: str) -> None:
    with pytest.raises(BadArgument, match=f"runward sweep SWEEP {option}"):
        run(option)
