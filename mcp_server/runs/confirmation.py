"""Confirmation of a kill: questions to people, tokens, the check of the owner, and the facts to confirm."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mcp_server.errors import ForeignRun, KillNotConfirmed
from mcp_server.record.run_processes import RunProcess
from mcp_server.record.state import Run
from mcp_server.text.formatting import printable, shorten_middle
from mcp_server.text.secret_patterns import mask_secrets

TOKEN_VALID_S = 600.0
# Who cancels a question sooner is a program: Claude Code without a person needs 0.1 s, Codex 0.015 s. A person who is
# taken for a program would lose the right to say no, so the limit is short.
_PERSON_S = 0.5
_MOST_COMMAND_CHARS, _MOST_LEFTOVERS = 200, 10
_MOST_WORDS_CHARS = 80


@dataclass(frozen=True)
class _Grant:
    run_id: str
    attempt: int
    expires_s: float


class Questions:
    """Open questions to people: when each caller was asked to confirm the kill of a run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_s: dict[tuple[str | None, str], list[float]] = {}

    def ask(self, caller: str | None, run_id: str) -> None:
        """Note that ``caller`` is asked now."""
        oldest_s = self._clock() - TOKEN_VALID_S
        for key, times in list(self._asked_s.items()):
            self._asked_s[key] = [asked_s for asked_s in times if asked_s > oldest_s]
            if not self._asked_s[key]:
                del self._asked_s[key]
        self._asked_s.setdefault((caller, run_id), []).append(self._clock())

    def answer(self, caller: str | None, run_id: str) -> bool:
        """Close the oldest question; return whether its answer came too soon for a person, false if none is known."""
        times = self._asked_s.get((caller, run_id))
        return self._clock() - times.pop(0) < _PERSON_S if times else False


@dataclass(frozen=True)
class RunSet:
    """The runs that a question named, with the attempt of each, and when it was asked."""

    attempts: Mapping[str, int]
    question: str
    asked_s: float = 0.0


