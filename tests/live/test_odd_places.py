"""Texts that no JSON can carry, or that nobody sees, in every place that takes texts and is no tool.

A new place is a function below, which brings odd texts in, and a row of `PLACES`. It returns all that came out.
`test_unsendable` has the tools, resources, prompts and completions.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import pytest

from mcp_server.page.run_routes import list_run_routes
from mcp_server.page.sessions import PageSessions
from mcp_server.store.state_home import StateHome
from tests.live.test_hostile_page import OWN, Attack, Siege, get
from tests.live.test_unsendable import ODD
from tests.live.test_wakes import monitor, read_line
from tests.support import hostile_requests, warm_start
from tests.support.receiver import receive
from tests.support.sandbox import Sandbox, until_async
from tests.support.service import serve, tokens

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

UNSEEN = {"\u202e", "\u2066", "\x00", "\ufffe", *map(chr, range(0xD800, 0xE000))}
# Each of them in one text; a megabyte has a text of its own.
MIXED = "".join(text for kind, text in ODD.items() if kind != "long")
QUERY = ("grep", "tag", "run", "other", "attempt", "after", "before", "from", "to", "points", "limit", "line", "state")


async def _fail_oddly(sandbox: Sandbox) -> str:
    """Start a run whose specification and last line are odd, and return its id."""
    line = sandbox.path / "line"
    line.write_bytes(f"ValueError: {MIXED}\n".encode("utf-8", "surrogatepass"))
    async with sandbox.agent() as agent:
        run_id = await agent.launch("read x < go; cat line; exit 3", cwd=str(sandbox.path), name="odd")
        spec = sandbox.rundir(run_id).path / "spec.json"
        spec.write_text(json.dumps(json.loads(spec.read_text()) | {"name": MIXED, "tags": [MIXED], "why": MIXED}))
    return run_id


async def imported(sandbox: Sandbox) -> str:
    """Names of directories, tags, settings and logs of trainings that `runward import` reads."""
    name = os.fsencode(sandbox.path / "lab") + b"/od\xe9d " + "\u202e\u2066x".encode()
    lab = Path(os.fsdecode(name))
    lab.mkdir(parents=True)
    rows = [json.dumps({"step": step, f"loss {MIXED}": 1 / (step + 1), "loss": 2.0}) for step in range(9)]
    (lab / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    (lab / "config.json").write_text(json.dumps({f"lr {MIXED}": MIXED, "long": ODD["long"]}))
    (lab / "train.log").write_bytes(MIXED.encode("utf-8", "surrogatepass"))
    told = [sandbox.runward("import", str(sandbox.path / "lab")), sandbox.runward("ls", "--json")]
    assert told[0].returncode == 0, told
    async with sandbox.agent() as agent:
        listed = await agent.call("list_runs")
        (row,) = listed["runs"]
        assert row["state"] == "imported"
        answers = [await agent.text("read_tb", run_id=row["run_id"]), await agent.text("find_runs", query="loss")]
    return "".join([*(each.stdout + each.stderr for each in told), json.dumps(listed, ensure_ascii=False), *answers])


async def hook(sandbox: Sandbox) -> str:
    """A command that a client's shell is about to run."""
    told = ""
    for text in ODD.values():
        commands: tuple[object, ...] = (
            f"torchrun train.py {text}",
            ["pkill", "-f", text],
            f"echo {text}; nohup x.py &",
        )
        for command in commands[: 1 if text is ODD["long"] else None]:  # a megabyte takes seconds
            event = {"tool_name": text[:100], "tool_input": {"command": command}}
            done = sandbox.runward("hook", stdin=None, input=json.dumps(event))
            assert done.returncode == 0, done.stderr
            told += done.stdout + done.stderr
    return told


async def woken(sandbox: Sandbox) -> str:
    """A run that `runward monitor` tells of."""
    os.mkfifo(sandbox.path / "go")
    with monitor(sandbox) as process:
        run_id = await _fail_oddly(sandbox)
        (sandbox.path / "go").write_text("go\n")
        line = await read_line(process)
        assert run_id in line
        return line


async def noticed(sandbox: Sandbox) -> str:
    """A run that a webhook and a command hear of."""
    os.mkfifo(sandbox.path / "go")
    heard = sandbox.path / "heard"
    with receive() as receiver:
        (sandbox.path / "state").mkdir(mode=0o700)
        (sandbox.path / "state" / "config.toml").write_text(
            f'[[notify]]\nwebhook = "{receiver.url}"\n[[notify]]\n'
            f"command = '(echo \"$RUNWARD_NOTICE_TITLE$RUNWARD_NOTICE_TEXT\"; cat; echo) > {heard}'\n"
        )
        run_id = await _fail_oddly(sandbox)
        (sandbox.path / "go").write_text("go\n")
        await until_async(lambda: heard.exists() and heard.read_bytes().endswith(b"\n"), "the command's notice")
        await until_async(lambda: receiver.posts, "the webhook's notice")
        assert receiver.bodies[0]["run_id"] == run_id
        return heard.read_text() + json.dumps(receiver.posts, ensure_ascii=False)


