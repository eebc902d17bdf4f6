"""Decides what follows a failed attempt: a retry by the run's policy, within ceilings that no policy lifts. Pure.

Where the diagnosis proves that a retry is senseless, the default policy obeys it; a table of the user's own wins.

The order of the decision: a stop request and an ending that could not be diagnosed are final; the first rule that
matches the failure says what may be tried; the ceilings say whether. The ceilings count since the last attempt with
real progress, including its own failure: an attempt that came further than all before it, or left a new checkpoint.
Such an attempt resets all counts, also how often each step of a rule was taken. Only the hard limit of 100 attempts is
never reset.

A preemption (a kill that is worth a retry) is not a failure: no ceiling counts it, but 20 without progress end the run.

The same root line twice at the same step, with nothing changed in between, is a bug: nothing is tried unchanged any
more, and only the rule's steps that change something remain, such as a smaller batch after a second OOM. Causes
outside the program (network, port, kill) repeat by nature, and the line of a stall is only the last before it: they
prove no bug. Failures of the machinery (GPU, NCCL, Ray) prove one only at a known step, because before the first step
their last lines all look alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from mcp_server.diagnosis.failure.diagnose import Diagnosis
from mcp_server.recovery.changes import ChangeImpossible, apply_changes
from mcp_server.recovery.policy import MAX_ATTEMPTS, describe_ceilings, is_guard
from mcp_server.system.own_process import name_shell_signal
from mcp_server.text.regex import compile_lazily

MAX_PREEMPTIONS = 20  # in a row without progress
_LONGEST_WAIT_S = 960.0  # of a backoff
_NO_PROOF = frozenset({"network_error", "port_conflict", "killed", "stall", "imbalance"})
_MACHINERY = frozenset({"oom_gpu", "oom_host", "cuda_error", "nccl_error", "ray_error"})
_SENSELESS = "A retry would meet the same, by the line that proves the failure."
_VARIES = compile_lazily(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")


@dataclass(frozen=True)
class FailedAttempt:
    """One failed attempt. ``applied``: the ``Retry.applied`` that led to the next one, or None for the newest."""

    number: int
    kind: str
    line: str
    retryable: bool
    exit_code: int | None
    signal: str | None
    step: int | None
    round: int = 1
    checkpoint: str | None = None
    params: Mapping[str, object] = field(default_factory=dict)
    applied: str | None = None

    @property
    def preempted(self) -> bool:
        """Whether the scheduler or the machine ended it, and it may simply start again."""
        ended_by = self.signal or name_shell_signal(self.exit_code)
        return self.kind == "killed" and self.retryable and ended_by != "SIGKILL"


@dataclass(frozen=True)
class Retry:
    """Retry after ``wait_s``.

    ``params`` are all parameters of the next attempt, ``env`` only the variables that change. ``next_port`` names
    parameters, or else environment variables, that need a free port, which the caller finds. ``applied`` names the
    step of the policy, for the history; ``is_changed``: it changes something. ``text`` is one sentence for the event.
    """

    params: dict[str, object]
    env: dict[str, str]
    other_gpu: bool
    wait_s: float
    text: str
    next_port: tuple[str, ...] = ()
    applied: str = ""
    is_changed: bool = False


@dataclass(frozen=True)
class GiveUp:
    """No further attempt. ``is_final``: the policy has judged; ``names_change``: ``text`` says what to change."""

    text: str
    is_final: bool = True
    names_change: bool = False


Decision = Union[Retry, GiveUp]


def decide(
    policy: Mapping[str, Any],
    history: Sequence[FailedAttempt],
    params: Mapping[str, object],
    env: Mapping[str, str],
    *,
    stop_state: str | None = None,
    is_undiagnosed: bool = False,
) -> Decision:
    """Return what follows the newest attempt of ``history``, which holds a run's failed attempts, oldest first.

    ``policy`` is in its normal form. ``params`` and ``env`` are those of the newest attempt. ``stop_state`` is the
    state that a stop request leads to: `killed` or `timed_out`. ``is_undiagnosed``: the ending has no diagnosis.
    """
    if stop_state is not None:
        return GiveUp("It was stopped on request." if stop_state == "killed" else "Its time limit has passed.")
    if is_undiagnosed or not history:
        return GiveUp("How it ended could not be judged, and nothing is retried on a guess.", is_final=False)
    last, since, bug = history[-1], _since_progress(history), _repeats(policy, history)
    number = next((n for n, rule in enumerate(policy["rules"]) if _matches(rule["when"], last)), None)
    if number is None:
        # Whoever has it stop a run for this, and gives no rule, wants no retry of it.
        return GiveUp(f"The recovery policy has no rule for {last.kind}.", is_final=last.kind in policy["stop_on"])
    taken = [t.applied for t in since[:-1]]
    for index, step in enumerate(policy["rules"][number]["steps"]):
        key = f"{number}.{index}"
        if step["do"] == "stop":
            if not last.retryable and any(
                is_guard(rule["when"]) and _matches(rule["when"], replace(last, retryable=True))
                for rule in policy["rules"]
            ):
                return GiveUp(_SENSELESS)
            return GiveUp(f"The recovery policy does not retry {last.kind}{' any more' if index else ''}.")
        if taken.count(key) < step["times"] and (step["change"] or not bug):
            ceiling = _ceiling(policy, history, since)
            return GiveUp(ceiling) if ceiling else _retry(step, key, since, policy, params, env)
    if bug:
        where = "before any step" if last.step is None else f"at step {last.step}"
        return GiveUp(f"The same line twice {where} is a bug that the next attempt would meet too: find it first.")
    return GiveUp(f"All that the recovery policy has for {last.kind} was tried.")


# --- rules and ceilings


def _matches(when: Mapping[str, Any], failure: FailedAttempt) -> bool:
    return (
        when.get("kind", "any") in ("any", failure.kind)
        and when.get("exit_code", failure.exit_code) == failure.exit_code
        and when.get("retryable", failure.retryable) == failure.retryable
        and ("pattern" not in when or re.search(when["pattern"], failure.line) is not None)
    )


def _since_progress(history: Sequence[FailedAttempt]) -> Sequence[FailedAttempt]:
    """Return the newest attempt that came further than all before it or left a new checkpoint, and all after it."""
    start, best = 0, (1, -1)
    seen: set[str] = set()
    for n, attempt in enumerate(history):
        step = (attempt.round, -1 if attempt.step is None else attempt.step)
        # The name alone: the directory of a retry may be named after its start time.
        saved = {(attempt.checkpoint or "").rstrip("/").rpartition("/")[2]} - {""}
        if step > best or saved - seen:
            start = n
        best = max(best, step)
        seen |= saved
    return history[start:]


def _ceiling(policy: Mapping[str, Any], history: Sequence[FailedAttempt], since: Sequence[FailedAttempt]) -> str | None:
    last = history[-1]
    if max(len(history), last.number) >= MAX_ATTEMPTS:
        return f"A run has at most {MAX_ATTEMPTS} attempts."
    if last.preempted:
        preemptions = sum(t.preempted for t in since)
        return f"Preempted {preemptions} times without progress." if preemptions >= MAX_PREEMPTIONS else None
    failures = [t for t in since if not t.preempted]
    same_kind = next((n for n, t in enumerate(reversed(failures)) if t.kind != last.kind), len(failures))
    if same_kind >= policy["max_same_kind"]:
        steps = {failure.step for failure in failures[-same_kind:]}
        place = f", all after step {last.step}" if len(steps) == 1 < same_kind and last.step is not None else ""
        return f"{same_kind} failures of the same kind in a row ({last.kind}{place}), without progress, end the run."
    if len(failures) > policy["max_retries"]:
        return f"All {policy['max_retries']} retries without progress are used up."
    return None


def _repeats(policy: Mapping[str, Any], history: Sequence[FailedAttempt]) -> bool:
    """Return whether the newest failure occurred before at the same step, with nothing changed in between."""
    last = history[-1]
    if last.kind in _NO_PROOF or (last.step is None and last.kind in _MACHINERY) or not last.line.strip():
        return False
    for before in reversed(history[:-1]):
        if _is_changing_step(policy, before.applied) or before.params != last.params:
            return False
        if (before.round, before.step) == (last.round, last.step) and _normalize(before.line) == _normalize(last.line):
            return True
    return False


def _is_changing_step(policy: Mapping[str, Any], applied: str | None) -> bool:
    rule, _, step = (applied or "").partition(".")
    try:
        return bool(policy["rules"][int(rule)]["steps"][int(step)]["change"])
    except (ValueError, IndexError):
        return False


def _normalize(line: str) -> str:
    """Return ``line`` without the parts that differ from attempt to attempt: addresses, process ids, times."""
    return " ".join(_VARIES.sub("#", line).split())


# --- the retry


def _retry(
    step: Mapping[str, Any],
    key: str,
    since: Sequence[FailedAttempt],
    policy: Mapping[str, Any],
    params: Mapping[str, object],
    env: Mapping[str, str],
) -> Decision:
    last = since[-1]
    try:
        changes = apply_changes(step["change"], params, env, last.line)
    except ChangeImpossible as error:
        return GiveUp(f"A retry after {last.kind} needs a change that cannot be made: {error}", names_change=True)
    wait_s = _wait_s(step, sum(t.applied == key for t in since[:-1]))
    count = sum(not t.preempted for t in since)
    which = "a preemption is not a failure" if last.preempted else f"retry {count}, {describe_ceilings(policy)}"
    what = f"with {', '.join(changes.descriptions)}" if changes.descriptions else "as it was"
    text = f"Trying again in {wait_s:g} s {what} ({which})."
    is_changed = bool(changes.descriptions)
    ports = tuple(changes.next_port)
    return Retry(changes.params, changes.env, changes.other_gpu, wait_s, text, ports, key, is_changed)


def _wait_s(step: Mapping[str, Any], used: int) -> float:
    first_s = float(step["wait_s"])
    return min(first_s * float(step["backoff"]) ** min(used, 64), max(first_s, _LONGEST_WAIT_S))


_RETRIES = "The recovery policy retries it: call wait_run, and launch nothing."
_LOOK = " Find the cause with read_log and change something before {}."
_LATER_S = 30.0


def agree(failure: Diagnosis, decision: Decision) -> Diagnosis:
    """Return ``failure`` with what is left to do after ``decision``; advice on what to correct stays."""
    if isinstance(decision, Retry):
        return replace(failure, retryable=True, action=_action_of(decision), advice=_RETRIES, correction=None)
    if not decision.is_final:
        return failure
    if failure.retryable is False:
        return replace(failure, action="stop")
    why, look = decision.text, "" if decision.names_change else _LOOK
    advice, correction = why + look.format("launch_run"), why + look.format("another launch")
    return replace(failure, retryable=False, action="stop", advice=advice, correction=correction)


def _action_of(retry: Retry) -> str:
    """Return the word of ``kinds.ACTIONS`` for what the policy does."""
    if retry.other_gpu:
        return "retry_other_gpu"
    if retry.next_port:
        return "retry_other_port"
    if retry.is_changed:
        return "retry_changed"
    return "retry_later" if retry.wait_s >= _LATER_S else "retry"
