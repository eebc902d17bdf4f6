"""40 tasks of labs, by runward's tools and by a shell alone: right answers, calls, tokens read, time.

The agents of `agents.toml` are scripts that know which call comes next: what they read is what any agent must read, and
an answer counts as right if it stands in there. RUNWARD_AGENTS_URL names an interface as OpenAI has it, with
RUNWARD_AGENTS_MODEL and RUNWARD_AGENTS_KEY: then that model answers, by its own choice of calls.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import to_thread

from tests.benchmarks.harness import NotMeasured, Sandbox, Server, program, shell, until
from tests.benchmarks.report import Row, Table, measured
from tests.benchmarks.tokens import count

LONGEST_S = 900.0
_TASKS = tomllib.loads((Path(__file__).parent / "agents.toml").read_text(encoding="utf-8"))
_URL = "RUNWARD_AGENTS_URL"
_LIMIT_S, _MOST_TURNS, _MODEL_LIMIT_S = 90.0, 20, 300.0
_MOST_CHARS = 30_000  # of an answer: clients cut longer ones
_HINT = "You look after training runs. Answer in one sentence that holds the figure, name or line that was asked for."
_SHELL_TOOL = {
    "name": "bash",
    "description": "Run a command line; returns its output.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
Call = Callable[[str, Mapping[str, Any]], Awaitable[str]]


@dataclass
class Account:
    """What an agent did for one task: its answer, and the calls, tokens and seconds until then."""

    answer: str = ""
    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0


async def measure(sandbox: Sandbox) -> Table:
    """Build the scene twice, once by launch_run, once in tmux with log files, and give both agents all tasks."""
    start = shell(program("lab_training"))
    async with sandbox.server() as server:
        names = {name: await server.launch(f"{start} {options}", name=name) for name, options in _TASKS["runs"].items()}
        tools = (await server.client.list_tools()).tools
        schemas = [{"name": t.name, "description": t.description, "parameters": t.input_schema} for t in tools]
        live = [names[name] for name in ("live", "stuck", "parent")]
        await server.wait([run_id for run_id in names.values() if run_id not in live], until="end")
        by_tools = await _solve_all("tools", {**names, "train": start}, _tools_of(server), schemas)
        for row in (await server.call("list_runs", state="live")).data["runs"]:
            await server.kill(row["run_id"] if isinstance(row, dict) else row.split()[0])
    sandbox.start_plain_tmux()
    place = sandbox.work / "lab"
    place.mkdir(parents=True)
    bash = _shell_of(sandbox, place)
    for name, options in _TASKS["runs"].items():
        (place / f"{name}.sh").write_text(f"{start} {options}\n")
        await bash("bash", {"command": f"tmux new-session -d -s {name} {_quoted(name)}"})
    ended = [place / f"{name}.log" for name in names if names[name] not in live]
    if not await until(lambda: all(log.exists() and "exit=" in log.read_text() for log in ended), 60):
        raise NotMeasured("the scene in tmux did not come about")
    by_shell = await _solve_all("shell", {**dict(zip(names, names, strict=True)), "train": start}, bash, [_SHELL_TOOL])
    return _describe(by_tools, by_shell, count(json.dumps(schemas)))


async def _solve_all(
    way: str, names: Mapping[str, str], call: Call, schemas: Sequence[Mapping[str, Any]]
) -> list[Account]:
    solve = _ask_model if _URL in os.environ else _follow_script
    accounts = []
    for task in _TASKS["task"]:
        account, begun_s = Account(), time.monotonic()

        async def counted(name: str, arguments: Mapping[str, Any], account: Account = account) -> str:
            text = (await call(name, arguments))[-_MOST_CHARS:]
            account.calls += 1
            account.tokens += count(text) + count(json.dumps(arguments))
            return text

        await solve(account, task, way, names, counted, schemas)
        account.seconds = time.monotonic() - begun_s
        if os.environ.get("RUNWARD_AGENTS_VERBOSE") and not _is_right(task, account):
            print(f"{way}: {task['ask']}\n{account.answer[-1500:]}\n", file=sys.stderr)
        accounts.append(account)
    return accounts


def _is_right(task: Mapping[str, Any], account: Account) -> bool:
    return re.search(task["expect"], account.answer) is not None


async def _follow_script(
    account: Account, task: Mapping[str, Any], way: str, names: Mapping[str, str], call: Call, _schemas: object
) -> None:
    """Make the calls of the task one after the other; all that was read is the answer."""
    known = dict(names)
    for step in task[way]:
        words = [step] if isinstance(step, str) else step
        pattern = words[-1] if len(words) == 2 + (way == "tools") else None
        filled = json.loads(
            re.sub(r"\{([\w.-]+)\}", lambda m: known.get(m[1], m[0]), json.dumps(words[: 1 + (way == "tools")]))
        )
        give_up_s = time.monotonic() + _LIMIT_S
        while True:
            text = await (call(filled[0], filled[1]) if way == "tools" else call("bash", {"command": filled[0]}))
            found = re.search(pattern, text) if pattern else None
            if way == "tools" or pattern is None or found or time.monotonic() > give_up_s:
                break
        if found and found.groups():
            known["taken"] = found[1]
        account.answer += f"{text}\n"


async def _ask_model(
    account: Account,
    task: Mapping[str, Any],
    _way: str,
    names: Mapping[str, str],
    call: Call,
    schemas: Sequence[Mapping[str, Any]],
) -> None:
    """Let the model choose its calls until it answers in words; its own count of tokens is kept."""
    ask = re.sub(r"\{([\w.-]+)\}", lambda m: names[m[1]], task["ask"])
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"{_HINT} The training is started by: {names['train']} --lr 1e-3"},
        {"role": "user", "content": ask},
    ]
    body = {"model": os.environ.get("RUNWARD_AGENTS_MODEL", ""), "temperature": 0}
    body["tools"] = [{"type": "function", "function": schema} for schema in schemas]
    account.tokens = 0
    for _ in range(_MOST_TURNS):
        answer = await to_thread.run_sync(_post, {**body, "messages": messages})
        used = answer.get("usage", {}).get("total_tokens", 0)
        message = answer["choices"][0]["message"]
        messages.append(message)
        for asked in message.get("tool_calls") or ():
            function = asked["function"]
            text = await call(function["name"], json.loads(function["arguments"] or "{}"))
            messages.append({"role": "tool", "tool_call_id": asked["id"], "content": text})
        account.tokens = used or account.tokens
        if not message.get("tool_calls"):
            account.answer = message.get("content") or ""
            return


def _post(body: Mapping[str, Any]) -> Any:
    address = f"{os.environ[_URL].rstrip('/')}/chat/completions"
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {os.environ.get('RUNWARD_AGENTS_KEY', '')}",
    }
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=_MODEL_LIMIT_S) as response:
        return json.load(response)


def _tools_of(server: Server) -> Call:
    async def call(name: str, arguments: Mapping[str, Any]) -> str:
        try:
            answer = await server.call(name, **arguments)
        except NotMeasured as error:  # a refusal, which a model reads
            return str(error)
        return json.dumps(answer.data, ensure_ascii=False, separators=(",", ":")) if answer.data else answer.text

    return call


def _shell_of(sandbox: Sandbox, place: Path) -> Call:
    # The user's `tmux` is the throwaway server, and pgrep finds nothing but the scene.
    (sandbox.root / "bin").mkdir()
    tmux = sandbox.root / "bin" / "tmux"
    tmux.write_text(f'#!/bin/sh\nexec /usr/bin/env -u TMUX {_which("tmux")} -L {sandbox.plain_socket} "$@"\n')
    tmux.chmod(0o755)
    environ = {**sandbox.environment(), "PATH": f"{tmux.parent}:{os.environ['PATH']}"}

    def run(command: str) -> str:
        words = ["bash", "-c", command]
        done = subprocess.run(
            words, env=environ, cwd=place, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        return done.stdout + done.stderr

    async def call(_name: str, arguments: Mapping[str, Any]) -> str:
        return await to_thread.run_sync(run, str(arguments.get("command", "")))

    return call


def _which(program_name: str) -> str:
    return subprocess.run(["which", program_name], capture_output=True, text=True, check=True).stdout.strip()


def _quoted(name: str) -> str:
    return f"'bash {name}.sh > {name}.log 2>&1; echo exit=$? >> {name}.log'"


def _describe(by_tools: Sequence[Account], by_shell: Sequence[Account], schemas: int) -> Table:
    both = list(zip(_TASKS["task"], by_tools, by_shell, strict=True))
    right = [sum(_is_right(task, pair[way]) for task, *pair in both) for way in (0, 1)]
    wrong = [[task["ask"] for task, *pair in both if not _is_right(task, pair[way])] for way in (0, 1)]
    who = os.environ.get("RUNWARD_AGENTS_MODEL") or "scripted agents, which make no mistake of their own"
    total = len(both)

    def sums(name: str) -> list[float]:
        return [sum(getattr(account, name) for account in each) for each in (by_tools, by_shell)]

    calls, tokens, seconds = sums("calls"), sums("tokens"), sums("seconds")
    rows = (
        Row(
            "right answers",
            f"{right[0]} of {total}",
            f"{right[1]} of {total}",
            bar="" if _URL in os.environ else f"{total}",
            ok=None if _URL in os.environ else right[0] == total,
        ),
        measured("calls", calls[0], "calls", baseline=calls[1]),
        measured("tokens of calls and answers", tokens[0], "tokens", baseline=tokens[1]),
        Row(
            "tokens of the tools' schemas, in each request",
            f"{schemas:,} tokens",
            f"{count(json.dumps(_SHELL_TOOL))} tokens",
        ),
        measured("time of calls", seconds[0], "s", baseline=seconds[1]),
    )
    notes = [
        f"Answered by {who}: the tasks of `agents.toml` through the tools, and through bash and tmux with log files "
        "that end with exit codes. Logs have bars as tqdm prints them; runs take a second, so nobody waits for long.",
        *(f"Wrong by {way}: {'; '.join(asks)}" for way, asks in zip(("tools", "shell"), wrong, strict=True) if asks),
    ]
    return Table("Agents' tasks, by tools and by a shell", rows, tuple(notes))