async def kept_server(sandbox: Sandbox) -> str:
    """Messages that the parent of a server over stdio passes on."""
    meta = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": MIXED, "version": MIXED}}
    asked = [{"method": "initialize", "params": meta, "id": 1}]
    for number, text in enumerate(ODD.values()):
        asked.append({"method": f"tools/{text}", "id": 10 + number})
        asked.append({"method": "tools/call", "params": {"name": text, "arguments": {text: text}}, "id": 20 + number})
        asked.append({"method": "notifications/cancelled", "params": {"requestId": text, "reason": text}})
    lines = [json.dumps({"jsonrpc": "2.0", **each}).encode() for each in asked]
    lines += [
        b'{"jsonrpc":"2.0","id":3,"method":"\xed\xa0\x80\xff\x00"}',
        b"\xff\xfe\x00",
        MIXED.encode("utf-8", "replace"),
    ]
    lines.append(b'{"jsonrpc":"2.0","id":99,"method":"ping"}')
    with subprocess.Popen(
        [*warm_start.command()], env=sandbox.environ, cwd=sandbox.path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        told = b""
        server.stdin.write(lines[0] + b"\n")
        server.stdin.flush()
        told += server.stdout.readline()
        server.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n' + b"\n".join(lines[1:]) + b"\n")
        server.stdin.flush()
        ids = set[object]()
        while not {99, *range(10, 14), *range(20, 24)} <= ids:
            told += (line := server.stdout.readline())
            ids.add(json.loads(line).get("id"))
        server.stdin.close()
        assert server.wait(30) == 0
    return told.decode()


async def page(sandbox: Sandbox) -> str:
    """Each address of the page, its query and its form; then the run that was noted."""
    async with sandbox.agent() as agent:
        run_id = await agent.launch("true")
        await agent.end(run_id)
    sessions = PageSessions(StateHome(sandbox.path / "state"))
    me = f"{sessions.cookie}={sessions.redeem(sessions.make_link())}"
    fields = json.dumps(dict.fromkeys(("run_id", "id", "text", "verdict", "why", "trial", "token"), MIXED))
    with serve(sandbox) as service:
        siege = Siege(service, {"me": me, "port": str(service.port)})
        told = b""
        nothing = cast("Any", SimpleNamespace(store=None, environ={}))
        routes = [("/api/runs", "GET"), ("/open/{key}", "GET"), ("/static/{key}", "GET"), ("/api/session", "POST")]
        routes += [(path, method) for path, _, method in list_run_routes(nothing, nothing)]
        odd = quote(MIXED.encode("utf-8", "surrogatepass"))
        for path, method in routes:
            for text in (run_id, MIXED, ODD["long"][: 1 << 14], ODD["long"]):
                word = quote(text.encode("utf-8", "surrogatepass"))
                address = path.replace("{run_id}", word).replace("{trial}", odd).replace("{key}", odd)
                queries = (
                    ["", *(f"?{name}={odd}&{odd}={odd}" for name in QUERY)] if text == run_id else [f"?tag={word}"]
                )
                for line in [f"GET {address}{query}" for query in queries] if method == "GET" else [f"POST {address}"]:
                    body, headers = (fields, OWN) if method == "POST" else ("", "")
                    status, answer = siege.send(Attack(f"{line} HTTP/1.1", (), "{me}", body, headers))
                    assert status < 500, (line[:200], answer[:300])
                    told += answer
        noted = json.dumps({"verdict": "keep", "why": MIXED})
        assert siege.send(Attack(f"POST /api/runs/{run_id}/note HTTP/1.1", (), "{me}", noted, OWN))[0] in (200, 400)
        status, answer = siege.send(get(f"/api/runs/{run_id}", (), cookie="{me}"))
        assert status == 200
        return (told + answer + service.log.read_bytes()).decode()


async def completed(sandbox: Sandbox) -> str:
    """A completion that is asked for over HTTP."""
    token, told = tokens(sandbox).add("alice"), b""
    with serve(sandbox) as service:
        for text in ODD.values():
            for address in ("run://{run_id}", "guide://{name}", text):
                asked = {"ref": {"type": "ref/resource", "uri": address}, "argument": {"name": "run_id", "value": text}}
                request = hostile_requests.modern("completion/complete", asked)
                words = {b"{port}": str(service.port).encode(), b"{alice}": token.encode()}
                for word, value in words.items():
                    request = request.replace(word, value)
                status, answer = service.send(request)
                assert status < 500, answer[:500]
                told += answer
        async with service.agent(token) as agent:
            assert "runs" in await agent.call("list_runs")
        return (told + service.log.read_bytes()).decode()


PLACES = (imported, hook, woken, noticed, kept_server, page, completed)


@pytest.mark.parametrize("place", PLACES)
async def test_odd_texts_come_out_readable(sandbox: Sandbox, place: Callable[[Sandbox], Awaitable[str]]) -> None:
    told = await place(sandbox)
    told.encode()
    assert not UNSEEN & set(told), UNSEEN & set(told)
    for sign in ("Traceback", "a fault of runward itself"):
        assert sign not in told, told[max(0, told.find(sign) - 500) :][:2000]
