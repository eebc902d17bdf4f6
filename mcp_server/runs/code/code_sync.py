"""Sends the code of a launch to its host: `sync="git"`, commit and uncommitted changes, or `sync="rsync"`, the files.

The host makes one directory for each content, which is the run's working directory. The code goes over the channel that
is there: no second login, and neither side needs rsync. What is there is not sent again, and nothing is sent before all
checks of the launch have passed. Blocks. Use a thread.
"""

import hashlib
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mcp_server.backends.ssh.ssh_channel import channel_of
from mcp_server.errors import BadArgument, HostUnreachable, LaunchFailed
from mcp_server.hosts.path_checks import Roots
from mcp_server.record.code.code_directory import CodeFile, open_below, read_code_directory
from mcp_server.record.script import slug
from mcp_server.record.spec import LaunchRequest
from mcp_server.system.git_state import describe_git_error, list_filter_options, read_git
from mcp_server.text.formatting import format_size, join_some, printable

_MOST_NAMES_BYTES = 16 * 2**20
_PACK_S = 120.0
_DIFF = (
    *("-c", "diff.renames=false", "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false", "diff", "--binary"),
    *("--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty", "HEAD"),
)
_OTHER_WAY = 'Pass sync="rsync".'


@dataclass(frozen=True)
class Commit:
    """A work tree: its directory, commit, uncommitted changes, and the files that are sent or, untracked, are not.

    ``origin``: the main work tree of its repository, which is the same for all.
    """

    root: Path
    origin: Path
    commit: str
    diff: bytes
    files: frozenset[str]
    untracked: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The SHA-256 of commit and changes."""
        return hashlib.sha256(self.commit.encode() + b"\n" + self.diff).hexdigest()


def read_commit(directory: Path, environ: Mapping[str, str], limit_bytes: int) -> Commit:
    """Return the commit of the work tree around ``directory``, with its changes. BadArgument: git cannot send it."""

    def git(*words: str) -> bytes:
        return read_git(directory, environ, *words, most=_MOST_NAMES_BYTES)[0]

    try:
        root = Path(git("rev-parse", "--show-toplevel").decode(errors="surrogateescape").rstrip("\n"))
        common = Path(directory, git("rev-parse", "--git-common-dir").decode(errors="surrogateescape").rstrip("\n"))
        commit = git("rev-parse", "--verify", "HEAD").decode().strip()
        listed = read_git(root, environ, "ls-files", "--stage", "-z", most=_MOST_NAMES_BYTES)[0].split(b"\0")
        if any(line.startswith(b"160000 ") for line in listed):
            raise BadArgument("sync", f"{root} has submodules, which git does not send.", _OTHER_WAY)
        if name := _find_filter(root, environ, listed):
            cause = f"{root} keeps files in {'Git LFS' if name == 'lfs' else f'the filter {name[:80]!r}'}"
            raise BadArgument("sync", f"{cause}: git sends what it stores, not what you see.", _OTHER_WAY)
        filters = list_filter_options(root, environ)
        diff, is_cut = read_git(root, environ, *filters, *_DIFF, most=limit_bytes, timeout_s=_PACK_S)
        if is_cut:
            cause = f"the uncommitted changes of {root} are larger than {format_size(limit_bytes)}."
            raise BadArgument("sync", cause, "Commit them, or leave out what is not code.")
        gone = set(_names(read_git(root, environ, "ls-files", "--deleted", "-z", most=_MOST_NAMES_BYTES)[0]))
        others = read_git(root, environ, "ls-files", "--others", "--exclude-standard", "-z", most=_MOST_NAMES_BYTES)[0]
    except (OSError, subprocess.SubprocessError) as error:
        remedy = 'Commit once, or pass sync="rsync".'
        raise BadArgument("sync", f"{directory}: {describe_git_error(error)}.", remedy) from error
    files = {line.partition(b"\t")[2].decode(errors="replace") for line in listed if line} - gone
    origin = common.resolve().parent if common.name == ".git" and not (root / ".git").is_dir() else root
    return Commit(root, origin, commit, diff, frozenset(files), tuple(_names(others)))


def find_known(root: Path, environ: Mapping[str, str], tips: Sequence[str]) -> list[str]:
    """Return those of ``tips``, commits of another repository, that this one has: what is missing there follows."""
    if not tips:
        return []
    with tempfile.TemporaryFile() as stdin:
        stdin.write("".join(f"{tip}\n" for tip in tips).encode())
        stdin.seek(0)
        output, _ = read_git(root, environ, "cat-file", "--batch-check", stdin=stdin, most=_MOST_NAMES_BYTES)
    lines = (line.split() for line in output.decode().splitlines())
    return [words[0] for words in lines if len(words) > 1 and words[1] == "commit"]


def pack_commit(root: Path, environ: Mapping[str, str], commit: str, known: Sequence[str], limit_bytes: int) -> bytes:
    """Return a pack of all that a repository with the commits ``known`` lacks. BadArgument: it is too large."""
    try:
        with tempfile.TemporaryFile() as stdin:
            stdin.write("".join(f"{line}\n" for line in (commit, *(f"^{tip}" for tip in known))).encode())
            stdin.seek(0)
            words = ("pack-objects", "--revs", "--thin", "--stdout", "--quiet", "--delta-base-offset")
            pack, is_cut = read_git(root, environ, *words, stdin=stdin, most=limit_bytes, timeout_s=_PACK_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise BadArgument("sync", f"{root}: {describe_git_error(error)}.", _OTHER_WAY) from error
    if is_cut:
        cause = f"the commits of {root} that it lacks are larger than {format_size(limit_bytes)}."
        remedy = "Have a person clone it there once, or raise sync_mib of the host in hosts.toml."
        raise BadArgument("sync", cause, f'{remedy} Or pass sync="rsync".')
    return pack


def _find_filter(root: Path, environ: Mapping[str, str], listed: Sequence[bytes]) -> str:
    """Return the name of a filter through which git takes a file of the index (LFS, git-crypt), empty without one."""
    with tempfile.TemporaryFile() as stdin:
        stdin.write(b"".join(line.partition(b"\t")[2] + b"\0" for line in listed if line))
        stdin.seek(0)
        words = ("check-attr", "--stdin", "-z", "filter")
        output, _ = read_git(root, environ, *words, stdin=stdin, most=4 * _MOST_NAMES_BYTES)
    values = {value.decode(errors="replace") for value in output.split(b"\0")[2::3]}
    return min(values - {"unspecified", "unset"}, default="")


def _names(output: bytes) -> list[str]:
    return [name.decode(errors="replace") for name in output.split(b"\0") if name]


KINDS = ("git", "rsync")
_DEFAULT_LIMIT_MIB = 64.0
_CHUNK_BYTES = 2**20  # a silent connection is noticed when this would have gone over a slow line
_LOOKED_WITHIN_S, _MADE_WITHIN_S = 120.0, 300.0
_MOST_NAMED, _LONGEST_NAME, _LONGEST_LEFT_OUT = 6, 40, 80


@dataclass(frozen=True)
class CodeSync:
    """Code that goes with a launch from ``here`` to ``there``: ``files`` by path, ``facts`` for the run's record."""

    mirror: Path
    here: Path
    there: str
    cwd: str
    files: frozenset[str]
    facts: Mapping[str, str]
    is_there: bool
    wish: Mapping[str, Any]
    read_parts: Callable[[], Iterable[bytes]]

    def move(self, request: LaunchRequest) -> LaunchRequest:
        """Return ``request`` with every path of the code as it is on the other host."""
        return Roots({str(self.here): self.there}, (), "").move(request, self.cwd)

    def holds(self, path: str) -> bool:
        """Return whether ``path``, of the other host, is a file or a directory of the code."""
        if not Path(path).is_relative_to(self.there):
            return False
        below = path.removeprefix(self.there).strip("/")
        return not below or below in self.files or any(file.startswith(f"{below}/") for file in self.files)

    def send(self) -> None:
        """Make the directory there. LaunchFailed, HostUnreachable: it is not there; nothing was started."""
        if self.is_there:
            return
        channel, token, offset = channel_of(self.mirror), secrets.token_hex(8), 0
        try:
            for part in _join(self.read_parts()):
                channel.ask("code_put", timeout_s=_MADE_WITHIN_S, data=part, token=token, offset=offset)
                offset += len(part)
            answer, _ = channel.ask("code_make", timeout_s=_MADE_WITHIN_S, token=token, **self.wish)
        except LaunchFailed as error:
            raise LaunchFailed(f"{channel.name}: {error.cause}", error.state, error.remedy) from error
        except HostUnreachable as error:
            raise HostUnreachable(error.host, error.why, "Nothing was started.", error.remedy) from error
        except OSError as error:
            raise LaunchFailed(
                f"{channel.name}: the code could not be sent: {error.strerror}.",
                "Nothing was started.",
                "Have a person look at the disk of its state directory, which `runward hosts` names.",
            ) from error
        if answer["directory"] != self.there:
            cause = f"{channel.name}: {self.there} was changed meanwhile."
            raise LaunchFailed(cause, "Nothing was started.", "Launch again.")

    def guard(self, base: str, protect: Sequence[str]) -> None:
        """Have the host note what the protected files of a trial are there, before its run."""
        below = os.path.relpath(self.cwd, self.there)
        clone = os.path.normpath(f"{self.wish['clone']}/{below}")
        channel_of(self.mirror).ask("code_guard", cwd=self.cwd, base=base, protect=list(protect), clone=clone)


