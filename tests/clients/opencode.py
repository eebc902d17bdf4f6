"""OpenCode with a scripted model: what `runward install opencode` writes gives it the server, and wakes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from mcp_server.record.state import posix
from tests.clients.codex import WAKES, describe_wakes, kill_server
from tests.clients.scripted_model import Block, Conversation, ScriptedModel, say, use
from tests.support.sandbox import Sandbox, until

_OFF = ("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_LSP_DOWNLOAD")


def try_waking(sandbox: Sandbox, opencode: str) -> str:
    """Let an idle OpenCode hear of the end of each run by the next turn, once, also where the server was killed."""
    os.mkfifo(gate := sandbox.path / "gate")
    asked: list[tuple[float, str]] = []  # when, and the last block

    def script(conversation: Conversation) -> Block:
        last = conversation.blocks[-1].get("text")
        if last == "Launch a run" or str(last).startswith("runward: "):
            asked.append((conversation.at_s, str(last)))
            if len(asked) <= WAKES:
                return use("runward_launch_run", command=f"read -r < {gate}; exit 3", name=f"run{len(asked)}")
        return say("My turn ends.")

    model = ScriptedModel(script)
    environ = {**sandbox.environ, "HOME": str(sandbox.path), "TERM": "xterm-256color", **dict.fromkeys(_OFF, "1")}
    environ["PATH"] = os.environ["PATH"]
    words = [sys.executable, "-m", "mcp_server", "install", "opencode", "--yes"]
    subprocess.run(words, env=environ, cwd=sandbox.path, check=True, stdout=subprocess.DEVNULL)
    (sandbox.path / "project").mkdir()
    late_s = list[float]()
    with model.serve() as url:
        options = {"baseURL": f"{url}/v1", "apiKey": "placeholder-not-a-key"}
        provider = {"npm": "@ai-sdk/anthropic", "name": "script", "options": options, "models": {"model": {}}}
        settings = {"model": "script/model", "small_model": "script/model", "provider": {"script": provider}}
        (sandbox.path / ".config" / "opencode" / "opencode.json").write_text(json.dumps(settings))
        variables = [f"{name}={value}" for name, value in environ.items()]
        place = ("-x", "150", "-y", "45", "-c", str(sandbox.path / "project"))
        start = ("env", "-i", *variables, opencode, "--prompt", "Launch a run")
        sandbox.tmux("new-session", "-d", "-s", "opencode", *place, *start)
        until(lambda: asked, "the first turn")
        for number in range(1, WAKES + 1):
            until(lambda: len(model.conversations) == 2 * number, f"turn {number}")  # noqa: B023
            if number % 2:
                kill_server(sandbox)
            gate.write_text("\n")
            until(lambda: len(asked) > number, f"the wake by run {number}")  # noqa: B023
            run = next(run for run in sandbox.store.list_runs() if run.spec.name == f"run{number}")
            assert run.run_id in asked[number][1], asked[number]
            late_s.append(asked[number][0] - posix(str(run.ended_at)))
    return describe_wakes("OpenCode", len(asked) - 1, late_s)
