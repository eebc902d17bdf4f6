"""A proposed change as a commit: made by a temporary index, run in a worktree of its own, kept by a ref.

Nothing of a person's changes: no file, index, stash, hook or branch of theirs. All functions block: call them in a
thread. ``repository`` is the directory that trials run in, at or below the top of a work tree; names of files are
relative to it. subprocess.SubprocessError: git failed, with the line that says why.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.record.code.kept_sources import run_git, run_git_unfiltered
from mcp_server.record.code.protected_files import find_matches, link_beside
from mcp_server.system.git_state import describe_git_error, list_filter_options
from mcp_server.text.formatting import format_size, join_some
from mcp_server.text.secret_patterns import mask_source

_MOST_FILE_BYTES, _MOST_PATCH_BYTES, _MOST_FILES = 5 << 20, 1 << 20, 1_000
_PERSON = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "runward"), ("EMAIL", "runward@localhost"))
}
# A split index would write a file beside the person's; the others let git overlook a change.
_INDEX = (
    *("-c", "core.splitIndex=false", "-c", "core.checkStat=default", "-c", "core.trustctime=true"),
    *("-c", "core.ignoreStat=false", "-c", "core.safecrlf=false"),
)
_DIFF = ("diff-tree", "-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
_GITLINK = "160000"
_WITHOUT_GIT = 'Or pass "base": "none" in search: all trials run in cwd itself, and only params are proposed.'


@dataclass(frozen=True)
class Proposal:
    """A change: its commit and tree, the id that it has on any base, its files, and the diff that people read.

    ``base``: the commit that it changes. ``left_out``: new files of its worktree that runs write. Parameters alone have
    the base's commit and tree, and no files; without a repository all are empty.
    """

    commit: str
    tree: str
    patch_id: str
    files: tuple[str, ...]
    diff: str
    base: str = ""
    left_out: Sequence[str] = ()


def read_base(repository: Path, base: str = "HEAD") -> str:
    """Return the commit that ``base`` means. BadArgument: it is none, or its files are not all in git."""
    top, _ = _find_top(repository)
    commit = _find_commit(top, "base", base)
    try:
        listed = _git(top, "ls-tree", "-r", "-z", commit).split("\0")
        if modules := [line.partition("\t")[2] for line in listed if line.startswith(_GITLINK)]:
            cause = f"{top} has submodules ({join_some(modules, 3)}), which a trial's worktree lacks."
            raise BadArgument("cwd", cause, _WITHOUT_GIT)
        if list_filter_options(top, os.environ):
            names = _lines(line.partition("\t")[2] for line in listed if line)
            answer = _git(top, "check-attr", "--stdin", "-z", "filter", data=names).split("\0")
            filtered = [n for n, v in zip(answer[::3], answer[2::3], strict=False) if v not in ("unspecified", "unset")]
            if filtered:
                cause = f"git keeps {join_some(filtered, 3)} behind a filter (LFS?): a trial's worktree lacks them."
                raise BadArgument("cwd", cause, _WITHOUT_GIT)
    except (OSError, subprocess.SubprocessError) as error:
        raise BadArgument("cwd", f"{top}: {describe_git_error(error)}.") from error
    return commit


def capture(
    repository: Path,
    base: str,
    *,
    worktree: Path | None = None,
    patch: str | None = None,
    commit: str | None = None,
    params: Mapping[str, Any] | None = None,
    paths: Sequence[str] = (),
    protect: Sequence[str] = (),
    nearer: Sequence[str] = (),
    outputs: Collection[str] = (),
    text: str,
) -> Proposal:
    """Return the proposal of one source, with ``base`` for its parent; equal to the base where nothing differs.

    ``nearer``: other commits, of which the one from which a worktree differs least, in lines, is its base instead:
    whoever goes on editing the files of a kept trial needs no git for that.
    ``outputs``: files that runs write; new ones in a worktree are left out: a trial that carried them could have them
    measured in place of its own.
    ``paths``: no other file may change, but for those of ``protect``, which ``violations`` names.

    Raises:
        BadArgument: it is no proposal. Objects that no ref names may be left in the repository; git drops them.
    """
    given = {"worktree": worktree, "patch": patch, "commit": commit, "params": params}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        cause = f"{' and '.join(named) or 'none'} of worktree, patch, commit, params is given."
        raise BadArgument(named[0] if named else "worktree", cause, "Pass one of them.")
    if params is not None:
        word = hashlib.sha1(json.dumps(params, sort_keys=True, default=str).encode(), usedforsecurity=False).hexdigest()
        tree = _git(repository, "rev-parse", f"{base}^{{tree}}").strip() if base else ""
        return Proposal(base, tree, word, (), "", base)
    top, prefix = _find_top(repository)
    base = _find_commit(top, "base", base)
    left_out: Sequence[str] = ()
    try:
        with tempfile.TemporaryDirectory(prefix="runward-index-") as held:
            index = {"GIT_INDEX_FILE": str(Path(held, "index"))}
            if worktree is not None:
                written = {f"{prefix}/{name}".lstrip("/") for name in outputs}
                tree, left_out = _stage_worktree(top, worktree, index, written)
                bases = [*dict.fromkeys((base, *nearer))]
                base = min(bases, key=lambda commit: _count_lines(top, commit, tree)) if bases[1:] else base
            elif patch is not None:
                tree = _stage_patch(top, base, patch, prefix, index)
            else:
                tree = _git(top, "rev-parse", f"{_find_commit(top, 'commit', str(commit))}^{{tree}}").strip()
            return replace(_describe(top, prefix, base, tree, text, named[0], paths, protect), left_out=left_out)
    except (OSError, subprocess.SubprocessError) as error:
        raise BadArgument(named[0], f"{describe_git_error(error)}.") from error


def _stage_worktree(
    top: Path, worktree: Path, index: Mapping[str, str], outputs: set[str]
) -> tuple[str, Sequence[str]]:
    """Return the tree of a work tree, all its files as they are on disk, and new ``outputs``, which are left out."""
    places = ("--show-toplevel", "--git-common-dir", "--git-path", "index")
    try:
        root, common, original = _git(worktree, "rev-parse", "--path-format=absolute", *places).splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        raise BadArgument("worktree", f"{worktree}: {describe_git_error(error)}.") from error
    own = ("rev-parse", "--path-format=absolute", "--git-common-dir")
    if Path(root) != top and not Path(common).samefile(_git(top, *own).rstrip("\n")):
        raise BadArgument("worktree", f"{worktree} belongs to another repository than {top}.", "Pass patch instead.")
    git = list_filter_options(Path(root), os.environ)
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(original, index["GIT_INDEX_FILE"])  # it knows which files are unread; its time guards that
    listed = ("ls-files", "-z", "-v", "--cached", "--modified", "--others", "--exclude-standard")
    entries = _git(root, *git, *_INDEX, *listed, env=index).split("\0")
    # A person may have told git to overlook changes of a file: lower case, S. Their file is what counts.
    hidden = [e[2:] for e in entries if e and (e[0].islower() or e[0] == "S") and os.path.lexists(Path(root, e[2:]))]
    new = [entry[2:] for entry in entries if entry[:1] == "?"]
    left_out = tuple(name for name in new if name in outputs or "__pycache__/" in name)
    changed = sorted({*(entry[2:] for entry in entries if entry[:1] in ("?", "C", "M")), *hidden}.difference(left_out))
    if nested := [name for name in changed if name.endswith("/")]:
        cause = f"{join_some(nested, 3)} in it: a repository of its own, which a trial's worktree lacks."
        raise BadArgument("worktree", cause, "Have it ignored by git (.git/info/exclude).")
    if len(changed) > _MOST_FILES:
        cause = f"{len(changed):,} of its files differ, e.g. {join_some(changed, 3)}: outputs?"
        raise BadArgument("worktree", cause, "Have them ignored by git (.git/info/exclude).")
    for name in changed:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _refuse_large("worktree", name, Path(root, name).lstat().st_size)
    write = ("update-index", "-z", "--stdin")
    if hidden:
        _git(root, *git, *_INDEX, *write[:1], "--force-remove", *write[1:], data=_lines(hidden), env=index)
    _git(root, *git, *_INDEX, *write[:1], "--add", "--remove", "--replace", *write[1:], data=_lines(changed), env=index)
    return _git(root, *git, *_INDEX, "write-tree", env=index).strip(), left_out  # it reads files that are new by time


def _stage_patch(top: Path, base: str, patch: str, prefix: str, index: Mapping[str, str]) -> str:
    data = patch.encode(errors="surrogateescape")
    if len(data) > _MOST_PATCH_BYTES:
        cause = f"is of {format_size(len(data))}, and {format_size(_MOST_PATCH_BYTES)} is the most: are data in it?"
        raise BadArgument("patch", cause, "Pass worktree instead.")
    failures = []
    # Models count the lines of a hunk wrongly, and name files from the directory that they work in.
    git = list_filter_options(top, os.environ)
    for options in ((), ("--recount",), *([(f"--directory={prefix}",)] if prefix else ())):
        _git(top, *git, *_INDEX, "read-tree", base, env=index)
        try:
            _git(top, *git, "apply", "--cached", "--whitespace=nowarn", *options, data=data, env=index)
            return _git(top, *git, "write-tree", env=index).strip()
        except subprocess.SubprocessError as error:
            failures.append(str(error).removeprefix("error: ").removeprefix("patch failed: "))
    cause = f"does not apply to {base[:7]}: {failures[0]}."
    raise BadArgument("patch", cause, "Make it from that commit, or pass worktree.")


def _describe(
    top: Path, prefix: str, base: str, tree: str, text: str, source: str, paths: Sequence[str], protect: Sequence[str]
) -> Proposal:
    words = _git(top, *_DIFF, "--raw", "-z", f"{base}^{{tree}}", tree).split("\0")
    rows, names = words[:-1:2], words[1::2]
    files = tuple(os.path.relpath(name, prefix) if prefix else name for name in names)
    if linked := [name for name, row in zip(files, rows, strict=True) if row.split()[1] == _GITLINK]:
        raise BadArgument(source, f"{join_some(linked, 3)}: a submodule, which a trial's worktree lacks.")
    allowed = {*find_matches(files, [*paths, *protect])} if paths else set(files)
    if beside := [name for name in files if name not in allowed]:
        cause = f"changes {join_some(beside, 3)}, and this sweep allows {join_some(list(paths), 3)}."
        raise BadArgument(source, cause, "Leave that out.")
    if not files:
        return Proposal(base, tree, "", (), "", base)
    blobs = [row.split()[3] for row in rows]
    answer = _git(top, "cat-file", "--batch-check=%(objectsize)", data="\n".join(blobs).encode())
    for name, size in zip(files, answer.split("\n"), strict=False):
        _refuse_large(source, name, int(size) if size.isdigit() else 0)  # a deleted file is "missing"
    plain = run_git(str(top), *_DIFF, "-p", "--full-index", "-U0", base, tree)
    patch_id = _git(top, "patch-id", "--stable", data=plain).partition(" ")[0]
    diff = _git(top, *_DIFF, "-p", base, tree)
    if len(diff) > _MOST_PATCH_BYTES:
        diff = f"{diff[:_MOST_PATCH_BYTES].rpartition(chr(10))[0]}\n... cut at {format_size(_MOST_PATCH_BYTES)}\n"
    commit = _git(top, "commit-tree", tree, "-p", base, "-m", text, env=_PERSON).strip()
    return Proposal(commit, tree, patch_id, files, mask_source(diff), base)


def _count_lines(top: Path, commit: str, tree: str) -> int:
    """Return how many lines differ; a file that is no text counts as one."""
    rows = (line.split("\t") for line in _git(top, *_DIFF, "--numstat", commit, tree).splitlines())
    return sum(int(added) + int(gone) if added != "-" else 1 for added, gone, *_ in rows)


def _refuse_large(source: str, name: str, size: int) -> None:
    if size > _MOST_FILE_BYTES:
        cause = f"{name} is of {format_size(size)}, and {format_size(_MOST_FILE_BYTES)} is the most: a checkpoint?"
        raise BadArgument(source, cause, "Have it ignored by git (.git/info/exclude).")


# --- kept, run, merged


def save_ref(repository: Path, sweep: str, trial: str, commit: str) -> None:
    """Keep a trial's commit from git's garbage collection, outside of all branches."""
    _git(repository, "update-ref", f"refs/runward/{sweep}/{trial}", commit)


def is_name_free(repository: Path, name: str) -> bool:
    """Return whether no sweep has refs of this name."""
    return not _git(repository, "for-each-ref", "--count=1", _branch(name), f"refs/runward/{name}")


def checkout(repository: Path, commit: str, directory: Path, *, links: Iterable[str] = ()) -> Path:
    """Make ``directory`` a detached worktree of ``commit``, anew where it is there; return where its runs start.

    ``links``: paths that are linked to where they are in ``repository`` if git has none of them: protected data.
    No other file outside of git is there.
    """
    if os.path.lexists(directory):
        remove_checkout(repository, directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    words = ("worktree", "add", "--quiet", "--force", "--detach", str(directory), commit)
    run_git_unfiltered(str(repository), *words)
    there = directory / _git(repository, "rev-parse", "--show-prefix").strip("\n/")
    link_beside(repository, there, links)
    return there


def list_new_files(directory: Path) -> list[str]:
    """Return the files that a run has left in its worktree, but ignored ones; as many as a proposal may have."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return _git(directory, "ls-files", "-z", "--others", "--exclude-standard").split("\0")[:-1][:_MOST_FILES]
    return []


