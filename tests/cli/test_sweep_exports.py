"""`runward sweep NAME --csv`, `--latex` and `--plot`."""

from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path

import pytest

from mcp_server.cli import sweep as command
from mcp_server.cli.parser import make_parser
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.sweeps.sweep_spec import Cell
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
    shown = f"b & $\\mathbf{{{statistics.fmean(best):.1f} \\pm {statistics.stdev(best):.1f}}}$ & 2 \\\\"
    assert shown in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("option", ["--csv", "--latex", "--plot", "--output=x"])
def test_an_export_without_a_sweep_says_how_it_is_called(option: str) -> None:
    with pytest.raises(BadArgument, match="runward sweep SWEEP " + option.partition("=")[0]):
        run(option)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "begin"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml"), ("p.pdf", b"%PDF")])
def test_plot_writes_a_picture_of_the_form_that_the_file_names(name: str, begin: bytes, tmp_path: Path) -> None:
    assert run("night", "--plot", "-o", str(tmp_path / name)) == 0
    data = (tmp_path / name).read_bytes()
    assert data.startswith(begin)
    assert b"SVG" not in data or b"score (last): mean" in data


def test_an_export_goes_to_the_file_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("night", "--csv", "-o", str(tmp_path / "t.csv")) == 0
    assert capsys.readouterr().out == ""
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 1 + len(VALUES)


@pytest.mark.parametrize("words", [("--plot", "-o", "p.jpg"), ("-o", "p.png"), ("--plot", "-o", "no/such/p.png")])
def test_a_refused_export_writes_nothing(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(RunwardError):
        run("night", *words)
    assert sorted(tmp_path.iterdir()) == before
