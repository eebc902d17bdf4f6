"""Logs, screens and processes that runward did not start, through a real server."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcp_server.cli.watch import find_new_lines, is_prompt
from mcp_server.system import processes
from tests.support.ports import free_port
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

LOG = """step 1 loss 2.3
step 2 loss 2.1
connecting with api_key=abcdef0123456789abcd
Traceback (most recent call last):
  File "train.py", line 3, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB
"""


async def test_a_log_of_another_program_is_read_masked_and_diagnosed(sandbox: Sandbox) -> None:
    (sandbox.path / "train.log").write_text(f"{LOG}wandb says s3cr3t-value-of-mine\n")
    async with sandbox.agent(WANDB_API_KEY="s3cr3t-value-of-mine") as agent:
        text = await agent.text("read_log", path="train.log")
        header, diagnosis, *body = text.splitlines()
        assert "output of train.log, lines 1-7 of 7" in header
        assert diagnosis.startswith("[diagnosis: oom_gpu at line 6: torch.OutOfMemoryError: CUDA out of memory.")
        assert "step 2" in diagnosis
        assert body[0] == "step 1 loss 2.3"
        assert "abcdef0123456789abcd" not in text
        assert "s3cr3t-value-of-mine" not in text
        assert len(text.encode()) <= 8192
        found = await agent.text("read_log", path=str(sandbox.path / "train.log"), grep="step 2", context=0)
        assert found.splitlines()[1:-1] == ["2:step 2 loss 2.1"]
        part = await agent.text("read_log", path="train.log", start_line=1, count=1)
        assert part.splitlines()[1:-1] == ["step 1 loss 2.3"]
        (sandbox.path / "well.log").write_text("step 1 loss 2.3\nstep 2 loss 2.1\n")
        assert "[diagnosis: ok, no failure found; step 2." in await agent.text("read_log", path="well.log")
    done = sandbox.runward("diagnose", "--json", str(sandbox.path / "train.log"))
    assert '"kind": "oom_gpu"' in done.stdout


async def test_only_regular_files_below_known_directories_are_read(
    sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere, of_run = tmp_path_factory.mktemp("elsewhere"), tmp_path_factory.mktemp("of-run")
    for place in (elsewhere, of_run):
        (place / "a.log").write_text("step 1\n")
    (sandbox.path / "link.log").symlink_to(elsewhere / "a.log")
    (sandbox.path / ".netrc").write_text("machine x\n")
    os.mkfifo(sandbox.path / "pipe.log")
    sandbox.store.home.create()
    sandbox.store.home.secrets.write_text("A_TOKEN=s3cr3t-value\n")
    sandbox.store.home.secrets.chmod(stat.S_IRUSR | stat.S_IWUSR)
    async with sandbox.agent_in_process() as agent:
        for path in (elsewhere / "a.log", sandbox.path / "link.log", of_run / "a.log", "/etc/passwd"):
            refused = await agent.refusal("read_log", path=str(path))
            assert "is not below a directory that may be read" in refused
            assert f"read_roots in {sandbox.path}/state/config.toml" in refused
        for path in (".netrc", "state/secrets.env", os.path.relpath("/etc/passwd", sandbox.path)):
            assert "is not below a directory that may be read" in await agent.refusal("read_log", path=path)
        for path in ("pipe.log", ".", "none.log", "/dev/zero", "a\0b", "x" * 5000):
            assert "Nothing was done." in await agent.refusal("read_log", path=path)
        assert "either a run_id or a path" in await agent.refusal("read_log")
        assert "either a run_id or a path" in await agent.refusal("read_log", path="a", run_id="b")
        run_id = await agent.launch("true", cwd=str(of_run))
        assert "step 1" in await agent.text("read_log", path=str(of_run / "a.log"))
        await agent.end(run_id)
        (sandbox.path / "state" / "config.toml").write_text(f"read_roots = [{str(elsewhere)!r}]\n")
        for path in (elsewhere / "a.log", sandbox.path / "link.log"):
            assert "step 1" in await agent.text("read_log", path=str(path))


async def test_the_screen_of_another_session_shows_no_known_secret(sandbox: Sandbox) -> None:
    sandbox.tmux("new-session", "-d", "-s", "mine", "printf 'key %s done' s3cr3t-value-of-mine; sleep 300")
    async with sandbox.agent(WANDB_API_KEY="s3cr3t-value-of-mine") as agent:
        await until_async(lambda: "done" in sandbox.tmux("capture-pane", "-p", "-t", "mine"), "the output")
        screen = await agent.text("capture_pane", session="mine")
    assert "key [secret:WANDB_API_KEY] done" in screen


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Start programs that wait, under names of one's choice."""
    started: list[subprocess.Popen[bytes]] = []

    def start_program(*words: str, name: str | None = None) -> int:
        argv = [name or words[0], *words[1:]]
        started.append(subprocess.Popen(argv, executable=words[0], cwd=tmp_path, stdin=subprocess.DEVNULL))
        return started[-1].pid

    yield start_program
    for process in started:
        process.kill()
        process.wait()


