"""Answers to the first questions of a client over stdio, which are the same for every server of one program.

A server's parent gives them while the server loads: a client asks its model without tools that are listed too late.
`first_answers.json` has them as a server gave them. `tests/contract/test_first_answers.py` compares the two, and writes
the file anew on request.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp_server import __version__

FILE = Path(__file__).with_suffix(".json")
WITH_HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
WITHOUT_HANDSHAKE = "2026-07-28"
VERSION = "<version>"
"""Stands in the file for the version of the program."""
_NAMES = "io.modelcontextprotocol/"
_OF_CLIENT = {f"{_NAMES}{name}" for name in ("protocolVersion", "clientInfo", "clientCapabilities")}
_HEARD = {f"{name}ListChanged" for name in ("tools", "prompts", "resources")}
_SCHEMAS = Path(__file__).parents[1] / "tools" / "schemas"


class FirstAnswers:
    """The answers to one client. A list that holds runs is given only to one that hears when it changes."""

    def __init__(self) -> None:
        self._has_shaken_hands = self._hears_resources = False

    def find(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the message that a server answers to a request at once, None where only the server knows it."""
        method, params = message["method"], message.get("params", {})
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # the server's to judge
            meta = params.get("_meta", {})
            is_modern = not self._has_shaken_hands and meta.keys() >= _OF_CLIENT
            if is_modern and meta[f"{_NAMES}protocolVersion"] != WITHOUT_HANDSHAKE:
                return None
            if method == "initialize":
                return None if is_modern else self._shake_hands(message["id"], params)
            if method == "subscriptions/listen":
                return self._subscribe(message["id"], params["notifications"]) if is_modern else None
            if params.keys() <= {"_meta"} and (is_modern or self._has_shaken_hands):
                result = self._find_result(method, is_modern=is_modern)
                return None if result is None else {"id": message["id"], "result": result}
        return None

    def _shake_hands(self, number: object, params: Mapping[str, Any]) -> dict[str, Any] | None:
        version, client = params["protocolVersion"], params["clientInfo"]
        is_whole = client.keys() >= {"name", "version"} and isinstance(params["capabilities"], dict)
        if version not in WITH_HANDSHAKE or not is_whole:
            return None
        result = {**_read_facts()["initialize"], "protocolVersion": version}
        self._has_shaken_hands = True
        return {"id": number, "result": result}

    def _subscribe(self, number: object, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        if not wanted or not wanted.keys() <= _HEARD or set(wanted.values()) != {True}:
            return None
        self._hears_resources = "resourcesListChanged" in wanted
        params = {"_meta": {f"{_NAMES}subscriptionId": number}, "notifications": wanted}
        return {"method": "notifications/subscriptions/acknowledged", "params": params}

    def _find_result(self, method: str, *, is_modern: bool) -> Any:
        methods = ["tools/list", "prompts/list", "server/discover" if is_modern else "ping"]
        if method not in methods and not (self._hears_resources and method == "resources/list"):
            return None
        if method == "ping":
            return {}
        result = _read_facts()[method]
        if method == "tools/list":
            result["tools"] = [json.loads((_SCHEMAS / f"{name}.json").read_bytes()) for name in result["tools"]]
        kind = method.partition("/")[0]
        return result if is_modern else {kind: result[kind]}


def _read_facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8").replace(VERSION, __version__))
    return facts
