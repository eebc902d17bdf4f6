"""Blocks of `aftermath.rows` on their own `seen` lines."""

import pytest

from mcp_server.diagnosis.failure.evidence import FailureEvidence
from mcp_server.diagnosis.failure.root_cause import find_cause_outside
from mcp_server.diagnosis.failure.statements import Weight
from mcp_server.text.lines import Line
from mcp_server.text.rows import read_blocks

BLOCKS = [dict(block) for block in read_blocks("diagnosis/failure/aftermath")]
CAUSES = [block for block in BLOCKS if "cause" in block]
AFTERMATHS = [block for block in BLOCKS if "after" in block]
PAIRS = [
    (cause, kind, after)
    for cause in CAUSES
    for after in AFTERMATHS
    for kind in after["after"].split()
    if cause["cause"] in after["from"].split()
]


def explain(text: str, kind: str, *before: str) -> FailureEvidence | None:
    lines = [Line(number, line) for number, line in enumerate((*before, text), 1)]
    at = len(before)
    return find_cause_outside(lines, FailureEvidence(at, at, at, Weight.OWN, kind, text))


@pytest.mark.parametrize(("cause", "kind", "after"), PAIRS)
def test_each_cause_explains_each_line_that_follows_from_its_group(
    cause: dict[str, str], kind: str, after: dict[str, str]
) -> None:
    found = explain(after["seen"], kind, "starting", cause["seen"])
    assert found is not None
    if found.text != after["seen"]:  # else that line states a cause of the group itself
        assert found.text in cause["seen"]
        assert found.kind == cause["kind"]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_line_that_is_a_cause_itself_is_not_explained_by_one_before(cause: dict[str, str]) -> None:
    kinds = {kind for after in AFTERMATHS if cause["cause"] in after["from"].split() for kind in after["after"].split()}
    assert kinds, "a group that nothing follows from proves nothing"
    assert explain(cause["seen"], "no kind of an aftermath", cause["seen"]) is None
