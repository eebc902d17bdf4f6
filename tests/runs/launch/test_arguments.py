"""An argument that cannot be used is refused by its value alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.command.shell import parse
from mcp_server.errors import BadArgument
from mcp_server.record.script import LONGEST_NAME
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs.launch.arguments import check_name, check_no_key, check_no_secret, check_sizes
from mcp_server.runs.launch.resolve import resolve
from mcp_server.store.state_home import StateHome


@pytest.mark.parametrize("name", ["cfm", "cfm v2.1", "größe", "训练", "x" * LONGEST_NAME, "a.b", "-x", "=x", "$(id)"])
def test_an_ordinary_name_is_taken(name: str) -> None:
    check_name(name)


BAD_NAMES = [
    "",
    "   ",
    "\t",
    "x" * 65,
    "x" * 300,
    "a/b",
    "/",
    "../x",
    "..",
    "a..b",
    "a:b",
    "a\\b",
    "a\nb",
    "a\0b",
    "\x1b[2J",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_be_something_else_is_refused(name: str) -> None:
    with pytest.raises(BadArgument, match=r"^name: must .* Nothing was done\.$") as refused:
        check_name(name)
    assert refused.value.argument == "name"


@pytest.mark.parametrize("secret", ['ab"cd12345', "back\\slash99", "plain-value-1"])
@pytest.mark.parametrize("argument", [{"key_file": "x{}"}, ["--from", "{}"], {"a": [{"b": ["{}"]}]}, {"{}": 1}])
def test_the_value_of_a_secret_is_found_in_every_name_and_value(argument: object, secret: str) -> None:
    def fill(value: object) -> object:
        if isinstance(value, dict):
            return {fill(name): fill(inner) for name, inner in value.items()}
        return [fill(inner) for inner in value] if isinstance(value, list) else str(value).replace("{}", secret)

    check_no_secret({"params": argument}, {"KEY": secret})
    with pytest.raises(BadArgument, match=r"^params: holds the value of a secret, KEY") as refused:
        check_no_secret({"params": fill(argument)}, {"KEY": secret})
    assert secret not in str(refused.value)


TOKEN, PASSWORD = "hf_zQ9wT4mK7xB2nL8v", "pw12345x"
LISTED_KEYS: list[dict[str, Any]] = [
    {"owner": TOKEN},
    {"name": f"n-{TOKEN}"},
    {"name": f"n password={PASSWORD}"},
    {"idempotency_key": f"k {TOKEN}"},
    {"idempotency_key": f"k-{TOKEN}"},
    {"idempotency_key": f"night api_key={TOKEN[3:]}"},
    {"backend_options": {"comment": TOKEN}},
    {"backend_options": {"metadata": {TOKEN: "note"}}},
    {"backend_options": {"metadata": {"api_key": TOKEN[3:] * 2}}},
    {"backend_options": {"runtime_env": {"env_vars": {"MODE": TOKEN}}}},
    {"backend_options": {"runtime_env": {"pip": ["--extra-index-url", f"https://u:{PASSWORD}@host/simple"]}}},
    {"backend_options": {"runtime_env": {"pip": {"packages": [f"torch @ https://u:{PASSWORD}@host/t.whl"]}}}},
    {"backend_options": {"runtime_env": {"working_dir": f"https://host/a.zip?X-Amz-Signature={PASSWORD * 4}"}}},
    {"backend_options": {"runtime_env": {"container": {"run_options": ["--env", f"API_KEY={TOKEN[3:]}"]}}}},
    {"backend_options": {"entrypoint_label_selector": {"node": TOKEN}}},
]


@pytest.mark.parametrize("arguments", LISTED_KEYS, ids=str)
def test_a_key_that_a_scheduler_would_show_to_its_users_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match="holds what looks like a key") as refused:
        check_no_key(LaunchRequest("true", **arguments), parse("true"))
    assert [refused.value.argument] == list(arguments)
    assert TOKEN[3:] not in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"account": "proj_a100_2026", "comment": "night run", "mail-user": "a@b.org", "constraint": "a100&ib"},
        {"metadata": {"ticket": "ABC-1234", "commit": "0f3c9a7d41b26e58f0a1c2d3e4b5a69788c7d6e5"}},
        {"runtime_env": {"pip": ["torch==2.7.1+cu128"], "env_vars": {"NCCL_DEBUG": "INFO", "MAX_TOKENS": "2048"}}},
        {"runtime_env": {"working_dir": "s3://bucket/code-0f3c9a7d41b26e58.zip"}, "entrypoint_resources": {"TPU": 1}},
    ],
    ids=str,
)
def test_ordinary_options_of_a_scheduler_are_taken(options: dict[str, Any]) -> None:
    check_no_key(LaunchRequest("true", backend_options=options), parse("true"))


@pytest.mark.parametrize(
    "key", ["night-3", "0f3c9a7d41b26e58f0a1c2d3e4b5a69788c7d6e5", "9b2f6a54-7c1d-4f0e-8a3b-5d6e7f809a1b"]
)
def test_hashes_and_uuids_are_ordinary_idempotency_keys(key: str) -> None:
    check_no_key(LaunchRequest("true", idempotency_key=key, name="cfm lr=0.1"), parse("true"))


LARGE: list[tuple[dict[str, Any], str]] = [
    ({"command": "#" * (256 * 1024 + 1)}, "command: has 262,145 characters; it may have 262,144"),
    ({"command": ["echo", *["x" * 1024] * 256]}, "command: has 262,148 characters"),
    ({"tags": ["x"] * 65}, "tags: takes at most 64 tags of 64 characters"),
    ({"tags": ["x" * 65]}, "tags: takes at most 64 tags of 64 characters"),
    ({"env": {f"V{n}": "" for n in range(1001)}}, "env: has 1,001 variables; it may have 1,000"),
    ({"env": {"V": "x" * 100_000}}, "env: 'V' is longer than a variable may be"),
    ({"secrets": ["S"] * 1001}, "secrets: takes at most 1,000 names"),
    ({"needs": ["run"] * 1001}, "needs: takes at most 1,000 names"),
]


@pytest.mark.parametrize(("arguments", "told"), LARGE)
def test_arguments_of_a_size_that_no_run_has_are_refused_before_they_are_parsed(
    arguments: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.runs.launch.resolve.parse", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(BadArgument) as refused:
        resolve(LaunchRequest(**{"command": "true", **arguments}), StateHome(tmp_path), {})
    assert str(refused.value).startswith(told)
    assert not list(tmp_path.iterdir())


def test_the_largest_arguments_are_taken() -> None:
    request = LaunchRequest(
        command="#" * 256 * 1024, tags=["x" * 64] * 64, env={f"V{n}": "1" for n in range(1000)}, secrets=["S"] * 1000
    )
    check_sizes(request)