def remove_checkout(repository: Path, directory: Path) -> None:
    """Remove such a worktree, with all that a run left in it. Nothing happens where there is none."""
    with contextlib.suppress(subprocess.SubprocessError):
        _git(repository, "worktree", "remove", "--force", "--force", str(directory))
    shutil.rmtree(directory, ignore_errors=True)


def tip(repository: Path, sweep: str) -> str | None:
    """Return the commit of the sweep's branch, None before the first."""
    with contextlib.suppress(subprocess.SubprocessError):
        return _git(repository, "rev-parse", "--verify", "--quiet", f"{_branch(sweep)}^{{commit}}").strip()
    return None


def move_tip(repository: Path, sweep: str, new: str, old: str | None) -> bool:
    """Move the sweep's branch from ``old`` (None: there is none) to ``new`` in one step; return whether it did.

    It does not where the branch is elsewhere, or is checked out: the work tree would no longer be its commit's.
    """
    if f"branch {_branch(sweep)}" in _git(repository, "worktree", "list", "--porcelain").splitlines():
        return False
    try:
        _git(repository, "update-ref", "--no-deref", _branch(sweep), new, old or "0" * len(new), env=_PERSON)
    except subprocess.SubprocessError:
        if tip(repository, sweep) == old:
            raise
        return False
    return True


