"""Who looks at the page: one-time links, and the sessions of browsers. Both are files that all servers share."""

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.run_directory import read_json
from mcp_server.record.sweeps.sweep_state import Watched
from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens
from mcp_server.system.files import write_atomic

SESSION_S, LINK_S = 30 * 86_400, 600
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")  # 256 random bits
_MOST_FILES = 1_000  # of links, or sessions: the oldest go first
_NO_LINK = "A person on this machine can open a link that allows it: runward dash."


class NotAllowed(RunwardError):
    """The visitor may not do this, or there is none that is known."""


@dataclass(frozen=True)
class Visitor:
    """Who asks. ``owner``: the name whose rights it has, None for the person at the machine, or on an open server.

    ``is_person``: it came by a link that was made on this machine. ``may_act``: it has a session, so that a browser's
    own protections hold; a bearer token alone, or an open server, only shows.
    """

    owner: str | None = None
    is_person: bool = False
    may_act: bool = False

    def controls(self, owner: str | None) -> bool:
        """Return whether it may stop and note what belongs to ``owner``."""
        return self.may_act and self.owner in (None, owner)

    def check_control(self, run: Watched) -> None:
        """Refuse to change a run or sweep that it does not control. NotAllowed."""
        if self.controls(run.spec.owner):
            return
        left = f"{run.run_id} was left alone, still {run.state}."
        if not self.may_act:
            raise NotAllowed("This page only shows: it was opened without a link.", left, _NO_LINK)
        whose = repr(run.spec.owner) if run.spec.owner else "an unknown owner"
        raise NotAllowed(f"{run.run_id} belongs to {whose}, you are {self.owner!r};", left, "Ask its owner.")

    def check_files(self, owner: str | None) -> None:
        """Refuse files of a run of another owner. NotAllowed."""
        if self.owner is not None and self.owner != owner:
            cause = f"These files belong to a run of {owner!r}, you are {self.owner!r};"
            raise NotAllowed(cause, "nothing was read.", "Its owner can see them.")


class PageSessions:
    """The links and sessions of one state directory.

    A file's name is the hash of its secret, so that nobody who reads the names gets in. A session of a name ends with
    the token of that name. All functions look at files: call them in a thread.
    """

    def __init__(self, home: StateHome, tokens: Tokens | None = None) -> None:
        self._home, self._tokens = home, tokens or Tokens(home)
        self._links, self._sessions = home.path / "page" / "links", home.path / "page" / "sessions"
        # Cookies know no ports: servers of other state directories on this machine have others.
        self.cookie = f"runward_page_{hashlib.sha256(os.fsencode(home.path)).hexdigest()[:8]}"

    def make_link(self, owner: str | None = None) -> str:
        """Return a code that opens the page once, within ten minutes. BadArgument: no token has this name."""
        if owner is not None and self._tokens.find_hash(owner) is None:
            names = ", ".join(self._tokens.names) or "none"
            raise BadArgument("--as", f"{owner[:80]!r} has no token. Names with a token: {names}.")
        return self._write(self._links, {"owner": owner}, LINK_S)

    def redeem(self, code: str) -> str | None:
        """Return the cookie of a new session for a code, exactly once; None for one that is spent, late or wrong."""
        path = _find(self._links, code)
        facts = None if path is None else read_json(path)
        if path is None or facts is None:
            return None
        try:
            path.unlink()  # one of several at once succeeds
        except OSError:
            return None
        owner = facts.get("owner")
        if not _is_open(facts) or not (owner is None or isinstance(owner, str)):
            return None
        return self._begin(owner, is_person=True)

    def log_in(self, token: str) -> str | None:
        """Return the cookie of a new session for the holder of a token; None where it is nobody's."""
        owner = self._tokens.holder(token)
        return None if owner is None else self._begin(owner, is_person=False)

    def log_out(self, cookie: str) -> None:
        """End a session, if it is one."""
        if (path := _find(self._sessions, cookie)) is not None:
            path.unlink(missing_ok=True)

    def find(self, cookie: str) -> Visitor | None:
        """Return who a cookie is, None where it is nobody's any more."""
        path = _find(self._sessions, cookie)
        facts = None if path is None else read_json(path)
        if facts is None or not _is_open(facts):
            return None
        owner = facts.get("owner")
        if owner is not None and (not isinstance(owner, str) or self._tokens.find_hash(owner) != facts.get("hash")):
            return None
        return Visitor(owner, is_person=facts.get("by") == "link", may_act=True)

    def _begin(self, owner: str | None, *, is_person: bool) -> str:
        known = None if owner is None else self._tokens.find_hash(owner)
        facts = {"owner": owner, "by": "link" if is_person else "token", "hash": known}
        return self._write(self._sessions, facts, SESSION_S)

    def _write(self, directory: Path, facts: Mapping[str, Any], lasts_s: float) -> str:
        secret, now_s = secrets.token_urlsafe(32), time.time()
        self._home.create()
        for path in (directory.parent, directory):
            path.mkdir(mode=0o700, exist_ok=True)
        _remove_old(directory, now_s - lasts_s)
        facts = {**facts, "created": now_s, "expires": now_s + lasts_s}
        write_atomic(directory / _name(secret), json.dumps(facts).encode())
        return secret


def _name(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _find(directory: Path, secret: str) -> Path | None:
    """Return the file of a secret, whether it is there or not; None for a text that is no secret."""
    return directory / _name(secret) if _SECRET.fullmatch(secret) else None


def _is_open(facts: Mapping[str, Any]) -> bool:
    expires = facts.get("expires")
    return isinstance(expires, int | float) and time.time() < expires


def _remove_old(directory: Path, before_s: float) -> None:
    with contextlib.suppress(OSError):
        dated = sorted((path.stat().st_mtime, path) for path in directory.iterdir())
        for changed_s, path in dated[: len(dated) - _MOST_FILES + 1] if len(dated) >= _MOST_FILES else dated:
            if changed_s < before_s or len(dated) >= _MOST_FILES:
                path.unlink(missing_ok=True)
