"""Codex with a scripted model behind the Responses API on loopback: its own question, and the one that nobody hears."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp_server.cli.setup.client_settings import in_codex_toml
from mcp_server.record.state import posix
from tests.clients import loopback
from tests.support.sandbox import Sandbox, until

_LIMIT_S = 120
WAKES = int(os.environ.get("RUNWARD_WAKE_COUNT", "6"))  # runs whose ends wake the model, one after the other
_APPROVED = ("launch_run", "kill_run")


def try_declining(sandbox: Sandbox, codex: str) -> str:
    """Let `codex exec`, which declines every form, ask to stop a run: nothing is stopped, and the answer says how."""
    outputs: list[str] = []

    def answer(items: list[dict[str, Any]]) -> dict[str, Any]:
        outputs[:] = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
        if not outputs:
            return _call("launch_run", command="sleep 600")
        if len(outputs) == 1:
            (run,) = sandbox.store.list_runs()
            return _call("kill_run", run_id=run.run_id)
        return _say("My turn ends.")

    def stream(_path: str, body: dict[str, Any]) -> tuple[bytes, str]:
        return _stream(answer(body.get("input") or [])), loopback.EVENTS

    with loopback.serve_posts(stream, to_get=b'{"data": [], "models": []}') as url:
        _write_settings(sandbox.path / ".codex", url, sandbox)
        words = [codex, "exec", "--skip-git-repo-check", "Stop a run"]
        environ = {**sandbox.environ, "PATH": os.environ["PATH"], "PLACEHOLDER_KEY": "placeholder-not-a-key"}
        done = subprocess.run(
            words,
            env=environ,
            cwd=sandbox.path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    (run,) = sandbox.store.list_runs()
    assert len(outputs) == 2, done.stderr[-2000:]
    assert run.state == "running", run.state
    assert '"declined"' in outputs[1], outputs[1]
    assert f"runward kill {run.run_id}" in outputs[1], outputs[1]
    return "codex exec declines the question of kill_run: the run goes on, and the answer names runward kill."


def try_hook(sandbox: Sandbox, codex: str) -> str:
    """Install into Codex, and let the model stop a training by its name in the shell: it reads the call to make."""
    asked: list[str] = []

    def stream(_path: str, body: dict[str, Any]) -> tuple[bytes, str]:
        asked.append(json.dumps(body.get("input")))
        return _stream(_say("My turn ends.") if len(asked) > 1 else call), loopback.EVENTS

    words = json.dumps({"cmd": "pkill -f no_such_training; true"})
    call = {"type": "function_call", "call_id": "call", "name": "exec_command", "arguments": words}
    with loopback.serve_posts(stream, to_get=b'{"data": [], "models": []}') as url:
        _write_settings(sandbox.path / ".codex", url, sandbox)
        environ = {**sandbox.environ, "PATH": os.environ["PATH"], "PLACEHOLDER_KEY": "none"}
        install = [sys.executable, "-m", "mcp_server", "install", "codex", "--yes"]
        # A person trusts the hook by /hooks.
        start = [codex, "exec", "--skip-git-repo-check", "--dangerously-bypass-hook-trust", "Stop it"]
        for each in (install, start):
            subprocess.run(
                each,
                env=environ,
                cwd=sandbox.path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIMIT_S,
                check=True,
            )
    assert "kill_run(run_id)" in asked[-1], asked[-1][-2000:]
    return "The hook of `runward install codex`: the model reads kill_run beside the answer of its pkill."


def try_waking(sandbox: Sandbox, codex: str) -> str:
    """Let an idle Codex hear of the end of each run by the next turn, once, also where the server was killed."""
    asked: list[tuple[float, str]] = []  # when, and the last item

    def answer(items: list[dict[str, Any]]) -> dict[str, Any]:
        last = "".join(str(part.get("text")) for part in items[-1].get("content") or ())
        if last == "Launch a run" or last.startswith("runward: "):
            asked.append((time.time(), last))
            if len(asked) <= WAKES:
                return _call("launch_run", command=f"read -r < {gate}; exit 3", name=f"run{len(asked)}")
        return _say("My turn ends.")

    def stream(_path: str, body: dict[str, Any]) -> tuple[bytes, str]:
        return _stream(answer(body.get("input") or [{}])), loopback.EVENTS

    os.mkfifo(gate := sandbox.path / "gate")
    (sandbox.path / "project").mkdir()
    late_s = list[float]()
    with loopback.serve_posts(stream, to_get=b'{"data": [], "models": []}') as url:
        _write_settings(sandbox.path / ".codex", url, sandbox)
        with (sandbox.path / ".codex" / "config.toml").open("a") as settings:
            settings.write(f'\n[projects."{sandbox.path}/project"]\ntrust_level = "trusted"\n')
        environ = {**sandbox.environ, "PATH": os.environ["PATH"], "TERM": "xterm-256color", "PLACEHOLDER_KEY": "none"}
        variables = [f"{name}={value}" for name, value in environ.items()]
        place = ("-x", "150", "-y", "45", "-c", str(sandbox.path / "project"))
        sandbox.tmux("new-session", "-d", "-s", "codex", *place, "env", "-i", *variables, codex, "Launch a run")
        for number in range(1, WAKES + 1):
            until(lambda: _count_turns(sandbox) == number, f"turn {number}")  # noqa: B023
            if number % 2:
                kill_servers(sandbox)
            gate.write_text("\n")
            until(lambda: len(asked) > number, f"the wake by run {number}")  # noqa: B023
            run = next(run for run in sandbox.store.list_runs() if run.spec.name == f"run{number}")
            assert run.run_id in asked[number][1], asked[number]
            late_s.append(asked[number][0] - posix(str(run.ended_at)))
    return describe_wakes("Codex", len(asked) - 1, late_s)


def describe_wakes(client: str, count: int, late_s: Sequence[float]) -> str:
    """Return how long after the ends of runs ``count`` turns began. AssertionError: there were more than ends."""
    assert count == WAKES, "woken more than once by one run"
    middle, last = sorted(late_s)[len(late_s) // 2], max(late_s)
    return f"An idle {client}: {count} of {WAKES} ends woke it, once each, median {middle:.2f} s, longest {last:.2f} s."


def _count_turns(sandbox: Sandbox) -> int:
    """Return how many turns have ended."""
    return sum(
        line.count('"task_complete"')
        for path in (sandbox.path / ".codex" / "sessions").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    )


def find_servers(sandbox: Sandbox) -> list[int]:
    """Return the processes that serve, without their parents."""
    servers = [each for each in sandbox.own_processes() if each.command.endswith((" serve", "-m mcp_server"))]
    return [each.pid for each in servers if any(each.parent == other.pid for other in servers)]


def kill_servers(sandbox: Sandbox, count: int = 1) -> None:
    """Kill the ``count`` processes that serve, a window's each; their parents start others."""
    workers = find_servers(sandbox)
    assert len(workers) == count, workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)


