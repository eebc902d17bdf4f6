"""`runward demo`: a real training run, launched and watched by a real MCP client as an agent does it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from mcp_server.backends.base import load_backend
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.threads import run_in_thread

_LOOK_S = 0.2
_ONLY_VERBOSE = ("time_limit_s", "verbose", "cwd", "tensorboard", "timeout_s")


def run(arguments: argparse.Namespace) -> int:
    """Train a small language model and return 0 if the run finished and the model learned."""
    load_backend("tmux").check_usable()
    StateHome.of(os.environ).create()
    return anyio.run(_demo, arguments)


async def _demo(arguments: argparse.Namespace) -> int:
    console, steps = Console(highlight=False, soft_wrap=True), arguments.steps
    python = sys.executable
    server = StdioServerParameters(command=python, args=["-m", "mcp_server", "serve"], env=dict(os.environ))
    console.print("An MCP client starts `runward serve` over stdio, and calls its tools as an agent does:\n")
    scratch = Path(tempfile.mkdtemp(prefix="runward-demo-"))
    try:
        async with Client(stdio_client(server)) as client:
            agent = _Agent(client, console, is_verbose=arguments.verbose)
            try:
                return await _show(agent, python, scratch, steps)
            except _Refused:
                return 1
            except BrokenPipeError:
                return 0
            finally:
                if agent.running:
                    console.print(f"The run continues: {_command()} kill {agent.running}", style="yellow")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


async def _show(agent: _Agent, python: str, scratch: Path, steps: int) -> int:
    command = [python, "-m", "mcp_server.cli.setup.demo_training", "--logdir", str(scratch), "--steps", str(steps)]
    directories = {"cwd": str(Path.cwd()), "tensorboard": str(scratch)}
    run = await agent.call("launch_run", command=command, name="demo", time_limit_s=600, verbose=True, **directories)
    run_id = agent.running = run["run_id"]
    agent.say(f"{run_id} is {run['state']}; it outlives this client and its server.")
    await agent.call("wait_run", run_ids=run_id, until="first_step", timeout_s=60)
    agent.say("It has made its first step.")
    await agent.call("capture_pane", run_id=run_id, lines=4)
    end = await _wait_with_bar(agent, run_id, steps)
    agent.running = ""
    state = end["runs"][0]["state"]
    agent.say(f"It {state}, exit code {end['runs'][0].get('exit_code')}.")
    await agent.call("read_log", run_id=run_id, tail=3)
    await agent.call("read_tb", run_id=run_id)
    agent.say("It has the curves: last, best, slope, and whether they still move.")
    if state != "finished":
        agent.console.print(f"\nThe run did not finish: {state}.", style="bold red")
        return 1
    return _report(json.loads((scratch / "result.json").read_text()), run["attach_command"], run_id, agent.console)


async def _wait_with_bar(agent: _Agent, run_id: str, steps: int) -> dict[str, Any]:
    """Wait for the end by one call, and draw meanwhile how far the run is, as its record says."""
    store, answers = RunStore(StateHome.of(os.environ)), list[dict[str, Any]]()

    async def wait() -> None:
        answers.append(await agent.call("wait_run", run_ids=run_id, until="end", timeout_s=600))

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"), TimeRemainingColumn())
    with Progress(*columns, console=agent.console, transient=True) as progress:
        bar = progress.add_task("", total=steps, loss="")
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            while not answers:
                run = await run_in_thread(store.observe, run_id)
                loss = (run.progress.get("metrics") or {}).get("loss")
                progress.update(bar, completed=run.progress.get("step") or 0, loss=f"loss {loss}" if loss else "")
                await anyio.sleep(_LOOK_S)
    return answers[0]


def _report(result: dict[str, float], attach: str, run_id: str, console: Console) -> int:
    learned, bigram = result["held_out_bits_per_char"], result["bigram_bits_per_char"]
    uniform = result["uniform_bits_per_char"]
    console.print(
        f"\nLearned: {learned:.3f} bits per character on files it never saw "
        f"(letter pairs alone {bigram:.3f}, guessing {uniform:.3f}).",
        style="bold green" if learned < bigram else "bold red",
    )
    console.print(f"The session stays open: {attach}   |   {_command()} logs {run_id}   |   {_command()} ls")
    console.print(f"The page with it, its curves and its log: {_command()} dash")
    return 0 if learned < bigram else 1


def _command() -> str:
    script = Path(sys.executable).with_name("runward")
    return "runward" if shutil.which("runward") or not script.exists() else str(script)


class _Refused(Exception):
    """A tool call was refused; the refusal has been printed."""


class _Agent:
    def __init__(self, client: Client, console: Console, *, is_verbose: bool) -> None:
        self._client, self.console, self._is_verbose = client, console, is_verbose
        self.running = ""

    def say(self, text: str) -> None:
        """Print an answer in a few words, where it was not printed whole."""
        if not self._is_verbose:
            self.console.print(f"  {text}", style="dim")

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        shown = arguments if self._is_verbose else {k: v for k, v in arguments.items() if k not in _ONLY_VERBOSE}
        words = ", ".join(f"{name}={_shorten_paths(value)}" for name, value in shown.items())
        self.console.print(Text(f"→ {tool}({words})", style="bold cyan"))
        result = await self._client.call_tool(tool, arguments, read_timeout_seconds=660)
        text = "\n".join(getattr(block, "text", "") for block in result.content)
        if self._is_verbose or result.is_error:
            self.console.print(Text(text))
        elif not result.structured_content:  # a screen, a log: between two lines that mark it
            self.console.print(Text("\n".join(f"  {line}" for line in text.strip().splitlines()[1:-1]), style="dim"))
        if result.is_error:
            raise _Refused
        return result.structured_content or {}


def _shorten_paths(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps([Path(word).name if word.startswith("/") else word for word in value])
    return json.dumps(value)
