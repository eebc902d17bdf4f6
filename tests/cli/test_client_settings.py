"""Clients' settings files with this server in them: everything else stays as it was."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mcp_server.cli.setup.client_settings import (
    LOOKING_TOOLS,
    NotOurs,
    Unreadable,
    allow_looking,
    approve_launches,
    describe_entry,
    forbid_looking,
    hook_in_codex_toml,
    in_codex_toml,
    in_mcp_json,
    out_of_codex_toml,
    out_of_mcp_json,
    without_hook,
)
from mcp_server.cli.setup.install import read_source, server_command
from mcp_server.tools.support.listing import list_tools

COMMAND = ["/opt/venv/bin/runward", "serve"]
CODEX = """[mcp_servers.runward]
command = "/opt/venv/bin/runward"
args = ["serve"]
startup_timeout_sec = 20
tool_timeout_sec = 1200
required = true
env_vars = ["HF_HOME"]
"""
VARIABLES = ["HF_HOME"]


@pytest.mark.parametrize(
    "before", ["", "{}", '{"mcpServers": {}}', '{"mcpServers": {"runward": {"command": "/old/runward"}}}']
)
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
        ('[mcp_servers.runward]\ncommand = "/old/runward"\n', CODEX),
        (
            '[a]\nb = 1\n\n[mcp_servers . "runward"] # x\ncommand = "/old/runward"\n[c]\nd = 2\n',
            f"[a]\nb = 1\n\n{CODEX}\n[c]\nd = 2\n",
        ),
        (f"{CODEX}enabled = false\n", f"{CODEX}enabled = false\n"),
        ('[mcp_servers.runward]\ncommand = "/old/runward"\nenv = { A = "1" }', CODEX + 'env = { A = "1" }\n'),
        (
            CODEX.replace("1200", "60").replace('["HF_HOME"]', '["A", "B"]'),
            CODEX.replace('["HF_HOME"]', '["A", "B", "HF_HOME"]'),
        ),
        (CODEX.replace("required = true", "required = false"), CODEX.replace("required = true", "required = false")),
        (CODEX.replace("1200", "3600"), CODEX.replace("1200", "3600")),
        (
            '[mcp_servers.runward]\ncommand = "/old/runward"\n\n[mcp_servers.runward.env]\nA = "1"\n',
            f'{CODEX}\n[mcp_servers.runward.env]\nA = "1"\n',
        ),
    ],
)
def test_a_server_gets_into_codex_settings(before: str, after: str) -> None:
    assert in_codex_toml(before, COMMAND, VARIABLES) == after
    assert in_codex_toml(after, COMMAND, VARIABLES) == after
    tomllib.loads(after)


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "mcp_servers = 3",
        'mcp_servers = { runward = { command = "/old/runward" } }',
        '[mcp_servers]\nrunward = { command = "/old/runward" }',
        '[mcp_servers.runward]\ncommand = "/old/runward"\nenv = {\n  A = "1" }\n',
        '[mcp_servers.runward]\ncommand = """\n[x]/runward"""\n',
    ],
)
def test_codex_settings_that_cannot_be_changed_by_lines_are_not(text: str) -> None:
    with pytest.raises(Unreadable, match=r"A person can (add|change it to):\n\[mcp_servers.runward\]"):
        in_codex_toml(text, COMMAND, VARIABLES)


def test_a_server_is_named_by_what_will_still_be_there(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    assert server_command(str(python), None) == [str(python), "-m", "mcp_server", "serve"]
    (tmp_path / "bin/runward").touch(0o755)
    assert server_command(str(python), None) == [str(tmp_path / "bin/runward"), "serve"]
    in_a_cache = "/h/.cache/uv/archive-v0/Xy_1/bin/python"
    assert server_command(in_a_cache, "/src/runward") == ["uvx", "--from", "/src/runward", "runward", "serve"]
    assert server_command(in_a_cache, None) == [in_a_cache, "-m", "mcp_server", "serve"], "no registry is asked"
    assert server_command(sys.executable, None)[-1] == "serve"


@pytest.mark.parametrize(
    ("noted", "source"),
    [
        ('{"url": "file:///src/my%20runward", "dir_info": {"editable": true}}', "/src/my runward"),
        ('{"url": "https://box/runward-0.1.0.whl", "archive_info": {}}', "https://box/runward-0.1.0.whl"),
        ('{"url": "https://box/r.git", "vcs_info": {"vcs": "git", "commit_id": "ab3d"}}', "git+https://box/r.git@ab3d"),
        ("{}", None),
        ("not json", None),
        ("[]", None),
    ],
)
def test_the_source_of_the_package_is_what_its_installer_noted(noted: str, source: str | None) -> None:
    assert read_source(noted) == source


# --- entries of others, and the way back

FOREIGN: list[dict[str, Any]] = [
    {"type": "http", "url": "https://me:pw@box/mcp?key=k", "headers": {"Authorization": "Bearer s3cr3t"}},
    {"command": "/opt/other/server", "args": ["serve"], "env": {"KEY": "s3cr3t"}},
]


@pytest.mark.parametrize("entry", FOREIGN)
def test_an_entry_that_starts_something_else_is_left_alone_and_shows_no_secret(entry: dict[str, Any]) -> None:
    text = json.dumps({"mcpServers": {"runward": entry}})
    for change in (lambda text: in_mcp_json(text, COMMAND), out_of_mcp_json):
        with pytest.raises(NotOurs) as refusal:
            change(text)
        assert not any(secret in str(refusal.value) for secret in ("s3cr3t", "pw", "key=k"))
    lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items() if not isinstance(value, dict)]
    toml = "\n".join(["[mcp_servers.runward]", *lines, ""])
    for change in (lambda text: in_codex_toml(text, COMMAND), out_of_codex_toml):
        with pytest.raises(NotOurs):
            change(toml)


def test_an_entry_is_described_with_the_names_of_what_is_hidden() -> None:
    assert describe_entry(FOREIGN[0]) == "https://***@box/mcp (with Authorization: values not shown)"
    assert describe_entry(FOREIGN[1]) == "/opt/other/server serve (with KEY: values not shown)"


def test_out_of_mcp_json_and_back() -> None:
    others = json.dumps({"x": 1, "mcpServers": {"a": {"command": "b"}}}, indent=2) + "\n"
    assert out_of_mcp_json(in_mcp_json(others, COMMAND)) == others
    assert out_of_mcp_json("") == ""
    with pytest.raises(Unreadable):
        out_of_mcp_json("[]")


@pytest.mark.parametrize("before", ["", "# mine\n[a]\nb = 1\n", '[mcp_servers.other]\ncommand = "x"\n'])
def test_out_of_codex_settings_and_back(before: str) -> None:
    registered = approve_launches(in_codex_toml(before, COMMAND))
    assert tomllib.loads(registered)["mcp_servers"]["runward"]["tools"]["launch_run"] == {"approval_mode": "approve"}
    assert approve_launches(registered) == registered
    assert out_of_codex_toml(registered) == before
    with pytest.raises(Unreadable):
        out_of_codex_toml('mcp_servers = { runward = { command = "/old/runward" } }')


@pytest.mark.parametrize("before", ["", "{}", '{"model": "m", "permissions": {"deny": ["Bash"], "allow": ["Read"]}}'])
def test_tools_that_look_are_allowed_and_forgotten(before: str) -> None:
    allowed = allow_looking(before)
    rules = json.loads(allowed)["permissions"]["allow"]
    assert {f"mcp__runward__{tool}" for tool in LOOKING_TOOLS} <= set(rules)
    assert allow_looking(allowed) == allowed
    assert ("Read" in rules) == ("Read" in before)
    assert json.loads(forbid_looking(allowed)) == json.loads(before or "{}")
    with pytest.raises(Unreadable):
        allow_looking("[]")


def test_exactly_the_tools_that_look_are_allowed() -> None:
    looking = [tool.name for tool in list_tools() if tool.annotations and tool.annotations.read_only_hint]
    assert sorted(LOOKING_TOOLS) == sorted(looking)


@pytest.mark.parametrize("before", ["", 'model = "a"\n', '[x]\na = 1\n\n[[hooks.PreToolUse]]\nmatcher = "Edit"\n'])
def test_the_hook_of_codex_comes_once_and_goes_with_the_server(before: str) -> None:
    first = hook_in_codex_toml(in_codex_toml(before, ["/a b/runward", "serve"]), ["/a b/runward", "serve"])
    (hook,) = tomllib.loads(first)["hooks"]["PreToolUse"][-1]["hooks"]
    assert hook == {"type": "command", "command": "'/a b/runward' hook", "timeout": 5}
    assert (
        hook_in_codex_toml(in_codex_toml(without_hook(first), ["/a b/runward", "serve"]), ["/a b/runward", "serve"])
        == first
    )
    moved = hook_in_codex_toml(in_codex_toml(without_hook(first), ["/new/runward", "serve"]), ["/new/runward", "serve"])
    assert (moved.count("[[hooks.PreToolUse]]") - before.count("[[hooks.PreToolUse]]"), "/a b/" in moved) == (1, False)
    assert out_of_codex_toml(moved).strip() == before.strip()


def test_a_hook_that_cannot_be_added_is_left_to_a_person() -> None:
    with pytest.raises(Unreadable, match="A person can add"):
        hook_in_codex_toml("hooks = 3\n", ["/new/runward", "serve"])
