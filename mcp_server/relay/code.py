"""Code that a server sent here: one directory for each content, `code/NAME-DIGEST` in the state directory.

A directory is made whole, then gets a marker beside it, `NAME-DIGEST.json`. Code below a living run never changes: a
directory in which a run or a person has changed it is left to them, and the next launch gets a new one. None is
removed, as runs write into them, but for that of a trial, whose marker says how its protected files were.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from mcp_server.errors import LaunchFailed
from mcp_server.record.code import protected_files
from mcp_server.record.code.code_snapshot import CodeSnapshot
from mcp_server.record.code.kept_sources import find_obstacle, has_commit, restore_sources, run_git, run_git_unfiltered
from mcp_server.record.run_directory import now, read_json
from mcp_server.system.files import open_regular, write_atomic
from mcp_server.system.lock_files import hold_lock
from mcp_server.text.regex import compile_lazily

_CHUNK_BYTES = 1 << 20
_MOST_TIPS, _MOST_MARKERS = 200, 8
_ABANDONED_S = 3600.0  # an upload of that age has no sender any more
_TOKEN = compile_lazily(r"[0-9a-f]{16}")
_NAME = compile_lazily(r"[\w.-]{1,80}")
_LINK = -1
_DIFF = ("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD")
_NOTHING = "Nothing was started."

File = Sequence[Any]  # path, mode, size and SHA-256; of a link path, -1, 0 and target
Facts = Mapping[str, Any]


class CodeStore:
    """The directories. ``path`` is `code` in the state directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def look(self, wish: Facts) -> dict[str, Any]:
        """Return the directory for a content, whether it is there, and what is missing for it. Changes nothing."""
        directory, is_there = self._find_directory(wish)
        facts: dict[str, Any] = {"directory": str(directory), "there": is_there}
        if is_there:
            return facts
        if wish["sync"] == "git":
            return {**facts, "repositories": list(self._describe_repositories(wish))}
        copies = self._find_copies(wish)
        return {**facts, "missing": sorted({each[3] for each in wish["files"] if each[1] != _LINK} - copies.keys())}

    def put(self, token: str, offset: int, data: bytes) -> None:
        """Write a part of an upload."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        upload = self._upload(token)
        fd = os.open(upload, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        written = -1
        try:
            written = os.pwrite(fd, data, offset)
        finally:
            os.close(fd)
            if written < len(data):
                upload.unlink(missing_ok=True)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def make(self, wish: Facts) -> dict[str, Any]:
        """Make the directory of a content from what is here and an upload, or nothing, and raise LaunchFailed."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        upload = self._upload(wish["token"])
        with hold_lock(self.path / "lock"):
            directory, is_there = self._find_directory(wish)
            try:
                if not is_there:
                    self._remove(directory)
                    facts = (self._check_out if wish["sync"] == "git" else self._write_files)(directory, wish, upload)
                    _write_marker(directory, {**facts, "hash": wish["hash"], "at": now()})
            except (OSError, subprocess.SubprocessError) as error:
                self._remove(directory)
                cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
                raise LaunchFailed(f"The code could not be written to {directory}: {cause}.", _NOTHING) from error
            finally:
                self._remove_uploads(upload)
        return {"directory": str(directory)}

    def restore(self, snapshot: CodeSnapshot | None, name: str, *, only_look: bool) -> str:
        """Return the directory for the code of a former run, and make it, unless ``only_look``. LaunchFailed."""
        there = self.path / name
        why = find_obstacle(snapshot) if snapshot is not None else "it was not kept"
        if not _NAME.fullmatch(name) or there.exists():
            why = f"{there} cannot be made"
        if snapshot is None or why:
            raise LaunchFailed(f"The code as it was: {why}.", _NOTHING, "Leave code out to run it as it is now.")
        try:
            if not only_look:
                restore_sources(snapshot, there)
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchFailed(f"The code could not be written to {there}: {error}.", _NOTHING) from error
        return str(there)

    def guard(self, cwd: Path, base: str, protect: Sequence[str], clone: Path) -> None:
        """Note what the protected files of a trial's code are, once; files that git has none of are linked to.

        ``cwd``: where its run works. ``clone``: where they are, as a person has them here.
        """
        directory, facts = self._find_trial(cwd)
        if facts.get("guarded") is None:
            protected_files.link_beside(clone, cwd, protect)
            guarded = {
                "base": base,
                "protect": list(protect),
                "before": protected_files.digest(cwd, base, protect, cwd),
            }
            _write_marker(directory, {**facts, "guarded": guarded})

    def list_changes(self, cwd: Path) -> list[str]:
        """Return the protected files that changed since. Without its marker nobody knows: the directory itself."""
        guarded = self._find_trial(cwd)[1].get("guarded")
        if not guarded or not cwd.is_dir():
            return [str(cwd)]
        now_there = protected_files.digest(cwd, guarded["base"], guarded["protect"], cwd)
        return protected_files.changed(guarded["before"], now_there)

    def remove(self, cwd: Path) -> None:
        """Remove the code of a trial, with all that its run left in it."""
        directory, facts = self._find_trial(cwd)
        with hold_lock(self.path / "lock"):
            if facts.get("guarded") is not None:
                with contextlib.suppress(OSError, subprocess.SubprocessError):
                    run_git(str(directory), "worktree", "remove", "--force", "--force", str(directory))
                _marker(directory).unlink(missing_ok=True)
                self._remove(directory)

    def _find_trial(self, cwd: Path) -> tuple[Path, Facts]:
        """Return the directory around ``cwd``, and what its marker says. LaunchFailed: it is none of these."""
        if not cwd.is_relative_to(self.path) or cwd == self.path or ".." in cwd.parts:
            raise LaunchFailed(f"{cwd} is no code that was sent.", _NOTHING)
        directory = self.path / cwd.relative_to(self.path).parts[0]
        return directory, read_json(_marker(directory)) or {}

    def _find_directory(self, wish: Facts) -> tuple[Path, bool]:
        """Return the directory of a content, and whether it is there, whole and unchanged."""
        base = f"{wish['name']}-{wish['hash'][:12]}"
        if not _NAME.fullmatch(base):
            raise LaunchFailed(f"{base[:80]!r} cannot name a directory.", _NOTHING)
        is_intact = _is_commit_intact if wish["sync"] == "git" else _are_files_intact
        for number in itertools.count(1):
            directory = self.path / (base if number == 1 else f"{base}-{number}")
            facts = read_json(_marker(directory))
            if facts is None:
                return directory, False
            if facts.get("hash") == wish["hash"] and is_intact(directory, facts):
                return directory, True
        raise AssertionError

    def _remove(self, directory: Path) -> None:
        """Remove what an interrupted call has left: no run was ever started in it."""
        if not _marker(directory).exists():
            shutil.rmtree(directory, ignore_errors=True)

    def _upload(self, token: str) -> Path:
        if not _TOKEN.fullmatch(token):
            raise LaunchFailed("That is not the name of an upload.", _NOTHING)
        return self.path / f".upload-{token}"

    def _remove_uploads(self, upload: Path) -> None:
        upload.unlink(missing_ok=True)
        for old in self.path.glob(".upload-*"):
            with contextlib.suppress(OSError):
                if time.time() - old.stat().st_mtime > _ABANDONED_S:
                    old.unlink()

    # --- a directory of files

    def _find_copies(self, wish: Facts) -> dict[str, Path]:
        """Return files of former contents of the same name by their hashes: what was sent once is not sent again."""
        markers = [path for path in self.path.glob(f"{wish['name']}-*.json") if path.is_file()]
        wanted = {each[3] for each in wish["files"] if each[1] != _LINK}
        copies: dict[str, Path] = {}
        newest = sorted(markers, key=lambda path: -path.stat().st_mtime)[:_MOST_MARKERS]
        for marker, each in ((one, each) for one in newest for each in (read_json(one) or {}).get("files") or ()):
            path, mode, _, digest = each
            file = marker.with_suffix("") / path
            with contextlib.suppress(OSError):  # a run may have changed it, or left something else
                if digest in wanted - copies.keys() and mode != _LINK and _is_file_intact(file, each):
                    copies[digest] = file
        return copies

    def _write_files(self, directory: Path, wish: Facts, upload: Path) -> dict[str, Any]:
        copies, sent = self._find_copies(wish), _places(wish["sent"])
        directory.mkdir(mode=0o700)
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(upload.open("rb")) if sent else None
            # Links last: no file is written through one.
            for path, mode, size, digest in sorted(wish["files"], key=lambda file: bool(file[1] == _LINK)):
                target = directory / path
                if Path(path).is_absolute() or ".." in Path(path).parts:
                    raise OSError(errno.EINVAL, f"{path} leads out of the directory")
                target.parent.mkdir(parents=True, exist_ok=True)
                if mode == _LINK:
                    target.symlink_to(digest)
                    continue
                if stream is not None and digest in sent:
                    stream.seek(sent[digest])
                    arrived = _copy(stream, target, size, mode)
                elif digest in copies:
                    with open_regular(copies[digest], follow_links=False) as source:
                        arrived = _copy(source, target, size, mode)
                else:
                    arrived = ""
                if arrived != digest:
                    raise OSError(errno.EIO, f"{path} arrived damaged, or changed meanwhile: launch again")
        return {"files": wish["files"]}

    # --- a commit

    def _describe_repositories(self, wish: Facts) -> Iterator[dict[str, Any]]:
        """Yield the repositories here that may take the commit: the clone of a person, then the one of this store."""
        if shutil.which("git") is None:
            raise LaunchFailed("It has no git.", _NOTHING, 'Pass sync="rsync".')
        own = str(self._own_repository(wish))
        clone = str(wish.get("clone") or own)  # an empty path is the directory of this process
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            common = Path(clone, run_git(clone, "rev-parse", "--git-common-dir").decode().strip())
            if clone != own and not run_git(clone, "rev-parse", "--show-prefix").strip() and os.access(common, os.W_OK):
                yield {**_describe_repository(clone, wish["commit"]), "own": False}
        yield {**(_describe_repository(own, wish["commit"]) if Path(own).exists() else {"path": own}), "own": True}

    def _own_repository(self, wish: Facts) -> Path:
        origin = hashlib.sha256(str(wish["origin"]).encode()).hexdigest()[:8]
        return self.path / f"{wish['of']}-{origin}.git"

    def _check_out(self, directory: Path, wish: Facts, upload: Path) -> dict[str, Any]:
        repository, commit, pack_bytes = str(wish["repository"]), str(wish["commit"]), int(wish["pack_bytes"])
        if repository == str(self._own_repository(wish)) and not Path(repository).exists():
            run_git(str(self.path), "init", "--quiet", "--bare", repository)
        sent = upload.read_bytes() if upload.exists() else b""
        if pack_bytes:
            run_git(repository, "index-pack", "--stdin", "--fix-thin", data=sent[:pack_bytes])
        if not has_commit(repository, commit):
            raise OSError(errno.EIO, f"commit {commit[:12]} did not arrive")
        with contextlib.suppress(subprocess.SubprocessError):
            run_git(repository, "worktree", "prune")  # of a directory that was removed by hand
        run_git_unfiltered(repository, "worktree", "add", "--quiet", "--force", "--detach", str(directory), commit)
        if diff := sent[pack_bytes:]:
            run_git_unfiltered(str(directory), "apply", "--index", "--binary", "--whitespace=nowarn", data=diff)
        return {"commit": commit, "diff": _hash(run_git_unfiltered(str(directory), *_DIFF))}


