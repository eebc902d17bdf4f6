"""The terminal of a run, as a person attached to it sees and uses it."""

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios

import pytest

from mcp_server.supervisor.guard import Work, start_spare
from mcp_server.supervisor.terminal.pty import read_number, read_output, spawn
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

PYTHON = sys.executable


async def test_ctrl_c_typed_at_the_terminal_is_recorded_as_a_persons(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch([PYTHON, "-c", "import time; print('up', flush=True); time.sleep(300)"])
        await until_async(lambda: "up" in sandbox.log(run_id))
        sandbox.tmux("send-keys", "-t", f"={run_id}:", "C-c")
        status = await agent.end(run_id)
    assert (status["state"], status["signal"]) == ("killed", "SIGINT")
    assert "a person at the terminal" in status["events"][-1]["text"]


async def test_a_training_that_survives_ctrl_c_goes_on(sandbox: Sandbox) -> None:
    script = "trap 'echo saved' INT; touch up; while ! test -e go; do sleep 0.05; done; exit 0"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(script, cwd=str(sandbox.path))
        await until_async((sandbox.path / "up").exists)
        sandbox.tmux("send-keys", "-t", f"={run_id}:", "C-c")
        await until_async(lambda: "saved" in sandbox.log(run_id))
        (sandbox.path / "go").touch()
        status = await agent.end(run_id)
    assert (status["state"], status["exit_code"]) == ("finished", 0)
    assert "interrupted" in [e["kind"] for e in sandbox.run(run_id).events]


async def test_keys_typed_in_the_pane_reach_the_command(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("read -p 'name? ' x; echo hello $x")
        await until_async(lambda: "name?" in sandbox.log(run_id))
        sandbox.tmux("send-keys", "-t", f"={run_id}:", "ada", "Enter")
        assert (await agent.end(run_id))["state"] == "finished"
    assert "hello ada" in sandbox.log(run_id)


async def test_the_window_follows_the_size_of_the_attached_client(sandbox: Sandbox) -> None:
    script = "import os, time\nwhile True: print('size', *os.get_terminal_size(), flush=True); time.sleep(0.1)"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch([PYTHON, "-c", script])
        await until_async(lambda: "size 200 50" in sandbox.log(run_id))
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 113, 0, 0))
        attached = subprocess.Popen(
            ["tmux", "-L", sandbox.socket, "attach", "-t", f"={run_id}"],
            env={**sandbox.environ, "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            await until_async(lambda: "size 113 30" in sandbox.log(run_id))  # tmux keeps a line for its own
        finally:
            attached.terminate()
            attached.wait()
            os.close(ours)


async def test_colours_stay_on_the_screen_and_go_from_the_answers(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(r"printf '\033[31mred\033[0m\n'; printf '\033]0;title\007plain\n'")
        await agent.end(run_id)
        text = await agent.text("read_log", run_id=run_id)
        words = ["capture-pane", "-p", "-e", "-S", "-1", "-t", f"={run_id}:"]
        await until_async(lambda: "\x1b[31mred" in sandbox.tmux(*words), "colour on the screen")
    assert "\x1b[31mred" in sandbox.log(run_id)
    assert text.splitlines()[1:-1] == ["red", "plain"]


async def test_the_log_holds_every_line_of_a_flood_in_order(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch([PYTHON, "-c", "for i in range(100_000): print(f'line {i} of a flood')"])
        status = await agent.end(run_id)
        text = await agent.text("read_log", run_id=run_id)
    assert status["state"] == "finished"
    assert sandbox.log(run_id) == "".join(f"line {i} of a flood\n" for i in range(100_000))
    assert text.splitlines()[-2] == "line 99999 of a flood"
    assert len(text.encode()) <= 8192


async def test_a_filter_prints_to_its_end(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(f"{PYTHON} -c 'for i in range(60_000): print(i)' > >(sed -u 's/^/line /')")
        status = await agent.end(run_id)
    assert status["state"] == "finished"
    assert sandbox.log(run_id).splitlines() == [f"line {i}" for i in range(60_000)]


async def test_output_of_a_process_that_opens_the_terminal_again_is_logged(sandbox: Sandbox) -> None:
    lines = "for i in $(seq 1 20000); do echo line $i; done"
    script = f"exec < /dev/null > /dev/null 2>&1; sleep 0.2; {lines} > /dev/tty; exit 5"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(script)
        assert (await agent.end(run_id))["exit_code"] == 5
    assert len(sandbox.log(run_id).splitlines()) == 20000


@pytest.mark.parametrize(
    "command",
    [
        "exec 0<&- 1>&- 2>&-; sleep 0.2; exit 5",
        "stty raw -echo; echo raw; exit 5",
        [PYTHON, "-c", "import sys; sys.stdout.buffer.write(b'\\0\\xff\\x1b[' * 50_000); sys.exit(5)"],
        [PYTHON, "-c", "import sys; sys.stdout.write('x' * 3_000_000); sys.exit(5)"],
        "cat; exit 5",
    ],
    ids=["closes everything", "raw terminal", "binary", "one long line", "reads until the end of input"],
)
async def test_odd_commands_end_exactly(sandbox: Sandbox, command: str | list[str]) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command)
        if command == "cat; exit 5":
            sandbox.tmux("send-keys", "-t", f"={run_id}:", "C-d")
        assert (await agent.end(run_id))["exit_code"] == 5
        assert len((await agent.text("read_log", run_id=run_id)).encode()) <= 8192


async def test_text_of_any_language_reaches_a_command_whatever_locale_tmux_has(sandbox: Sandbox) -> None:
    if shutil.which("localedef") is None:
        pytest.skip("needs localedef")
    locale = sandbox.path / "en_US.ISO-8859-1"
    made = subprocess.run(
        ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(locale)], capture_output=True, check=False
    )
    if not locale.is_dir():
        pytest.skip(made.stderr.decode())
    latin = {**os.environ, "LOCPATH": str(sandbox.path), "LC_ALL": locale.name, "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(["tmux", "-L", sandbox.socket, "new-session", "-d", "-s", "mine"], env=latin, check=True)
    sandbox.environ["INHERITED"] = "学习"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("echo $NAME $INHERITED", env={"NAME": "训练"})
        status = await agent.end(run_id)
    assert (status["exit_code"], sandbox.log(run_id)) == (0, "训练 学习\n")


def test_a_command_that_no_process_can_become_says_why() -> None:
    child = spawn(Work(["/bin/true"], {"NAME": "\ud800"}, "/"), None, spare=start_spare())
    child.let_go()
    assert read_number(child.status_fd) == 127 << 8
    output, _ = read_output(child.master_fd)
    assert b"cannot start /bin/true in /: " in output
    assert b"surrogates not allowed" in output
    for fd in (child.release_fd, child.master_fd, child.status_fd):
        os.close(fd)
    os.waitpid(child.guard_pid, 0)
