"""The parent of a server over stdio, before a server of a few lines that dies when it is told to."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_SERVER = """
import json, os, signal, sys
from mcp_server.system.server_keeper import REPEATED, keep_server, kept_fd

_FIRST = "initialize", "tools/list", "subscriptions/listen"

def find_answer(message):
    method, number = message["method"], message["id"]
    if "GATE" not in os.environ or method not in _FIRST:
        return None
    if method == "subscriptions/listen":
        params = {"_meta": {"io.modelcontextprotocol/subscriptionId": number}}
        return {"method": "notifications/subscriptions/acknowledged", "params": params}
    return {"id": number, "result": {"parent": os.getpid()}}

status = keep_server(find_answer)
if status is not None:
    sys.exit(status)
out = os.fdopen(1, "w", buffering=1)

def send(**message):
    out.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")) + "\\n")

deaths = lambda: len(os.pread(kept_fd(), 1000, 0))
if "GATE" in os.environ:
    open(os.environ["GATE"]).read()  # it loads
seen = []
for line in os.fdopen(0):
    message = json.loads(line)
    method, params, number = message.get("method"), message.get("params") or {}, message.get("id")
    seen.append(method)
    repeated = (params.get("_meta") or {}).get(REPEATED)
    if method == "die" and deaths() < params["times"]:
        os.pwrite(kept_fd(), b"x", deaths())
        out.write(params.get("first", ""))
        out.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    elif method == "exit":
        sys.exit(params["status"])
    elif method == "subscriptions/listen":
        params = {"_meta": {"io.modelcontextprotocol/subscriptionId": number}}
        send(method="notifications/subscriptions/acknowledged", params=params)
    elif method == "seen":
        send(id=number, result={"seen": seen, "pid": os.getpid()})
    elif method == "ask":
        send(id=1, method="question")
    elif method is None:
        send(method="heard", params=message)
    elif number is not None and method != "wait":
        result = {"pid": os.getpid(), "parent": os.getppid(), "repeated": repeated, "size": len(line)}
        send(id=number, result={**result, "text": "x" * params.get("answer", 0)})
