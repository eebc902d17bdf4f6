"""The commit and the uncommitted changes of a code directory, as another host gets them. Blocks. Use a thread."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.system.git_state import describe_git_error, list_filter_options, read_git
from mcp_server.text.formatting import format_size

_MOST_NAMES_BYTES = 16 * 2**20
_PACK_S = 120.0
_DIFF = (
    *("-c", "diff.renames=false", "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false", "diff", "--binary"),
    *("--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty", "HEAD"),
)
_OTHER_WAY = 'Pass sync="rsync".'


@dataclass(frozen=True)
class Commit:
    """A work tree: its directory, commit, uncommitted changes, and the files that are sent or, untracked, are not."""

    root: Path
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
    return Commit(root, commit, diff, frozenset(files), tuple(_names(others)))


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
