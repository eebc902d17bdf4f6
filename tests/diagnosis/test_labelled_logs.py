"""Real training logs with labels, where they are: none healthy is called failed, and the rest is told right."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.log_file import Examination, examine_log

LOGS = Path(__file__).parents[3] / "shared" / "logs"
LABELS = LOGS / "labels.jsonl"

pytestmark = pytest.mark.skipif(not LABELS.exists(), reason="the labelled logs are not part of a clone")


@pytest.fixture(scope="module")
def told() -> list[tuple[dict[str, Any], Examination]]:
    labels = [json.loads(line) for line in LABELS.read_text().splitlines()]
    return [(label, examine_log(LOGS / label["file"])) for label in labels]


def kind(examination: Examination) -> str:
    return examination.failure.kind if examination.failure else "ok"


def missed(told: list[tuple[dict[str, Any], Examination]], wrong: Any) -> list[str]:
    said = [(label, wrong(label, found)) for label, found in told]
    return [f"{label['file']} ({label['class']}): {what}" for label, what in said if what]


def test_no_healthy_log_is_called_failed(told: list[tuple[dict[str, Any], Examination]]) -> None:
    assert missed(told, lambda label, found: label["class"] == "ok" and found.failure and found.failure.line) == []


def test_kinds_reach_a_macro_f1_of_0_9(told: list[tuple[dict[str, Any], Examination]]) -> None:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for label, found in told:
        right, said = label["class"], kind(found)
        if said in (right, *label["alt"]):
            counts[right][0] += 1
        else:
            counts[said][1] += 1
            counts[right][2] += 1
    scores = {name: 2 * tp / (2 * tp + fp + fn) for name, (tp, fp, fn) in counts.items()}
    assert sum(scores.values()) / len(scores) >= 0.9, scores


def test_the_root_line_is_quoted_in_95_of_100(told: list[tuple[dict[str, Any], Examination]]) -> None:
    def wrong(label: dict[str, Any], found: Examination) -> str:
        if label["class"] == "ok":
            return ""
        right = "".join(label["key_line"].split())
        said = "".join(found.failure.line.split()) if found.failure else ""
        return "" if said and (said in right or right in said) else (said or "nothing")

    failures = [label for label, _ in told if label["class"] != "ok"]
    assert len(missed(told, wrong)) <= len(failures) * 0.05, missed(told, wrong)


def test_the_first_step_is_recognised_in_95_of_100(told: list[tuple[dict[str, Any], Examination]]) -> None:
    wrong = missed(
        told,
        lambda label, found: found.first_step_seen != label["first_step_seen"] and f"said {found.first_step_seen}",
    )
    assert len(wrong) <= len(told) * 0.05, wrong