async def test_others_are_found_and_what_was_searched_is_said(
    sandbox: Sandbox, start: Callable[..., int], tmp_path: Path
) -> None:
    waits = "import time\ntime.sleep(300)\n"
    (tmp_path / "ajet").mkdir()
    for name in ("eval_policy.py", "ajet/launcher.py", "vllm", "plot.py"):
        (tmp_path / name).write_text(waits)
    pids = {
        start(sys.executable, "eval_policy.py", "--key", "s3cr3t"): "evaluation",
        start(sys.executable, "-m", "ajet.launcher"): "launcher",
        start(sys.executable, str(tmp_path / "vllm"), "serve", "x"): "serving",
        start("/bin/sleep", "300", name="ray::RolloutWorker"): "ray",
    }
    quiet = {start(sys.executable, "plot.py", "train.csv"), start("/bin/sleep", "300", name="vim train.py")}
    sandbox.tmux("new-session", "-d", "-s", "of-a-person", "sleep 300")

    def all_run() -> bool:
        return all(processes.command_words(pid)[:1] for pid in (*pids, *quiet))

    async with sandbox.agent_in_process() as agent:
        await until_async(all_run, "the programs")
        run_id = await agent.launch([sys.executable, "-c", waits, "train.py"])
        others = (await agent.call("list_runs", others=True))["others"]
        assert run_id
    found = {each["pid"]: each for each in others["processes"]}
    assert {pid: found[pid]["kind"] for pid in pids} == pids
    assert quiet.isdisjoint(found)
    assert "s3cr3t" not in str(others)
    assert others["tmux_sessions"] == ["of-a-person"]
    assert f"tmux server {sandbox.socket!r}" in others["searched"]
    assert "processes of " in others["searched"]
    assert all(each["user"] for each in others["processes"])


async def test_a_session_of_others_is_watched_as_a_run(sandbox: Sandbox) -> None:
    begin = sandbox.path / "begin"
    training = "for i in 1 2 3; do echo step $i/3 loss 0.$i; done; echo key s3cr3t-value-of-mine; "
    training += f"{sys.executable} -c 'raise ValueError(7)'; until [ -e {begin} ]; do sleep 0.1; done; exit 3"
    sandbox.tmux("new-session", "-d", "-s", "theirs", training, ";", "set-option", "-p", "remain-on-exit", "on")
    sandbox.environ["WANDB_API_KEY"] = "s3cr3t-value-of-mine"
    command = f"{sys.executable} -m mcp_server watch theirs"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command, name="watch")
        await until_async(lambda: "ValueError: 7" in sandbox.log(run_id), "its output")
        begin.touch()
        status = await agent.end(run_id)
    assert (status["state"], status["exit_code"], status["step"]) == ("failed", 3, 3)
    assert "ValueError: 7" in status["failure"]["line"]
    log = sandbox.log(run_id)
    assert log.count("step 2/3") == 1
    assert "the program of session theirs ended: exit code 3" in log
    assert "s3cr3t-value-of-mine" not in log


async def test_a_watched_session_that_is_closed_has_an_unknown_end(sandbox: Sandbox) -> None:
    sandbox.tmux("new-session", "-d", "-s", "theirs", "echo step 1/3 loss 0.5; sleep 300")
    async with sandbox.agent_in_process() as agent:
        command = f"{sys.executable} -m mcp_server watch theirs"
        run_id = await agent.launch(command, name="watch")
        await until_async(lambda: "step 1/3" in sandbox.log(run_id), "its output")
        sandbox.tmux("kill-session", "-t", "=theirs")
        status = await agent.end(run_id)
    assert (status["state"], status["failure"]["kind"]) == ("lost", "other")
    assert "session theirs: how its program ended is unknown" in status["failure"]["line"]
    assert status["reason"].startswith("How the program of session theirs ended is unknown: look at what it wrote")
    assert "connection" not in status["failure"]["advice"]


