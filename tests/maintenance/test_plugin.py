"""`make plugin`: both plugins and server.json say what agents, prompts, server and hook say."""

import json
import subprocess
from pathlib import Path

from mcp_server.cli.setup.client_settings import TOOL_PREFIXES
from mcp_server.resources.documents import read_documents
from tests.maintenance.plugin import FOLDERS, ROOT, render


def test_the_folders_hold_what_make_plugin_writes_and_nothing_else() -> None:
    written = render()
    assert {path: (ROOT / path).read_text() for path in written} == written
    found = {str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()}
    assert found == written.keys() - {"server.json"}


def test_agents_may_use_the_tools_of_both_prefixes_and_are_denied_both() -> None:
    for agent in read_documents("agents").values():
        assert all(f"{prefix}*" in agent.facts["tools"].split(", ") for prefix in TOOL_PREFIXES)
        denied = [
            name.removeprefix(prefix)
            for name in agent.facts["disallowedTools"].split(", ")
            for prefix in TOOL_PREFIXES
            if name.startswith(prefix)
        ]
        assert denied
        assert all(denied.count(name) == 2 for name in denied), agent.name


def test_server_json_says_what_the_registry_asks_for() -> None:
    server = json.loads(render()["server.json"])
    assert server.keys() >= {"$schema", "name", "description", "version", "repository", "websiteUrl", "icons"}
    assert len(server["description"]) <= 100
    assert "packages" not in server, "it is on no package registry"
    assert (ROOT / ".github/pictures/icon.svg").is_file()


def test_the_hook_finds_the_program_above_or_in_the_path_and_is_silent_without_one(tmp_path: Path) -> None:
    ((hook,),) = (each["hooks"] for each in json.loads(render()["plugin/hooks/hooks.json"])["hooks"]["PreToolUse"])
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)

    def run() -> tuple[int, str]:
        environ = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
        done = subprocess.run(
            ["sh", "-c", hook["command"]], cwd=below, env=environ, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    assert run() == (0, "")
    for place in ("bin/runward", "a/.venv/bin/runward"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(f'#!/bin/sh\necho "{place} $@"\n')
        (tmp_path / place).chmod(0o755)
        assert run() == (0, f"{place} hook\n")
