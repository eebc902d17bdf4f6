"""Each block of `failures.rows` wins on the line in which its failure was seen."""

from __future__ import annotations

import os
import re

import pytest

from mcp_server.diagnosis.failure.diagnose import diagnose
from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.diagnosis.failure.statements import (
    PARTS,
    Statement,
    Weight,
    exception_kind,
    match_error_kind,
    parse_statement,
)
from mcp_server.text.lines import number_lines
from mcp_server.text.rows import fill_parts, read_blocks

BLOCKS = [dict(block) for block in read_blocks("diagnosis/failure/failures")]
_BY_LINE = {"by signal", "by text"}


def test_each_message_proves_its_kind() -> None:
    messages = [block for block in BLOCKS if "text" in block]
    assert len(messages) > 120
    for block in messages:
        assert re.search(fill_parts(block["text"], PARTS), block["seen"]), block
        assert match_error_kind(block["seen"]) == block["kind"], block


def test_each_number_of_the_system_proves_its_kind_in_every_language_and_in_words() -> None:
    for kind, number in [(block["kind"], one) for block in BLOCKS for one in block.get("errno", "").split()]:
        forms = [f"[Errno {number}] x", f"I/O error: x (os error {number})", f"Os {{ code: {number}, kind: X }}"]
        if not number.startswith("-"):
            forms.append(f"could not go on: {os.strerror(int(number))}")
        assert {match_error_kind(form) for form in forms} == {kind}, number


def test_each_vendor_of_a_family_has_its_line() -> None:
    vendors = dict[str, set[str]]()
    for block in read_blocks("diagnosis/failure/failures"):
        fault = dict(block).get("fault")
        for (vendor, pattern), (key, line) in zip(block[2::2], block[3::2], strict=False):
            if fault:
                assert key == "seen"
                assert re.search(fill_parts(pattern, PARTS), line), pattern
                assert match_error_kind(line) == dict(block)["kind"], line
                vendors.setdefault(fault, set()).add(vendor)
    assert vendors["allocator"] == {"cuda", "rocm", "cann", "tpu", "mps", "intel"}
    assert vendors["collective"] >= {"cuda", "rocm", "cann", "tpu", "intel"}
    assert set(vendors) == {"allocator", "build", "kernel", "hardware", "device", "collective"}


@pytest.mark.parametrize(
    ("line", "retryable"),
    [
        ("torch.AcceleratorError: HIP error: invalid device function", False),
        ("RuntimeError: CUDA error: invalid configuration argument", False),
        ("RuntimeError: Initialize: NPU function error, error code is 507033", False),
        ("RuntimeError: NPU function error: aclrtSynchronizeStream, error code is 507054", True),
        ("RuntimeError: Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)", True),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", True),
        ("RuntimeError: CUDA error: unknown error", True),
    ],
)
def test_only_a_failure_of_the_hardware_or_of_an_unknown_class_is_worth_a_retry(line: str, retryable: bool) -> None:
    failure = diagnose(number_lines(line.encode()), 1)
    assert failure is not None
    assert (failure.kind, failure.retryable) == ("cuda_error", retryable)


def test_each_type_of_exception_is_of_its_kind_without_a_message() -> None:
    types = [
        (name, block["kind"]) for block in BLOCKS for key in ("sure", "names") for name in block.get(key, "").split()
    ]
    assert len(types) > 120
    assert [(name, kind) for name, kind in types if exception_kind(name, f"{name}: x") != kind] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NoSuchApiTokenException", "auth_error"),
        ("BrokerConnectFailure", "network_error"),
        ("TrainerConfigError", "config_error"),
        ("ShardCorruptedError", "data_error"),
        ("CollectiveAbort", "nccl_error"),
        ("SpatialIndexError", "python_error"),
        ("InvalidArgumentError", "python_error"),
        ("TimeoutError", "python_error"),
    ],
)
def test_the_words_of_a_class_that_nobody_knew_name_its_kind(name: str, kind: str) -> None:
    assert exception_kind(name, f"{name}: x") == kind


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
    keys = ("text", "errno", "fault", "line", "sure", "class")
    patterns = [next(block[key] for key in keys if key in block) for block in BLOCKS]
    assert len(set(patterns)) == len(patterns)
    assert [pattern for pattern in patterns if pattern != pattern.strip()] == []
