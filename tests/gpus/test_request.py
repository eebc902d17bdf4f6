"""GPU requests and requirements, parsed from what users write."""

from typing import Any

import pytest

from mcp_server.gpus.request import GpuRequest, Requirements, may_compete, parse_gpus, parse_requirements, takes_several


@pytest.mark.parametrize(
    ("gpus", "parsed"),
    [
        (None, None),
        (2, GpuRequest(count=2)),
        ("2", GpuRequest(count=2)),
        (" 8 ", GpuRequest(count=8)),
        (0, GpuRequest()),
        ("none", GpuRequest()),
        ([], GpuRequest()),
        ("0", GpuRequest()),
        ([2], GpuRequest(ids=("2",))),
        ([4, 5], GpuRequest(ids=("4", "5"))),
        (("4", 5), GpuRequest(ids=("4", "5"))),
        ("4,5", GpuRequest(ids=("4", "5"))),
        ("4-7", GpuRequest(ids=("4", "5", "6", "7"))),
        ("0, 2-3", GpuRequest(ids=("0", "2", "3"))),
        (["007"], GpuRequest(ids=("7",))),
        (["GPU-8f3a"], GpuRequest(ids=("GPU-8f3a",))),
        ("GPU-8f3a", GpuRequest(ids=("GPU-8f3a",))),
        ("all", GpuRequest(ids=("all",))),
        ("cpu", GpuRequest(cpu=1)),
        ("cpu:2", GpuRequest(cpu=2)),
        (["cpu-0"], GpuRequest(ids=("cpu-0",), cpu=1)),
        ("cpu-0,cpu-3", GpuRequest(ids=("cpu-0", "cpu-3"), cpu=2)),
    ],
)
def test_a_request_is_parsed_from_every_form(gpus: Any, parsed: GpuRequest | None) -> None:
    assert parse_gpus(gpus) == parsed
    assert parsed is None or bool(parse_gpus(gpus)) == (parsed != GpuRequest())


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        (True, "not understood"),
        ([True], "not understood"),
        (2.0, "not understood"),
        ([1.5], "not understood"),
        (b"2", "not understood"),
        ({"count": 2}, "not understood"),
        (-1, "cannot be leased"),
        ("-1", "names no GPU"),
        ("two", "names no GPU"),
        ("", "names no GPU"),
        ("4,", "names no GPU"),
        ("7-4", "names no GPU"),
        ("0-99999", "names no GPU"),
        ("cpu:0", "names no GPU"),
        (["all", 1], "names no GPU"),
        ("٤", "names no GPU"),
        (["GPU-../../x"], "names no GPU"),
        ([4, "4"], "4 named twice"),
        ("3,1-4", "3 named twice"),
        (["cpu-0", 1], "not both together"),
        (["MIG-8f3a", 1], "whole GPUs or MIG instances, not both together"),
        (["MIG-8f3a", "MIG-8f3a"], "named twice"),
        (["MIG-8f3a/1/0"], "names no GPU"),
    ],
)
def test_a_request_that_is_not_understood_is_refused_with_a_reason(gpus: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_gpus(gpus)


def test_requirements_are_checked_by_name_and_value() -> None:
    assert parse_requirements(None) == Requirements()
    facts = {
        "free_memory_mib": 40_000,
        "power_limit_w": 400,
        "max_sm_clock_mhz": 1400,
        "count": 2,
        "no_strangers": False,
    }
    assert parse_requirements(facts) == Requirements(40_000, 400.0, 1400, 2, no_strangers=False)
    assert parse_requirements({"count": None}) == Requirements()
    with pytest.raises(ValueError, match=r"'memory' is not known. There are free_memory_mib, power_limit_w"):
        parse_requirements({"memory": 4})
    for bad in ({"count": 0}, {"count": True}, {"power_limit_w": "400"}, {"no_strangers": 1}, {"count": float("nan")}):
        with pytest.raises(ValueError, match="not "):
            parse_requirements(bad)


def test_a_request_is_the_same_after_json() -> None:
    assert GpuRequest.from_json({"count": 0, "ids": ["4", "5"], "cpu": 0}) == GpuRequest(ids=("4", "5"))
    others: list[object] = [None, [], {}, {"count": "2", "ids": [], "cpu": 0}]
    for other in others:
        assert GpuRequest.from_json(other) is None


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        (2, 1, True),
        (2, [4], True),
        ("all", [4], True),
        ([4], [5], False),
        ([4, 5], [5, 6], True),
        (["GPU-8f3a"], ["GPU-8f"], True),
        (["GPU-8f3a"], ["GPU-9"], False),
        (["GPU-8f3a"], [0], True),  # an index may be any of them
        (["MIG-8f3a"], ["MIG-8f"], True),
        (["MIG-8f3a"], ["MIG-9"], False),
        (["MIG-8f3a"], [0], False),  # a GPU is divided or whole
        (["MIG-8f3a"], 2, False),
        (2, "cpu", False),
        ("cpu:2", ["cpu-0"], True),
        (["cpu-1"], ["cpu-10"], False),
        (0, 8, False),
    ],
)
def test_requests_compete_when_the_same_gpu_could_meet_both(one: Any, other: Any, answer: bool) -> None:
    a, b = parse_gpus(one), parse_gpus(other)
    assert a is not None
    assert b is not None
    assert may_compete(a, b) is may_compete(b, a) is answer


@pytest.mark.parametrize(
    ("gpus", "several"),
    [(None, False), (0, False), (1, False), (2, True), ([4], False), ("4-7", True), ("all", True), ("cpu:4", False)],
)
def test_more_than_one_gpu_is_recognised(gpus: Any, several: bool) -> None:
    assert takes_several(parse_gpus(gpus)) is several
