"""Whole logs with labels: no healthy run is called failed, and failures have the right kind, line and first step.

The repository's own logs, and those of the directory that ``RUNWARD_LOGS`` names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.failure.diagnose import diagnose
from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.diagnosis.log_file import Examination, examine_log
from mcp_server.text.lines import number_lines
from tests.support.logs import WHOLE_LOGS, read_labels, whole_log_directories

Examined = list[tuple[dict[str, Any], Examination]]


@pytest.fixture(scope="module", params=whole_log_directories(), ids=lambda directory: directory.name)
def directory(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def examined(directory: Path) -> Examined:
    return [(label, examine_log(directory / label["file"])) for label in read_labels(directory)]


def kind_of(examination: Examination) -> str:
    return examination.failure.kind if examination.failure else "ok"


def list_wrong(examined: Examined, describe_error: Callable[[dict[str, Any], Examination], object]) -> list[str]:
    errors = [(label, describe_error(label, examination)) for label, examination in examined]
    return [f"{label['file']} ({label['class']}): {error}" for label, error in errors if error]


def quotes(line: str, key_line: str) -> bool:
    """Whether either line holds the other, white space aside."""
    one, other = "".join(line.split()), "".join(key_line.split())
    return bool(one) and (one in other or other in one)


def test_the_repository_has_a_log_of_every_kind_and_many_healthy_ones() -> None:
    kinds = [label["class"] for label in read_labels(WHOLE_LOGS)]
    assert set(KINDS) | {"ok"} == set(kinds)
    assert kinds.count("ok") >= 12


def test_no_healthy_log_is_called_failed(examined: Examined) -> None:
    wrong = list_wrong(examined, lambda label, said: label["class"] == "ok" and said.failure and said.failure.line)
    assert wrong == []


def test_kinds_reach_a_macro_f1_of_0_9(examined: Examined) -> None:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for label, examination in examined:
        expected, kind = label["class"], kind_of(examination)
        if kind in (expected, *label["alt"]):
            counts[expected][0] += 1
        else:
            counts[kind][1] += 1
            counts[expected][2] += 1
    scores = {name: 2 * tp / (2 * tp + fp + fn) for name, (tp, fp, fn) in counts.items()}
    assert sum(scores.values()) / len(scores) >= 0.9, scores


def test_the_root_line_is_quoted_in_95_of_100(examined: Examined) -> None:
    def describe_error(label: dict[str, Any], examination: Examination) -> str:
        line = examination.failure.line if examination.failure else ""
        return "" if label["class"] == "ok" or quotes(line, label["key_line"]) else line or "nothing"

    failures = [label for label, _ in examined if label["class"] != "ok"]
    wrong = list_wrong(examined, describe_error)
    assert len(wrong) <= len(failures) * 0.05, wrong


def test_the_first_step_is_recognised_in_95_of_100(examined: Examined) -> None:
    wrong = list_wrong(examined, lambda label, said: said.first_step_seen != label["first_step_seen"] and "first step")
    assert len(wrong) <= len(examined) * 0.05, wrong


def test_the_text_alone_gives_the_kind_in_99_of_100_and_the_line_in_95(directory: Path) -> None:
    """Without the metrics: a divergence is seen in them, not in a line."""
    right_kinds = right_lines = failed = 0
    labels = [label for label in read_labels(directory) if label["class"] != "divergence"]
    for label in labels:
        failure = diagnose(number_lines((directory / label["file"]).read_bytes()))
        right_kinds += (failure.kind if failure else "ok") in {label["class"], *label["alt"]}
        assert label["class"] != "ok" or failure is None, label["file"]
        if label["class"] != "ok" and failure is not None:
            failed += 1
            right_lines += quotes(failure.line, label["key_line"])
    assert right_kinds >= 0.99 * len(labels)
    assert right_lines >= 0.95 * failed
