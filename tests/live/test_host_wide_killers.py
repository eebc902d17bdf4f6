"""Programs that kill by pattern find no word of theirs in the processes that runward itself starts."""

from __future__ import annotations

import re
import secrets
import subprocess
from pathlib import Path

import pytest

from mcp_server.gpus.nvml.device import find_owner
from mcp_server.system import processes
from tests.support.sandbox import Sandbox, until

pytestmark = pytest.mark.anyio


def pgrep(pattern: str) -> set[int]:
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=False).stdout
    return {int(pid) for pid in found.split()}


async def test_no_process_of_runward_shows_a_word_that_killers_look_for(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        run_id = await agent.launch("exec sleep 60", name="ray-train-python")
        run = sandbox.run(run_id)
        supervisor, guard = sandbox.supervisor(run_id), run.at_start["guard_pid"]
        server = next(p.pid for p in processes.list_processes() if p.pid in processes.ancestors(supervisor)[1:2])
        for pid in (supervisor, guard, server):
            line = Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/comm").read_text()
            assert not re.search(r"(?i)python|train|ray|sleep|mcp_server", line), line
        assert not {supervisor, guard, server} & pgrep("python|train|ray|sleep")
        assert Path(f"/proc/{supervisor}/comm").read_text().strip() == "runward"
        assert (await agent.kill(run_id))["status"] == "killed"


async def test_a_command_that_kills_by_the_name_of_its_run_leaves_a_recorded_end(sandbox: Sandbox) -> None:
    token = f"tok{secrets.token_hex(6)}"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(f"pkill -9 -f {token}; sleep 60", name=token)
        ended = await agent.end(run_id)
    assert (ended["state"], ended["signal"]) == ("failed", "SIGKILL")


async def test_a_supervisor_is_found_by_its_record_and_its_title(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("env -i sleep 60 & wait", name="train")
        supervisor = sandbox.supervisor(run_id)
        pid = until(lambda: next((p.pid for p in processes.descendants(supervisor) if p.name == "sleep"), 0))
        assert b"RUNWARD" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert find_owner(pid).run_id == run_id
        await agent.kill(run_id)