def merge(repository: Path, base: str, ours: str, theirs: str, *, text: str = "merged") -> str | None:
    """Return a commit on ``ours`` with the change from ``base`` to ``theirs``; None where both change the same lines.

    None too where git is older than 2.38, which merges only in a work tree.
    """
    sides = []
    for side in (ours, theirs):  # with the base for their only parent: git finds it by itself
        words = ("commit-tree", f"{side}^{{tree}}", "-p", base, "-m", "side")
        sides.append(_git(repository, *words, env=_PERSON).strip())
    with contextlib.suppress(subprocess.SubprocessError):
        output = run_git_unfiltered(str(repository), "merge-tree", "--write-tree", "--no-messages", *sides)
        tree = output.decode().split()[0]
        return _git(repository, "commit-tree", tree, "-p", ours, "-m", text, env=_PERSON).strip()
    return None


# --- git


def _branch(sweep: str) -> str:
    return f"refs/heads/runward/{sweep}"


def _find_top(repository: Path) -> tuple[Path, str]:
    """Return the top of the work tree, and where the repository's directory is below it."""
    try:
        top, prefix, *_ = _git(repository, "rev-parse", "--show-toplevel", "--show-prefix").split("\n")
        return Path(top), prefix.strip("/")
    except (OSError, subprocess.SubprocessError) as error:
        cause = f"{repository} is no work tree of git: {describe_git_error(error)}."
        raise BadArgument("cwd", cause, f"Run git init there and commit once. {_WITHOUT_GIT}") from error


def _find_commit(top: Path, argument: str, word: str) -> str:
    with contextlib.suppress(subprocess.SubprocessError):
        if not word.startswith("-"):
            return _git(top, "rev-parse", "--verify", "--quiet", f"{word}^{{commit}}").strip()
    if word == "HEAD":
        raise BadArgument("cwd", f"{top} has no commit.", f"Commit once. {_WITHOUT_GIT}")
    raise BadArgument(argument, f"{top} has no commit {word[:80]!r}.", "Pass one that it has, or a patch.")


def _lines(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _git(directory: Path | str, *words: str, data: bytes = b"", env: Mapping[str, str] | None = None) -> str:
    return os.fsdecode(run_git(str(directory), *words, data=data, env=env))
