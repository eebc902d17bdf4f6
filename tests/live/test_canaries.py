"""Sixty canaries, five in each of twelve places: none comes out by any exit. Each is a secret that the server knows."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

import pytest

from mcp_server.system import processes
from tests.support.sandbox import Agent, Sandbox, until_async

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PLACES = (
    "log lines",
    "arguments",
    "environment",
    "name",
    "tags",
    "key",
    "parameters",
    "file of parameters",
    "blueprint",
    "reason of a stop",
    "notes of a sweep",
    "address of a webhook",
)
EACH = 5
BLUEPRINT = """## [exp_purpose]
Try {0}

## [exp_codebase_dir]
{code}

## [exp_launch_command]
true --note {0}

## [exp_result_dir]
{code}/results
"""


def make_canaries() -> dict[str, dict[str, str]]:
    """Return the canaries of each place, by the names of their secrets."""
    dice, letters = random.Random(60), string.ascii_letters + string.digits
    found: dict[str, dict[str, str]] = {}
    for number, place in enumerate(PLACES):
        values = ["".join(dice.choice(letters) for _ in range(28)) for _ in range(EACH)]
        found[place] = {f"CANARY_{number}_{at}_TOKEN": value for at, value in enumerate(values)}
    return found


async def put(agent: Agent, sandbox: Sandbox, place: str, name: str, value: str) -> tuple[str, dict[str, Any]]:
    """Return the call that puts a canary into a place, with its arguments; some need a file, which is written."""
    launch: dict[str, Any] = {"command": "true", "secrets": [name]}
    file = sandbox.path / f"{name}.json"
    file.write_text(json.dumps({"lr": f"x{value}"}))
    of_a_launch: dict[str, dict[str, Any]] = {
        "log lines": {"command": f"echo got ${name}; echo ${name} >&2; exit 3"},
        "arguments": {"command": ["echo", value]},
        "environment": {"env": {"PLAIN_SETTING": value}},
        "name": {"name": f"run {value}"},
        "tags": {"tags": [f"t-{value}"]},
        "key": {"idempotency_key": value},
        "parameters": {"params": {"lr": value}},
        "file of parameters": {"params_file": str(file)},
    }
    match place:
        case _ if place in of_a_launch:
            return "launch_run", launch | of_a_launch[place]
        case "blueprint":
            (sandbox.path / f"{name}.md").write_text(BLUEPRINT.format(value, code=sandbox.path))
            return "launch_run", {"blueprint": str(sandbox.path / f"{name}.md"), "secrets": [name]}
        case "reason of a stop":
            run_id = await agent.launch("sleep 300", secrets=[name])
            token = (await agent.call("kill_run", run_id=run_id))["confirm_token"]
            return "kill_run", {"run_id": run_id, "confirm_token": token, "reason": f"because of {value}"}
        case "notes of a sweep":
            common = {"command": "true", "secrets": [name]}
            sweep = await agent.call("launch_sweep", name=name.lower(), common=common, cells=[{}])
            return "launch_sweep", {"name": sweep["sweep_id"], "notes": {"cell": f"keep: {value}"}}
        case _:
            return "list_runs", {}  # the address stands in config.toml already


async def test_sixty_canaries_in_twelve_places_come_out_by_no_exit(sandbox: Sandbox) -> None:
    canaries = make_canaries()
    values = [value for place in canaries.values() for value in place.values()]
    assert len(set(values)) == 60
    state = sandbox.path / "state"
    state.mkdir(mode=0o700)
    lines = [f"{name}={value}\n" for place in PLACES[::2] for name, value in canaries[place].items()]
    (state / "secrets.env").write_text("".join(lines))
    (state / "secrets.env").chmod(0o600)
    known = {name: value for place in PLACES[1::2] for name, value in canaries[place].items()}
    hooks = [
        f'[[notify]]\nwebhook = "http://127.0.0.1:9/hook/{value}"\non = ["ended"]\n'
        for value in canaries[PLACES[-1]].values()
    ]
    notices = sandbox.path / "notices"
    hooks.append(f'[[notify]]\ncommand = ["sh", "-c", "env >> {notices}; cat >> {notices}"]\non = ["ended"]\n')
    (state / "config.toml").write_text("".join(hooks))
    told: list[str] = []
    out = Exits(sandbox, values)
    sandbox.environ |= known
    async with sandbox.agent() as agent:
        for place, mine in canaries.items():
            for name, value in mine.items():
                tool, arguments = await put(agent, sandbox, place, name, value)
                result = await agent.client.call_tool(tool, arguments, read_timeout_seconds=90)
                out.look(f"answer to {place}", result.model_dump_json())
                told.append("refused" if result.is_error else "done")
                out.look_at_processes()
        assert told.count("refused") >= 30, "what would be kept as it is"
        runs = (await agent.call("list_runs", limit=200, others=True))["runs"]
        for run in runs:
            if run["state"] in ("running", "starting", "queued"):
                await agent.end(run["run_id"])
            for call, more in EXITS.items():
                result = await agent.client.call_tool(call, {"run_id": run["run_id"]} | more, read_timeout_seconds=90)
                out.look(call, result.model_dump_json())
            waited = await agent.client.call_tool("wait_run", {"run_ids": run["run_id"], "timeout_s": 0, "since": 0})
            out.look("wait_run", waited.model_dump_json())
            for uri in (f"run://{run['run_id']}", f"run://{run['run_id']}/log"):
                out.look("resource", (await agent.client.read_resource(uri)).model_dump_json())
        out.look("resources", (await agent.client.list_resources()).model_dump_json())
        await until_async(notices.exists, "a notice")
    for words in (("ls",), ("doctor",), ("sweep",)):
        done = sandbox.runward(*words)
        out.look(f"runward {words[0]}", done.stdout + done.stderr)
    out.look("notices", notices.read_text(errors="replace"))
    assert "exit code 3" in notices.read_text(errors="replace")
    out.look_at_files(state, but=(state / "secrets.env", state / "config.toml"))
    out.look(
        "tmux", sandbox.tmux("show-environment", "-g") + sandbox.tmux("list-panes", "-a", "-F", "#{pane_start_command}")
    )
    assert out.found == []
    assert out.shown >= {"read_log", "capture_pane", "resource"}


EXITS: dict[str, dict[str, Any]] = {"read_log": {"tail": 200}, "capture_pane": {"history": True}}


class Exits:
    """What came out, where."""

    def __init__(self, sandbox: Sandbox, values: list[str]) -> None:
        self.sandbox, self.values = sandbox, values
        self.found: list[tuple[str, str]] = []
        self.shown: set[str] = set()  # exits by which the line came out that holds a masked canary

    def look(self, exit_: str, text: str) -> None:
        """Look for half of a canary in what came out."""
        self.shown |= {exit_} if "got " in text else set()
        self.found += [(exit_, value) for value in self.values if value[:14] in text or value[-14:] in text]

    def look_at_files(self, directory: Path, but: tuple[Path, ...]) -> None:
        for path in directory.rglob("*"):
            if path.is_file() and path not in but:
                self.look(str(path.relative_to(directory)), path.read_bytes().decode(errors="replace"))

    def look_at_processes(self) -> None:
        for process in processes.list_processes():
            self.look("process list", " ".join(processes.command_words(process.pid)))
