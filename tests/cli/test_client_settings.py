"""Clients' settings files with this server in them: everything else stays as it was."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mcp_server.cli.client_settings import Unreadable, in_codex_toml, in_mcp_json
from mcp_server.cli.install import server_command

COMMAND = ["/opt/venv/bin/runward", "serve"]
CODEX = """[mcp_servers.runward]
command = "/opt/venv/bin/runward"
args = ["serve"]
startup_timeout_sec = 20
tool_timeout_sec = 1200
"""


@pytest.mark.parametrize("before", ["", "{}", '{"mcpServers": {}}', '{"mcpServers": {"runward": {"command": "old"}}}'])
def test_a_server_gets_into_mcp_json(before: str) -> None:
    after = in_mcp_json(before, COMMAND)
    assert json.loads(after) == {"mcpServers": {"runward": {"type": "stdio", "command": COMMAND[0], "args": ["serve"]}}}
    assert in_mcp_json(after, COMMAND) == after


def test_what_others_wrote_stays_in_mcp_json() -> None:
    others: dict[str, Any] = {"x": 1, "mcpServers": {"a": {"command": "b"}, "runward": {"env": {"RUNWARD_OWNER": "z"}}}}
    after = json.loads(in_mcp_json(json.dumps(others), COMMAND))
    assert after["x"] == 1
    assert after["mcpServers"]["a"] == {"command": "b"}
    assert after["mcpServers"]["runward"]["env"] == {"RUNWARD_OWNER": "z"}
    remote = json.dumps({"mcpServers": {"runward": {"type": "http", "url": "http://127.0.0.1:8765/mcp"}}})
    assert "url" not in json.loads(in_mcp_json(remote, COMMAND))["mcpServers"]["runward"]


@pytest.mark.parametrize("text", ["[]", "{", '{"mcpServers": 3}', '{"mcpServers": {"runward": 3}}', "// a comment\n{}"])
def test_what_is_no_mcp_json_is_not_changed(text: str) -> None:
    with pytest.raises(Unreadable, match=r"A person can add: .*/opt/venv/bin/runward"):
        in_mcp_json(text, COMMAND)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", CODEX),
        ('model = "m"', f'model = "m"\n\n{CODEX}'),
        ("# mine\n[a]\nb = 1\n\n\n", f"# mine\n[a]\nb = 1\n\n{CODEX}"),
        ('[mcp_servers.runward]\ncommand = "old"\n', CODEX),
        (
            '[a]\nb = 1\n\n[mcp_servers . "runward"] # x\ncommand = "old"\n[c]\nd = 2\n',
            f"[a]\nb = 1\n\n{CODEX}\n[c]\nd = 2\n",
        ),
        (f"{CODEX}enabled = false\n", f"{CODEX}enabled = false\n"),
        ('[mcp_servers.runward]\ncommand = "old"\nenv = { A = "1" }', CODEX + 'env = { A = "1" }\n'),
        (CODEX.replace("1200", "60") + 'env_vars = ["A", "B"]\n', CODEX + 'env_vars = ["A", "B"]\n'),
        (
            '[mcp_servers.runward]\nurl = "http://h/mcp"\nbearer_token_env_var = "T"\nhttp_headers = { A = "b" }\n',
            CODEX,
        ),
        (CODEX.replace("1200", "3600"), CODEX.replace("1200", "3600")),
        (
            '[mcp_servers.runward]\ncommand = "old"\n\n[mcp_servers.runward.env]\nA = "1"\n',
            f'{CODEX}\n[mcp_servers.runward.env]\nA = "1"\n',
        ),
    ],
)
def test_a_server_gets_into_codex_settings(before: str, after: str) -> None:
    assert in_codex_toml(before, COMMAND) == after
    assert in_codex_toml(after, COMMAND) == after
    tomllib.loads(after)


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "mcp_servers = 3",
        'mcp_servers = { runward = { command = "old" } }',
        '[mcp_servers]\nrunward = { command = "old" }',
        '[mcp_servers.runward]\ncommand = "old"\nenv = {\n  A = "1" }\n',
        '[mcp_servers.runward]\ncommand = """\n[x]\n"""\n',
    ],
)
def test_codex_settings_that_cannot_be_changed_by_lines_are_not(text: str) -> None:
    with pytest.raises(Unreadable, match=r"A person can (add|change it to):\n\[mcp_servers.runward\]"):
        in_codex_toml(text, COMMAND)


def test_a_server_is_named_by_what_will_still_be_there(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    assert server_command(str(python)) == [str(python), "-m", "mcp_server", "serve"]
    (tmp_path / "bin/runward").touch(0o755)
    assert server_command(str(python)) == [str(tmp_path / "bin/runward"), "serve"]
    assert server_command("/h/.cache/uv/archive-v0/Xy_1/bin/python") == ["uvx", "runward", "serve"]
    assert server_command(sys.executable)[-1] == "serve"
