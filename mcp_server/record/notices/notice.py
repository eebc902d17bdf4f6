"""The content of a notice: the event, the run, and what to do next. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_server.text.formatting import duration, shorten_facts, shorten_middle

_TITLE_CHARS, _TEXT_CHARS, _FEWEST_CHARS = 120, 1_000, 100
_FACTS = (
    *("seq", "at", "attempt", "exit_code", "signal", "elapsed_s", "step", "stopped_by", "failure", "wait_s"),
    *("params", "far_side"),
)
_WORDS = {
    "started": "running",
    "first_step": "first step",
    "first_step_timeout": "no first step",
    "error_seen": "error in the output",
    "gpu_deviation": "GPU trouble",
    "judging_lost": "output not judged",
    "refused": "not started",
}
_URGENT = frozenset({"failed", "lost", "stalled", "first_step_timeout", "gpu_deviation", "error_seen", "refused"})


@dataclass(frozen=True)
class NoticedRun:
    """The facts of the run that every notice has."""

    run_id: str
    name: str
    owner: str
    host: str


@dataclass(frozen=True)
class Notice:
    """One message: ``title`` has at most 120 characters, ``text`` at most 1,000. ``facts`` is all of it as JSON."""

    title: str
    text: str
    is_urgent: bool
    is_success: bool
    facts: Mapping[str, Any]

    def add(self, sentence: str) -> Notice:
        """Return this notice with another sentence at its end."""
        text = f"{self.text}\n{sentence}"
        return Notice(self.title, text, self.is_urgent, self.is_success, {**self.facts, "text": text})


def make_notice(event: Mapping[str, Any], run: NoticedRun, mask: Callable[[str], str] = str) -> Notice:
    """Return the notice of an event of ``run``. Every string passes through ``mask``."""
    kind, state = str(event.get("kind", "")), str(event.get("state", ""))
    word = _WORDS.get(kind, state if kind == "ended" else kind)
    elapsed_s = event.get("elapsed_s")
    after = f" after {duration(elapsed_s)}" if kind == "ended" and isinstance(elapsed_s, (int, float)) else ""
    failure = event.get("failure") if isinstance(event.get("failure"), dict) else {}
    why = f" ({failure['kind']})" if failure and failure.get("kind") else ""
    title = shorten_middle(mask(f"{word}{why}: {run.run_id}{after}"), _TITLE_CHARS)
    lines = [str(event.get("text", ""))]
    if failure:
        line, advice = str(failure.get("line", "")), str(failure.get("advice", ""))
        lines += [each for each in (line, advice) if each and each not in lines[0]]
    call = mask(f"{run.owner} on {run.host}. runward logs {run.run_id}")
    body = shorten_facts(mask("\n".join(filter(None, lines))), max(_FEWEST_CHARS, _TEXT_CHARS - len(call) - 1))
    text = f"{body}\n{call}"
    facts = {"title": title, "text": text, "run_id": run.run_id, "name": run.name, "owner": run.owner, "host": run.host}
    facts |= {"kind": kind} | ({"state": state} if state else {})
    facts |= {name: _mask(event[name], mask) for name in _FACTS if event.get(name) is not None}
    return Notice(title, text, kind in _URGENT or state in _URGENT, state == "finished", facts)


def _mask(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {mask(str(name)): _mask(each, mask) for name, each in value.items()}
    if isinstance(value, list):
        return [_mask(each, mask) for each in value]
    return value
