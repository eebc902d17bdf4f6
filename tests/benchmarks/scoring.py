"""How verdicts on logs agree with labels; and the verdicts of a grep, beside which ours stand."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mcp_server.diagnosis.log_file import examine_log

# What agents grep logs for, and what they take it for; the first that occurs anywhere decides.
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


class Verdict(NamedTuple):
    """What was made of one log."""

    kind: str
    line: str
    retryable: bool | None
    first_step_seen: bool


@dataclass
class Score:
    """How verdicts agree with labels; ``wrong`` names those that do not, by what they are wrong about."""

    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def add(self, label: dict[str, Any], said: Verdict) -> None:
        """Compare one."""
        right, failed = label["class"], label["class"] != "ok"
        told = said.kind in (right, *label["alt"])
        for name, what in ((right, "tp"),) if told else ((right, "fn"), (said.kind, "fp")):
            self.kinds.setdefault(name, Counter())[what] += 1
        name = f"{label['file']} ({right}, said {said.kind})"
        if failed:
            self._count("line", name, right=quotes(said.line, label["key_line"]))
        else:
            self._count("alarm", name, right=said.kind == "ok")
        if label["retryable"] is not None:
            self._count("retryable", name, right=said.retryable == label["retryable"])
        self._count("step", name, right=said.first_step_seen == label["first_step_seen"])

    def _count(self, what: str, name: str, *, right: bool) -> None:
        self.asked[what] += 1
        if not right:
            self.wrong.setdefault(what, []).append(name)

    @property
    def f1(self) -> float:
        """Macro-F1 over the kinds that occur, in labels or in verdicts."""
        return sum(2 * c["tp"] / (2 * c["tp"] + c["fp"] + c["fn"]) for c in self.kinds.values()) / len(self.kinds)

    def percent(self, what: str) -> float:
        """Return how many were right of those asked."""
        return 100 * (1 - len(self.wrong.get(what, ())) / self.asked[what])

    def of(self, what: str) -> str:
        """Return the same in words."""
        asked = self.asked[what]
        return f"{asked - len(self.wrong.get(what, ()))} of {asked} ({self.percent(what):.1f} %)"


def quotes(said: str, right: str) -> bool:
    """Whether a line is the one that was meant: either holds the other, white space aside."""
    a, b = "".join(said.split()), "".join(right.split())
    return bool(a) and (a in b or b in a)


def by_keywords(text: str) -> Verdict:
    """Return what a grep for the usual words makes of a log."""
    lines = [line for line in _ENDS.split(text) if line.strip()]
    stepped = any(map(_PLAIN_STEP.search, lines))
    for kind, pattern in _KEYWORDS:
        if found := next(filter(pattern.search, reversed(lines)), None):
            return Verdict(kind, found, None, stepped)
    return Verdict("ok", "", None, stepped)


def by_runward(path: Path, exit_code: int | None = None, signal: str | None = None) -> Verdict:
    """Return what judging makes of it."""
    found = examine_log(path, exit_code, signal)
    failure = found.failure
    if failure is None:
        return Verdict("ok", "", None, found.first_step_seen)
    return Verdict(failure.kind, failure.line or "", failure.retryable, found.first_step_seen)
