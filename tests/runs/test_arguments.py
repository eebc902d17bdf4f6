"""An argument that cannot be used is refused by its value alone."""

from __future__ import annotations

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.script import LONGEST_NAME
from mcp_server.runs.arguments import check_name, check_no_secret


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