class RunSets:
    """Confirmations of several runs at once. Each is bound to the runs that its question named, and to no others.

    ``of_launches``: they confirm launches that may end these runs.

    A question to a person is found again by its caller and words: a set that has changed since needs a question of
    its own. Tokens are for agents. Both are used once, and valid for 10 minutes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, of_launches: bool = False) -> None:
        self._clock = clock
        self._of_launches = of_launches
        self._asked: dict[tuple[str | None, tuple[str, ...]], list[RunSet]] = {}
        self._granted: dict[str, tuple[tuple[str, ...], RunSet]] = {}

    def ask(self, caller: str | None, words: Sequence[str], attempts: Mapping[str, int], question: str) -> None:
        """Note that ``caller`` is asked now."""
        oldest_s = self._clock() - TOKEN_VALID_S
        self._asked = {
            key: newer
            for key, sets in self._asked.items()
            if (newer := [each for each in sets if each.asked_s > oldest_s])
        }
        self._asked.setdefault((caller, tuple(words)), []).append(RunSet(dict(attempts), question, self._clock()))

    def find_question(self, caller: str | None, words: Sequence[str]) -> str | None:
        """Return the newest open question."""
        sets = self._asked.get((caller, tuple(words)))
        return sets[-1].question if sets else None

    def answer(self, caller: str | None, words: Sequence[str]) -> RunSet | None:
        """Close the questions and return what was asked, None where several open ones named other runs."""
        sets = self._asked.pop((caller, tuple(words)), [])
        is_clear = len({each.question for each in sets}) == 1 and self._clock() - sets[-1].asked_s < TOKEN_VALID_S
        return sets[-1] if is_clear else None

    def grant_token(self, words: Sequence[str], attempts: Mapping[str, int]) -> str:
        """Return a new token for these runs. An older one for the same words becomes void."""
        key = tuple(words)
        self._granted = {token: grant for token, grant in self._granted.items() if grant[0] != key}
        token = secrets.token_urlsafe(9)
        self._granted[token] = (key, RunSet(dict(attempts), "", self._clock()))
        return token

    def redeem_token(self, token: str, words: Sequence[str]) -> RunSet:
        """Use a token up, and return the runs that it confirms.

        Raises:
            KillNotConfirmed: the token is unknown, used or expired, or for other words, for which it stays valid.
        """
        key, confirmed = self._granted.get(token, (None, None))
        if key == tuple(words):
            del self._granted[token]
        others, them = ("another command", "it") if self._of_launches else ("other runs", "them")
        if confirmed is None:
            cause = f"the confirm_token is unknown, used, or for {others}"
        elif key != tuple(words):
            cause = f"the confirm_token is for {others} ({shorten_middle(' '.join(key or ()), _MOST_WORDS_CHARS)})"
            cause += f", and is still valid for {them}"
        elif self._clock() - confirmed.asked_s >= TOKEN_VALID_S:
            cause = "the confirm_token has expired (10 min)"
        else:
            return confirmed
        if self._of_launches:
            again = "Call again without confirm_token for a new one."
            raise KillNotConfirmed("Launch not confirmed:", f"nothing was started; {cause}.", again)
        raise KillNotConfirmed(
            "Kill not confirmed:", f"no run was stopped; {cause}.", "Call kill_run without confirm_token for a new one."
        )


class Confirmations:
    """Tokens that confirm one kill each: single use, bound to a run and its attempt, valid for 10 minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._grants: dict[str, _Grant] = {}

    def grant_token(self, run: Run) -> str:
        """Return a new token for ``run``. An older token for the same run becomes void."""
        self._grants = {token: grant for token, grant in self._grants.items() if grant.run_id != run.run_id}
        token = secrets.token_urlsafe(9)
        self._grants[token] = _Grant(run.run_id, run.attempt, self._clock() + TOKEN_VALID_S)
        return token

    def redeem_token(self, token: str, run: Run) -> None:
        """Use a token up.

        Raises:
            KillNotConfirmed: the token is unknown, used, expired, or for an earlier attempt, or for another run, for
                which it stays valid.
        """
        grant = self._grants.get(token)
        if grant is None:
            cause = "the confirm_token is unknown, used, or for another run"
        elif grant.run_id != run.run_id:
            cause = f"the confirm_token is for another run ({grant.run_id}), and is still valid for it"
        else:
            del self._grants[token]
            if grant.attempt != run.attempt:
                cause = "the confirm_token was for an earlier attempt"
            elif self._clock() >= grant.expires_s:
                cause = "the confirm_token has expired (10 min)"
            else:
                return
        raise KillNotConfirmed(
            "Kill not confirmed:",
            f"{run.run_id!r} is still {run.state}; {cause}.",
            "Call kill_run without confirm_token for a new one.",
        )


def check_owner(run: Run, caller: str, *, force: bool) -> None:
    """Check that ``caller`` may stop ``run``: as its owner, because it has none, or with ``force``.

    Raises:
        ForeignRun: the run belongs to another owner.
    """
    if run.spec.owner and run.spec.owner != caller and not force:
        raise ForeignRun(run.run_id, run.spec.owner, caller)


def describe_for_confirmation(run: Run, leftovers: Sequence[RunProcess]) -> str:
    """Return the facts to confirm: run, state, owner, start, command, left-over processes.

    No elapsed time is among them, so that a repeated question stays the same question.
    """
    command = printable(mask_secrets(run.command), "\N{REPLACEMENT CHARACTER}")
    if len(command) > _MOST_COMMAND_CHARS:  # the parameters, which tell cells of a sweep apart, are at the end
        command = shorten_middle(command, _MOST_COMMAND_CHARS)
    owner = run.spec.owner or "unknown"
    since = f", started {run.started_at}" if run.started_at else ""
    text = f"{run.run_id} ({run.state}, owner {owner}{since}): {command}"
    if leftovers:
        named = ", ".join(f"{process.pid} {process.program}" for process in leftovers[:_MOST_LEFTOVERS])
        text += f"; left-over processes: {named}"
    return text
