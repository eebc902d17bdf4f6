"""Reads the state of a run's code from git: changes nothing in the repository, and has a time limit."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from mcp_server.system.captured_run import run_captured
from mcp_server.text.regex import compile_lazily

_TIMEOUT_S = 10.0  # per call; a big work tree on a file server takes a while
_MOST_DIFF, _MOST_NAMES = 1_000_000, 100_000  # bytes
_MOST_SUBMODULES = 20
# Switches off everything that a repository's own settings could start or write.
_SAFELY = (
    *("--no-pager", "--no-optional-locks", "--literal-pathspecs"),
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat"),
    *("-c", "core.untrackedCache=false", "-c", "color.ui=never", "-c", "diff.external="),
)
_FILTER = compile_lazily(r"filter\.(?P<driver>.+)\.[^.]+", re.DOTALL)
_PLAIN_DRIVER = compile_lazily(r"[\w.-]{1,100}")
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty", "HEAD")


@dataclass(frozen=True)
class GitState:
    """The state of a work tree. ``diff``: uncommitted changes. ``cut``: they are longer than 1 MB.

    ``problem``: why the rest is unknown. ``changed``: files that differ from the commit, also of submodules, whose
    commits ``submodules`` has by path. ``untracked`` names theirs too.
    """

    root: str = ""
    commit: str = ""
    subject: str = ""
    committed_at: str = ""
    branch: str = ""
    diff: str = ""
    cut: bool = False
    untracked: tuple[str, ...] = ()
    problem: str | None = None
    changed: tuple[str, ...] = ()
    submodules: Mapping[str, str] = field(default_factory=dict)


def read_git_state(directory: Path, environ: Mapping[str, str]) -> GitState:
    """Return the state of the code in ``directory``, within 10 s per git command and up to 1 MB of changes."""
    try:
        log, _ = _git(directory, environ, "log", "-1", "--no-show-signature", "--format=%H%n%ct%n%s")
        root, _ = _git(directory, environ, "rev-parse", "--show-toplevel", "--abbrev-ref", "HEAD")
    except (OSError, subprocess.SubprocessError) as error:
        return GitState(problem=describe_git_error(error))
    commit, at, subject = (*log.split("\n", 2), "", "")[:3]
    root, _, branch = root.strip().rpartition("\n")
    code = GitState(
        root=root,
        commit=commit,
        subject=subject.strip(),
        committed_at=datetime.fromtimestamp(int(at), timezone.utc).isoformat().replace("+00:00", "Z")
        if at.isdigit()
        else "",
        branch=branch,
    )
    facts: dict[str, Any] = {}
    try:
        top = Path(code.root)
        facts["diff"], facts["cut"] = _git(top, environ, *list_filter_options(top, environ), *_DIFF, most=_MOST_DIFF)
        facts["changed"], facts["untracked"] = _list_changed(top, "", environ, is_clean=not facts["diff"])
        facts["submodules"] = {}
        for name in _list_submodules(top, environ):
            facts["diff"] += _diff_submodule(top, name, environ, _MOST_DIFF - len(facts["diff"]))
            facts["submodules"][name] = _git(top / name, environ, "rev-parse", "HEAD")[0].strip()
            changed, untracked = _list_changed(top / name, f"{name}/", environ)
            facts["changed"] += changed
            facts["untracked"] += untracked
    except (OSError, subprocess.SubprocessError) as error:
        facts["problem"] = describe_git_error(error)
    return replace(code, **facts)


def _list_changed(
    top: Path, prefix: str, environ: Mapping[str, str], *, is_clean: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that differ from the commit, and those that git does not know, with ``prefix`` in front."""
    words = ("diff", "--name-only", "-z", "--no-renames", "--ignore-submodules=all", "HEAD")
    changed = "" if is_clean else _git(top, environ, *list_filter_options(top, environ), *words)[0]
    others, _ = _git(top, environ, "ls-files", "--others", "--exclude-standard", "-z")
    return tuple(tuple(prefix + name for name in filter(None, text.split("\0"))) for text in (changed, others))  # type: ignore[return-value]


