"""Thousands of bad arguments to every tool, over stdio and HTTP: who ends, which listing breaks, what is executed."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread

from tests.benchmarks.harness import Sandbox
from tests.benchmarks.report import Row, Table
from tests.support import hostile_requests
from tests.support.hostile_arguments import Traps, hostile_calls
from tests.support.sandbox import COLD
from tests.support.sandbox import Sandbox as Home
from tests.support.service import serve, tokens

LONGEST_S = 1800.0
CALLS = 2500
_ANSWER_S, _LONG_S, _LOOK_EVERY, _MOST_LOOKED_AT = 60.0, 5.0, 25, 1 << 20
_UNSEEN = set("\0\x1b\x9b\u202e\u2066\u200b")
_INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "bad-inputs", "version": "1"},
}


class Ended(Exception):
    """The server has ended, or does not answer."""


@dataclass
class Outcome:
    """The figures of a campaign. All but ``answers`` and ``seconds`` should be empty."""

    answers: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def blame(self, rule: str, text: str) -> None:
        """Note something that did not hold."""
        self.wrong.setdefault(rule, []).append(text[:600])


RULES = (
    "servers ended or silent",
    "listings broken",
    "texts executed",
    "errors without a reason",
    "characters that nobody sees",
)
Send = Callable[[str, str], Mapping[str, Any]]


class Stdio:
    """A server over stdio, to which bytes are written as they are; one request at a time."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        with (cwd / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                argv, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._rest, self._number = b"", 0
        self.ask("initialize", json.dumps(_INITIALIZE))
        self._write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')

    def ask(self, method: str, params: str) -> Mapping[str, Any]:
        """Return the answer to a request whose ``params`` are JSON text, or to one that is no JSON.

        Raises:
            Ended: there is none.
        """
        self._number += 1
        head = f'{{"jsonrpc": "2.0", "id": {self._number}, "method": "{method}", "params": {params}}}\n'
        self._write(head.encode())
        until_s = time.monotonic() + _ANSWER_S
        while True:
            message = json.loads(self._read_line(until_s))
            if message.get("id") in (self._number, None) and ("result" in message or "error" in message):
                return dict(message)

    def call(self, tool: str, arguments: str) -> Mapping[str, Any]:
        """Call a tool."""
        return self.ask("tools/call", f'{{"name": "{tool}", "arguments": {arguments}}}')

    def close(self) -> None:
        """End the server."""
        self.process.kill()
        self.process.communicate()

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except OSError as error:
            raise Ended(str(error)) from error

    def _read_line(self, until_s: float) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            if not select.select([self.process.stdout], [], [], max(0.0, until_s - time.monotonic()))[0]:
                raise Ended(f"no answer in {_ANSWER_S:g} s")
            if not (part := os.read(self.process.stdout.fileno(), 1 << 20)):
                raise Ended(f"exit status {self.process.wait(10)}")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def play(home: Home, calls: int, seed: int, command: Sequence[str] = COLD) -> Outcome:
    """Send so many calls, half of them over stdio and half over HTTP, and look at listings and traps meanwhile."""
    outcome, traps = Outcome(), Traps(home.path / "traps")
    traps.make()
    token = tokens(home).add("fuzz")
    dice = random.Random(seed)
    stdio = Stdio([*command, "serve"], home.environ, home.path)
    try:
        odd = stdio.call("launch_run", json.dumps({"command": "echo step 1 loss 0.5", "name": "odd", "owner": "fuzz"}))
        run_id = odd["result"]["structuredContent"]["run_id"]
        stdio.call("wait_run", json.dumps({"run_ids": run_id, "until": "end"}))
        tools = stdio.ask("tools/list", "{}")["result"]["tools"]
        _send_all(outcome, traps, tools, stdio.call, run_id, calls // 2, dice)
        with serve(home) as service:

            def post(tool: str, arguments: str) -> Mapping[str, Any]:
                mark = '"@arguments@"'
                body = hostile_requests.rpc("tools/call", {"name": tool, "arguments": "@arguments@"})
                body = body.replace(mark.encode(), arguments.encode())
                request = hostile_requests.request(
                    body,
                    host="localhost",
                    token=token,
                    MCP_Protocol_Version=hostile_requests.VERSION,
                    Mcp_Method="tools/call",
                    Mcp_Name=tool,
                )
                status, told = service.send(request, timeout_s=_ANSWER_S)
                if not status:
                    raise Ended("the connection was cut")
                text = told.partition(b"\r\n\r\n")[2].decode()
                data = next((line[5:] for line in text.splitlines() if line.startswith("data:")), text)
                return dict(json.loads(data))

            _send_all(outcome, traps, tools, post, run_id, calls - calls // 2, dice)
            if service.process.poll() is not None:
                outcome.blame(RULES[0], "HTTP: it has ended")
    finally:
        stdio.close()
    return outcome


def _send_all(
    outcome: Outcome,
    traps: Traps,
    tools: Sequence[Mapping[str, Any]],
    send: Send,
    run_id: str,
    calls: int,
    dice: random.Random,
) -> None:
    generated = hostile_calls(tools, traps, dice)
    for number in range(calls):
        tool, arguments = next(generated)
        begun_s = time.monotonic()
        try:
            answer = send(tool, arguments)
        except Ended as error:
            outcome.blame(RULES[0], f"{tool} {arguments[:300]}: {error}")
            return
        took_s = time.monotonic() - begun_s
        outcome.seconds.append(took_s)
        if took_s > _LONG_S:
            print(f"bad_inputs: {took_s:.1f} s: {tool} {arguments[:200]}", file=sys.stderr)
        _check(outcome, answer, f"{tool} {arguments[:300]}")
        if traps.executed:
            outcome.blame(RULES[2], f"{tool} {arguments[:300]}")
            traps.forget()
        if number % _LOOK_EVERY == _LOOK_EVERY - 1 or number == calls - 1:
            listed = send("list_runs", "{}").get("result", {}).get("structuredContent", {}).get("runs", ())
            if run_id not in {row["run_id"] for row in listed}:
                outcome.blame(RULES[1], f"after {tool} {arguments[:300]}")


def _check(outcome: Outcome, answer: Mapping[str, Any], summary: str) -> None:
    result = answer.get("result", {})
    text = json.dumps(answer, ensure_ascii=False)[:_MOST_LOOKED_AT]
    outcome.answers["refused as JSON-RPC" if "error" in answer else "refused" if result.get("isError") else "done"] += 1
    if "a fault of runward itself" in text or "Traceback" in text or "Internal" in text:
        outcome.blame(RULES[3], f"{summary}: {text[:200]}")
    told = "".join(part.get("text", "") for part in result.get("content", ()))
    if _UNSEEN & set(told) or any("\ud800" <= letter <= "\udfff" for letter in text):
        outcome.blame(RULES[4], f"{summary}: {told[:200]!r}")


async def measure(sandbox: Sandbox) -> Table:
    """Send the calls; ``RUNWARD_BENCH_SEED`` chooses them, and ``RUNWARD_BENCH_CALLS`` how many."""
    seed = int(os.environ.get("RUNWARD_BENCH_SEED") or random.SystemRandom().randrange(10**6))
    calls = int(os.environ.get("RUNWARD_BENCH_CALLS") or CALLS)
    home = Home(sandbox.root, sandbox.socket, {**sandbox.environment(), "RUNWARD_HOME": str(sandbox.root / "state")})
    outcome = await anyio.to_thread.run_sync(play, home, calls, seed)
    rows = [Row(rule, str(len(outcome.wrong.get(rule, ()))), bar="0", ok=not outcome.wrong.get(rule)) for rule in RULES]
    told = ", ".join(f"{number:,} {what}" for what, number in sorted(outcome.answers.items()))
    longest = f"; the slowest took {max(outcome.seconds):.1f} s" if outcome.seconds else ""
    notes = [f"Seed {seed}: {told}{longest}.", *(f"{rule}: {texts[0]}" for rule, texts in outcome.wrong.items())]
    return Table(f"{sum(outcome.answers.values()):,} bad inputs, over stdio and HTTP", tuple(rows), tuple(notes))
