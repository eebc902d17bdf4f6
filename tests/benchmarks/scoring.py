"""Scores diagnoses of logs against labels; and diagnoses by keywords, as the baseline."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mcp_server.diagnosis.log_file import examine_log

# Keywords that agents search logs for, and the kinds they conclude; the first that occurs decides.
_KEYWORDS = (
    ("oom_gpu", re.compile(r"(?i)out of memory|\boom\b")),
    ("nccl_error", re.compile(r"(?i)nccl.{0,40}(?:error|timeout)|watchdog")),
    ("cuda_error", re.compile(r"(?i)cuda error")),
    ("disk_full", re.compile(r"(?i)no space left")),
    ("port_conflict", re.compile(r"(?i)address already in use")),
    ("segfault", re.compile(r"(?i)segmentation fault|sigsegv")),
    ("import_error", re.compile(r"ModuleNotFoundError|ImportError")),
    ("data_error", re.compile(r"FileNotFoundError|No such file")),
    ("network_error", re.compile(r"(?i)connection (?:refused|reset|error)|timed out")),
    ("killed", re.compile(r"(?i)\bkilled\b|cancelled|sigterm|keyboardinterrupt")),
    ("divergence", re.compile(r"(?i)\bnan\b")),
    ("python_error", re.compile(r"(?i)error|exception|traceback|failed")),
)
_PLAIN_STEP = re.compile(
    r"(?i)(?<!\d)[1-9]\d*/\d+ \[\d[\d:]*<\S+,\s*[\d.]+\s*(?:it/s|s/it)|\b(?:step|iter(?:ation)?)[ :=]+[1-9]"
)
_ENDS = re.compile(r"[\r\n]+")


class Diagnosis(NamedTuple):
    """The diagnosis of one log."""

    kind: str
    line: str
    retryable: bool | None
    first_step_seen: bool


@dataclass
class Score:
    """Agreement of diagnoses with labels; ``wrong`` has the names of the logs that disagree, by aspect."""

    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, label: dict[str, Any], diagnosis: Diagnosis) -> None:
        """Compare one diagnosis with its label."""
        expected, failed = label["class"], label["class"] != "ok"
        is_right = diagnosis.kind in (expected, *label["alt"])
        for kind, outcome in ((expected, "tp"),) if is_right else ((expected, "fn"), (diagnosis.kind, "fp")):
            self.kinds.setdefault(kind, Counter())[outcome] += 1
        name = f"{label['file']} ({expected}, said {diagnosis.kind})"
        if failed:
            self._count("line", name, right=quotes(diagnosis.line, label["key_line"]))
        else:
            self._count("alarm", name, right=diagnosis.kind == "ok")
        if label["retryable"] is not None:
            self._count("retryable", name, right=diagnosis.retryable == label["retryable"])
        self._count("step", name, right=diagnosis.first_step_seen == label["first_step_seen"])

    def _count(self, aspect: str, name: str, *, right: bool) -> None:
        self.counts[aspect] += 1
        if not right:
            self.wrong.setdefault(aspect, []).append(name)

    @property
    def f1(self) -> float:
        """Macro-F1 over the kinds that occur in labels or diagnoses."""
        return sum(2 * c["tp"] / (2 * c["tp"] + c["fp"] + c["fn"]) for c in self.kinds.values()) / len(self.kinds)

    def percent(self, aspect: str) -> float:
        """Return the share of correct diagnoses in one aspect, percent."""
        return 100 * (1 - len(self.wrong.get(aspect, ())) / self.counts[aspect])

    def summarise(self, aspect: str) -> str:
        """Return the same as text."""
        count = self.counts[aspect]
        return f"{count - len(self.wrong.get(aspect, ()))} of {count} ({self.percent(aspect):.1f} %)"


def quotes(line: str, key_line: str) -> bool:
    """Whether either line contains the other, white space aside."""
    a, b = "".join(line.split()), "".join(key_line.split())
    return bool(a) and (a in b or b in a)


def diagnose_by_keywords(text: str) -> Diagnosis:
    """Return the diagnosis by a search for the usual keywords."""
    lines = [line for line in _ENDS.split(text) if line.strip()]
    first_step_seen = any(map(_PLAIN_STEP.search, lines))
    for kind, pattern in _KEYWORDS:
        if line := next(filter(pattern.search, reversed(lines)), None):
            return Diagnosis(kind, line, None, first_step_seen)
    return Diagnosis("ok", "", None, first_step_seen)


def diagnose_by_runward(path: Path, exit_code: int | None = None, signal: str | None = None) -> Diagnosis:
    """Return the diagnosis by runward."""
    examination = examine_log(path, exit_code, signal)
    failure = examination.failure
    if failure is None:
        return Diagnosis("ok", "", None, examination.first_step_seen)
    return Diagnosis(failure.kind, failure.line or "", failure.retryable, examination.first_step_seen)