def _list_submodules(top: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the paths of the checked out submodules, at most 20."""
    if not (top / ".gitmodules").is_file():
        return []
    with contextlib.suppress(subprocess.SubprocessError):  # none is named
        words = ("config", "--null", "-f", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$")
        entries, _ = _git(top, environ, *words)
        names = [entry.partition("\n")[2] for entry in entries.split("\0")]
        return [name for name in names if _is_below(top, name) and (top / name / ".git").exists()][:_MOST_SUBMODULES]
    return []


def _is_below(top: Path, name: str) -> bool:
    return bool(name) and top.resolve() in (top / name).resolve().parents


def _diff_submodule(top: Path, name: str, environ: Mapping[str, str], most: int) -> str:
    """Return the uncommitted changes of a submodule, with its path in front of its files' names."""
    directory = top / name
    prefixes = (f"--src-prefix=a/{name}/", f"--dst-prefix=b/{name}/")
    words = (*list_filter_options(directory, environ), _DIFF[0], *prefixes, *_DIFF[1:])
    return _git(directory, environ, *words, most=most)[0] if most > 0 else ""


def list_filter_options(directory: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the options that switch off the filter programs of a repository.

    Raises:
        OSError, subprocess.SubprocessError: see ``_git``; or one cannot be switched off.
    """
    names, _ = _git(directory, environ, "config", "--null", "--name-only", "--list")
    drivers = {match["driver"] for name in names.split("\0") if (match := _FILTER.fullmatch(name))}
    if odd := next((name for name in drivers if not _PLAIN_DRIVER.fullmatch(name)), None):
        raise subprocess.SubprocessError(f"its settings name a filter that would run: {odd[:80]!r}")
    off = ("clean=", "smudge=", "process=", "required=false")
    return [word for name in sorted(drivers) for key in off for word in ("-c", f"filter.{name}.{key}")]


def _git(directory: Path, environ: Mapping[str, str], *words: str, most: int = _MOST_NAMES) -> tuple[str, bool]:
    """Return the output of git, at most ``most`` bytes, and whether it was longer."""
    output, cut = read_git(directory, environ, *words, most=most)
    return output.decode(errors="replace"), cut


def read_git(
    directory: Path,
    environ: Mapping[str, str],
    *words: str,
    most: int = _MOST_NAMES,
    stdin: BinaryIO | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> tuple[bytes, bool]:
    """Return the output of git, at most ``most`` bytes, and whether it was longer.

    Raises:
        OSError, subprocess.SubprocessError: git is missing, there is no repository, or the time limit passed.
    """
    env = {name: environ[name] for name in ("PATH", "HOME", "XDG_CONFIG_HOME") if name in environ}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    env["GIT_ALLOW_PROTOCOL"] = "none"  # older versions fetch a partial clone's objects with a program of its settings
    command = ["git", *_SAFELY, "-C", str(directory), *words]
    done = run_captured(command, env, most_bytes=most, limit_s=timeout_s, stdin=stdin)
    if done.code:
        raise subprocess.SubprocessError(quote_git_failure(done.complaint))
    return done.output, done.cut


def quote_git_failure(error_output: str) -> str:
    """Return the line of git's stderr that says why it failed; hints may follow it."""
    lines = error_output.strip().splitlines() or ["git failed"]
    causes = [line for line in lines if line.startswith(("fatal: ", "error: "))]
    place = next((line for line in causes if line.startswith("error: patch failed: ")), None)  # with the line's number
    cause = place or (causes or lines)[-1]
    return cause.removeprefix("fatal: ")[:300]


def describe_git_error(error: Exception) -> str:
    """Return why git gave no answer."""
    if isinstance(error, FileNotFoundError):
        return "git is not installed, or the directory is gone"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"git did not answer within {_TIMEOUT_S:g} s"
    return str(error)
