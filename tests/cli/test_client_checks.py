"""doctor names each client on the machine, its version, and whether it has this server; never a secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_server.cli.setup.client_settings import allow_looking, approve_launches, in_codex_toml
from mcp_server.cli.setup.doctor import check_clients


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("bin", "project", ".claude", ".codex"):
        (tmp_path / name).mkdir()
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_machine_without_clients_has_nothing_to_say(home: Path) -> None:
    assert list(check_clients()) == []


def test_a_client_that_does_not_know_the_server_has_a_remedy(home: Path) -> None:
    program(home / "bin/claude", "echo '2.1.330 (Claude Code)'")
    program(home / "bin/codex", "exit 1")
    assert [tuple(each) for each in check_clients()] == [
        ("claude", "2.1.330 (Claude Code): does not know this server", "runward install claude"),
        ("codex", "version unknown: does not know this server", "runward install codex"),
    ]


def test_opencode_with_two_plugins_starts_two_turns_for_each_news(home: Path) -> None:
    program(home / "bin/opencode", "echo 1.18.33")
    assert [each.remedy for each in check_clients()] == ["runward install opencode"]
    own, of_project = home / ".config/opencode/plugins/runward.js", home / "project/.opencode/plugins/runward.js"
    for path, remedy in ((own, ""), (of_project, "each news starts two turns: runward uninstall opencode")):
        path.parent.mkdir(parents=True)
        path.touch()
        assert [each.remedy for each in check_clients()] == [remedy]


def test_what_is_registered_and_allowed_is_named_without_secrets(home: Path) -> None:
    program(home / "bin/claude", "echo 2.1.330")
    program(home / "bin/codex", "echo codex-cli 0.169.0")
    entry = {"type": "http", "url": "https://box/mcp", "headers": {"Authorization": "Bearer s3cr3t"}}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"runward": entry}}))
    (home / ".claude/settings.json").write_text(allow_looking(""))
    (home / ".codex/config.toml").write_text(approve_launches(in_codex_toml("", ["/opt/runward", "serve"])))
    claude, codex = check_clients()
    hidden = "https://box/mcp (with Authorization: values not shown) (of this user)"
    assert claude.detail == f"2.1.330: {hidden}; tools that look are allowed"
    assert codex.detail == "codex-cli 0.169.0: /opt/runward serve (of this user); launch_run needs no approval"
    assert (claude.remedy, codex.remedy) == ("", "")


@pytest.mark.parametrize("content", ["[]", "{", '{"mcpServers": {"runward": 3}}'])
def test_settings_that_cannot_be_read_are_no_error(home: Path, content: str) -> None:
    program(home / "bin/claude", "echo 2.1.330")
    (home / ".claude.json").write_text(content)
    (home / "project/.mcp.json").write_text("[]")
    (client,) = check_clients()
    assert client.remedy == "runward install claude"


def test_a_tool_that_is_there_twice_is_named_with_the_line_that_removes_one(home: Path) -> None:
    for name in ("claude", "codex"):
        program(home / f"bin/{name}", "echo 1.0")
    (home / ".claude/settings.json").write_text('{"enabledPlugins": {"runward@runward": true}}')
    (home / ".codex/config.toml").write_text(in_codex_toml('[plugins."runward@runward"]\n', ["/opt/runward", "serve"]))
    claude, codex = check_clients()
    assert ("plugin runward@runward" in claude.detail, claude.remedy) == (True, "")
    assert ("plugin runward@runward" in codex.detail, codex.remedy) == (True, "")
    (home / ".claude.json").write_text('{"mcpServers": {"runward": {"command": "/opt/runward", "args": ["serve"]}}}')
    claude, _ = check_clients()
    assert "twice" in claude.remedy
    assert claude.remedy.endswith("runward uninstall claude")