@pytest.mark.slow
async def test_a_watch_of_a_session_at_its_prompt_ends_without_an_exit_code(sandbox: Sandbox) -> None:
    shell = "echo step 3/3 loss 0.5; exec bash --norc"
    sandbox.tmux("new-session", "-d", "-s", "theirs", shell)
    script = sandbox.path / "train.sh"
    script.write_text(f"until [ -e {sandbox.path}/go ]; do sleep 0.1; done; echo step 1/1 loss 0.2")
    sandbox.tmux("new-session", "-d", "-s", "typed", "exec bash --norc")
    sandbox.tmux("send-keys", "-t", "typed", f"bash {script}", "Enter")
    async with sandbox.agent_in_process() as agent:
        watch = f"RUNWARD_TMUX_SOCKET={sandbox.socket} {sys.executable} -m mcp_server watch"
        over = await agent.launch(f"{watch} theirs", name="over")
        typed = await agent.launch(f"{watch} typed", name="typed")
        assert (await agent.end(over))["state"] == "lost"
        assert "step 3/3" in sandbox.log(over)
        assert not sandbox.run(typed).ended, "a script of a shell is no prompt"
        (sandbox.path / "go").touch()
        status = await agent.end(typed)
    assert (status["state"], status.get("exit_code")) == ("lost", None), status
    assert "step 1/1" in sandbox.log(typed)


def test_a_prompt_is_one_shell_that_runs_nothing() -> None:
    assert is_prompt([["-bash"]])
    assert is_prompt([["/usr/bin/zsh", "--login", "-i"]])
    for other in ([["bash", "train.sh"]], [["bash", "-c", "x"]], [["sh", "-lc", "x"]], [["python"]], [["vim"]], []):
        assert not is_prompt(other)
    assert not is_prompt([["bash"], ["sleep", "1"]])


async def test_a_server_in_one_run_ends_with_its_client_in_another(sandbox: Sandbox) -> None:
    port = free_port()
    python, waits = sys.executable, f"until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.1; done"
    fetch = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/').status)"
    async with sandbox.agent_in_process() as agent:
        client = await agent.launch(f'{waits}; {python} -c "{fetch}"', name="client")
        serving = f"{python} -m http.server {port} & S=$!; {python} -m mcp_server wait client; kill $S"
        server = await agent.launch(serving, name="server")
        ends = [await agent.end(run_id) for run_id in (client, server)]
    assert [end["state"] for end in ends] == ["finished", "finished"]
    assert "200" in sandbox.log(client)


def test_only_new_lines_of_a_screen_are_printed() -> None:
    assert find_new_lines([], ["a"]) == ["a"]
    assert find_new_lines(["a", "b"], ["a", "b", "c"]) == ["c"]
    assert find_new_lines(["a", "1%"], ["a", "2%"]) == ["2%"]
    assert find_new_lines(["a", "b", "c"], ["b", "c", "d"]) == ["d"]
    assert find_new_lines(["a", "b"], ["x", "y"]) == ["x", "y"]


async def test_a_wait_for_a_session_of_others_names_the_call_that_follows_it(sandbox: Sandbox) -> None:
    sandbox.tmux("new-session", "-d", "-s", "theirs", "echo step 1/3 loss 0.5; sleep 300")
    async with sandbox.agent_in_process() as agent:
        refusal = await agent.refusal("wait_run", run_ids="theirs", timeout_s=0)
        assert "is a tmux session that runward did not start" in refusal
        command = re.search(r"launch_run\(command='([^']+)', name='watch-theirs'\)", refusal)
        assert command is not None, refusal
        run_id = await agent.launch(command[1], name="watch-theirs")
        await until_async(lambda: "step 1/3" in sandbox.log(run_id), "the output of the session")
        assert "Run not found" in await agent.refusal("wait_run", run_ids="nobodys", timeout_s=0)
        await agent.launch("sleep 300", name="theirs-too")
        refusal = await agent.refusal("kill_run", run_id="theirs")
        assert "is a tmux session that runward did not start" in refusal, "a run with a near name is not proposed"
    assert "theirs:" in sandbox.tmux("ls")
