"""A throwaway runward for one measurement: its own state, its own tmux servers, a real client over stdio."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import TextContent

from tests.benchmarks import processes

PROGRAMS = Path(__file__).parent / "programs"
REPOSITORY = Path(__file__).parents[2]
_TERMINALS = ("TMUX", "TMUX_PANE")


class NotMeasured(Exception):
    """A measurement could not be taken; the message says why."""


@dataclass(frozen=True)
class Answer:
    """What a tool answered: ``data`` as a client reads it, ``text`` as a model does."""

    data: dict[str, Any]
    text: str


class Server:
    """One running server, seen through its client. Keeps every answer: secrets are looked for in all of them."""

    def __init__(self, client: Client, pid: int) -> None:
        self.client, self.pid = client, pid
        self.answers: list[str] = []

    async def call(self, tool: str, **arguments: Any) -> Answer:
        """Call a tool.

        Raises:
            NotMeasured: it refused; carries its words.
        """
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=120)
        text = "\n".join(part.text for part in result.content if isinstance(part, TextContent))
        self.answers.append(result.model_dump_json())
        if result.is_error:
            raise NotMeasured(f"{tool}: {text}")
        return Answer(result.structured_content or {}, text)

    async def launch(self, command: str | list[str], **arguments: Any) -> str:
        """Start a run; return its id."""
        return str((await self.call("launch_run", command=command, **arguments)).data["run_id"])

    async def wait(self, run_ids: str | list[str], timeout_s: float = 60, until: str = "end") -> Answer:
        """Wait for runs."""
        return await self.call("wait_run", run_ids=run_ids, timeout_s=timeout_s, until=until)

    async def kill(self, run_id: str) -> str:
        """Stop a run, or a sweep, by a token; return the status."""
        asked = (await self.call("kill_run", run_id=run_id)).data
        if asked["status"] != "confirmation_required":
            return str(asked["status"])
        return str((await self.call("kill_run", run_id=run_id, confirm_token=asked["confirm_token"])).data["status"])


@contextlib.asynccontextmanager
async def connect(parameters: StdioServerParameters, log: Path) -> AsyncIterator[Server]:
    """Start a server and connect to it. Its error output goes to ``log``."""
    home = (parameters.env or {}).get("RUNWARD_HOME", "")  # several servers may start at once
    before = set(processes.children(os.getpid()))
    with log.open("a") as errors:
        async with Client(stdio_client(parameters, errlog=errors)) as client:
            (parent,) = set(processes.children(os.getpid())) & set(processes.carrying(home)) - before
            (pid,) = processes.children(parent)
            yield Server(client, pid)


@dataclass(frozen=True)
class Sandbox:
    """A state directory and two tmux servers, one of runward's and one for baselines; all gone afterwards."""

    root: Path

    @property
    def token(self) -> str:
        """A word that every process of this sandbox carries in its arguments or environment."""
        return self.root.name

    @property
    def socket(self) -> str:
        """The tmux server of the runs."""
        return f"{self.token}-runs"

    @property
    def plain_socket(self) -> str:
        """The tmux server of the baselines."""
        return f"{self.token}-plain"

    @property
    def home(self) -> Path:
        """RUNWARD_HOME."""
        return self.root / "home"

    @property
    def work(self) -> Path:
        """Where the commands write."""
        return self.root / "work"

    @property
    def run_places(self) -> tuple[Path, ...]:
        """The directories in which runs keep their records."""
        return (self.home / "runs",)

    @property
    def sockets(self) -> tuple[str, ...]:
        """The tmux servers that runs have their sessions in."""
        return (self.socket,)

    def run_dir(self, run_id: str) -> Path:
        """The directory of one run."""
        return next((place / run_id for place in self.run_places if (place / run_id).exists()), self.home / run_id)

    def log(self, run_id: str) -> Path:
        """The log of a run's only attempt."""
        return self.run_dir(run_id) / "attempts" / "1" / "output.log"

    def progress(self, run_id: str) -> Path:
        """How far a run's only attempt is, as the supervisor read it."""
        return self.log(run_id).with_name("progress.json")

    def environment(self) -> dict[str, str]:
        """The environment of everything that is started here."""
        passed_on = {n: v for n, v in os.environ.items() if n not in _TERMINALS and not n.startswith("RUNWARD_")}
        ours = {"RUNWARD_HOME": str(self.home), "RUNWARD_TMUX_SOCKET": self.socket, "TMUX_TMPDIR": str(self.root)}
        ours |= {"RUNWARD_LEASES": str(self.root / "leases")}
        return {**passed_on, **ours, "SHELL": "/bin/bash"}

    @contextlib.asynccontextmanager
    async def server(self, **environment: str) -> AsyncIterator[Server]:
        """Start a server and connect to it."""
        parameters = self.parameters(["-m", "mcp_server", "serve"], environment)
        async with connect(parameters, self.root / "server.log") as server:
            yield server

    def parameters(self, arguments: list[str], environment: dict[str, str] | None = None) -> StdioServerParameters:
        """Return how a Python server is started here."""
        env = {**self.environment(), **(environment or {})}
        return StdioServerParameters(command=sys.executable, args=arguments, env=env, cwd=str(REPOSITORY))

    def tmux(self, *words: str, socket: str | None = None) -> str:
        """Run a tmux command, on the server of the baselines unless another is named; return what it prints."""
        argv = ["tmux", "-L", socket or self.plain_socket, *words]
        done = subprocess.run(argv, env=self.environment(), capture_output=True, text=True, check=False)
        return done.stdout

    def start_plain_tmux(self) -> None:
        """Start the baselines' tmux server, so that no session has to; dead panes stay."""
        self.tmux("-f", "/dev/null", "new-session", "-d", "-s", "keeper", "sleep 600")
        self.tmux("set-option", "-g", "remain-on-exit", "on")

    def close(self) -> list[int]:
        """End all that is left, remove all files; return what could not be ended."""
        for socket in (*self.sockets, self.plain_socket):
            self.tmux("kill-server", socket=socket)
        left = processes.end_all(self.token)
        shutil.rmtree(self.root, ignore_errors=True)
        return left


