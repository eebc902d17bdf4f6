"""The content of a notice: the event, the run, and what to do next. Pure.

Where notices go: a web address or a command, and the events that it is for.

`notices.jsonl` of a run: which notices were accepted, what became of each, and what never arrived.

A notice is noted before it is tried, so that the death of its sender leaves a trace. The sender holds the lock of the
file while it lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcp_server.system.files import read_regular_file
from mcp_server.system.lock_files import may_be_locked, try_lock
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
SERVICES = ("ntfy", "slack", "feishu", "json")
DEFAULT_EVENTS = ("ended", "stalled", "first_step_timeout", "gpu_deviation", "judging_lost")
END_STATES = ("finished", "failed", "killed", "timed_out", "lost")
EVENTS = (
    *("started", "first_step", "first_step_timeout", "stalled", "resumed", "error_seen", "gpu_deviation"),
    *("judging_lost", "retrying", "ended", *END_STATES),
)
"""What a target may name: kinds of events, `ended` for every end, or the states of the ends it wants."""
DEFAULT_PER_HOUR = 30
_HOSTS = (("ntfy", "ntfy"), ("slack.com", "slack"), ("feishu", "feishu"), ("larksuite", "feishu"))
RECORD = "notices.jsonl"
SENDER_DIED = "the process that sends notices died"
_MOST_BYTES = 2**20


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


@dataclass(frozen=True)
class Target:
    """One receiver of notices. Either ``url`` or ``command`` is not empty. Holds secrets: never written to a file."""

    name: str
    url: str = field(default="", repr=False)
    service: str = "json"
    command: tuple[str, ...] = ()
    token: str = field(default="", repr=False)  # sent as a bearer token
    sign_secret: str = field(default="", repr=False)  # Feishu signs with it
    events: tuple[str, ...] = DEFAULT_EVENTS
    max_per_hour: int = DEFAULT_PER_HOUR

    def accepts(self, kind: str, state: str) -> bool:
        """Return whether an event of this kind, an end with this state, goes to this target."""
        return kind in self.events or (
            kind in ("ended", "refused") and ("ended" in self.events or state in self.events)
        )

    @property
    def secrets(self) -> list[str]:
        """The values that no message about a delivery may show."""
        return [value for value in (self.url, self.token, self.sign_secret) if value]


def guess_service(url: str) -> str:
    """Return the service that an address belongs to by its host name. `json` for every other host."""
    host = (urlsplit(url).hostname or "").lower()
    return next((service for part, service in _HOSTS if part in host), "json")


def name_target(url: str, command: Sequence[str]) -> str:
    """Return a name without secrets: the host of the address, or the program of the command."""
    return (urlsplit(url).hostname or "webhook") if url else command[0].rpartition("/")[2]


def split_command(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command. A shell runs one that is written as a line.

    Raises:
        ValueError: it has no words, or a quote without its end.
    """
    if not isinstance(command, str):
        words = tuple(command)
    else:
        shlex.split(command)
        words = ("/bin/sh", "-c", command) if command.strip() else ()
    if not words or not words[0]:
        raise ValueError("the command is empty")
    return words


def write_line(record: Path, facts: Mapping[str, Any], lock: int | None = None) -> int | None:
    """Append a line, as far as the disk takes it. Return a descriptor that holds the file's lock where it can be had.

    ``lock``: the descriptor that an earlier call returned; the caller keeps it open.
    """
    with contextlib.suppress(OSError):  # a full disk keeps no record; the notice is sent all the same
        if lock is None:
            lock = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try_lock(lock)  # of a run that was requeued, a former sender may hold it yet
        os.write(lock, json.dumps(dict(facts), ensure_ascii=False).encode(errors="replace") + b"\n")
    return lock


def find_undelivered(directory: Path) -> list[str]:
    """Return the notices of the run in ``directory`` that never arrived, e.g. ``ended to ntfy.sh: HTTP 413``.

    Without those that are on their way, or that a target's own ceiling left out.
    """
    try:
        lines = read_regular_file(directory / RECORD, max_bytes=_MOST_BYTES).split(b"\n")
    except OSError:
        return []
    causes: dict[tuple[str, str, str], str] = {}
    for line in lines:
        try:
            facts = json.loads(line)
            key = (str(facts["target"]), str(facts["kind"]), str(facts["seq"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if facts.get("sent") or facts.get("left_out"):
            causes.pop(key, None)
        else:
            causes[key] = str(facts.get("cause") or "")
    if not all(causes.values()) and may_be_locked(directory / RECORD):  # its sender lives, and tries
        causes = {key: cause for key, cause in causes.items() if cause}
    return [f"{kind} to {target}: {cause or SENDER_DIED}" for (target, kind, _), cause in causes.items()]
