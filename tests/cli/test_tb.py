"""runward tb on terminals of all widths, with tags of any name."""

import argparse
import io
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mcp_server.cli import tb
from mcp_server.errors import RunwardError
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.views.scalar_report import ScalarQuery, build_report
from tests.support.scalar_files import csv_file


def printed(path: Path, width: int) -> list[str]:
    home = StateHome(path / "state")
    console = Console(width=width, file=io.StringIO(), highlight=False)
    tb._print(build_report(ScalarQuery(str(path / "metrics.csv")), Scalars(home), RunStore(home)), console)
    told: io.StringIO = console.file  # type: ignore[assignment]
    return told.getvalue().splitlines()


def test_a_narrow_terminal_has_fewer_figures_but_tag_and_last(tmp_path: Path) -> None:
    csv_file(tmp_path, "step,Train/mean_reward\n" + "".join(f"{step},{step / 4}\n" for step in range(100)))
    wide, middle, narrow = (" ".join(printed(tmp_path, width)[-1].split()) for width in (140, 80, 40))
    assert wide.startswith("Train/mean_reward ▁")
    assert wide.endswith("24.75 99 ↑ 250 0 24.75 12.38 100")
    assert middle.startswith("Train/mean_reward ▁")
    assert middle.endswith("█ 24.75 99 ↑")
    assert narrow == "Train/mean_reward 24.75 99 ↑"


def test_a_tag_cannot_act_on_the_terminal_or_fill_it(tmp_path: Path) -> None:
    csv_file(tmp_path, f'step,"red\x1b[31m","{"x" * 3000}"\n1,2,3\n')
    lines = printed(tmp_path, 140)
    assert "red·[31m" in lines[-2]
    assert f"{'x' * 40}…{'x' * 40}" in lines[-1]
    assert all(line.isprintable() for line in lines)


def test_the_command_writes_to_a_pipe_what_a_wide_terminal_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNWARD_HOME", str(tmp_path / "state"))
    file = csv_file(tmp_path, "step,loss\n1,2\n2,1\n")
    words = {"source": os.fspath(file), "tags": None, "points": None, "plot": None, "json": False, "serve": False}
    assert tb.run(argparse.Namespace(**words)) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["TAG", "SHAPE"]


def test_without_matplotlib_no_picture_is_written_and_the_install_line_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # an interpreter without site-packages
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("RUNWARD_HOME", str(tmp_path / "state"))
    file = csv_file(tmp_path, "step,loss\n1,2\n2,1\n")
    words = {"source": os.fspath(file), "tags": None, "points": None, "plot": str(tmp_path / "a.png")}
    with pytest.raises(RunwardError, match=r"matplotlib is not installed.*pip install 'matplotlib>=3.9'"):
        tb.run(argparse.Namespace(**words, json=False, serve=False))
    assert not (tmp_path / "a.png").exists()
