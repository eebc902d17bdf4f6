"""`runward token`."""

import argparse
from pathlib import Path

import pytest

from mcp_server.cli.setup.token import run
from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens


def test_the_command_prints_a_token_once_and_then_names_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNWARD_HOME", str(tmp_path))
    tokens = Tokens(StateHome(tmp_path))
    assert run(argparse.Namespace(action="add", name="alice")) == 0
    told = capsys.readouterr()
    assert tokens.holder(told.out.strip()) == "alice"
    assert run(argparse.Namespace(action="ls", json=True)) == 0
    assert capsys.readouterr().out == '{"tokens": ["alice"]}\n'
    assert run(argparse.Namespace(action="ls", json=False)) == 0
    assert capsys.readouterr().out == "alice\n"
    assert run(argparse.Namespace(action="rm", name="alice")) == 0
    assert tokens.names == []
