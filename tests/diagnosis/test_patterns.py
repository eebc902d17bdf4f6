"""Each pattern of a `patterns.rows` is found in its own line, and belongs to a module."""

from importlib import import_module

import pytest

from mcp_server.text.rows import read_blocks, read_patterns

WINGS = ("advice", "failure", "live", "progress")
BLOCKS = [(wing, dict(block)) for wing in WINGS for block in read_blocks(f"diagnosis/{wing}/patterns")]


@pytest.mark.parametrize(("wing", "block"), BLOCKS)
def test_a_pattern_is_found_in_its_own_line(wing: str, block: dict[str, str]) -> None:
    pattern = read_patterns(f"diagnosis/{wing}/patterns")[block["name"]]
    assert pattern.search(block["seen"])
    module, _, name = block["name"].partition(".")
    used = vars(import_module(f"mcp_server.diagnosis.{wing}.{module}"))
    assert used[f"_{name.upper()}"].pattern == block["line"]
    assert not pattern.search("The weather is fine")


def test_a_name_stands_once() -> None:
    names = [(wing, block["name"]) for wing, block in BLOCKS]
    assert len(names) == len(set(names))
