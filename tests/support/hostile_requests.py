"""Requests that a server must refuse, reading and changing nothing: what is sent, and what may come back.

``{port}``, ``{alice}``, ``{bob}`` (tokens), ``{session}`` (one that alice opened), ``{bobs_run}``, ``{trap}`` (a
directory of files that must not be read) stand for what is known only when the server runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSION = "2026-07-28"
CANARY = "canary-7d1f0c-must-not-be-told"
# As long as the limits are made for.
_MIB = 1 << 20
_LIST: Mapping[str, Any] = {"name": "list_runs", "arguments": {}}


@dataclass(frozen=True)
class Hostile:
    """One request, byte by byte. ``refused``: the statuses that refuse it; empty: an error inside the answer does."""

    name: str
    request: bytes
    refused: tuple[int, ...] = ()


def request(
    body: bytes = b"",
    *,
    line: str = "POST /mcp HTTP/1.1",
    host: str = "127.0.0.1:{port}",
    token: str | None = "{alice}",
    length: int | None = None,
    **more: str,
) -> bytes:
    """Return a request as it goes over the wire; ``more`` are further headers, ``_`` for ``-``."""
    lines = [line, f"Host: {host}"]
    lines += [f"Authorization: Bearer {token}"] if token is not None else []
    usual = {"Content_Type": "application/json", "Accept": "application/json, text/event-stream"}
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in {**usual, **more}.items() if value]
    if "Transfer_Encoding" not in more:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def rpc(method: str, params: Mapping[str, Any], **more: Any) -> bytes:
    """Return the body of a request of the stateless protocol."""
    meta = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}
    return json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}, **more}
    ).encode()


def modern(method: str, params: Mapping[str, Any], **more: Any) -> bytes:
    """Return a whole request of the stateless protocol that is in order as such."""
    name = params.get("name") or params.get("uri")
    headers = {"MCP_Protocol_Version": VERSION, "Mcp_Method": method, "Mcp_Name": name or ""}
    return request(rpc(method, params), **{**headers, **more})


def call(tool: str, **arguments: Any) -> bytes:
    return modern("tools/call", {"name": tool, "arguments": arguments})


def read(uri: str) -> bytes:
    return modern("resources/read", {"uri": uri})


def plain(**more: Any) -> bytes:
    """Return a call that would be answered, but for what ``more`` changes."""
    return modern("tools/call", _LIST, **more)


_LIST_BYTES = len(rpc("tools/call", _LIST))
_LENGTH = f"Content-Length: {_LIST_BYTES}".encode()


def legacy(body: bytes, **more: Any) -> bytes:
    return request(body, **more)


INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}},
    }
).encode()
_PING = b'{"jsonrpc": "2.0", "id": 2, "method": "ping"}'

# --- who is let in
TOKENS = (
    Hostile("no token", plain(token=None), (401,)),
    Hostile("an unknown token", plain(token="runward_" + "A" * 43), (401,)),
    Hostile("an empty token", plain(token=""), (401,)),
    Hostile("half a token", plain(token=None, Authorization="Bearer {alice_half}"), (401,)),
    Hostile("a token and more", plain(token="{alice}x"), (401,)),
    Hostile("a token in other case", plain(token="{alice_upper}"), (401,)),
    Hostile("the stored hash as a token", plain(token="{alice_hash}"), (401,)),
    Hostile("a token taken back", plain(token="{removed}"), (401,)),
    Hostile("a token of 20,000 characters", plain(token="A" * 20_000), (401,)),
    Hostile("a token that is no ASCII", plain(token="\N{SNOWMAN}" * 10), (400, 401)),
    Hostile("a signed token of others", plain(token="eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImV4cCI6MX0."), (401,)),
    Hostile("a password", plain(token=None, Authorization="Basic YWxpY2U6YWxpY2U="), (401,)),
    Hostile("a token without its scheme", plain(token=None, Authorization="{alice}"), (401,)),
    Hostile("a token under another scheme", plain(token=None, Authorization="Token {alice}"), (401,)),
    Hostile("a token in the query", plain(token=None, line="POST /mcp?access_token={alice} HTTP/1.1"), (401,)),
    Hostile("a token in a cookie", plain(token=None, Cookie="token={alice}"), (401,)),
    Hostile("a token in another header", plain(token=None, X_Api_Key="{alice}"), (401,)),
    Hostile("a name as a token", plain(token="alice"), (401,)),
    Hostile("two tokens", plain(Authorization="Bearer {bob}"), (400,)),
    Hostile("opening a session without a token", legacy(INITIALIZE, token=None), (401,)),
    Hostile("listening without a token", request(line="GET /mcp HTTP/1.1", token=None), (401,)),
)
# --- sessions of others
SESSIONS = (
    Hostile("another's session", legacy(_PING, token="{bob}", Mcp_Session_Id="{session}"), (404,)),
    Hostile(
        "listening in another's session",
        request(line="GET /mcp HTTP/1.1", token="{bob}", Mcp_Session_Id="{session}"),
        (404,),
    ),
    Hostile(
        "ending another's session",
        request(line="DELETE /mcp HTTP/1.1", token="{bob}", Mcp_Session_Id="{session}"),
        (404,),
    ),
    Hostile("a session without a token", legacy(_PING, token=None, Mcp_Session_Id="{session}"), (401,)),
    Hostile("a guessed session", legacy(_PING, Mcp_Session_Id="0" * 32), (404,)),
    Hostile("a session that is a path", legacy(_PING, Mcp_Session_Id="../../etc/passwd"), (404,)),
    Hostile("two sessions", legacy(_PING, Mcp_Session_Id="{session}\r\nMcp-Session-Id: 0"), (400,)),
)
# --- browsers
BROWSERS = (
    Hostile("a rebound name", plain(host="evil.example:{port}"), (421,)),
    Hostile("a rebound name, health", request(line="GET /healthz HTTP/1.1", host="evil.example", token=None), (421,)),
    Hostile("a name that begins like ours", plain(host="localhost.evil.example"), (421,)),
    Hostile("an address that begins like ours", plain(host="127.0.0.1.evil.example:{port}"), (421,)),
    Hostile("a host behind an at sign", plain(host="127.0.0.1:80@evil.example"), (400, 421)),
    Hostile("an empty host", plain(host=""), (400, 421)),
    Hostile("two hosts", plain(host="127.0.0.1:{port}\r\nHost: evil.example"), (400,)),
    Hostile("another address", plain(host="8.8.8.8"), (421,)),
    Hostile("a foreign page", plain(Origin="http://evil.example"), (403,)),
    Hostile("a page of no origin", plain(Origin="null"), (403,)),
    Hostile("a page whose name begins like ours", plain(Origin="http://localhost.evil.example"), (403,)),
    Hostile("a page from a file", plain(Origin="file://"), (403,)),
    Hostile("an extension's page", plain(Origin="chrome-extension://abcdefgh"), (403,)),
    Hostile("a foreign page's form", plain(Content_Type="text/plain"), (400, 415)),
    Hostile("a preflight", request(line="OPTIONS /mcp HTTP/1.1", Origin="http://evil.example"), (403,)),
)
# --- the shape of a request
SHAPES = (
    Hostile("a form", plain(Content_Type="application/x-www-form-urlencoded"), (400, 415)),
    Hostile("no content type", plain(Content_Type=""), (400, 415)),
    Hostile("XML", request(b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>'), (400,)),
    Hostile("a compressed body", plain(Content_Encoding="gzip"), (400, 415)),
    Hostile("broken JSON", request(b'{"jsonrpc": "2.0", "id": 1, ', MCP_Protocol_Version=VERSION), (400,)),
    Hostile("broken JSON, older protocol", request(b'{"jsonrpc": '), (400,)),
    Hostile("an empty body", request(b""), (400,)),
    Hostile("bytes that are no text", request(b"\xff\xfe\x00{}"), (400,)),
    Hostile("a batch", request(b"[" + rpc("tools/call", _LIST) + b"]", MCP_Protocol_Version=VERSION), (400,)),
    Hostile("a batch, older protocol", request(b"[" + _PING + b"]", Mcp_Session_Id="{session}"), (400,)),
    Hostile("deep nesting", request(b"[" * 200_000 + b"]" * 200_000, MCP_Protocol_Version=VERSION), (400,)),
    Hostile("deep nesting, older protocol", request(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), (400,)),
    Hostile("a number of a million digits", request(b'{"id": ' + b"9" * _MIB + b"}"), (400,)),
    Hostile("a body of 5 MiB", request(b" " * (5 * _MIB)), (413,)),
    Hostile("a body announced as 10 GiB", request(b"{}", length=10 << 30), (413,)),
    Hostile(
        "5 MiB in chunks",
        request(b"".join(b"80000\r\n" + b" " * 0x80000 + b"\r\n" for _ in range(10)), Transfer_Encoding="chunked"),
        (413,),
    ),
    Hostile("a negative length", request(b"{}", length=-1), (400,)),
    Hostile("two lengths", request(b"{}", Content_Length="5"), (400,)),
    Hostile("a length beside chunks", request(b"0\r\n\r\n", Transfer_Encoding="chunked\r\nContent-Length: 5"), (400,)),
    Hostile("one length twice", plain(X_A=f"1\r\nContent-Length: {_LIST_BYTES}"), (400,)),
    Hostile("a doubled length", plain().replace(_LENGTH, _LENGTH + f", {_LIST_BYTES}".encode()), (400,)),
    Hostile("a bare line feed", plain(X_A="1\nX-B: 2"), (400,)),
    Hostile("a bare carriage return", plain(X_A="1\rX-B: 2"), (400,)),
    Hostile("a folded header", plain(X_A="1\r\n and more"), (400,)),
    Hostile("an unknown coding", request(b"{}", Transfer_Encoding="gzip, chunked"), (400, 501)),
    Hostile("a header of 100,000 bytes", plain(X_Long="a" * 100_000), (400, 431)),
    Hostile("4,000 headers", plain(X_Many="\r\n".join(f"X-{n}: {n:020}" for n in range(4000))), (400, 431)),
    Hostile("a header without a name", plain(X_A="1\r\n: 2"), (400,)),
    Hostile("a NUL in a header", plain(X_A="a\0b"), (400,)),
    Hostile("no HTTP at all", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", (400,)),
    Hostile("an unknown version", plain(line="POST /mcp HTTP/9.9"), (400, 505)),
    Hostile("a header that contradicts the body", plain(Mcp_Method="tools/list"), (400,)),
    Hostile("a header that names another tool", plain(Mcp_Name="kill_run"), (400,)),
    Hostile(
        "two protocol versions", plain(MCP_Protocol_Version=f"{VERSION}\r\nMCP-Protocol-Version: 2025-11-25"), (400,)
    ),
    Hostile("a version from the future", plain(MCP_Protocol_Version="2099-01-01"), (400,)),
    Hostile("an answer to nothing", request(b'{"jsonrpc": "2.0", "id": 9, "result": {}}'), (400, 404)),
)
# --- methods and places
PLACES = (
    Hostile("PUT", plain(line="PUT /mcp HTTP/1.1"), (405,)),
    Hostile("PATCH", request(b"{}", line="PATCH /mcp HTTP/1.1"), (405,)),
    Hostile("GET with a call in it", plain(line="GET /mcp HTTP/1.1"), (405,)),
    Hostile("DELETE without a session", request(line="DELETE /mcp HTTP/1.1"), (400, 404, 405)),
    Hostile("TRACE", request(line="TRACE /mcp HTTP/1.1"), (405,)),
    Hostile("CONNECT", request(line="CONNECT 127.0.0.1:22 HTTP/1.1"), (400, 404, 405)),
    Hostile("a method named by a header", plain(line="GET /mcp HTTP/1.1", X_HTTP_Method_Override="POST"), (405,)),
    Hostile("another's address", request(line="GET http://evil.example/mcp HTTP/1.1", token=None), (400, 401, 404)),
    Hostile("a file", request(line="GET /tokens.toml HTTP/1.1"), (404,)),
    Hostile("a path upwards", request(line="GET /../../../../etc/passwd HTTP/1.1"), (404,)),
    Hostile("a path upwards, escaped", request(line="GET /mcp/%2e%2e%2f%2e%2e%2fetc/passwd HTTP/1.1"), (404,)),
    Hostile("a second slash", plain(line="POST //mcp HTTP/1.1"), (404,)),
    Hostile("writing health", request(b"{}", line="POST /healthz HTTP/1.1"), (405,)),
    Hostile("a discovery of logins", request(line="GET /.well-known/oauth-protected-resource HTTP/1.1"), (404,)),
    Hostile(
        "a socket", request(line="GET /mcp HTTP/1.1", Connection="Upgrade", Upgrade="websocket"), (404, 405, 406, 400)
    ),
    Hostile("an unknown method", modern("runs/delete", {}), (404,)),
    Hostile("a method of the server's inside", modern("__init__", {}), (404,)),
    Hostile("an unknown tool", call("shell", command="id")),
    Hostile("a tool that is a path", call("../kill_run", run_id="{bobs_run}")),
)
# --- what a caller with a token may not do
CALLS = (
    Hostile("another's kill", call("kill_run", run_id="{bobs_run}")),
    Hostile("another's kill by force", call("kill_run", run_id="{bobs_run}", force_other_owner=True)),
    Hostile("another's kill with a guessed token", call("kill_run", run_id="{bobs_run}", confirm_token="AAAAAAAAAAAA")),
    Hostile("a launch in another's name", call("launch_run", command="true", owner="bob")),
    Hostile("a launch in nobody's name", call("launch_run", command="true", owner="")),
    Hostile("a run id upwards", call("read_log", run_id="../../trap/secret")),
    Hostile("a run id that is absolute", call("read_log", run_id="{trap}/secret")),
    Hostile("a run id with a NUL", call("wait_run", run_ids="{bobs_run}\0x", timeout_s=0)),
    Hostile("a run id of a megabyte", call("wait_run", run_ids="a" * _MIB, timeout_s=0)),
    Hostile("a run id that is a dot", call("wait_run", run_ids="..", timeout_s=0)),
    Hostile("a file outside as a log", call("read_log", run_id="{bobs_run}", path="{trap}/secret")),
    Hostile("a pattern that never ends", call("read_log", run_id="{bobs_run}", grep="(a+)+(")),
    Hostile("a file outside as a foreign log", call("read_log", path="{trap}/secret")),
    Hostile("a file outside as a foreign log, searched", call("read_log", path="{trap}/secret", grep=".")),
    Hostile("a link to a file outside as a foreign log", call("read_log", path="{trap}/link")),
    Hostile("a path upwards as a foreign log", call("read_log", path="../trap/secret")),
    Hostile("a relative path as a foreign log", call("read_log", path="trap/secret")),
    Hostile("the list of tokens as a foreign log", call("read_log", path="{trap}/../state/tokens.toml")),
    Hostile("a configuration as a foreign log", call("read_log", path="{trap}/../state/config.toml")),
    Hostile("a home as a foreign log", call("read_log", path="~/trap/secret")),
    Hostile("another's home as a foreign log", call("read_log", path="~root/.bashrc")),
    Hostile("no such user's home as a foreign log", call("read_log", path="~no-such-user/x")),
    Hostile("a process's environment as a foreign log", call("read_log", path="/proc/self/environ")),
    Hostile("a descriptor as a foreign log", call("read_log", path="/proc/self/fd/2")),
    Hostile("a FIFO as a foreign log", call("read_log", path="{trap}/fifo")),
    Hostile("a device as a foreign log", call("read_log", path="/dev/zero")),
    Hostile("a NUL in a foreign log", call("read_log", path="{trap}/secret\0.log")),
    Hostile("a foreign log of a megabyte's name", call("read_log", path="/" + "a" * _MIB)),
    Hostile("another's record as a foreign log", call("read_log", path="{trap}/../state/runs/{bobs_run}/spec.json")),
    Hostile("another's output as a foreign log", call("read_log", path="{trap}/../state/runs/{bobs_run}/run.sh")),
    Hostile("all records as scalars", call("read_tb", logdir="{trap}/../state/runs")),
    Hostile("a foreign log that is empty", call("read_log", path="")),
    Hostile("a foreign log that is the root", call("read_log", path="/")),
    Hostile("another's directory as a foreign log", call("read_log", path="{bobs_place}/secret")),
    Hostile("scalars of another's directory", call("read_tb", logdir="{bobs_place}")),
    Hostile("scalars beside a directory outside", call("read_tb", run_id="{bobs_run}", compare=["{trap}/events"])),
    Hostile("scalars compared with a home", call("read_tb", compare=["~/trap", "~root/"])),
    Hostile("the newest scalars of a directory outside", call("read_tb", logdir="{trap}/latest")),
    Hostile("scalars of the root", call("read_tb", logdir="/")),
    Hostile("scalars of the state directory", call("read_tb", logdir="{trap}/../state")),
    Hostile("a picture of scalars outside", call("read_tb", logdir="{trap}/events", plot=True)),
    Hostile("a blueprint outside", call("check_blueprint", path="{trap}/blueprint.md")),
    Hostile("a blueprint outside, launched", call("launch_run", blueprint="{trap}/blueprint.md")),
    Hostile("a blueprint outside, tried", call("launch_run", blueprint="{trap}/blueprint.md", dry_run=True)),
    Hostile("a blueprint outside by a way upwards", call("launch_run", blueprint="blueprint.md", cwd="{trap}")),
    Hostile("a blueprint outside, looked at", call("preflight", blueprint="{trap}/blueprint.md")),
    Hostile("a blueprint that does not exist", call("check_blueprint", path="{trap}/none.md")),
    Hostile("a home's blueprint", call("check_blueprint", path="~/trap/blueprint.md")),
    Hostile("whether files exist", call("preflight", paths=["{trap}/secret", "{trap}/none"])),
    Hostile("whether a key exists", call("preflight", paths=["~/.ssh/id_ed25519"])),
    Hostile("whether a directory exists", call("preflight", command="true", cwd="{trap}")),
    Hostile("whether results exist", call("preflight", command="true", result_dir="{trap}")),
    Hostile("whether a python exists", call("preflight", python="{trap}/secret", imports=["os"])),
    Hostile("results from outside", call("finish_blueprint", run_id="{bobs_run}", results=["{trap}/secret"])),
    Hostile("another's curves", call("finish_blueprint", run_id="{bobs_run}", tensorboard="{trap}/events")),
    Hostile("a person's screen", call("capture_pane", session="{persons}")),
    Hostile("a person's screen with its history", call("capture_pane", session="{persons}", history=True)),
    Hostile("a screen that does not exist", call("capture_pane", session="no-such-session")),
    Hostile("a screen by tmux's own words", call("capture_pane", session="={persons}:0.0")),
    Hostile("a screen by a pattern", call("capture_pane", session="*")),
    Hostile("a screen by number", call("capture_pane", session="$0")),
    Hostile("a screen of nobody", call("capture_pane", session="")),
    Hostile("a screen and a run", call("capture_pane", session="{persons}", run_id="{bobs_run}")),
    Hostile("scalars of a text file", call("read_tb", logdir="{trap}/secret")),
    Hostile("scalars of a path upwards", call("read_tb", logdir="{trap}/../trap/secret")),
    Hostile("scalars of a link to a text file", call("read_tb", logdir="{trap}/link")),
    Hostile("scalars of a FIFO", call("read_tb", logdir="{trap}/fifo")),
    Hostile("scalars of a device", call("read_tb", logdir="/dev/zero")),
    Hostile("scalars of a directory of traps", call("read_tb", logdir="{trap}/events")),
    Hostile("scalars of a process's memory", call("read_tb", logdir="/proc/self/mem")),
    Hostile("a start in a file", call("launch_run", command="true", cwd="{trap}/secret")),
    Hostile("a start in a device", call("launch_run", command="true", cwd="/dev/zero")),
    Hostile("a secret that is a path", call("launch_run", command="true", secrets=["../../trap/secret"])),
    Hostile("a variable of the supervisor's", call("launch_run", command="true", env={"RUNWARD_HOME": "/tmp"})),
    Hostile("a NUL in a command", call("launch_run", command="true\0id")),
    Hostile("a blueprint that is a FIFO", call("launch_run", command="true", blueprint="{trap}/fifo")),
    Hostile("a blueprint that is a device", call("launch_run", command="true", blueprint="/dev/zero")),
    Hostile("a blueprint that is a link to a secret", call("check_blueprint", path="{trap}/link")),
    Hostile("a blueprint to be checked that is a FIFO", call("check_blueprint", path="{trap}/fifo")),
    Hostile("a blueprint that is a link to a secret, launched", call("launch_run", blueprint="{trap}/link")),
    Hostile("a blueprint upwards", call("launch_run", blueprint="../trap/secret", cwd="{trap}/events")),
    Hostile("a blueprint of a megabyte's name", call("check_blueprint", path="/" + "a" * _MIB)),
    Hostile("a blueprint with a NUL", call("check_blueprint", path="{trap}/secret\0.md")),
    Hostile("a blueprint that is a URI", call("check_blueprint", path="file://{trap}/secret")),
    Hostile("a blueprint that is a directory", call("launch_run", blueprint="{trap}")),
    Hostile("a blueprint that is a process's environment", call("check_blueprint", path="/proc/self/environ")),
    Hostile("a blueprint that is a process's memory", call("launch_run", blueprint="/proc/self/mem")),
    Hostile("a blueprint that is the list of tokens", call("launch_run", blueprint="{trap}/../state/tokens.toml")),
    Hostile("a look at a blueprint that is a link to a secret", call("preflight", blueprint="{trap}/link")),
    Hostile("a python that is a device", call("preflight", python="/dev/zero", imports=["os"])),
    Hostile("an import that is code", call("preflight", imports=["os; print(open('{trap}/secret').read())"])),
    Hostile("another's results", call("finish_blueprint", run_id="{bobs_run}", result_dir="{trap}")),
    Hostile("a comparison with a path", call("compare_runs", run_ids=["../../trap/secret", "{bobs_run}"])),
    Hostile("a look at a blueprint that is a FIFO", call("preflight", blueprint="{trap}/fifo")),
    Hostile("a screen of another tmux", call("capture_pane", session="-S/tmp/other")),
    Hostile("a screen that is a command", call("capture_pane", session="$(id)")),
    Hostile("an argument that does not exist", call("list_runs", path="/etc/passwd")),
    Hostile("a wait of a year", call("wait_run", run_ids="{bobs_run}", timeout_s=31_536_000)),
)
RESOURCES = tuple(
    Hostile(f"the resource {uri}", read(uri), (400, 404))
    for uri in (
        "file:///etc/passwd",
        "file://{trap}/secret",
        "run://../../trap/secret",
        "run://..%2F..%2Ftrap%2Fsecret",
        "run://{bobs_run}/../../tokens.toml",
        "run://%2e%2e",
        "agent://../../../etc/passwd",
        "agent://..%2f..%2ftrap%2fsecret",
        "guide://{trap}/secret",
        "guide://..",
        "blueprint://../template",
        "http://127.0.0.1:22/",
    )
)
ALL = (*TOKENS, *SESSIONS, *BROWSERS, *SHAPES, *PLACES, *CALLS, *RESOURCES)