@contextlib.contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Open a sandbox, and leave nothing of it behind, whatever happens."""
    found = Sandbox(Path(tempfile.mkdtemp(prefix="runward-bench-")))
    try:
        found.work.mkdir()
        yield found
    finally:
        impatience = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut this short
        if left := found.close():
            print(f"could not be ended: {left}", file=sys.stderr)
        signal.signal(signal.SIGINT, impatience)


def program(name: str, *words: object) -> list[str]:
    """Return the argv of one of the programs here. Without site-packages: it starts in 10 ms."""
    return [sys.executable, "-S", str(PROGRAMS / f"{name}.py"), *map(str, words)]


def shell(argv: list[str]) -> str:
    """Return ``argv`` as a shell line."""
    return shlex.join(argv)


def read_number(path: Path) -> int | None:
    """Return the number that a program wrote, or None before it has."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def started_facts(run_dir: Path) -> dict[str, Any]:
    """Return what the supervisor noted at the start of a run: pids, above all."""
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    return next(dict(event["at_start"]) for event in map(json.loads, lines) if event["kind"] == "started")


async def until(done: Callable[[], bool], within_s: float = 10.0, every_s: float = 0.02) -> bool:
    """Look again and again until ``done``; False when ``within_s`` passed first."""
    limit_s = time.monotonic() + within_s
    while not done():
        if time.monotonic() >= limit_s:
            return False
        await anyio.sleep(every_s)
    return True


def elapsed_ms(since_s: float) -> float:
    """Return the milliseconds since a reading of ``time.perf_counter()``."""
    return (time.perf_counter() - since_s) * 1000
