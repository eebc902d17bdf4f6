"""Each pattern of a `patterns.rows` is found in its own line, and belongs to a module."""

import re
from importlib import import_module

import pytest

from mcp_server.diagnosis.advice import values
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


@pytest.mark.parametrize("block", [dict(block) for block in read_blocks("diagnosis/advice/shapes")])
def test_a_block_of_shapes_wins_on_its_own_line(block: dict[str, str]) -> None:
    if block["sort"] == "weight":
        assert next(say for line, say in values._BY_NAME if re.search(line, block["seen"])) == block["say"]
        return
    patterns = values._SAVED if block["sort"] == "saved" else values._OPERANDS
    won = next(pattern for pattern in patterns if pattern.search(block["seen"]))
    assert won.pattern == block["line"].replace("{shape}", values._SHAPE)
