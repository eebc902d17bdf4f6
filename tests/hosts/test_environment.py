"""A run gets this host's environment without secrets, and secrets by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcp_server.errors import BadArgument, SecretNotSet, SecretsFileOpen, SecretsFileUnreadable
from mcp_server.hosts.environment import (
    check_environment,
    find_distinct_secrets,
    find_secrets,
    list_known_secrets,
    mask_distinct_secrets,
)
from mcp_server.record.handover import base_environment
from mcp_server.text.secret_patterns import names_a_secret


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("WANDB_API_KEY", True),
        ("HF_TOKEN", True),
        ("hf_token", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("CLIENT_SECRET", True),
        ("DB_PASSWORD", True),
        ("PGPASSWD", True),
        ("SSH_PASSPHRASE", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("KEYBOARD", False),
        ("PATH", False),
        ("SEED", False),
    ],
)
def test_secrets_are_known_by_their_names(name: str, is_secret: bool) -> None:
    assert names_a_secret(name) == is_secret


def test_a_run_inherits_neither_secrets_nor_terminals_nor_variables_of_the_launcher() -> None:
    inherited = {"PATH": "/bin", "HOME": "/home/alice", "LC_ALL": "C", "CUDA_HOME": "/usr/local/cuda", "TERMINFO": "/x"}
    inherited |= {"ANTHROPIC_BASE_URL": "http://127.0.0.1", "MCP_SERVER_URL": "http://127.0.0.1", "CLAUDE_MODEL": "x"}
    secret = ("HF_TOKEN", "WANDB_API_KEY")
    terminal = ("TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TMUX", "TMUX_PANE", "COLUMNS", "LINES")
    shell = ("_", "SHLVL", "PWD", "OLDPWD")
    launcher = ("RUNWARD_HOME", "RUNWARD_OWNER", "RUNWARD_RUN_ID", "RUNWARD_TMUX_SOCKET")
    claude = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT", "CLAUDE_PROJECT_DIR", "AI_AGENT")
    codex = ("CODEX_HOME", "CODEX_SANDBOX", "CODEX_SANDBOX_NETWORK_DISABLED", "CODEX_THREAD_ID")
    clients = ("MCP_TIMEOUT", "MCP_TOOL_TIMEOUT", "MAX_MCP_OUTPUT_TOKENS", "VSCODE_PID", "VSCODE_GIT_IPC_HANDLE")
    dropped = dict.fromkeys((*secret, *terminal, *shell, *launcher, *claude, *codex, *clients), "x")
    assert base_environment({**inherited, **dropped}) == inherited


@pytest.mark.parametrize(
    ("environ", "lang"),
    [({}, "C.UTF-8"), ({"LANG": "de_DE.UTF-8"}, "de_DE.UTF-8"), ({"LC_ALL": "C"}, None), ({"LC_CTYPE": "C"}, None)],
)
def test_a_run_has_a_locale_that_can_print(environ: Mapping[str, str], lang: str | None) -> None:
    assert base_environment(environ).get("LANG") == lang


def test_an_inherited_environment_is_a_copy() -> None:
    environ = {"LANG": "C"}
    base_environment(environ)["A"] = "1"
    assert environ == {"LANG": "C"}


def test_a_short_value_of_a_secret_name_is_a_setting() -> None:
    check_environment({"USE_TOKEN": "1", "SORT_KEY": "date", "A": "x" * 100_000, "_": "", "b2": "é\n"})


def test_the_value_of_a_plain_key_says_whether_it_is_a_secret() -> None:
    check_environment({"CELLKEY": "s1__{cell}", "CELL_KEY": "s1__lr0.1-seed2", "SORT_KEYS": "validation_loss,step"})
    for name, value in (
        ("CELL_KEY", "abcd1234efgh"),
        ("SORT_KEY", "aB3dE5fG7hI9kL1m"),
        ("DEEPSEEK_KEY", "0123456789"),
        ("OPENAI_KEY", "s1__{cell}"),
        ("MYAPIKEY", "validation_loss"),
        ("CELL_TOKEN", "validation_loss"),
    ):
        with pytest.raises(BadArgument, match=f"{name} looks like a secret"):
            check_environment({name: value})


def test_a_variable_that_bash_keeps_read_only_is_refused() -> None:
    for name in ("UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS"):
        with pytest.raises(BadArgument, match=rf"^env: .*{name}"):
            check_environment({name: "7"})


def secrets_file(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    file = tmp_path / "secrets.env"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_secrets_come_from_the_environment_before_the_file(tmp_path: Path) -> None:
    file = secrets_file(tmp_path, "HF_TOKEN=from-file\nWANDB_API_KEY=from-file\n")
    environ = {"HF_TOKEN": "from-environment", "WANDB_API_KEY": ""}
    found = find_secrets(["WANDB_API_KEY", "HF_TOKEN"], environ, file)
    assert list(found.items()) == [("WANDB_API_KEY", "from-file"), ("HF_TOKEN", "from-environment")]


@pytest.mark.parametrize(
    "line",
    [
        "TOKEN=abc=def#1",
        "export TOKEN=abc=def#1",
        "  TOKEN = abc=def#1  ",
        "TOKEN='abc=def#1'",
        'TOKEN="abc=def#1"',
        "# TOKEN=other-value\nTOKEN=abc=def#1",
        "TOKEN=other-value\nTOKEN=abc=def#1",
        "\n\nTOKEN=abc=def#1",
        "\ufeffTOKEN=abc=def#1",
        "TOKEN='abc=def#1' # of the lab",
        "TOKEN=abc=def#1\r\nOTHER=1",
    ],
)
def test_a_secrets_file_is_read_as_people_write_it(tmp_path: Path, line: str) -> None:
    assert find_secrets(["TOKEN"], {}, secrets_file(tmp_path, line)) == {"TOKEN": "abc=def#1"}


def test_a_line_that_is_not_an_assignment_is_refused_with_its_number(tmp_path: Path) -> None:
    file = secrets_file(tmp_path, "A=1234567\nhunter2-and-more\n")
    with pytest.raises(SecretsFileUnreadable, match="line 2 is not NAME=VALUE") as error:
        find_secrets(["A"], {}, file)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_secrets_file_of_its_owner_alone_is_used(tmp_path: Path, mode: int) -> None:
    assert find_secrets(["TOKEN"], {}, secrets_file(tmp_path, "TOKEN=abcdef", mode)) == {"TOKEN": "abcdef"}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602, 0o610, 0o666])
def test_a_secrets_file_that_others_can_reach_is_not_used(tmp_path: Path, mode: int) -> None:
    file = secrets_file(tmp_path, "TOKEN=abcdef", mode)
    with pytest.raises(SecretsFileOpen, match=f"chmod 600 {re.escape(str(file))}$") as refused:
        find_secrets(["TOKEN"], {}, file)
    assert "abcdef" not in str(refused.value)


def test_a_missing_secret_says_where_it_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "secrets.env"
    with pytest.raises(SecretNotSet) as refused:
        find_secrets(["TOKEN"], {}, file)
    assert str(refused.value) == (
        "Secret not set: 'TOKEN'. Nothing was started. A person can put it into the server's environment, "
        f"or as TOKEN=VALUE into {file} (mode 0600)."
    )


@pytest.mark.parametrize(("value", "taken"), [("12345", False), (" 12345 ", False), ("123456", True)])
def test_a_value_too_short_to_be_masked_is_refused(tmp_path: Path, value: str, taken: bool) -> None:
    if taken:
        assert find_secrets(["PIN"], {"PIN": value}, tmp_path / "none") == {"PIN": value}
        return
    with pytest.raises(BadArgument) as refused:
        find_secrets(["PIN"], {"PIN": value}, tmp_path / "none")
    assert value.strip() not in str(refused.value)


def test_what_a_target_of_notices_names_is_a_secret_wherever_it_is_and_whatever_it_looks_like(tmp_path: Path) -> None:
    hook, other = "http://127.0.0.1:40565/hook/aBcDe9381hgTY", "http://127.0.0.1:8265/api/version"
    (tmp_path / "config.toml").write_text(
        '[[notify]]\nwebhook_secret = "HOOK"\n[[notify]]\nwebhook_secret = "SECOND"\non = ["ended"]\n'
    )
    file = tmp_path / "secrets.env"
    file.write_text(f"HOOK={hook}\nDASHBOARD={other}\n")
    file.chmod(0o600)
    environ = {"SECOND": "https://ntfy.lan/adas-topic-of-runs?up=1", "HOME": "/home/ada"}
    assert find_distinct_secrets(environ, file) == {"HOOK": "aBcDe9381hgTY", "SECOND": "adas-topic-of-runs"}
    text = mask_distinct_secrets(f"sent to {hook}, {environ['SECOND']} and {other}", environ, file)
    assert (
        text == f"sent to http://127.0.0.1:40565/hook/[secret:HOOK], https://ntfy.lan/[secret:SECOND]?up=1 and {other}"
    )


def test_an_address_of_notices_that_stands_in_the_configuration_is_masked_like_a_secret(tmp_path: Path) -> None:
    hook = "http://127.0.0.1:40565/hook/aBcDe9381hgTY"
    (tmp_path / "config.toml").write_text(f'[[notify]]\nwebhook = "{hook}"\n[[notify]]\nwebhook = "http://h.lan/up"\n')
    file = tmp_path / "secrets.env"
    assert find_distinct_secrets({}, file) == {"notify.webhook": "aBcDe9381hgTY"}
    assert list_known_secrets({}, file) == {"notify.webhook": hook}
    text = mask_distinct_secrets(f"sent to {hook} and http://h.lan/up", {}, file)
    assert text == "sent to http://127.0.0.1:40565/hook/[secret:notify.webhook] and http://h.lan/up"
