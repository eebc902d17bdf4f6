"""The state of the code that a run was started from, as git tells it: looks only, and gives up in time."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PATIENCE_S = 10.0  # for each call: a big work tree on a file server takes a while
_MOST_DIFF, _MOST_NAMES = 1_000_000, 100_000  # bytes
_CHUNK = 65_536
# What a repository's own settings could start, or write, is switched off.
_SAFELY = (
    *("--no-pager", "--no-optional-locks", "--literal-pathspecs"),
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat"),
    *("-c", "core.untrackedCache=false", "-c", "color.ui=never", "-c", "diff.external="),
)
_FILTER = re.compile(r"filter\.(?P<driver>.+)\.[^.]+", re.DOTALL)
_PLAIN_DRIVER = re.compile(r"[\w.-]{1,100}")
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty", "HEAD")


@dataclass(frozen=True)
class GitState:
    """A work tree. ``diff`` is what is not committed; ``cut``: there is more of it than 1 MB.

    ``problem``: why there is no more to tell.
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


def read_git_state(directory: Path, environ: Mapping[str, str]) -> GitState:
    """Return the state of the code in ``directory``; at most 40 s, at most 1 MB of differences."""
    try:
        root, _ = _git(directory, environ, "rev-parse", "--show-toplevel")
        told, _ = _git(directory, environ, "log", "-1", "--no-show-signature", "--format=%H%n%ct%n%s")
    except (OSError, subprocess.SubprocessError) as error:
        return GitState(problem=_said(error))
    commit, at, subject = (*told.split("\n", 2), "", "")[:3]
    code = GitState(
        root=root.strip(),
        commit=commit,
        subject=subject.strip(),
        committed_at=datetime.fromtimestamp(int(at), UTC).isoformat().replace("+00:00", "Z") if at.isdigit() else "",
    )
    facts: dict[str, Any] = {}
    try:
        facts["branch"] = _git(directory, environ, "rev-parse", "--abbrev-ref", "HEAD")[0].strip()
        top = Path(code.root)
        facts["diff"], facts["cut"] = _git(top, environ, *_unfiltered(top, environ), *_DIFF, most=_MOST_DIFF)
        names, _ = _git(top, environ, "ls-files", "--others", "--exclude-standard", "-z")
        facts["untracked"] = tuple(filter(None, names.split("\0")))
    except (OSError, subprocess.SubprocessError) as error:
        facts["problem"] = _said(error)
    return replace(code, **facts)


def _unfiltered(directory: Path, environ: Mapping[str, str]) -> list[str]:
    """Return what switches off the programs that a repository names for changing files as they are compared.

    Raises:
        OSError, subprocess.SubprocessError: see ``_git``; or one cannot be switched off.
    """
    told, _ = _git(directory, environ, "config", "--null", "--name-only", "--list")
    drivers = {match["driver"] for name in told.split("\0") if (match := _FILTER.fullmatch(name))}
    if odd := next((name for name in drivers if not _PLAIN_DRIVER.fullmatch(name)), None):
        raise subprocess.SubprocessError(f"its settings name a filter that would run: {odd[:80]!r}")
    off = ("clean=", "smudge=", "process=", "required=false")
    return [word for name in sorted(drivers) for key in off for word in ("-c", f"filter.{name}.{key}")]


def _git(directory: Path, environ: Mapping[str, str], *words: str, most: int = _MOST_NAMES) -> tuple[str, bool]:
    """Return what git prints, at most ``most`` bytes, and whether there was more.

    Raises:
        OSError, subprocess.SubprocessError: there is no git, no repository, or no answer in time.
    """
    env = {name: environ[name] for name in ("PATH", "HOME", "XDG_CONFIG_HOME") if name in environ}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    env["GIT_ALLOW_PROTOCOL"] = "none"  # older ones fetch what a partial clone lacks, by a program of its settings
    process = subprocess.Popen(
        ["git", *_SAFELY, "-C", str(directory), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    with process:
        try:
            said, wrong, cut = _read(process, most)
            if not cut and process.wait(_PATIENCE_S):
                raise subprocess.SubprocessError(wrong.strip().rpartition("\n")[2])
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    return said, cut


def _read(process: subprocess.Popen[bytes], most: int) -> tuple[str, str, bool]:
    """Return what a process prints on both its outputs until it closes them, prints too much, or takes too long."""
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    parts: dict[int, bytes] = {stream.fileno(): b"" for stream in streams}
    give_up_s = time.monotonic() + _PATIENCE_S
    with selectors.DefaultSelector() as ready:
        for stream in streams:
            ready.register(stream, selectors.EVENT_READ)
        while ready.get_map():
            left_s = give_up_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired("git", _PATIENCE_S)
            for key, _ in ready.select(left_s):
                chunk = os.read(key.fd, _CHUNK)
                parts[key.fd] += chunk
                if not chunk:
                    ready.unregister(key.fileobj)
                elif len(parts[key.fd]) > most:
                    return parts[streams[0].fileno()][:most].decode(errors="replace"), "", True
    said, wrong = (parts[stream.fileno()].decode(errors="replace") for stream in streams)
    return said, wrong, False


def _said(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "git is not installed, or the directory is gone"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"git did not answer within {_PATIENCE_S:g} s"
    return str(error).removeprefix("fatal: ") or "git failed"
