"""The views that people watch on a terminal: the table of runs, and the progress of a wait."""

import json
import os
import shutil
import signal

import pytest

from tests.support.sandbox import Sandbox, until_async
from tests.support.screen import person_types

pytestmark = pytest.mark.anyio

STEPS = "for i in 1 2 3; do echo step $i/9 loss 0.5; done; touch ready; until test -e go; do sleep 0.05; done; exit 3"


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_person_finds_opens_and_stops_a_run_by_keys(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(STEPS, cwd=str(sandbox.path), name="cfm")
        other = await agent.launch("sleep 300", name="other")
    with person_types(sandbox, "top") as terminal:
        terminal.until("3/9")
        terminal.type("/cfm\r")
        terminal.until("   /cfm")
        terminal.type("\r")
        terminal.until("step 3/9 loss 0.5")  # the run's screen
        terminal.until("first_step")
        terminal.type("k")
        terminal.until(f"Type {run_id} to stop it")
        terminal.type("yes\r")
        terminal.until("Left alone")
        assert sandbox.run(run_id).state == "running"
        terminal.type(f"k{run_id}\r")
        terminal.until(f"{run_id} was stopped.")
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.settings == terminal.mode
        assert terminal.drawn.endswith("\x1b[?1049l")
        assert "Traceback" not in terminal.drawn
    end = sandbox.run(run_id)
    assert (end.state, end.stopped_by, sandbox.run(other).state) == ("killed", "person", "running")
    assert "on a terminal" in end.events[-1]["text"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_the_terminal_as_it_was(sandbox: Sandbox, number: signal.Signals, status: int) -> None:
    with person_types(sandbox, "top") as terminal:
        terminal.until("No runs yet.")
        os.kill(terminal.process.pid, number)
        assert terminal.end() == status
        assert terminal.settings == terminal.mode
        assert terminal.drawn.endswith("\x1b[?1049l")


def test_a_stopped_table_gives_the_terminal_back_and_goes_on_in_its_new_size(sandbox: Sandbox) -> None:
    with person_types(sandbox, "top", columns=120, lines=30) as terminal:
        terminal.until("No runs yet.")
        own = terminal.settings
        terminal.type("\x1a")
        _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert terminal.settings == terminal.mode
        terminal.resize(40, 10)
        terminal.forget()
        os.kill(terminal.process.pid, signal.SIGCONT)
        drawn = terminal.until("k stop   / fil")
        assert "\x1b[?1049h" in drawn
        assert "\x1b[10;1H" in drawn
        assert "\x1b[11;1H" not in drawn
        assert terminal.settings == own
        terminal.resize(60, 12)
        terminal.until("\x1b[12;1H")
        terminal.type("q")
        assert terminal.end() == 0


@pytest.mark.slow
async def test_the_table_outlives_its_state_directory_and_shows_the_next(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("exit 3", name="before")
        await agent.end(run_id)
    with person_types(sandbox, "top") as terminal:
        terminal.until(run_id)
        shutil.rmtree(sandbox.path / "state")
        terminal.until("No runs yet.")
        async with sandbox.agent_in_process() as agent:
            terminal.until(await agent.launch("sleep 300", name="after"))
        terminal.type("q")
        assert terminal.end() == 0


@pytest.mark.slow
async def test_no_output_name_or_record_disturbs_the_table(sandbox: Sandbox) -> None:
    hostile = r"printf 'step 1/9 \033]0;title\007\033[2J\033[31mloss 0.5\u202e\n%060d\n%010000d\n' 7 7; touch ready"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(f"{hostile}; sleep 300", cwd=str(sandbox.path), name="odd", owner="[/x]")
        broken = await agent.launch("sleep 300", name="broken")
        await until_async((sandbox.path / "ready").exists)
    (sandbox.rundir(broken).path / "spec.json").write_bytes(b"\xff\x00{")
    (sandbox.path / "state" / "runs" / "\x1b[2J").mkdir()
    with person_types(sandbox, "top", columns=200) as terminal:
        terminal.until(broken)
        terminal.type(f"/{run_id}\r")
        terminal.until("[/x]")
        terminal.forget()
        terminal.type("\r")
        drawn = terminal.until("0007")
        assert [part for part in ("\x07", "\u202e", "\x1b]", "\x1b[2J", "\x1b[31mloss") if part in drawn] == []
        terminal.type("q")
        assert terminal.end() == 0


def test_without_a_terminal_the_table_refuses_and_names_the_list(sandbox: Sandbox) -> None:
    refused = sandbox.runward("top")
    assert (refused.returncode, "runward ls" in refused.stderr) == (2, True)
    with person_types(sandbox, "top", TERM="dumb") as terminal:
        assert terminal.end() == 2
        assert "\x1b" not in terminal.drawn
