"""The report of doctor on clients: which are on this machine, in what version, and whether they have this server."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mcp_server.cli import client_settings as settings
from mcp_server.cli.install import claude_directory, codex_config, read_user_entry

_VERSION_S = 10


class ClientState(NamedTuple):
    """A client on this machine. ``remedy`` is empty where it has the server."""

    name: str
    detail: str
    remedy: str


def check_clients() -> Iterator[ClientState]:
    """Yield Claude Code and Codex as far as they are installed. Starts no server and prints no secret."""
    project = Path.cwd()
    if version := _read_version("claude"):
        of_project = _read_json(project / ".mcp.json").get("mcpServers", {}).get(settings.NAME)
        entries = {"of this user": read_user_entry(), "of this project": of_project}
        allowed = _read_json(claude_directory(None) / "settings.json").get("permissions", {}).get("allow", [])
        allows = all(f"mcp__{settings.NAME}__{tool}" in allowed for tool in settings.LOOKING_TOOLS)
        rules = "tools that look are allowed" if allows else "asks before each tool that looks"
        yield _describe("claude", version, entries, rules)
    if version := _read_version("codex"):
        entry = _read_codex(codex_config(None))
        approval = entry.get("tools", {}).get("launch_run", {}).get("approval_mode", "") if entry else ""
        rules = "launch_run needs no approval" if approval == "approve" else "asks before launch_run"
        yield _describe(
            "codex", version, {"of this user": entry, "of this project": _read_codex(codex_config(project))}, rules
        )


def _describe(client: str, version: str, entries: dict[str, Any], rules: str) -> ClientState:
    known = [
        f"{settings.describe_entry(entry)} ({where})" for where, entry in entries.items() if isinstance(entry, dict)
    ]
    if not known:
        return ClientState(client, f"{version}: does not know this server", f"runward install {client}")
    return ClientState(client, f"{version}: {'; '.join(known)}; {rules}", "")


def _read_version(program: str) -> str:
    """Return the version of a client; empty where it is not installed."""
    if (path := shutil.which(program)) is None:
        return ""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "version unknown"
    return done.stdout.strip().partition("\n")[0][:60] or "version unknown"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_codex(path: Path) -> dict[str, Any] | None:
    try:
        entry = tomllib.loads(path.read_text(encoding="utf-8")).get("mcp_servers", {}).get(settings.NAME)
    except (OSError, ValueError, AttributeError):
        return None
    return entry if isinstance(entry, dict) else None
