"""Supervisors on this host: found by number and start, alive by their lock."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.backends.local import supervisor_of, tmux_socket
from mcp_server.errors import BadArgument
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run

RUN = Run(RunSpec(run_id="cfm-7kqz"), "running")


def test_the_tmux_server_is_the_users_own_unless_another_is_named() -> None:
    assert tmux_socket({}) == tmux_socket({"RUNWARD_TMUX_SOCKET": ""}) == "default"
    assert tmux_socket({"RUNWARD_TMUX_SOCKET": "test"}) == "test"


def test_a_path_does_not_name_a_tmux_server() -> None:
    with pytest.raises(BadArgument, match="RUNWARD_TMUX_SOCKET"):
        tmux_socket({"RUNWARD_TMUX_SOCKET": "/tmp/socket"})


@pytest.mark.parametrize("at_start", [{}, {"supervisor_pid": None}, {"supervisor_pid": "1"}, {"supervisor_pid": 2**22}])
def test_without_a_living_number_there_is_no_supervisor(at_start: dict[str, Any]) -> None:
    assert supervisor_of(Path("/state/runs/cfm-7kqz"), replace(RUN, at_start=at_start)) is None


def test_a_process_that_reused_the_number_is_no_supervisor() -> None:
    run = replace(RUN, at_start={"supervisor_pid": os.getpid()})
    assert supervisor_of(Path("/state/runs/cfm-7kqz"), run) is None
