"""Logs that were written and labelled before their author had read a rule of the diagnosis, and the score on them.

`tests/data/unseen_logs/*.txt`: each log begins with its label. ``kinds``: those that are right. ``line``: how the root
line begins; `|` between lines that are right as well. ``retry``: `yes`, `no`, or `any`. ``right``, ``wrong``: patterns
of advice that leads on, and of advice that leads astray. ``exit``: the exit code. A log without ``kinds`` is healthy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mcp_server.diagnosis.failure.diagnose import Diagnosis, diagnose
from mcp_server.text.lines import number_lines
from tests.benchmarks.scoring import quotes
from tests.support.logs import DATA


class UnseenLog(NamedTuple):
    name: str
    label: dict[str, str]
    log: str

    @property
    def failed(self) -> bool:
        return "kinds" in self.label

    def diagnose(self, *, with_exit: bool = False) -> Diagnosis | None:
        return diagnose(number_lines(self.log.encode()), int(self.label["exit"]) if with_exit else None)


def read_unseen_logs() -> list[UnseenLog]:
    logs = []
    for path in sorted((DATA / "unseen_logs").glob("*.txt")):
        for part in re.split(r"^=== ", path.read_text(), flags=re.MULTILINE)[1:]:
            head, _, log = part.partition("\n---\n")
            name, *fields = head.splitlines()
            logs.append(UnseenLog(name, dict(field.split(": ", 1) for field in fields), log))
    return logs


def list_faults(log: UnseenLog, found: Diagnosis | None) -> Iterator[tuple[str, str]]:
    """Yield (aspect, answer) for each aspect in which a diagnosis differs from the label."""
    if not log.failed:
        if found:
            yield "alarm", found.line
        return
    if found is None:
        yield from ((aspect, "nothing found") for aspect in ("kind", "line", "retry"))
        return
    if found.kind not in log.label["kinds"].split():
        yield "kind", found.kind
    if not any(quotes(found.line, line) for line in log.label["line"].split("|")):
        yield "line", found.line
    if log.label["retry"] not in ("any", "yes" if found.retryable else "no"):
        yield "retry", str(found.retryable)
    if found.advice and not re.search(log.label["right"], found.advice):
        yield "advice", found.advice
    elif found.advice and re.search(log.label["wrong"], found.advice):
        yield "astray", found.advice
