"""`make plugin`: writes what clients and registries read, from the agents, prompts, server and hook that exist.

``plugin/`` is two plugins in one folder: Claude Code and Codex read ``.claude-plugin``, ``.mcp.json``, ``agents``,
``skills``, ``hooks``, and Claude Code ``monitors``; the clients of Agent Plugins 1.0 read ``plugin.json``,
``mcp.json`` and ``skills``. Nothing is published: OWNER in ``server.json`` stands for the account that will publish it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

from mcp_server import __version__
from mcp_server.cli.setup.install import search_upwards
from mcp_server.resources.documents import list_files
from mcp_server.resources.register import render_skills

ROOT = Path(__file__).parents[2]
FOLDERS = (".claude-plugin", "plugin")
_HOME = "https://github.com/OWNER/runward"
_SCHEMAS = "https://agent-plugins.org/schemas/1.0.0"
_HOOK_LIMIT_S = 5


def render() -> dict[str, str]:
    """Return the text of each file by its path below the root of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = {"name": project["name"], "version": __version__, "description": project["description"]}
    more = {"license": project["license"], "keywords": project["keywords"]}
    servers = json.loads((ROOT / ".mcp.json").read_text(encoding="utf-8"))["mcpServers"]
    described = {"description": about["description"]}
    entry = {"name": about["name"], "source": "./plugin", **described}
    # Where no runward is found, a command of the shell goes on without a word.
    words = search_upwards(".venv/bin/runward", ["hook"], missing="exit 0")
    monitor = {
        "name": "runward",
        "command": search_upwards(".venv/bin/runward", ["monitor"], missing="exit 0"),
        "description": "ends and trouble of this project's training runs",
        "when": "always",
    }
    hook = {"type": "command", "command": words, "timeout": _HOOK_LIMIT_S}
    texts: dict[str, Any] = {
        ".claude-plugin/marketplace.json": {
            "name": "runward",
            "owner": {"name": "runward"},
            **described,
            "plugins": [entry],
        },
        "plugin/.claude-plugin/plugin.json": {**about, "author": {"name": "runward"}, **more},
        "plugin/.mcp.json": {"mcpServers": servers},
        "plugin/hooks/hooks.json": {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [hook]}]}},
        "plugin/monitors/monitors.json": [monitor],
        "plugin/plugin.json": {"$schema": f"{_SCHEMAS}/plugin.schema.json", **about, **more},
        "plugin/mcp.json": {"$schema": f"{_SCHEMAS}/mcp.schema.json", "mcpServers": servers},
        "server.json": {
            "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
            **about,
            "name": "io.github.OWNER/runward",
            "title": "runward",
            "repository": {"url": _HOME, "source": "github"},
            "websiteUrl": _HOME,
            "icons": [
                {
                    "src": "https://raw.githubusercontent.com/OWNER/runward/main/.github/pictures/icon.svg",
                    "mimeType": "image/svg+xml",
                    "sizes": ["any"],
                }
            ],
        },
    }
    files = {path: json.dumps(value, indent=2, ensure_ascii=False) + "\n" for path, value in texts.items()}
    files |= {f"plugin/agents/{path.name}": path.read_text(encoding="utf-8") for path in list_files("agents")}
    return files | {f"plugin/skills/{name}/SKILL.md": text for name, text in render_skills().items()}


def main() -> int:
    """Write the files anew; what is in the folders beside them goes."""
    for folder in FOLDERS:
        shutil.rmtree(ROOT / folder, ignore_errors=True)
    for name, text in render().items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
