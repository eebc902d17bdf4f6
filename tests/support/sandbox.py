"""A state directory, a tmux server and real clients of their own for one test; nothing is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import Run
from mcp_server.serve.app import build
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system import processes
from tests.support import warm_start

PATIENCE_S = 90.0  # a machine with ten times the load that it can bear
COLD = (sys.executable, "-m", "mcp_server")


@dataclass
class Agent:
    """A client that calls tools and expects answers."""

    client: Client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the structured answer; an error fails the test with its text."""
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=90)
        assert not result.is_error, text_of(result)
        answer: dict[str, Any] = result.structured_content
        return answer

    async def text(self, tool: str, **arguments: Any) -> str:
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=90)
        assert not result.is_error, text_of(result)
        return text_of(result)

    async def refusal(self, tool: str, **arguments: Any) -> str:
        """Return the text of the error that the call must end in."""
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=90)
        assert result.is_error, text_of(result)
        return text_of(result)

    async def launch(self, command: str | list[str], **arguments: Any) -> str:
        run = await self.call("launch_run", command=command, **arguments)
        return str(run["run_id"])

    async def end(self, run_id: str) -> dict[str, Any]:
        """Wait for a run's end and return its status."""
        answer = await self.call("wait_run", run_ids=run_id, until="end", timeout_s=60)
        assert answer["reason"] == "ended", answer
        status: dict[str, Any] = answer["runs"][0]
        return status

    async def kill(self, run_id: str, **arguments: Any) -> dict[str, Any]:
        """Kill a run with a token, in two calls."""
        asked = await self.call("kill_run", run_id=run_id, **arguments)
        assert asked["status"] == "confirmation_required", asked
        return await self.call("kill_run", run_id=run_id, confirm_token=asked["confirm_token"], **arguments)


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


@dataclass
class Sandbox:
    path: Path
    socket: str
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = {n: v for n, v in os.environ.items() if n in ("PATH", "LANG", "USER", "LOGNAME")}
        # The least that an MCP client passes on.
        self.environ = {
            **kept,
            "HOME": str(self.path),
            "RUNWARD_HOME": str(self.path / "state"),
            "RUNWARD_TMUX_SOCKET": self.socket,
            "RUNWARD_LEASES": str(self.path / "leases"),
            **self.environ,
        }

    @property
    def store(self) -> RunStore:
        """A reader that has seen nothing before."""
        return RunStore(StateHome(self.path / "state"))

    def run(self, run_id: str) -> Run:
        return self.store.observe(run_id)

    def rundir(self, run_id: str) -> RunDir:
        return self.store.run_directory(run_id)

    def log(self, run_id: str) -> str:
        return self.rundir(run_id).log(1).read_text()

    @contextlib.asynccontextmanager
    async def agent(
        self, *, elicit: Any = None, legacy: bool = False, extensions: Any = None, cold: bool = False, **environ: str
    ) -> AsyncIterator[Agent]:
        """A client with a server process of its own over stdio; ``cold``: in an interpreter of its own."""
        command, *words = COLD if cold else warm_start.command()
        server = StdioServerParameters(command=command, args=words, env={**self.environ, **environ}, cwd=self.path)
        mode = "legacy" if legacy else "auto"
        transport = stdio_client(server)
        async with Client(transport, elicitation_callback=elicit, mode=mode, extensions=extensions) as client:
            yield Agent(client)

    @contextlib.asynccontextmanager
    async def agent_in_process(self, extensions: Any = None) -> AsyncIterator[Agent]:
        """A client with a server in this process: half a second cheaper, for tests of what runs do.

        The server's environment and working directory are the sandbox's, as those of a server process are.
        """
        environ, directory = dict(os.environ), Path.cwd()
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.path)
        try:
            async with Client(build(os.environ), extensions=extensions) as client:
                yield Agent(client)
        finally:
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environ)

    def runward(self, *words: str, cold: bool = False, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run the command as a person or script would; ``cold``: in an interpreter of its own."""
        return subprocess.run(
            [*(COLD if cold else warm_start.command()), *words],
            env=self.environ,
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **{"stdin": subprocess.DEVNULL, **more},
        )

    def tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-L", self.socket, *words], capture_output=True, text=True, check=False)
        return done.stdout

    def supervisor(self, run_id: str) -> int:
        pid: int = self.run(run_id).at_start["supervisor_pid"]
        return pid

    def own_processes(self) -> list[processes.Process]:
        """Everything that this sandbox started and that still lives, but for its tmux server."""
        mark = str(self.path)
        mine = []
        for p in processes.list_processes():
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{p.pid}/environ").read_bytes().decode(errors="replace")
                shown = [environ, p.command]
                if p.command.startswith("runward-"):  # a fork of another process, whose environment it shows
                    shown += [name for fd in Path(f"/proc/{p.pid}/fd").iterdir() if (name := _target(fd))]
                if any(mark in each for each in shown) and p.pid != os.getpid():
                    mine.append(p)
        return mine

    def close(self) -> None:
        self.tmux("kill-server")
        for p in self.own_processes():
            processes.send_signal(p, signal.SIGKILL)
        Path(f"/tmp/tmux-{os.getuid()}/{self.socket}").unlink(missing_ok=True)


def _target(link: Path) -> str:
    """The file behind a descriptor; empty for one that was closed meanwhile, which hides no other."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


def until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Return the condition's first true value; it must come within ``PATIENCE_S``."""
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come about within {PATIENCE_S:g} s")


async def until_async(condition: Callable[[], Any], what: str = "the condition") -> Any:
    return await anyio.to_thread.run_sync(until, condition, what)
