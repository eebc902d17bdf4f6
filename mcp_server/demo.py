"""`runward demo`: a real training, launched and watched by a real MCP client, as an agent would do it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from rich.console import Console
from rich.text import Text

from mcp_server import tmux
from mcp_server.home import Home


def demo(steps: int) -> int:
    """Train a small language model on Python's own library; return 0 when it was launched, watched and learned."""
    tmux.require()
    Home.of(os.environ).make()
    return anyio.run(_demo, steps)


async def _demo(steps: int) -> int:
    console = Console(highlight=False, soft_wrap=True)
    python = sys.executable
    server = StdioServerParameters(command=python, args=["-m", "mcp_server", "serve"], env=dict(os.environ))
    console.print("An MCP client starts `runward serve` over stdio. What follows is what an agent sends and sees.\n")
    async with Client(stdio_client(server)) as client:
        agent = _Agent(client, console)
        scratch = Path(tempfile.mkdtemp(prefix="demo-", dir=Home.of(os.environ).path))
        command = [python, "-m", "mcp_server.demo_training", "--logdir", str(scratch), "--steps", str(steps)]
        run = await agent.call("launch_run", command=command, name="demo", cwd=str(scratch), time_limit_s=600)
        run_id = run["run_id"]
        await agent.call("wait_run", run_ids=run_id, timeout_s=3)
        await agent.call("capture_pane", run_id=run_id, lines=4)
        end = await agent.call("wait_run", run_ids=run_id, until="end", timeout_s=600)
        await agent.call("read_log", run_id=run_id, tail=3)
        status = end["runs"][0]
    if status["state"] != "finished":
        console.print(f"\nThe training did not finish: {status['state']}.", style="bold red")
        return 1
    return _judge(json.loads((scratch / "result.json").read_text()), run["attach_command"], run_id, console)


def _judge(result: dict[str, float], attach: str, run_id: str, console: Console) -> int:
    learned, bigram = result["held_out_bits_per_char"], result["bigram_bits_per_char"]
    uniform = result["uniform_bits_per_char"]
    console.print(
        f"\nLearned: {learned:.3f} bits per character on files it never saw "
        f"(letter pairs alone {bigram:.3f}, guessing {uniform:.3f}).",
        style="bold green" if learned < bigram else "bold red",
    )
    console.print(f"The session stays for reading: {attach}   |   runward logs {run_id}   |   runward ls")
    return 0 if learned < bigram else 1


class _Agent:
    """Calls tools and shows both sides."""

    def __init__(self, client: Client, console: Console) -> None:
        self._client, self._console = client, console

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool, print call and answer, return the structured answer if there is one."""
        shown = ", ".join(f"{name}={_short(value)}" for name, value in arguments.items())
        self._console.print(Text(f"→ {tool}({shown})", style="bold cyan"))
        result = await self._client.call_tool(tool, arguments, read_timeout_seconds=660)
        text = "\n".join(getattr(block, "text", "") for block in result.content)
        self._console.print(Text(text))
        if result.is_error:
            raise SystemExit(1)
        return result.structured_content or {}


def _short(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps([Path(word).name if word.startswith("/") else word for word in value])
    return json.dumps(value)