def _join(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield ``parts`` in pieces of 1 MiB or more, the last one aside: each takes a round trip, and files are small."""
    held = bytearray()
    for part in parts:
        held += part
        if len(held) >= _CHUNK_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def plan_sync(
    request: LaunchRequest,
    mirror: Path,
    roots: Roots,
    limit_mib: float | None,
    environ: Mapping[str, str],
    kept: Path | None = None,
) -> CodeSync:
    """Return what a launch with ``request.sync`` sends. Writes nothing. BadArgument: it cannot be sent.

    ``roots``: the paths of this host as the other has them. ``kept``: the copy of ``cwd`` that is sent in its place.
    """
    name = "code" if request.keep_code else "sync"
    if not request.cwd:
        raise BadArgument(
            name, "sends the directory that cwd names.", "Pass cwd, the code's directory on this machine."
        )
    cwd = Path(request.cwd).expanduser()
    if not cwd.is_absolute() or not cwd.is_dir():
        kind = 'code="kept"' if request.keep_code else "sync"
        raise BadArgument(
            "cwd",
            f"is not a directory of this machine: {request.cwd[:200]!r}; {kind} sends it.",
            f"Leave {name} out to run what is on the host.",
        )
    limit_bytes = int((limit_mib or _DEFAULT_LIMIT_MIB) * 2**20)
    if request.sync == "git":
        return _plan_commit(cwd, mirror, roots, limit_bytes, environ)
    return _plan_files(cwd, kept or cwd, mirror, limit_bytes)


def _plan_files(cwd: Path, source: Path, mirror: Path, limit_bytes: int) -> CodeSync:
    code = read_code_directory(source, limit_bytes)
    if not code.files:
        raise BadArgument("sync", f"{cwd} has no code to send.")
    wish = {"sync": "rsync", "name": _name(cwd), "hash": code.digest, "files": [file.facts for file in code.files]}
    looked = _look(mirror, wish)
    missing = set(looked.get("missing") or ())
    sent = list({file.digest: file for file in code.files if file.digest in missing}.values())
    size = sum(file.size for file in sent)
    facts = {
        "sync": "rsync",
        "from": str(cwd),
        "hash": code.digest,
        "sends": f"{format_size(size)} in {len(sent)} of {len(code.files)} files" if sent else "",
        "stays": _shorten(code.left_out),
    }
    wish["sent"] = [[file.digest, file.size] for file in sent]
    there = str(looked["directory"])
    files = frozenset(file.path for file in code.files)
    read_parts = partial(_read_files, source, sent)
    return CodeSync(mirror, cwd, there, there, files, facts, bool(looked["there"]), wish, read_parts)


def _plan_commit(cwd: Path, mirror: Path, roots: Roots, limit_bytes: int, environ: Mapping[str, str]) -> CodeSync:
    code = read_commit(cwd, environ, limit_bytes)
    rewrite = roots.rewrite(str(code.origin))
    wish: dict[str, Any] = {
        "sync": "git",
        "name": _name(code.root),
        "hash": code.digest,
        "commit": code.commit,
        "clone": rewrite.text if rewrite and rewrite.is_known else str(code.origin),
        "origin": str(code.origin),
        "of": _name(code.origin),
    }
    looked = _look(mirror, wish)
    parts: list[bytes] = []
    if not looked["there"]:
        repository, known = _choose_repository(code.root, environ, code.commit, looked["repositories"])
        pack = b""
        if known is not None:
            pack = pack_commit(code.root, environ, code.commit, known, limit_bytes)
        wish |= {"repository": repository, "pack_bytes": len(pack)}
        parts = [pack, code.diff]
    size = sum(map(len, parts))
    below = cwd.resolve().relative_to(code.root.resolve())
    here = cwd if below == Path() else code.root
    there = str(looked["directory"])
    facts = {
        "sync": "git",
        "from": str(here),
        "commit": code.commit,
        "hash": code.digest,
        "changes": format_size(len(code.diff)) if code.diff else "",
        "sends": format_size(size) if size else "",
        "stays": _shorten(code.untracked),
    }

    def read_parts() -> Iterator[bytes]:
        data = b"".join(parts)
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]

    directory = str(Path(there) / below)
    return CodeSync(mirror, here, there, directory, code.files, facts, bool(looked["there"]), wish, read_parts)


def _choose_repository(
    root: Path, environ: Mapping[str, str], commit: str, repositories: list[dict[str, Any]]
) -> tuple[str, list[str] | None]:
    """Return the repository there that takes the commit, and which commits both have: None where it has this one."""
    for one in repositories:
        if one.get("has"):
            return str(one["path"]), None
    for one in repositories:
        known = find_known(root, environ, one.get("tips") or ())
        if known or one["own"]:
            return str(one["path"]), known
    raise BadArgument("sync", f"no repository there can take {commit[:12]}.", 'Pass sync="rsync".')


def _look(mirror: Path, wish: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return channel_of(mirror).ask("code_look", timeout_s=_LOOKED_WITHIN_S, **wish)[0]
    except LaunchFailed as error:
        raise BadArgument("sync", f"{mirror.name}: {error.cause}", error.remedy) from error


def _read_files(root: Path, files: Iterable[CodeFile]) -> Iterator[bytes]:
    """Yield the contents of files, one after the other. One that has changed since is refused there by its hash."""
    for file in files:
        left = file.size
        with open_below(root, file.path) as stream:
            while left:
                data = stream.read(min(left, _CHUNK_BYTES))
                if not data:
                    raise LaunchFailed(f"{root / file.path} was cut off while it was sent.", "Nothing was started.")
                left -= len(data)
                yield data


def _name(directory: Path) -> str:
    return slug(directory.name)[:_LONGEST_NAME].strip("-") or "code"


def _shorten(names: Iterable[str]) -> str:
    return join_some([printable(name)[:_LONGEST_LEFT_OUT] for name in names], _MOST_NAMED)


def describe_code(facts: Mapping[str, str], host: str) -> str:
    """Return a sentence about the code of a run: what it is, and what stayed on this machine."""
    if facts["sync"] == "kept":
        linked = f" Linked, since not code: {facts['stays']}." if facts.get("stays") else ""
        what = f"that of {facts['of']}, from {facts['from']}," if facts.get("of") else f"a copy of {facts['from']}"
        return f"Code: {what} in {facts['to']}, hash {facts['hash'][:12]}.{linked}"
    commit = f" commit {facts['commit'][:12]}" if facts.get("commit") else ""
    changes = f" and {facts['changes']} of uncommitted changes" if facts.get("changes") else ""
    text = f"Code: {facts['sync']}{commit}{changes}, hash {facts['hash'][:12]}"
    text += f", from {facts['from']} to {host}:{facts['to']}"
    text += f"; sent: {facts['sends']}." if facts.get("sends") else "; all of it is there already."
    if facts.get("stays"):
        why = "untracked" if facts["sync"] == "git" else "not code"
        text += f" Not sent, since {why}: {facts['stays']}."
    return text
