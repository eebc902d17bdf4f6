"""The environment of a run, which its launcher passes to its supervisor in memory, through a FIFO."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_server.errors import RunwardError
from mcp_server.record.codec import decode, encode
from mcp_server.record.run_directory import Facts, RunDir, write_json
from mcp_server.system.files import whole_directory
from mcp_server.text.regex import compile_lazily
from mcp_server.text.secret_patterns import holds_a_secret

# The launcher opens the FIFO before the supervisor exists: an end of file means that the launcher died.
_LONGEST_S = 10.0


class HandoverError(RunwardError):
    """The environment did not arrive. The command must not start without it."""


@dataclass(frozen=True)
class Handover:
    """Values for a command that no file may hold, and the launcher's umask: tmux may have been started with another.

    ``others``: secrets that the launcher knows and the command does not get; they are masked as well.
    ``snapshot``: the launcher's reading of the GPUs, which saves the supervisor a query. ``notify``: the targets of
    notices, with their secrets.
    """

    env: Mapping[str, str]
    secrets: Mapping[str, str]
    umask: int | None = None
    snapshot: Mapping[str, Any] | None = None
    others: Mapping[str, str] = field(default_factory=dict, repr=False)
    notify: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def masked(self) -> dict[str, str]:
        """All values to mask, by name."""
        return {**self.secrets, **{name: value for name, value in self.others.items() if name not in self.secrets}}

    def encode(self) -> bytes:
        """Return the handover as one JSON line."""
        return json.dumps(encode(self)).encode() + b"\n"


def prepare_directory(directory: RunDir, facts: Facts) -> None:
    """Make a run's directory appear whole, with its spec and the handover's FIFO; a failure leaves nothing."""
    with whole_directory(directory.path, anew=True) as path:
        os.mkfifo(RunDir(path).handover, 0o600)
        write_json(RunDir(path).spec, facts)


def receive_handover(path: Path, *, keep: bool = False) -> Handover:
    """Read the FIFO once, and remove it. A scheduler's job may start again: ``keep`` leaves the file for that.

    Raises:
        HandoverError: the launcher died before it had written everything, or took longer than 10 s.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise HandoverError(f"the launching server left no environment: {error.strerror}") from error
    deadline_s = time.monotonic() + _LONGEST_S
    data = b""
    try:
        while not data.endswith(b"\n"):
            try:
                chunk = os.read(fd, 65536)
            except BlockingIOError:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                    raise HandoverError("the launching server did not hand over the environment in 10 s") from None
                continue
            if not chunk:  # read first: select does not report a writer that closed before
                raise HandoverError("the launching server died before it handed over the environment")
            data += chunk
    finally:
        os.close(fd)
        if not keep:
            path.unlink(missing_ok=True)
    try:
        return decode(Handover, json.loads(data), strict=True)
    except ValueError as error:
        raise HandoverError("the launching server handed over something that is not an environment") from error


# Variables of the launcher itself, of another terminal, and of the agent's client. Programs act on those of a client:
# CLAUDECODE stops a Claude Code in a run, CODEX_SANDBOX_NETWORK_DISABLED and VSCODE_* change tests and tools.
_NOT_INHERITED = compile_lazily(
    r"RUNWARD_.*|TMUX|TMUX_PANE|TERM|TERM_PROGRAM.*|COLUMNS|LINES|_|SHLVL|PWD|OLDPWD"
    r"|CLAUDECODE|CLAUDE_(?:CODE|AGENT_SDK|PLUGIN|PROJECT)_.*|CLAUDE_(?:ENV_FILE|EFFORT)|AI_AGENT"
    r"|CODEX_.*|GEMINI_CLI.*|CURSOR_.*|VSCODE_.*|ELECTRON_RUN_AS_NODE"
    r"|MCP_(?:TOOL_)?TIMEOUT|MCP_(?:CLIENT|CONNECTION|SERVER_CONNECTION|OAUTH|XAA)_.*|MAX_MCP_OUTPUT_TOKENS"
)


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of ``environ`` that a run inherits: without secrets, terminals, and variables of launchers."""
    inherited = {n: v for n, v in environ.items() if not holds_a_secret(n, v) and not _NOT_INHERITED.fullmatch(n)}
    if not any(name in inherited for name in ("LANG", "LC_ALL", "LC_CTYPE")):
        inherited["LANG"] = "C.UTF-8"  # clients pass on no locale, and logs are UTF-8
    return inherited