def _call(tool: str, **arguments: Any) -> dict[str, Any]:
    facts = {"type": "function_call", "call_id": f"call_{tool}", "name": tool, "namespace": "mcp__runward"}
    return {**facts, "arguments": json.dumps(arguments)}


def _say(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _write_settings(directory: Path, url: str, sandbox: Sandbox) -> None:
    """Write what `runward install codex` writes, and a provider of models on loopback."""
    directory.mkdir()
    provider = f'name = "script"\nbase_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "PLACEHOLDER_KEY"\n'
    text = f'model = "script"\nmodel_provider = "script"\n[model_providers.script]\n{provider}'
    text = in_codex_toml(text, [sys.executable, "-m", "mcp_server", "serve"])
    text += "".join(f'\n[mcp_servers.runward.tools.{tool}]\napproval_mode = "approve"\n' for tool in _APPROVED)
    variables = "\n".join(f"{name} = {json.dumps(value)}" for name, value in sandbox.environ.items())
    (directory / "config.toml").write_text(f"{text}\n[mcp_servers.runward.env]\n{variables}\n")


def _stream(item: dict[str, Any]) -> bytes:
    """Return the events of one answer with one item."""
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": {"id": "response"}}),
        ("response.output_item.done", {"item": item}),
        ("response.completed", {"response": {"id": "response", "usage": usage}}),
    ]
    return "".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **facts})}\n\n" for kind, facts in events).encode()
