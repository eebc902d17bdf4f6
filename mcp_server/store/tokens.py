"""HTTP access tokens: a file of agent names, each with the hash of its token."""

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
from mcp_server.system.files import open_regular_file, write_atomic
from mcp_server.system.lock_files import hold_lock

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
# The prefix lets people and secret scanners recognise a token.
_PREFIX = "runward_"
_LONGEST = 200
_HEAD = "# Agents with access over HTTP, and the SHA-256 of their tokens. Written by `runward token`.\n"


class TokensUnusable(RunwardError):
    """The token file cannot be trusted: every request is rejected."""

    def __init__(self, file: Path, cause: str) -> None:
        super().__init__(f"{file} was not used: {cause}.", "All requests are rejected until the file is fixed.")
        self.file = file


def hash_of(token: str) -> str:
    """Return the hash that the file keeps of a token.

    One round of SHA-256 without salt: a token is 256 random bits, so there is no list of likely tokens to try, and no
    two are alike. Slow hashes are for passwords that people choose, and would cost every request.
    """
    return f"sha256:{hashlib.sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()}"


def token_name(owner: str) -> str:
    """Return the name of a token for ``owner``, whose runs it then owns. ``owner`` where that cannot be a name."""
    return owner if _NAME.fullmatch(owner) else "owner"


class Tokens:
    """The tokens of one state directory, read again when the file changes.

    Once a file was seen, a missing file rejects every request: a lost file must not open the server.

    Raises:
        BadArgument: a name that is not valid, or has a token already, or none.
        TokensUnusable: other users can read the file, or it is not a token file.
    """

    def __init__(self, home: StateHome) -> None:
        self.file = home.path / "tokens.toml"
        self._file_version: tuple[int, ...] | None = None
        self._hashes: Mapping[str, str] = {}
        self._required = False

    @property
    def required(self) -> bool:
        """Whether every request needs a token: a token file was seen since this object was made."""
        self._refresh()
        return self._required

    @property
    def names(self) -> list[str]:
        """The names that have a token."""
        self._refresh()
        return sorted(self._hashes)

    def holder(self, token: str) -> str | None:
        """Return the name that ``token`` belongs to, in a time that is independent of the stored hashes."""
        self._refresh()
        if not token or len(token) > _LONGEST:
            return None
        presented, owner = hash_of(token), None
        for name, stored in self._hashes.items():
            if hmac.compare_digest(presented, stored):
                owner = name
        return owner

    def find_hash(self, name: str) -> str | None:
        """Return the hash of the token that ``name`` has now; None without one."""
        self._refresh()
        return self._hashes.get(name)

    def _refresh(self) -> None:
        try:
            descriptor = open_regular_file(self.file, follow_links=False)
        except FileNotFoundError:
            self._file_version, self._hashes = None, {}
            return
        except OSError as error:
            self._required = True
            raise TokensUnusable(self.file, f"{error.strerror}") from error
        self._required = True
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            file_version = (facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size)
            if file_version == self._file_version:
                return
            self._file_version, self._hashes = None, {}
            _check(self.file, facts)
            self._hashes = _parse(self.file, file.read(1 << 20))
            self._file_version = file_version

    def add(self, name: str) -> str:
        """Give ``name`` a token and return it, only its hash is kept."""
        if not _NAME.fullmatch(name):
            raise BadArgument("NAME", f"letters, digits, . _ @ and - only, at most 64: {name[:80]!r}.")
        with self._changing() as hashes:
            if name in hashes:
                raise BadArgument("NAME", f"{name} has a token already; for a new one: runward token rm {name}.")
            token = _PREFIX + secrets.token_urlsafe(32)
            hashes[name] = hash_of(token)
        return token

    def remove(self, name: str) -> None:
        """Remove the token of ``name``. Running servers refuse it from the next request on."""
        with self._changing() as hashes:
            if hashes.pop(name, None) is None:
                raise BadArgument(
                    "NAME", f"{name[:80]!r} has no token. Names with a token: {', '.join(sorted(hashes)) or 'none'}."
                )

    @contextmanager
    def _changing(self) -> Iterator[dict[str, str]]:
        """Yield the hashes to change, then replace the file atomically; one writer at a time."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold_lock(self.file.parent / ".tokens.lock"):
            self._refresh()
            hashes = dict(self._hashes)
            yield hashes
            lines = (f'"{name}" = "{stored}"\n' for name, stored in sorted(hashes.items()))
            write_atomic(self.file, (_HEAD + "".join(lines)).encode())


def _check(file: Path, facts: os.stat_result) -> None:
    if facts.st_uid not in (os.geteuid(), 0):
        raise TokensUnusable(file, "it belongs to another user")
    if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TokensUnusable(file, f"other users can read or write it (a person should run: chmod 600 {file})")


def _parse(file: Path, data: bytes) -> dict[str, str]:
    try:
        table = tomllib.loads(data.decode())
    except ValueError as error:
        raise TokensUnusable(file, f"it is not TOML: {error}") from error
    for name, stored in table.items():
        if not _NAME.fullmatch(name) or not isinstance(stored, str) or not _HASH.fullmatch(stored):
            raise TokensUnusable(file, f'{name[:80]!r} is not NAME = "sha256:…" as `runward token add` writes it')
    return table
