"""OpenCode with a scripted model: what `runward install opencode` writes gives it the server, and wakes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from mcp_server.record.state import posix
from tests.clients.codex import WAKES, describe_wakes, kill_servers
from tests.clients.scripted_model import Block, Conversation, ScriptedModel, say, use
from tests.support.sandbox import Sandbox, until

_WINDOWS = ("left", "right")
_OFF = ("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_LSP_DOWNLOAD")


def try_waking(sandbox: Sandbox, opencode: str) -> str:
    """Let each of two idle windows hear of the ends of its runs, once each, also where their servers were killed."""
    asked: dict[str, list[tuple[float, str]]] = {name: [] for name in _WINDOWS}  # when, and the last block
    for name in _WINDOWS:
        os.mkfifo(sandbox.path / name)

    def script(conversation: Conversation) -> Block:
        last = str(conversation.blocks[-1].get("text"))
        if last in _WINDOWS or last.startswith("runward: "):
            name = next(name for name in _WINDOWS if f'"text": "{name}"' in conversation.text)
            asked[name].append((conversation.at_s, last))
            if len(asked[name]) <= WAKES:
                command = f"read -r < {sandbox.path / name}; exit 3"
                return use("runward_launch_run", command=command, name=f"{name}{len(asked[name])}")
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
        for name in _WINDOWS:
            start = ("env", "-i", *variables, opencode, "--prompt", name)
            sandbox.tmux("new-session", "-d", "-s", name, *place, *start)
            until(lambda: asked[name], f"the first turn of {name}")  # noqa: B023
        for number in range(1, WAKES + 1):
            name, nth = _WINDOWS[number % 2], (number + 1) // 2
            until(lambda: len(model.conversations) >= 2 * (number + 1), f"turn {number}")  # noqa: B023
            if number % 3 == 0:
                kill_servers(sandbox, len(_WINDOWS))
            (sandbox.path / name).write_text("\n")
            until(lambda: len(asked[name]) > nth, f"the wake by run {number}")  # noqa: B023
            run = next(run for run in sandbox.store.list_runs() if run.spec.name == f"{name}{nth}")
            assert run.run_id in asked[name][nth][1], asked[name][nth]
            late_s.append(asked[name][nth][0] - posix(str(run.ended_at)))
    return describe_wakes("OpenCode of two windows", sum(map(len, asked.values())) - len(_WINDOWS), late_s)
