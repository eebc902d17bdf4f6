"""Confirmation of a kill: questions to people, tokens, the check of the owner, and the facts to confirm."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_server.errors import ForeignRun, KillNotConfirmed
from mcp_server.record.run_processes import RunProcess
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_state import Watched
from mcp_server.text.formatting import printable, shorten_middle
from mcp_server.text.secret_patterns import mask_secrets

TOKEN_VALID_S = 600.0
# Who cancels a question sooner is a program: Claude Code without a person needs 0.1 s, Codex 0.015 s. A person who is
# taken for a program would lose the right to say no, so the limit is short.
_PERSON_S = 0.5
_MOST_COMMAND_CHARS, _MOST_LEFTOVERS = 200, 10
_MOST_WORDS_CHARS = 80
_AGAIN = "Call kill_run without confirm_token for a new one."


@dataclass(frozen=True)
class Named:
    """The runs that a question or a token named, with the attempt of each, and when."""

    attempts: Mapping[str, int]
    question: str
    at_s: float


class Confirmations:
    """Confirmations of kills, or of launches that may end runs. Each is bound to the runs that it named.

    A question to a person is found again by its caller and key: the words of the call, or the id of one run. A set that
    has changed since needs a question of its own. Tokens are for agents. Both are used once, and valid for 10 minutes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, of_launches: bool = False) -> None:
        self._clock = clock
        self._of_launches = of_launches
        self._asked: dict[tuple[str | None, tuple[str, ...]], list[Named]] = {}
        self._granted: dict[str, tuple[tuple[str, ...], Named]] = {}

    @property
    def tables(self) -> tuple[Any, Any]:
        """Open questions and tokens, for the next server of a client."""
        return self._asked, self._granted

    @tables.setter
    def tables(self, tables: tuple[Any, Any]) -> None:
        self._asked, self._granted = tables

    def ask(self, caller: str | None, key: Sequence[str], attempts: Mapping[str, int], question: str) -> None:
        """Note that ``caller`` is asked now."""
        oldest_s = self._clock() - TOKEN_VALID_S
        open_ = {place: [each for each in asked if each.at_s > oldest_s] for place, asked in self._asked.items()}
        self._asked = {place: asked for place, asked in open_.items() if asked}
        self._asked.setdefault((caller, tuple(key)), []).append(Named(dict(attempts), question, self._clock()))

    def find_question(self, caller: str | None, key: Sequence[str]) -> str | None:
        """Return the newest open question."""
        asked = self._asked.get((caller, tuple(key)))
        return asked[-1].question if asked else None

    def answer(self, caller: str | None, key: Sequence[str]) -> tuple[Named | None, bool]:
        """Close the oldest question. Return what was asked, and whether the answer came too soon for a person.

        None: no question is open, it is older than 10 minutes, or open ones named other runs, which are then closed.
        """
        place = (caller, tuple(key))
        asked = self._asked.pop(place, [])
        if not asked:
            return None, False
        came_at_once = self._clock() - asked[0].at_s < _PERSON_S
        if len({each.question for each in asked}) > 1:
            return None, came_at_once
        if asked[1:]:
            self._asked[place] = asked[1:]
        return (asked[-1] if self._clock() - asked[-1].at_s < TOKEN_VALID_S else None), came_at_once

    def grant_token(self, key: Sequence[str], attempts: Mapping[str, int]) -> str:
        """Return a new token for these runs. An older one with the same key becomes void."""
        own = tuple(key)
        self._granted = {token: grant for token, grant in self._granted.items() if grant[0] != own}
        token = secrets.token_urlsafe(9)
        self._granted[token] = (own, Named(dict(attempts), "", self._clock()))
        return token

    def redeem_token(self, token: str, key: Sequence[str], one: Watched | None = None) -> Named:
        """Use a token up, and return its runs; ``one``: the run that is meant alone. KillNotConfirmed says why not."""
        own, named = self._granted.get(token, ((), None))
        if own == tuple(key):
            del self._granted[token]
        other, them = ("another command", "it") if self._of_launches else ("other runs", "them")
        if one is not None:
            other, them = "another run", "it"
        if named is None:
            cause = f"the confirm_token is unknown, used, or for {other}"
        elif own != tuple(key):
            cause = f"the confirm_token is for {other} ({shorten_middle(' '.join(own), _MOST_WORDS_CHARS)})"
            cause += f", and is still valid for {them}"
        elif one is not None and named.attempts != {one.run_id: one.attempt}:
            cause = "the confirm_token was for an earlier attempt"
        elif self._clock() >= named.at_s + TOKEN_VALID_S:
            cause = "the confirm_token has expired (10 min)"
        else:
            return named
        if self._of_launches:
            again = "Call again without confirm_token for a new one."
            raise KillNotConfirmed("Launch not confirmed:", f"nothing was started; {cause}.", again)
        state = "no run was stopped" if one is None else f"{one.run_id!r} is still {one.state}"
        raise KillNotConfirmed("Kill not confirmed:", f"{state}; {cause}.", _AGAIN)


def check_owner(run: Watched, caller: str, *, force: bool) -> None:
    """Check that ``caller`` may stop ``run``: as its owner, because it has none, or with ``force``. Else ForeignRun."""
    if run.spec.owner and run.spec.owner != caller and not force:
        raise ForeignRun(run.run_id, run.spec.owner, caller)


def describe_for_confirmation(run: Run, leftovers: Sequence[RunProcess]) -> str:
    """Return the facts to confirm, without an elapsed time: a repeated question stays the same question."""
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
