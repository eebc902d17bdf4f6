"""Each block of `failures.rows` wins on the line in which its failure was seen."""

from __future__ import annotations

import re

from mcp_server.diagnosis.failure.diagnose import diagnose
from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.diagnosis.failure.statements import Statement, Weight, exception_kind, match_error_kind, parse_statement
from mcp_server.text.lines import number_lines
from mcp_server.text.rows import read_blocks

BLOCKS = [dict(block) for block in read_blocks("diagnosis/failure/failures")]
_BY_LINE = {"by signal", "by text"}


def test_each_message_proves_its_kind() -> None:
    messages = [block for block in BLOCKS if "text" in block]
    assert len(messages) > 180
    for block in messages:
        assert re.search(block["text"], block["seen"]), block
        assert match_error_kind(block["seen"]) == block["kind"], block


def test_each_type_of_exception_is_of_its_kind_without_a_message() -> None:
    types = [
        (name, block["kind"]) for block in BLOCKS for key in ("sure", "type") for name in block.get(key, "").split()
    ]
    assert len(types) > 120
    assert [(name, kind) for name, kind in types if exception_kind(name, f"{name}: x") != kind] == []


def test_the_first_statement_of_a_line_is_the_one_that_was_seen_in_it() -> None:
    statements = [block for block in BLOCKS if "line" in block]
    assert len(statements) > 160
    for block in statements:
        line = block["seen"]
        first = next(
            one for one in statements if one["has"].replace("[ ]", " ") in line and re.match(one["line"], line)
        )
        assert first == block
        statement = parse_statement(line)
        assert statement is not None
        if block["kind"] not in _BY_LINE:
            assert statement == Statement(Weight[block["proof"].upper()], block["kind"])


def test_a_run_that_failed_with_a_line_seen_has_failed_by_it() -> None:
    for block in BLOCKS:
        failure = diagnose(number_lines(block["seen"].encode()), 1)
        assert failure is not None
        assert failure.line == block["seen"].strip()


def test_every_block_is_of_a_known_kind_and_no_pattern_stands_twice() -> None:
    assert {block["kind"] for block in BLOCKS} <= {*KINDS, *_BY_LINE}
    patterns = [block.get("text") or block.get("line") or block.get("sure") or block["type"] for block in BLOCKS]
    assert len(set(patterns)) == len(patterns)
    assert [pattern for pattern in patterns if pattern != pattern.strip()] == []
