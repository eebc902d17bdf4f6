"""Edits of clients' settings files that register this server: text in, text out. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

NAME = "runward"
# The longest scheduled wait is 960 s. Codex ends a call after 60 s by default, and allows 10 s for the start.
TOOL_TIMEOUT_S, STARTUP_TIMEOUT_S = 1200, 20

_KEY = re.compile(r"\s*\"?([\w-]+)\"?\s*=")
_HEADER = re.compile(rf"\s*\[\s*mcp_servers\s*\.\s*\"?{NAME}\"?\s*\]\s*(#.*)?")


class Unreadable(ValueError):
    """A file cannot be changed safely; the message has the reason and the entry that a person can add."""


def in_mcp_json(text: str, command: Sequence[str]) -> str:
    """Return the text of a ``.mcp.json`` with this server registered; unchanged if it is registered already.

    Raises:
        Unreadable: the text is not a ``.mcp.json``.
    """
    entry_of_server = {"type": "stdio", "command": command[0], "args": list(command[1:])}
    try:
        settings = json.loads(text) if text.strip() else {}
        servers = settings.setdefault("mcpServers", {})
        former = servers.get(NAME, {})
        # Keys that a person added, such as env, stay. An address would make it another kind of server.
        entry = entry_of_server if "url" in former else {**former, **entry_of_server}
    except (ValueError, AttributeError, TypeError) as error:
        add = json.dumps({"mcpServers": {NAME: entry_of_server}})
        raise Unreadable(f"it is not a .mcp.json ({error}). A person can add: {add}") from error
    if former == entry:
        return text
    servers[NAME] = entry
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def in_codex_toml(text: str, command: Sequence[str]) -> str:
    """Return the text of Codex's ``config.toml`` with this server registered; unchanged if it is registered already.

    Only the table of this server is rewritten.

    Raises:
        Unreadable: the text is not TOML, or holds the server in a form that cannot be edited by lines.
    """
    start = {"command": command[0], "args": list(command[1:])}
    least = {"startup_timeout_sec": STARTUP_TIMEOUT_S, "tool_timeout_sec": TOOL_TIMEOUT_S}
    add = _table({**start, **least})
    try:
        before = tomllib.loads(text)
        former = before.get("mcp_servers", {}).get(NAME, {})
        # With both a command and an address Codex does not start.
        kept = {} if "url" in former else former
        entry = {**kept, **start, **{key: max(value, former.get(key, 0)) for key, value in least.items()}}
        if former == entry:
            return text
        after = _with_table(text, entry)
        expected = {**before, "mcp_servers": {**before.get("mcp_servers", {}), NAME: entry}}
        if tomllib.loads(after) != expected:
            raise Unreadable(f"it has {NAME} in a form that cannot be edited safely. A person can change it to:\n{add}")
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise Unreadable(f"it is not a Codex config.toml ({error}). A person can add:\n{add}") from error
    return after


def _with_table(text: str, entry: Mapping[str, Any]) -> str:
    """Return ``text`` with the table of this server replaced, or appended if there is none."""
    tables = {key for key, value in entry.items() if isinstance(value, Mapping)}
    table = _table({key: value for key, value in entry.items() if key not in tables})
    lines = text.splitlines(keepends=True)
    start = next((n for n, line in enumerate(lines) if _HEADER.fullmatch(line.rstrip("\n"))), None)
    if start is None:
        return (text.rstrip("\n") + "\n\n" if text.strip() else "") + table
    end = next((n for n in range(start + 1, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
    # An inner table, such as env = {...}, keeps its lines.
    inner = [line for line in lines[start:end] if (match := _KEY.match(line)) and match[1] in tables]
    table += "".join(line.rstrip("\n") + "\n" for line in inner)
    rest = "".join(lines[end:])
    return "".join(lines[:start]) + table + ("\n" + rest if rest else "")


def _table(entry: Mapping[str, Any]) -> str:
    # Strings, whole numbers, booleans and lists of them read the same in JSON and TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    return "\n".join([f"[mcp_servers.{NAME}]", *lines]) + "\n"
