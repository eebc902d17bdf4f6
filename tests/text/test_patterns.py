"""Each pattern of a `patterns.rows` is found in its own line, and is used by its module."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import mcp_server
from mcp_server.diagnosis.advice import message_values
from mcp_server.diagnosis.advice.blocks import choose
from mcp_server.text.rows import read_blocks

ROOT = Path(mcp_server.__file__).parent
FILES = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("patterns.rows"))
BLOCKS = [(file, block) for file in FILES for block in read_blocks(file)]

PARTS = {
    f"{block[0][1].partition('.')[0]}.{part}"
    for _, block in BLOCKS
    for key, value in block
    if key == "line"
    for part in re.findall(r"\{([a-z_]+)\}", value)
}


def list_samples() -> list[tuple[str, str, str]]:
    """Return the file and the name of each pattern with each of its lines."""
    return [(file, block[0][1], value) for file, block in BLOCKS for key, value in block if key == "seen"]


@pytest.mark.parametrize(("file", "name", "seen"), list_samples())
def test_a_pattern_is_found_in_its_own_lines(file: str, name: str, seen: str) -> None:
    module, _, key = name.partition(".")
    (source,) = (ROOT / Path(file).parent).rglob(f"{module}.py")
    own = import_module(".".join(source.relative_to(ROOT.parent).with_suffix("").parts))
    pattern = getattr(own._RX, key)
    assert pattern.search(seen)
    asked = re.search(rf"\b_RX\.{key}\.(match|fullmatch)\b", source.read_text("utf-8"))
    if name not in PARTS:
        assert not getattr(pattern, asked[1] if asked else "search")("The weather is fine")


@pytest.mark.parametrize("block", [dict(block) for block in read_blocks("diagnosis/failure/general")])
def test_a_general_message_and_the_line_that_explains_it_are_found(block: dict[str, str]) -> None:
    assert re.match(block.get("line", ""), block["seen"])
    assert re.match(block["cause"], block["near"])


def test_a_name_stands_once_and_has_a_line() -> None:
    names = [(file, block[0][1]) for file, block in BLOCKS]
    assert len(names) == len(set(names))
    assert all({key for key, _ in block} == {"name", "line", "seen"} for _, block in BLOCKS)


@pytest.mark.parametrize("file", FILES)
def test_the_patterns_of_a_module_are_those_that_it_uses(file: str) -> None:
    named = {block[0][1] for name, block in BLOCKS if name == file}
    room = ROOT / Path(file).parent
    for module in {name.partition(".")[0] for name in named}:
        (source,) = room.rglob(f"{module}.py")
        used = set(re.findall(r"\b_RX\.(\w+)", source.read_text("utf-8")))
        used |= {name.partition(".")[2] for name in PARTS & named if name.startswith(f"{module}.")}
        assert used == {name.partition(".")[2] for name in named if name.startswith(f"{module}.")}, module


@pytest.mark.parametrize("block", [dict(block) for block in read_blocks("diagnosis/advice/choices")])
def test_words_of_a_table_are_chosen_on_their_own_line(block: dict[str, str]) -> None:
    assert choose(block["sort"], block["seen"]) == block["say"]
    assert choose(block["sort"], "The weather is fine") == ""


@pytest.mark.parametrize("block", [dict(block) for block in read_blocks("diagnosis/advice/shapes")])
def test_a_block_of_shapes_wins_on_its_own_line(block: dict[str, str]) -> None:
    patterns = message_values._SAVED if block["sort"] == "saved" else message_values._OPERANDS
    won = next(pattern for pattern in patterns if pattern.search(block["seen"]))
    assert won.pattern == block["line"].replace("{shape}", message_values._SHAPE)
