"""The outcome of each check, as device.json and as a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tests.device.truth import Finding

State = Literal["passed", "failed", "skipped", "broke"]


@dataclass(frozen=True)
class Outcome:
    """One check: what was found, or why it could not run. ``broke``: the check itself ended in an error."""

    check: str
    claim: str
    state: State
    took_s: float = 0.0
    why: str = ""
    findings: tuple[Finding, ...] = ()


def judge(findings: Sequence[Finding]) -> State:
    """Return whether all that was judged is true; nothing judged is no pass."""
    judged = [finding.ok for finding in findings if finding.ok is not None]
    return "failed" if False in judged else "passed" if judged else "skipped"


def render(machine: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """Return the page: the machine, the count, one row a check, then each check's findings, failures first."""
    counts = {
        state: sum(each.state == state for each in outcomes) for state in ("passed", "failed", "broke", "skipped")
    }
    lines = ["# runward on a GPU", "", *(f"- {name}: {value}" for name, value in machine.items()), ""]
    lines += [", ".join(f"{count} {state}" for state, count in counts.items()) + ".", ""]
    lines += ["| check | claim | outcome | s |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {o.check} | {o.claim} | {_cell(f'{o.state}: {o.why}' if o.why else o.state)} | {o.took_s:.1f} |"
        for o in outcomes
    ]
    rank = {"failed": 0, "broke": 0, "passed": 1, "skipped": 2}
    for outcome in sorted((each for each in outcomes if each.findings), key=lambda each: rank[each.state]):
        lines += [
            "",
            f"## {outcome.check}: {outcome.state}",
            "",
            "| what | runward | truth | |",
            "| --- | --- | --- | --- |",
        ]
        words = {True: "true", False: "FALSE", None: "told"}
        lines += [
            f"| {_cell(f.what)} | {_cell(f.runward)} | {_cell(f.truth)} | {words[f.ok]} |" for f in outcome.findings
        ]
    return "\n".join(lines) + "\n"


def write(folder: Path, machine: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Write both files whole; called after each check, so that a run that is cut off keeps what it found."""
    answer = {"machine": machine, "checks": [asdict(each) for each in outcomes]}
    for name, text in (("device.json", json.dumps(answer, indent=1) + "\n"), ("report.md", render(machine, outcomes))):
        part = folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.rename(folder / name)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:300]
