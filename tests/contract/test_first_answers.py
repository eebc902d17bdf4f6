"""A server's parent answers a client's first questions as the server does.

`RUNWARD_UPDATE_SNAPSHOTS=1 python -m pytest tests/contract` rewrites what it answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from mcp_server import __version__
from mcp_server.serve import first_answers
from mcp_server.serve.app import build
from mcp_server.serve.first_answers import FILE, VERSION, WITH_HANDSHAKE, WITHOUT_HANDSHAKE, FirstAnswers

pytestmark = pytest.mark.anyio

LISTS = ("tools/list", "prompts/list", "resources/list")
HEARD = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
CLIENT = {"name": "client", "version": "1"}
INITIALIZED = {"method": "notifications/initialized"}


def modern(number: int, method: str, version: str = WITHOUT_HANDSHAKE, **params: Any) -> dict[str, Any]:
    facts = {"protocolVersion": version, "clientInfo": CLIENT, "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{name}": fact for name, fact in facts.items()}
    return {"id": number, "method": method, "params": {"_meta": meta, **params}}


def initialize(version: str) -> dict[str, Any]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT}
    return {"id": 0, "method": "initialize", "params": params}


@pytest.fixture
async def empty_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dump(item: SessionMessage) -> dict[str, Any]:
    return item.message.model_dump(mode="json", by_alias=True, exclude_unset=True)


async def ask_server(home: Path, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a server without a parent sends: one message to each request, asked one after the other."""
    to_server, requests = anyio.create_memory_object_stream[Any](10)
    answers, from_server = anyio.create_memory_object_stream[Any](10)
    server = build({"RUNWARD_HOME": str(home / "state")})._lowlevel_server
    sent = []
    async with anyio.create_task_group() as group, to_server, from_server:
        group.start_soon(server.run, requests, answers, server.create_initialization_options())
        for message in messages:
            parsed = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message})
            await to_server.send(SessionMessage(parsed))
            if "id" in message:
                while (answer := dump(await from_server.receive())).get("method", "").endswith("/list_changed"):
                    pass
                sent.append(answer)
        group.cancel_scope.cancel()
    return sent


def ask_parent(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers to those requests that are answered without a server."""
    answers = FirstAnswers()
    found = [answers.find(message) for message in messages if "id" in message]
    return [{"jsonrpc": "2.0", **answer} for answer in found if answer is not None]


async def test_the_first_answers_without_a_handshake_are_those_of_a_server(empty_project: Path) -> None:
    asked = [
        modern(0, "server/discover"),
        modern(1, "subscriptions/listen", notifications=HEARD),
        *(modern(number, method) for number, method in enumerate(LISTS, 2)),
    ]
    (hello,) = await ask_server(empty_project, [initialize(WITH_HANDSHAKE[-1])])
    sent = await ask_server(empty_project, asked)
    if os.environ.get("RUNWARD_UPDATE_SNAPSHOTS"):
        facts = {"initialize": hello["result"]}
        facts |= {
            each["method"]: answer["result"] for each, answer in zip(asked, sent, strict=True) if "result" in answer
        }
        facts["initialize"].pop("protocolVersion")
        facts["tools/list"] = {**facts["tools/list"], "tools": [tool["name"] for tool in facts["tools/list"]["tools"]]}
        text = json.dumps(facts, indent=1, ensure_ascii=False).replace(f'"{__version__}"', f'"{VERSION}"')
        FILE.write_text(text + "\n")
    assert ask_parent(asked) == sent


@pytest.mark.parametrize("version", WITH_HANDSHAKE)
async def test_the_first_answers_after_a_handshake_are_those_of_a_server(empty_project: Path, version: str) -> None:
    asked = [
        initialize(version),
        INITIALIZED,
        *({"id": number, "method": method} for number, method in enumerate(("tools/list", "prompts/list", "ping"), 1)),
    ]
    assert ask_parent(asked) == await ask_server(empty_project, asked)


@pytest.mark.parametrize(
    "message",
    [
        modern(1, "resources/list"),
        modern(1, "tools/list", cursor="x"),
        modern(1, "tools/list", version="2027-01-01"),
        modern(1, "tools/call", name="list_runs", arguments={}),
        modern(1, "subscriptions/listen", notifications={"taskIds": ["a"]}),
        modern(1, "subscriptions/listen", notifications={}),
        modern(1, "initialize"),
        modern(1, "ping"),
        initialize(WITHOUT_HANDSHAKE),
        {"id": 1, "method": "initialize", "params": {"protocolVersion": WITH_HANDSHAKE[0]}},
        {"id": 1, "method": "initialize", "params": []},
        {"id": 1, "method": "tools/list"},
        {"id": 1, "method": "ping", "params": None},
        {"id": 1, "method": 5, "params": {"_meta": 7}},
    ],
)
def test_what_only_the_server_knows_is_left_to_it(message: dict[str, Any]) -> None:
    assert ask_parent([message]) == []


def test_runs_are_listed_by_the_server_where_a_client_does_not_hear_of_changes() -> None:
    shaken = [initialize(WITH_HANDSHAKE[-1]), {"id": 1, "method": "resources/list"}, {"id": 2, "method": "initialize"}]
    assert [answer["id"] for answer in ask_parent(shaken)] == [0]


def test_without_its_file_everything_is_left_to_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(first_answers, "FILE", tmp_path / "missing.json")
    assert ask_parent([initialize(WITH_HANDSHAKE[0]), modern(1, "server/discover"), modern(2, "tools/list")]) == []