"""


class _Client:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def send(self, method: str, number: int | str | None = None, **params: Any) -> None:
        identity = {} if number is None else {"id": number}
        self.write(json.dumps({"jsonrpc": "2.0", **identity, "method": method, "params": params}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def ask(self, method: str, number: int | str, **params: Any) -> dict[str, Any]:
        self.send(method, number, **params)
        answer = self.read()
        assert answer["id"] == number, answer
        return dict(answer["result"])


@contextmanager
def _client(**variables: str) -> Iterator[_Client]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield _Client(process)
        finally:
            process.kill()


def test_a_client_does_not_notice_that_its_server_was_killed() -> None:
    with _client() as client:
        first = client.ask("initialize", 0)
        client.send("notifications/initialized")
        assert client.ask("list", "a")["pid"] == first["pid"]
        os.kill(first["pid"], signal.SIGKILL)
        second = client.ask("list", 1)
        assert second["pid"] != first["pid"]
        assert second["parent"] == first["parent"] == client.process.pid


def _ask_first(client: _Client) -> None:
    """Ask what the parent of a server that loads answers in its place."""
    assert client.ask("initialize", 0) == {"parent": client.process.pid}
    client.send("notifications/initialized")
    assert client.ask("tools/list", 1) == {"parent": client.process.pid}
    client.send("subscriptions/listen", "news")
    assert client.read()["method"] == "notifications/subscriptions/acknowledged"
    client.send("seen", 5)


def test_the_first_questions_are_answered_once_while_the_server_loads(tmp_path: Path) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    with _client(GATE=str(gate)) as client:
        _ask_first(client)
        gate.write_text("")
        answer = client.read()
        assert answer["id"] == 5, "the server's own answers and its confirmation are not passed on"
        assert answer["result"]["seen"][:3] == ["initialize", "notifications/initialized", "tools/list"]
        assert client.ask("tools/list", 6)["pid"] == answer["result"]["pid"], "a server that has spoken answers"


def test_a_server_that_is_killed_while_it_loads_is_replaced_and_the_client_hears_nothing_twice(tmp_path: Path) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    with _client(GATE=str(gate)) as client:
        _ask_first(client)
        (first,) = Path(f"/proc/{client.process.pid}/task/{client.process.pid}/children").read_text().split()
        server = os.pidfd_open(int(first))
        os.kill(int(first), signal.SIGKILL)
        assert select.select([server], [], [], 60)[0], "it has ended"
        os.close(server)
        gate.write_text("")  # of the next one
        answer = client.read()
        assert answer["id"] == 5
        assert answer["result"]["pid"] != int(first)
        assert sorted(answer["result"]["seen"][2:]) == ["seen", "subscriptions/listen"]
        client.send("subscriptions/listen", "more news")
        assert client.read()["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "more news"


def test_an_open_request_is_repeated_and_says_since_when_it_was_open() -> None:
    with _client() as client:
        client.send("wait", "still open")
        answer = client.ask("die", 5, times=1, first='{"jsonrpc":"2.0","id":5,"result":{"half')
        assert answer["repeated"] >= 0
        client.send("notifications/cancelled", requestId="still open")
        assert client.ask("die", 6, times=2)["repeated"] >= 0
        assert client.ask("list", 7)["repeated"] is None


def test_a_request_that_kills_every_server_is_refused_and_others_are_answered() -> None:
    with _client() as client:
        client.send("die", 1, times=1000)
        error = client.read()
        assert error["id"] == 1
        assert "died 3 times" in error["error"]["message"]
        assert client.ask("list", 2)["repeated"] is None


def test_messages_of_any_size_and_in_pieces_arrive_whole() -> None:
    with _client() as client:
        padding = "y" * 3_000_000
        answer = client.ask("list", 1, padding=padding, answer=5_000_000)
        assert answer["size"] > len(padding)
        assert len(answer["text"]) == 5_000_000
        answer = client.ask("die", 2, times=1, padding=padding)
        assert answer["size"] > len(padding)
        for piece in (b'{"jsonrpc":"2.0","id"', b":3,", b'"method":"list"}', b"\n"):
            client.write(piece)
        assert client.read()["id"] == 3


def test_an_answer_to_a_question_of_a_dead_server_reaches_no_later_one() -> None:
    with _client() as client:
        client.send("ask")
        old = client.read()["id"]
        client.send("die", 1, times=1)
        assert client.read()["params"]["requestId"] == old, "the question is withdrawn"
        client.read()
        client.send("ask")
        new = client.read()["id"]
        assert new != old
        for number in (old, new):
            client.write(json.dumps({"jsonrpc": "2.0", "id": number, "result": {"from": number}}).encode() + b"\n")
        assert client.read()["params"] == {"jsonrpc": "2.0", "id": 1, "result": {"from": new}}


@pytest.mark.parametrize("status", [0, 3])
def test_a_server_that_ends_by_itself_before_it_answered_ends_its_parent_alike(status: int) -> None:
    with _client() as client:
        client.send("exit", status=status)
        assert client.process.wait(60) == status


def test_a_closed_input_and_a_signal_end_both() -> None:
    with _client() as client:
        client.ask("list", 1)
        assert client.process.stdin is not None
        client.process.stdin.close()
        assert client.process.wait(60) == 0
    with _client() as client:
        pid = client.ask("list", 1)["pid"]
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait(60) == -signal.SIGTERM
        assert not Path(f"/proc/{pid}").exists()


def test_the_death_of_the_parent_ends_the_server() -> None:
    with _client() as client:
        pid = client.ask("list", 1)["pid"]
        server = os.pidfd_open(pid)
        client.process.kill()
        assert select.select([server], [], [], 60)[0], "it has ended"
        os.close(server)


def test_a_server_that_dies_again_and_again_ends_with_the_reason() -> None:
    program = "import os, signal, sys; from mcp_server.system import server_keeper as keeper; keeper._PAUSE_S = 0.0\n"
    program += "status = keeper.keep_server(lambda _: None)\n"
    program += "status is None and os.kill(os.getpid(), signal.SIGTRAP) or sys.exit(status)"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    asked = b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n'
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(asked)
        process.stdin.flush()
        assert process.wait(60) == 1
        assert "one after the other (signal 5)" in json.loads(process.stdout.read())["error"]["message"]
        assert b"signal 5" in process.stderr.read()
