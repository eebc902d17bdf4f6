"""The views that people watch on a terminal: the table of runs, and the progress of a wait."""

import json

import pytest

from tests.support.sandbox import Sandbox
from tests.support.screen import person_types

pytestmark = pytest.mark.anyio

STEPS = "for i in 1 2 3; do echo step $i/9 loss 0.5; done; touch ready; until test -e go; do sleep 0.05; done; exit 3"


async def test_a_watched_list_is_drawn_again_at_each_change_until_ctrl_c(sandbox: Sandbox) -> None:
    with person_types(sandbox, "ls", "--watch") as terminal:
        terminal.until("No runs yet.")
        async with sandbox.agent_in_process() as agent:
            run_id = await agent.launch(STEPS, cwd=str(sandbox.path), name="cfm")
            terminal.until(run_id)
            terminal.until("3/9")
            (sandbox.path / "go").touch()
            terminal.until("failed")
        terminal.type("\x03")
        assert terminal.end() == 0
        assert terminal.settings == terminal.mode
        assert "Traceback" not in terminal.drawn


async def test_a_wait_shows_progress_on_a_terminal_and_none_to_a_script(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(STEPS, cwd=str(sandbox.path), name="cfm")
    with person_types(sandbox, "wait", run_id, columns=40) as terminal:
        terminal.until(f"{run_id}: step 3/9, loss 0.5")
        assert "\n" not in terminal.drawn, "one line, drawn again"
        silent = sandbox.runward("wait", run_id, "--timeout", "0.1")
        assert (silent.stdout, silent.stderr) == ("", f"{run_id} is still running after 0.1 s\n")
        (sandbox.path / "go").touch()
        assert terminal.end() == 3
        told = terminal.until("failed").rstrip().rpartition("\r\x1b[K")[2]
        assert told.startswith(f"{run_id} failed")
    assert json.loads(sandbox.runward("ls", "--json").stdout)["total"] == 1
