"""Clients' settings files with this server in them: a text in, a text out. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

NAME = "runward"
# The longest wait by the schedule is 960 s; Codex gives up after 60 s unless told otherwise, and has 10 s for a start.
TOOL_TIMEOUT_S, STARTUP_TIMEOUT_S = 1200, 20

_KEY = re.compile(r"\s*\"?([\w-]+)\"?\s*=")
_HEADER = re.compile(rf"\s*\[\s*mcp_servers\s*\.\s*\"?{NAME}\"?\s*\]\s*(#.*)?")


class Unreadable(ValueError):
    """A file that cannot be changed safely; says why, and what a person can put into it."""


def in_mcp_json(text: str, command: Sequence[str]) -> str:
    """Return the text of a ``.mcp.json`` with this server in it; unchanged where it is already.

    Raises:
        Unreadable: it is no such file.
    """
    wanted = {"type": "stdio", "command": command[0], "args": list(command[1:])}
    try:
        found = json.loads(text) if text.strip() else {}
        servers = found.setdefault("mcpServers", {})
        mine = servers.get(NAME, {})
        # What a person added, such as env, stays; an address would make it another kind of server.
        entry = wanted if "url" in mine else {**mine, **wanted}
    except (ValueError, AttributeError, TypeError) as error:
        add = json.dumps({"mcpServers": {NAME: wanted}})
        raise Unreadable(f"it is no .mcp.json ({error}). A person can put into it: {add}") from error
    if mine == entry:
        return text
    servers[NAME] = entry
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def in_codex_toml(text: str, command: Sequence[str]) -> str:
    """Return the text of Codex's ``config.toml`` with this server in it; unchanged where it is already.

    Only this server's own table is written anew.

    Raises:
        Unreadable: it is no TOML, or the server stands in it in a form that cannot be changed by lines.
    """
    asked = {"command": command[0], "args": list(command[1:])}
    least = {"startup_timeout_sec": STARTUP_TIMEOUT_S, "tool_timeout_sec": TOOL_TIMEOUT_S}
    add = _table({**asked, **least})
    try:
        before = tomllib.loads(text)
        mine = before.get("mcp_servers", {}).get(NAME, {})
        # Beside a command, an address and what belongs to it keep Codex from starting at all.
        own = {} if "url" in mine else mine
        entry = {**own, **asked, **{key: max(value, mine.get(key, 0)) for key, value in least.items()}}
        if mine == entry:
            return text
        after = _with_table(text, entry)
        expected = {**before, "mcp_servers": {**before.get("mcp_servers", {}), NAME: entry}}
        if tomllib.loads(after) != expected:
            raise Unreadable(f"it has {NAME} in a form that is not changed here. A person can make it:\n{add}")
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise Unreadable(f"it is no Codex config.toml ({error}). A person can put into it:\n{add}") from error
    return after


def _with_table(text: str, entry: Mapping[str, Any]) -> str:
    """Return ``text`` with this server's table replaced, or appended where there is none."""
    tables = {key for key, value in entry.items() if isinstance(value, Mapping)}
    table = _table({key: value for key, value in entry.items() if key not in tables})
    lines = text.splitlines(keepends=True)
    start = next((n for n, line in enumerate(lines) if _HEADER.fullmatch(line.rstrip("\n"))), None)
    if start is None:
        return (text.rstrip("\n") + "\n\n" if text.strip() else "") + table
    end = next((n for n in range(start + 1, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
    # A table within it, such as env = {...}, stays as it was written.
    inner = [line for line in lines[start:end] if (match := _KEY.match(line)) and match[1] in tables]
    table += "".join(line.rstrip("\n") + "\n" for line in inner)
    rest = "".join(lines[end:])
    return "".join(lines[:start]) + table + ("\n" + rest if rest else "")


def _table(entry: Mapping[str, Any]) -> str:
    # Strings, whole numbers, booleans and lists of them read the same in JSON and TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    return "\n".join([f"[mcp_servers.{NAME}]", *lines]) + "\n"
