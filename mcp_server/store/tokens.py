"""Who may come in over HTTP: a file of agents' names, each with the hash of its token."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mcp_server.errors import BadArgument, RunwardError
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import write_atomic
from mcp_server.system.lock_files import hold_lock

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
# What starts a token, so that people and secret scanners know one when they see it.
_PREFIX = "runward_"
_LONGEST = 200
_HEAD = "# Agents that may come in over HTTP, and the SHA-256 of their tokens. Written by `runward token`.\n"


class TokensUnusable(RunwardError):
    """The file of tokens is not what it should be: nobody is let in by it."""

    def __init__(self, file: Path, cause: str) -> None:
        super().__init__(f"{file} was not used: {cause}. Nobody is let in until a person mends it.")
        self.file = file


def hash_of(token: str) -> str:
    """Return what the file keeps of a token.

    One round of SHA-256, no salt: a token is 256 random bits, so there is no list of likely ones to try and no
    two are alike. Slow hashes are for what people choose, and would cost every request.
    """
    return f"sha256:{hashlib.sha256(token.encode('utf-8', 'surrogateescape')).hexdigest()}"


class Tokens:
    """The tokens of one state directory, read again when their file changes.

    Once there was a file, a missing one means that nobody may come in: a lost file must not open the door.
    """

    def __init__(self, home: StateHome) -> None:
        self.file = home.path / "tokens.toml"
        self._seen: tuple[int, ...] | None = None
        self._hashes: Mapping[str, str] = {}
        self._required = False

    @property
    def required(self) -> bool:
        """Whether every request needs a token: tokens were configured at some time since this began.

        Raises:
            TokensUnusable: the file is open to others, or is no such file.
        """
        self._refresh()
        return self._required

    @property
    def names(self) -> list[str]:
        """Who has a token.

        Raises:
            TokensUnusable: as above.
        """
        self._refresh()
        return sorted(self._hashes)

    def holder(self, token: str) -> str | None:
        """Return whose token this is; the time it takes tells nothing of the stored ones.

        Raises:
            TokensUnusable: as above.
        """
        self._refresh()
        if not token or len(token) > _LONGEST:
            return None
        presented, found = hash_of(token), None
        for name, stored in self._hashes.items():
            if hmac.compare_digest(presented, stored):
                found = name
        return found

    def _refresh(self) -> None:
        try:
            # Not a link, and never waiting for a FIFO's other end.
            descriptor = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._seen, self._hashes = None, {}
            return
        except OSError as error:
            self._required = True
            raise TokensUnusable(self.file, f"{error.strerror}") from error
        self._required = True
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            seen = (facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size)
            if seen == self._seen:
                return
            self._seen, self._hashes = None, {}
            _check(self.file, facts)
            self._hashes = _parse(self.file, file.read(1 << 20))
            self._seen = seen

    def add(self, name: str) -> str:
        """Give ``name`` a token and return it: it is kept nowhere.

        Raises:
            BadArgument: no name, or one that has a token already.
            TokensUnusable: as above.
        """
        if not _NAME.fullmatch(name):
            raise BadArgument("NAME", f"letters, digits, . _ @ and - only, at most 64: {name[:80]!r}.")
        with self._changing() as hashes:
            if name in hashes:
                raise BadArgument("NAME", f"{name} has a token already; for a new one: runward token rm {name}.")
            token = _PREFIX + secrets.token_urlsafe(32)
            hashes[name] = hash_of(token)
        return token

    def remove(self, name: str) -> None:
        """Take ``name``'s token away; running servers refuse it from the next request on.

        Raises:
            BadArgument: it has none.
            TokensUnusable: as above.
        """
        with self._changing() as hashes:
            if hashes.pop(name, None) is None:
                raise BadArgument(
                    "NAME", f"{name[:80]!r} has no token. Who has: {', '.join(sorted(hashes)) or 'nobody'}."
                )

    @contextmanager
    def _changing(self) -> Iterator[dict[str, str]]:
        """Hand out the hashes to be changed, and put the file in place as a whole; one writer at a time."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold_lock(self.file.parent / ".tokens.lock"):
            self._refresh()
            hashes = dict(self._hashes)
            yield hashes
            lines = (f'"{name}" = "{stored}"\n' for name, stored in sorted(hashes.items()))
            write_atomic(self.file, (_HEAD + "".join(lines)).encode())


def _check(file: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise TokensUnusable(file, "it is no regular file")
    if facts.st_uid not in (os.geteuid(), 0):
        raise TokensUnusable(file, "it belongs to another user")
    if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TokensUnusable(file, f"others can read or write it (a person should run: chmod 600 {file})")


def _parse(file: Path, data: bytes) -> dict[str, str]:
    try:
        table = tomllib.loads(data.decode())
    except ValueError as error:
        raise TokensUnusable(file, f"it is no TOML: {error}") from error
    for name, stored in table.items():
        if not _NAME.fullmatch(name) or not isinstance(stored, str) or not _HASH.fullmatch(stored):
            raise TokensUnusable(file, f'{name[:80]!r} is not NAME = "sha256:…" as `runward token add` writes it')
    return table
