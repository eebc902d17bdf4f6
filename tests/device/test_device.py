"""The script for a machine with a card, by value: its comparison, its verdicts, its page and its packages."""

import json
from pathlib import Path

import pytest

from tests.device.__main__ import fits
from tests.device.checks import CHECKS
from tests.device.report import Outcome, judge, render, write
from tests.device.truth import FIELDS, Finding, Value, compare, parse_smi, reasons_of
from tests.device.wheels import list_requirements

TRUE, FALSE, TOLD = (Finding("memory", "1", "1", ok) for ok in (True, False, None))


def judged(told: dict[str, object], *readings: dict[str, Value]) -> dict[str, bool | None]:
    return {finding.what: finding.ok for finding in compare(told, readings)}


def test_a_figure_is_true_within_the_span_of_the_readings_and_its_tolerance() -> None:
    readings: tuple[dict[str, Value], ...] = ({"power_w": 300.0}, {"power_w": 380.0})
    assert [judged({"power_w": watts}, *readings)["power_w"] for watts in (274, 275, 340, 405, 406)] == [
        *(False, True, True, True, False)
    ]
    assert judged({"memory_total_mib": 81559}, {"memory_total_mib": 143771})["memory_total_mib"] is False


def test_a_figure_that_runward_leaves_out_is_false_and_one_that_nothing_tells_is_not_judged() -> None:
    assert judged({}, {"ecc_corrected": 0})["ecc_corrected"] is False
    assert judged({"ecc_corrected": 0}, {})["ecc_corrected"] is None
    assert judged({"ecc_corrected": 0}, {}).keys() == FIELDS.keys()


def test_words_and_switches_are_compared_whatever_their_order() -> None:
    assert judged({"throttle": ("thermal", "power_cap")}, {"throttle": "power_cap thermal"})["throttle"] is True
    assert judged({"throttle": ()}, {"throttle": "thermal"})["throttle"] is False
    assert judged({"mig": False}, {"mig": False})["mig"] is True
    assert judged({"mig": False}, {"mig": True})["mig"] is False


def test_a_line_of_nvidia_smi_is_read_and_its_gaps_are_left_out() -> None:
    names = ("memory_total_mib", "power_w", "throttle", "ecc_corrected", "mig", "compute_mode")
    line = "81559, 68.52, 0x0000000000000024, [N/A], Disabled, Exclusive_Process"
    assert parse_smi(names, line) == {
        "memory_total_mib": 81559,
        "power_w": 68.52,
        "throttle": "power_cap thermal",
        "mig": False,
        "compute_mode": "exclusive_process",
    }
    assert reasons_of(0x1) == "", "idle is no reason"


@pytest.mark.parametrize(
    ("findings", "state"), [((TRUE, TOLD), "passed"), ((TRUE, FALSE), "failed"), ((TOLD,), "skipped"), ((), "skipped")]
)
def test_one_false_finding_fails_a_check_and_nothing_judged_is_no_pass(
    findings: tuple[Finding, ...], state: str
) -> None:
    assert judge(findings) == state


def test_the_page_has_failures_first_and_the_reason_of_each_check_that_was_skipped(tmp_path: Path) -> None:
    outcomes = (
        Outcome("time", "it is fast", "passed", 1.25, "", (TRUE,)),
        Outcome("nccl", "an error is NCCL's", "skipped", 0, "it needs real CUDA"),
        Outcome("kill", "memory is back", "failed", 3, "", (Finding("memory", "a | b\nc", "0 MiB", False),)),
    )
    page = render({"GPU": "H100"}, outcomes)
    assert "- GPU: H100\n" in page
    assert "1 passed, 1 failed, 0 broke, 1 skipped.\n" in page
    assert "| nccl | an error is NCCL's | skipped: it needs real CUDA | 0.0 |\n" in page
    assert page.index("## kill: failed") < page.index("## time: passed")
    assert "| memory | a / b c | 0 MiB | FALSE |\n" in page
    write(tmp_path, {"GPU": "H100"}, outcomes)
    kept = json.loads((tmp_path / "device.json").read_text())
    assert [each["state"] for each in kept["checks"]] == ["passed", "skipped", "failed"]
    assert (tmp_path / "report.md").read_text() == page


@pytest.mark.parametrize(
    ("wheel", "fit"),
    [
        ("mcp-2.3.0-py3-none-any.whl", True),
        ("cryptography-50.0.2-cp311-abi3-manylinux_2_28_x86_64.whl", True),
        ("regex-2026.11.19-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("regex-2026.11.19-cp313-cp313-manylinux2014_x86_64.whl", False),
        ("six-1.17.0-py2.py3-none-any.whl", True),
    ],
)
def test_only_wheels_of_this_python_are_unpacked(wheel: str, fit: bool) -> None:
    assert fits(wheel, (3, 12)) is fit


def test_the_machines_own_packages_are_not_brought_along() -> None:
    project = {"dependencies": ["mcp>=2.3,<3", "numpy>=1.26", "nvidia-ml-py>=12.570", "tensorboard>=2.20", "rich>=14"]}
    assert list_requirements(project) == ["mcp>=2.3,<3", "rich>=14"]


def test_the_checks_that_need_no_card_fit_into_the_time_with_those_that_do() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert {check.name for check in CHECKS if not check.needs} >= {"fields", "time", "stranger", "kill", "sweep"}