def _describe_repository(path: str, commit: str) -> dict[str, Any]:
    words = ("for-each-ref", f"--count={_MOST_TIPS}", "--sort=-committerdate", "--format=%(objectname)")
    tips = run_git(path, *words).decode().split()
    with contextlib.suppress(subprocess.SubprocessError):  # no commit yet
        tips.insert(0, run_git(path, "rev-parse", "--verify", "HEAD").decode().strip())
    heads = run_git(path, "worktree", "list", "--porcelain").decode().splitlines()
    tips += [line.split()[1] for line in heads if line.startswith("HEAD ")]
    tips = [tip for tip in dict.fromkeys(tips) if tip.strip("0")]
    return {"path": path, "has": has_commit(path, commit), "tips": tips}


def _marker(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.json")


def _write_marker(directory: Path, facts: Facts) -> None:
    """Write it in ASCII: a name that is not UTF-8 must read back as it is."""
    write_atomic(_marker(directory), json.dumps(facts).encode() + b"\n")


def _is_commit_intact(directory: Path, facts: Facts) -> bool:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        head = run_git(str(directory), "rev-parse", "--verify", "HEAD").decode().strip()
        return head == facts.get("commit") and _hash(run_git_unfiltered(str(directory), *_DIFF)) == facts.get("diff")
    return False


def _are_files_intact(directory: Path, facts: Facts) -> bool:
    try:
        return all(_is_file_intact(directory / each[0], each) for each in facts.get("files") or ())
    except OSError:
        return False


def _is_file_intact(path: Path, file: File) -> bool:
    _, mode, size, digest = file
    if mode == _LINK:
        return bool(os.readlink(path) == digest)  # noqa: PTH115 - a text, not a path
    if path.lstat().st_size != size:
        return False
    sha = hashlib.sha256()
    with open_regular(path, follow_links=False) as stream:  # a run may have left a FIFO
        while data := stream.read(_CHUNK_BYTES):
            sha.update(data)
    return bool(sha.hexdigest() == digest)


def _places(sent: Sequence[Sequence[Any]]) -> dict[str, int]:
    """Return where in the upload each content begins."""
    places, offset = {}, 0
    for digest, size in sent:
        places[digest] = offset
        offset += size
    return places


def _copy(source: BinaryIO, target: Path, size: int, mode: int) -> str:
    """Copy the next ``size`` bytes into a new file and return their SHA-256."""
    sha = hashlib.sha256()
    with target.open("xb") as file:
        while size and (data := source.read(min(size, _CHUNK_BYTES))):
            file.write(data)
            sha.update(data)
            size -= len(data)
    target.chmod(mode & 0o777)
    return sha.hexdigest()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
