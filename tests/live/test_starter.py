"""Supervisors are forks of a starter. Nothing that happens to it touches a run, and no run needs it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time
from pathlib import Path

import pytest

from mcp_server.supervisor.outputs.outsiders import OutsiderWatch
from mcp_server.system import processes, starter_client, tmux
from mcp_server.system.own_process import STARTER
from tests.support.sandbox import Sandbox, until_async

WAITS = "until test -e go; do sleep 0.05; done"
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("own_supervisor_copies", "patience")]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine, a launch waits for its starter: these tests are about starters."""
    monkeypatch.setattr(starter_client, "_COMES_WITHIN_S", 30.0)


def starter_of(pid: int) -> int:
    """Return the parent of a supervisor, if that is a starter, else 0. A short run may have ended."""
    parent = ([*processes.ancestors(pid), 0, 0])[1]
    return parent if processes.command_words(parent)[:1] == [STARTER] else 0


async def test_supervisors_outlive_their_starter_and_the_next_launch_has_another_one(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        runs = [await agent.launch(WAITS, cwd=str(sandbox.path)) for _ in "ab"]
        first, second = map(sandbox.supervisor, runs)
        forker = starter_of(first)
        assert forker
        assert starter_of(second) == forker
        os.kill(forker, signal.SIGKILL)
        await until_async(lambda: processes.find_process(forker) is None, "the end of the starter")
        third = await agent.launch(WAITS, cwd=str(sandbox.path))
        assert starter_of(sandbox.supervisor(third)) not in (0, forker)
        (sandbox.path / "go").touch()
        for run in (*runs, third):
            assert (await agent.end(run))["state"] == "finished"


async def test_a_stopped_starter_holds_up_no_launch(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        forker = starter_of(sandbox.supervisor(await agent.launch(WAITS, cwd=str(sandbox.path))))
        os.kill(forker, signal.SIGSTOP)  # tmux continues its jobs
        run = await agent.launch(f"echo x >> {sandbox.path}/starts")
        assert (await agent.end(run))["state"] == "finished"
    assert (sandbox.path / "starts").read_text() == "x\n"


async def test_a_stopped_supervisor_is_continued(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch("read -p 'name? '")
        supervisor = sandbox.supervisor(run)
        await until_async(lambda: "name?" in sandbox.log(run))
        os.kill(supervisor, signal.SIGSTOP)
        await until_async(lambda: not processes.is_stopped(supervisor), "its continuation")
        sandbox.tmux("send-keys", "-t", f"={run}:", "Enter")
        assert (await agent.end(run))["state"] == "finished"


async def test_a_starter_that_does_not_answer_costs_no_launch(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(starter_client, "_connect", lambda _: near)
    monkeypatch.setattr(starter_client, "PATIENCE_S", 0.2)
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch(f"echo x >> {sandbox.path}/starts; read -p 'name? '")
        with far:
            assert json.loads(far.recv(4096))[0] == str(sandbox.rundir(run).path)
        assert not starter_of(sandbox.supervisor(run))
        await until_async(lambda: "name?" in sandbox.log(run))
        sandbox.tmux("send-keys", "-t", f"={run}:", "Enter")
        assert (await agent.end(run))["state"] == "finished"
    assert (sandbox.path / "starts").read_text() == "x\n"


async def test_a_caller_that_gives_up_leaves_no_supervisor(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch("sleep 60")
        supervisor = sandbox.supervisor(run)
        (path,) = Path(f"/tmp/tmux-{os.getuid()}").glob(f"{sandbox.socket}.runward-*")
        fifo = sandbox.path / "fifo"
        os.mkfifo(fifo)
        pane = tmux.new_session("other", ["/bin/sh", "-c", starter_client._HOLD, str(fifo)], socket=sandbox.socket)
        channel = starter_client._connect(str(path))
        assert channel is not None
        with channel:
            channel.send(json.dumps([str(sandbox.path), pane, str(fifo)]).encode())
            assert channel.recv(1) == starter_client.READY
            assert len(processes.children(starter_of(supervisor))) == 2
        await until_async(lambda: len(processes.children(starter_of(supervisor))) == 1, "the end of the other")
        await until_async(lambda: pane_of(sandbox, "other") in ("1 137", "1"), "the end of its pane")
        await agent.kill(run)


async def test_a_pane_shows_the_exit_status_and_survives_its_supervisor(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch("echo said; exit 7")
        await agent.end(run)
        await until_async(lambda: pane_of(sandbox, run) in ("1 7", "1"), "the end of the pane")
        assert "said" in sandbox.tmux("capture-pane", "-p", "-S", "-", "-t", f"={run}:")
        run = await agent.launch("sleep 60")
        os.kill(sandbox.supervisor(run), signal.SIGKILL)
        await until_async(lambda: pane_of(sandbox, run) in ("1 137", "1"), "the end of the pane")


async def test_a_killed_process_of_a_pane_costs_a_run_its_screen_alone(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch(WAITS, cwd=str(sandbox.path))
        pid = int(sandbox.tmux("display-message", "-p", "-t", f"={run}:", "#{pane_pid}"))
        assert pid != sandbox.supervisor(run)
        os.kill(pid, signal.SIGKILL)
        await until_async(lambda: "screen_lost" in [e["kind"] for e in sandbox.run(run).events], "the news of it")
        (sandbox.path / "go").touch()
        assert (await agent.end(run))["state"] == "finished"


async def test_a_termination_of_a_panes_process_reaches_the_supervisor(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch("sleep 60")
        os.kill(int(sandbox.tmux("display-message", "-p", "-t", f"={run}:", "#{pane_pid}")), signal.SIGTERM)
        assert (await agent.end(run))["state"] == "killed"


async def test_a_starter_ends_with_its_tmux_server_and_leaves_no_file(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch("sleep 60")
        forker = starter_of(sandbox.supervisor(run))
        await agent.kill(run)
        sandbox.tmux("kill-server")
        await until_async(lambda: processes.find_process(forker) is None, "the end of the starter")
    assert not list(Path(f"/tmp/tmux-{os.getuid()}").glob(f"{sandbox.socket}.runward-*"))


async def test_a_command_inherits_the_limits_of_the_pane_that_it_would_have(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch(f"ulimit -n; {WAITS}", cwd=str(sandbox.path))
        server = int(sandbox.tmux("display-message", "-p", "#{pid}"))
        resource.prlimit(server, resource.RLIMIT_NOFILE, (500, 500))
        second = await agent.launch("ulimit -n")
        assert starter_of(sandbox.supervisor(first))
        (sandbox.path / "go").touch()
        for run in (first, second):
            await agent.end(run)
    assert sandbox.log(first).split() != sandbox.log(second).split() == ["500"]


def pane_of(sandbox: Sandbox, session: str) -> str:
    """Return whether the process of a session's pane has ended, and its exit status where tmux has not missed it."""
    return sandbox.tmux("display-message", "-p", "-t", f"={session}:", "#{pane_dead} #{pane_dead_status}").strip()


async def test_neither_tmux_nor_the_process_of_a_pane_is_taken_for_a_program_beside_a_run(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch("sleep 60", cwd=str(sandbox.path))
        server = int(sandbox.tmux("display-message", "-p", "#{pid}"))
        assert Path(f"/proc/{server}/cwd").resolve() == sandbox.path.resolve()
        watch = OutsiderWatch(str(sandbox.path), str(sandbox.rundir(run).path))
        watch.inspect_processes((), time.time())
        assert {each.process.name for each in watch._seen.values()} & {"tmux: server", "sh", "runward"} == set()
        await agent.kill(run)
