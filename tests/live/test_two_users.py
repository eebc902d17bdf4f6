"""Two users of a machine, each with a server of its own: neither touches the other's runs, and they share its GPUs."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.support.fake_nvml import machine
from tests.support.sandbox import Agent, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can be other users"),
]
ALICE, BOB = 64321, 64322
SAID = "alice-said-this-c41d"


@dataclass
class User:
    """A user, with a home of its own on the machine whose shared files are in ``path``."""

    uid: int
    path: Path
    socket: str
    python: str

    @property
    def home(self) -> Path:
        return self.path / str(self.uid)

    @property
    def state(self) -> Path:
        return self.home / "state"

    def words(self, *words: str) -> list[str]:
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", *words]

    def can(self, *words: str) -> bool:
        done = subprocess.run(self.words(*words), cwd="/", capture_output=True, check=False)
        assert b"No such file" not in done.stderr, done
        return done.returncode == 0

    @contextlib.asynccontextmanager
    async def agent(self, **environ: str) -> AsyncIterator[Agent]:
        command, *words = self.words(self.python, "-m", "mcp_server")
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "RUNWARD_TMUX_SOCKET": self.socket}
        env |= {"RUNWARD_HOME": str(self.state), "RUNWARD_LEASES": str(self.path / "leases"), **environ}
        server = StdioServerParameters(command=command, args=words, env=env, cwd=self.home)
        async with Client(stdio_client(server)) as client:
            yield Agent(client)


def _common_python(path: Path) -> str:
    """Return an interpreter with the packages of this one, in an environment below ``path`` that all users can read.

    One below a user's home can be read by nobody else; a system's Python of the same version stands in for it.
    """
    system = shutil.which(f"python{sys.version_info[0]}.{sys.version_info[1]}", path="/usr/local/bin:/usr/bin")
    if system is None:
        return sys.executable
    subprocess.run([system, "-m", "venv", "--without-pip", path / "venv"], check=True)
    (site,) = (path / "venv").glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return str(path / "venv/bin/python")


@pytest.fixture
def users() -> Iterator[tuple[User, User]]:
    with tempfile.TemporaryDirectory(prefix="runward-users-") as path:
        Path(path).chmod(0o1777)
        socket, python = f"runward-test-{secrets.token_hex(4)}", _common_python(Path(path))
        found = User(ALICE, Path(path), socket, python), User(BOB, Path(path), socket, python)
        for user in found:
            user.home.mkdir()
            user.home.chmod(0o755)
            os.chown(user.home, user.uid, user.uid)
        reads = [python, "-c", "import mcp_server, os, sys; os.stat(sys.executable)"]
        if subprocess.run(found[0].words(*reads), cwd="/", capture_output=True, check=False).returncode:
            pytest.skip("other users cannot read this checkout, or no interpreter of this version")
        yield found
        for user in found:
            subprocess.run(user.words("tmux", "-L", user.socket, "kill-server"), capture_output=True, check=False)
            subprocess.run(["pkill", "-KILL", "-U", str(user.uid)], check=False)
            shutil.rmtree(f"/tmp/tmux-{user.uid}", ignore_errors=True)


async def test_another_user_reads_lists_stops_and_forges_nothing(users: tuple[User, User]) -> None:
    alice, bob = users
    async with alice.agent() as hers, bob.agent() as his:
        run_id = await hers.launch(f"echo {SAID}; sleep 300", gpus="cpu", name="hers")
        run = alice.state / "runs" / run_id
        log = run / "attempts" / "1" / "output.log"
        until(lambda: SAID in log.read_text(), "her output")
        # What bob runs is started first: he has a tmux server of the same name.
        await his.end(await his.launch("true"))
        assert [row["run_id"][:4] for row in (await his.call("list_runs", others=True))["runs"]] == ["true"]
        for tool, arguments in (
            ("wait_run", {"run_ids": run_id, "timeout_s": 0}),
            ("kill_run", {"run_id": run_id, "force_other_owner": True}),
            ("read_log", {"run_id": run_id}),
            ("read_log", {"path": str(log)}),
            ("capture_pane", {"session": run_id}),
            ("compare_runs", {"run_ids": [run_id]}),
            ("finish_blueprint", {"run_id": run_id, "result_dir": str(bob.home / "results")}),
        ):
            assert SAID not in await his.refusal(tool, **arguments), tool
        async with bob.agent(RUNWARD_HOME=str(alice.state)) as forger:
            for tool, arguments in (
                ("list_runs", {}),
                ("kill_run", {"run_id": run_id}),
                ("read_log", {"run_id": run_id}),
            ):
                result = await forger.client.call_tool(tool, arguments)
                assert SAID not in str(result)
                assert run_id not in str(result.structured_content), tool
            assert run_id not in await forger.refusal("launch_run", command="true")
        for path in (alice.state, run, run / "events.jsonl", run / "spec.json", log):
            assert not bob.can("test", "-r", str(path)), path
            assert not bob.can("test", "-w", str(path)), path
        supervisor, *_ = subprocess.run(
            ["pgrep", "-U", str(ALICE), "-f", "^runward-supervisor"], capture_output=True, text=True, check=True
        ).stdout.split()
        assert not bob.can("kill", "-0", supervisor)
        assert not bob.can("cat", f"/proc/{supervisor}/environ")
        words = Path(f"/proc/{supervisor}/cmdline").read_text()
        assert SAID not in words
        assert not bob.can("tmux", "-S", f"/tmp/tmux-{ALICE}/{alice.socket}", "list-sessions")
        assert not bob.can("ls", f"/tmp/tmux-{ALICE}")
        assert (await hers.kill(run_id))["status"] == "killed"


async def test_gpus_are_shared_between_users_in_the_order_of_their_requests(users: tuple[User, User]) -> None:
    alice, bob = users
    fake = machine(alice.path)
    fake.library.chmod(0o755)
    fake.report(gpus=1)
    environ = {name: value for name, value in fake.environ.items() if not name.startswith("RUNWARD_LEASES")}
    async with alice.agent(**environ) as hers, bob.agent(**environ) as his:
        first = await hers.launch(f"echo {SAID}; sleep 300", gpus=1)
        refusal = await his.refusal("launch_run", command="true", gpus=1)
        assert f"leased by {first} ({ALICE})" in refusal
        assert SAID not in refusal
        second = await his.launch("echo his turn", gpus=1, queue=True)
        waited = (await his.call("wait_run", run_ids=second, timeout_s=0))["runs"][0]
        assert waited["state"] == "queued"
        shared = [path for path in (alice.path / "leases").iterdir() if path.is_file() and path.stat().st_uid == ALICE]
        assert shared
        for path in shared:
            assert not bob.can("rm", "-f", str(path)), path
            assert not bob.can("test", "-w", str(path)), path
        await hers.kill(first)
        assert (await his.end(second))["state"] == "finished"
        third = await his.launch("sleep 300", gpus=1)
        assert f"leased by {third} ({BOB})" in await hers.refusal("launch_run", command="true", gpus=1)
        await his.kill(third)
