"""Conversations that wait for nothing between two turns: a program of the client starts a turn of one that is idle.

Codex: `codex queue`, 0.29 s from its start to the turn of the model in version 0.171. It keeps a message for a thread
that its daemon has not loaded; one left with `/exit` is loaded for a while, and takes its turn unseen.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.store.told_news import ToldNews
from mcp_server.system.lock_files import may_be_locked
from mcp_server.system.processes import ancestors

_CODEX_TURN = "x-codex-turn-metadata"  # in `_meta` of each call
_THREAD = re.compile(r"[0-9A-Za-z-]{8,64}")
_CHECK_LIMIT_S = 10.0


@dataclass(frozen=True)
class Conversation:
    """One conversation of a client. ``command``: takes a message as its last word, and gives it to the model."""

    name: str
    command: tuple[str, ...]
    environ: tuple[tuple[str, str], ...] = ()

    def watch(self, told: ToldNews, environ: Mapping[str, str]) -> None:
        """Start the process that tells this conversation of its runs, unless there is one. Blocks. OSError: it fails.

        It outlives the server, and ends once no run of ``told`` lives and nothing is left to tell.
        """
        if may_be_locked(told.monitor_lock):
            return
        words = [sys.executable, "-I", "-X", "utf8", "-m", "mcp_server", "monitor", "--conversation", self.name]
        subprocess.Popen(
            [*words, *self.command],
            env={**environ, **dict(self.environ)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


class Conversations:
    """The conversations that call this server, as far as something can wake them."""

    def __init__(self) -> None:
        self._codex: tuple[str, dict[str, str]] | None = None
        self._is_known = False

    def find(self, meta: Mapping[str, Any]) -> Conversation | None:
        """Return the conversation that a call with this ``_meta`` belongs to, or None. The first call blocks."""
        turn = meta.get(_CODEX_TURN)
        thread = turn.get("thread_id") if isinstance(turn, Mapping) else None
        if not isinstance(thread, str) or not _THREAD.fullmatch(thread):
            return None
        if not self._is_known:
            self._codex, self._is_known = _find_codex(), True
        if self._codex is None:
            return None
        program, environ = self._codex
        command = (program, "queue", "--thread", thread, "--message")
        return Conversation(f"codex-{thread}", command, tuple(environ.items()))


def _find_codex() -> tuple[str, dict[str, str]] | None:
    """Return the Codex that has started this server, and its directory of state. None where it cannot queue."""
    program, environ = shutil.which("codex"), dict[str, str]()
    for pid in ancestors(os.getppid()):
        try:
            path = Path(f"/proc/{pid}/exe").readlink()
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if path.name == "codex":
            program = str(path)
            pairs = (os.fsdecode(variable).partition("=") for variable in variables)
            environ = {name: value for name, _, value in pairs if name in ("HOME", "CODEX_HOME")}
            break
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "queue", "--help"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CHECK_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (program, environ) if done.returncode == 0 and b"--message" in done.stdout else None
