"""What follows a failed attempt: the policy's answer, within ceilings that hold whatever the policy says. Pure.

In this order: a stop that somebody asked for and an ending that could not be judged are final; the first rule that
matches the failure says what may be tried; the ceilings say whether. They count since the last attempt with real
progress, its own failure included: one that came further than all before it, or left a new checkpoint. With it
everything counts anew, also how often each step of a rule was taken. Not anew counts the hard limit of 100 attempts.

A preemption (killed, and said to be worth a retry) is no failure: no ceiling counts it, but 20 without progress end it.

The same root line twice at the same step, with nothing changed in between, is a bug: nothing is tried as it was any
more, and what is left are the rule's steps that change something, such as a smaller batch after an OOM that came back.
Lines of what lies outside the program (network, port, kill) repeat by nature, and prove nothing; those of machinery
prove it at a step that is known, since as the last word before any step they all look alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp_server.recovery.changes import Impossible, alter
from mcp_server.recovery.policy import DEFAULT, MAX_ATTEMPTS, NONE, policy_of

__all__ = ["DEFAULT", "NONE", "Decision", "GiveUp", "Retry", "Try", "decide", "policy_of"]

MAX_PREEMPTIONS = 20  # in a row without progress
_LONGEST_WAIT_S = 960.0  # that backing off leads to
_OUTSIDE = frozenset({"network_error", "port_conflict", "killed"})
_MACHINERY = frozenset({"oom_gpu", "oom_host", "cuda_error", "nccl_error", "ray_error", "stall"})
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")


@dataclass(frozen=True)
class Try:
    """One failed attempt. ``applied``: the ``Retry.applied`` that led to the next one; None for the newest."""

    number: int
    kind: str
    line: str
    retryable: bool
    exit_code: int | None
    signal: str | None
    step: int | None
    checkpoint: str | None = None
    params: Mapping[str, object] = field(default_factory=dict)
    applied: str | None = None

    @property
    def preempted(self) -> bool:
        """Whether it ended through no fault of its own."""
        return self.kind == "killed" and self.retryable and self.signal != "SIGKILL"


@dataclass(frozen=True)
class Retry:
    """Try again after ``wait_s``.

    ``params``: all of them, as the next attempt has them. ``env``: the variables that change, and no others.
    ``next_port``: names of parameters, else of environment variables, that need a free port; the caller, who may
    touch the world, finds it. ``applied``: which step of the policy this is, for the history. ``text``: a sentence.
    """

    params: dict[str, object]
    env: dict[str, str]
    other_gpu: bool
    wait_s: float
    text: str
    next_port: tuple[str, ...] = ()
    applied: str = ""


@dataclass(frozen=True)
class GiveUp:
    """No further attempt; ``text`` says why, and what a person could do."""

    text: str


Decision = Retry | GiveUp


def decide(
    policy: Mapping[str, Any],
    history: Sequence[Try],
    params: Mapping[str, object],
    env: Mapping[str, str],
    *,
    asked: str | None = None,
    observer_error: bool = False,
) -> Decision:
    """Return what follows the newest of ``history``, all failed attempts of a run, oldest first.

    ``policy``: a normal form. ``params`` and ``env``: as the newest attempt had them. ``asked``: `killed` or
    `timed_out`, when somebody wanted this end.
    ``observer_error``: the ending could not be judged.
    """
    if asked not in (None, "failed"):  # that is the policy's own stop, of a stall
        return GiveUp("It was stopped on request." if asked == "killed" else "Its time limit has passed.")
    if observer_error or not history:
        return GiveUp("How it ended could not be judged, and nothing is retried on a guess.")
    last, since, bug = history[-1], _since_progress(history), _repeats(policy, history)
    number = _matching(policy["rules"], last)
    if number is None:
        return GiveUp(f"The recovery policy has no rule for {last.kind}.")
    taken = [t.applied for t in since[:-1]]
    for index, step in enumerate(policy["rules"][number]["steps"]):
        key = f"{number}.{index}"
        if step["do"] == "stop":
            return GiveUp(f"The recovery policy does not retry {last.kind}{' any more' if index else ''}.")
        if taken.count(key) < step["times"] and (step["change"] or not bug):
            ceiling = _ceiling(policy, history, since)
            return GiveUp(ceiling) if ceiling else _retry(step, key, since, policy["max_retries"], params, env)
    if bug:
        where = "before any step" if last.step is None else f"at step {last.step}"
        return GiveUp(f"The same line twice {where} is a bug that the next attempt would meet too: find it first.")
    return GiveUp(f"All that the recovery policy has for {last.kind} was tried.")


# --- which rule, which budget


def _matching(rules: Sequence[Mapping[str, Any]], failure: Try) -> int | None:
    """Return the number of the first rule that matches, all of whose conditions hold."""
    return next((n for n, rule in enumerate(rules) if _matches(rule["when"], failure)), None)


def _matches(when: Mapping[str, Any], failure: Try) -> bool:
    return (
        when.get("kind", "any") in ("any", failure.kind)
        and when.get("exit_code", failure.exit_code) == failure.exit_code
        and when.get("retryable", failure.retryable) == failure.retryable
        and ("pattern" not in when or re.search(when["pattern"], failure.line) is not None)
    )


def _since_progress(history: Sequence[Try]) -> Sequence[Try]:
    """Return the attempts from the newest on that came further than all before it, or left a new checkpoint."""
    start, best = 0, -1
    seen: set[str] = set()
    for n, attempt in enumerate(history):
        step = -1 if attempt.step is None else attempt.step
        # Its name alone: the directory of a retry may be called after its time.
        saved = {(attempt.checkpoint or "").rstrip("/").rpartition("/")[2]} - {""}
        if step > best or saved - seen:
            start = n
        best = max(best, step)
        seen |= saved
    return history[start:]


def _ceiling(policy: Mapping[str, Any], history: Sequence[Try], since: Sequence[Try]) -> str | None:
    """Return why the budget allows no further attempt, if it does not."""
    last = history[-1]
    if max(len(history), last.number) >= MAX_ATTEMPTS:
        return f"A run has at most {MAX_ATTEMPTS} attempts."
    if last.preempted:
        preemptions = sum(t.preempted for t in since)
        return f"Preempted {preemptions} times without progress." if preemptions >= MAX_PREEMPTIONS else None
    failures = [t for t in since if not t.preempted]
    alike = next((n for n, t in enumerate(reversed(failures)) if t.kind != last.kind), len(failures))
    if alike >= policy["max_same_kind"]:
        return f"{alike} failures of the same kind in a row ({last.kind}), without progress, end the run."
    if len(failures) > policy["max_retries"]:
        return f"All {policy['max_retries']} retries without progress are used up."
    return None


def _repeats(policy: Mapping[str, Any], history: Sequence[Try]) -> bool:
    """Whether the newest failure was there before, at the same step, and nothing was changed in between."""
    last = history[-1]
    if last.kind in _OUTSIDE or (last.step is None and last.kind in _MACHINERY) or not last.line.strip():
        return False
    for before in reversed(history[:-1]):
        if _changes(policy, before.applied) or before.params != last.params:
            return False
        if before.step == last.step and _root(before.line) == _root(last.line):
            return True
    return False


def _changes(policy: Mapping[str, Any], applied: str | None) -> bool:
    rule, _, step = (applied or "").partition(".")
    try:
        return bool(policy["rules"][int(rule)]["steps"][int(step)]["change"])
    except (ValueError, IndexError):
        return False


def _root(line: str) -> str:
    """Return ``line`` without what differs from attempt to attempt: addresses, process ids, times."""
    return " ".join(_VARIES.sub("#", line).split())


# --- what is tried


def _retry(
    step: Mapping[str, Any],
    key: str,
    since: Sequence[Try],
    max_retries: int,
    params: Mapping[str, object],
    env: Mapping[str, str],
) -> Decision:
    last = since[-1]
    try:
        altered = alter(step["change"], params, env, last.line)
    except Impossible as error:
        return GiveUp(f"A retry after {last.kind} needs a change that cannot be made: {error}")
    wait_s = _wait_s(step, sum(t.applied == key for t in since[:-1]))
    count = sum(not t.preempted for t in since)
    which = "a preemption is no failure" if last.preempted else f"retry {count} of {max_retries}"
    what = f"with {', '.join(altered.told)}" if altered.told else "as it was"
    text = f"Trying again in {wait_s:g} s {what} ({which})."
    return Retry(altered.params, altered.env, altered.other_gpu, wait_s, text, tuple(altered.next_port), key)


def _wait_s(step: Mapping[str, Any], used: int) -> float:
    first_s = float(step["wait_s"])
    return min(first_s * float(step["backoff"]) ** min(used, 64), max(first_s, _LONGEST_WAIT_S))
