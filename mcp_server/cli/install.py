"""`runward install`: registers this server with a client, and installs the agent files for Claude Code.

Every change is shown and confirmed first. A replaced file is kept beside the new one as ``.bak``.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mcp_server.cli.client_settings import NAME, in_codex_toml, in_mcp_json
from mcp_server.errors import BadArgument
from mcp_server.resources.documents import list_files

# Inspector 2.12 needs this Node; npm on an older one silently takes 0.15.0, which is another program.
_INSPECTOR, _INSPECTOR_NODE = "@modelcontextprotocol/inspector@2", (22, 19)
_PATIENCE_S = 60  # `claude mcp get` starts the server to see whether it works
# Control characters of a file could act on the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class LeftAlone(Exception):
    """A file was not changed; the message is the reason."""


@dataclass(frozen=True)
class Step:
    """One file to change: ``edit`` maps its text to the new one, and its links stay inside ``root``."""

    path: Path
    root: Path | None
    edit: Callable[[str], str]


def run(arguments: argparse.Namespace) -> int:
    """Register the server with ``arguments.client`` (``project``, ``yes``); return the exit status.

    0: the server is registered. 1: something is unchanged, because it was not confirmed or failed.

    Raises:
        BadArgument: ``project`` is set, and the working directory does not exist.
    """
    command, project = server_command(sys.executable), _working_directory() if arguments.project else None
    if arguments.client == "inspector":
        return _inspect(command, sure=arguments.yes)
    steps = [_codex(command, project)] if arguments.client == "codex" else _claude(command, project)
    done = [_apply(step, sure=arguments.yes) for step in steps]
    if arguments.client == "claude" and project is None:
        done.append(_register_user(command, sure=arguments.yes))
    return 0 if all(done) else 1


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise BadArgument(
            "--project", "the working directory does not exist any more. cd to the project first."
        ) from error


def server_command(python: str) -> list[str]:
    """Return the command by which a client starts this server: the script beside this Python, or uvx under uvx."""
    parts = Path(python).parts
    if "uv" in parts and any(part.startswith(("archive-v", "environments-v")) for part in parts):
        return ["uvx", NAME, "serve"]  # uv may empty such a directory at any time
    beside = Path(python).parent / NAME
    return [str(beside), "serve"] if os.access(beside, os.X_OK) else [python, "-m", "mcp_server", "serve"]


# --- the changes for each client


def _claude(command: Sequence[str], project: Path | None) -> list[Step]:
    own = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    target = (project / ".claude" if project else own) / "agents"
    steps = [Step(target / file.name, project, partial(_copy_of, file)) for file in list_files("agents")]
    if project is not None:
        # A project's file is shared: a program inside the project is named by its relative path.
        program = Path(command[0])
        path = str(program.relative_to(project)) if program.is_relative_to(project) else command[0]
        edit = partial(in_mcp_json, command=[path, *command[1:]])
        steps.append(Step(project / ".mcp.json", project, edit))
    return steps


def _copy_of(file: Path, _: str) -> str:
    return file.read_text(encoding="utf-8")


def _codex(command: Sequence[str], project: Path | None) -> Step:
    own = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
    path = (project / ".codex" if project else own) / "config.toml"
    return Step(path, project, partial(in_codex_toml, command=command))


# --- one file


def _apply(step: Step, *, sure: bool) -> bool:
    """Show the change, ask, and write it; return whether the file has the right content."""
    try:
        path = _target(step)
        before = _read(path)
        after = step.edit(before or "")
        if after == before:
            print(f"{path}: nothing to change.")
            return True
        print(_diff(path, before, after), end="")
        if not _confirm(f"{'Create' if before is None else 'Change'} {path}?", sure=sure):
            print(f"{path}: left as it is.")
            return False
        kept = _write(path, before, after)
    except (OSError, ValueError, LeftAlone) as error:
        why = error.strerror if isinstance(error, OSError) else error
        print(f"{step.path} was left as it is: {why}", file=sys.stderr)
        return False
    print(f"{path}: written." + (f" Before: {kept}" if kept else ""))
    return True


def _target(step: Step) -> Path:
    """Return the real path of the file.

    Raises:
        LeftAlone: it is outside of the project, or not an ordinary file.
    """
    try:
        real = step.path.resolve()
    except RuntimeError as error:
        raise LeftAlone("its links form a circle.") from error
    # A project may come from others: a link in it must not choose which file is overwritten.
    if step.root is not None and not real.is_relative_to(step.root.resolve()):
        raise LeftAlone(f"it leads to {real}, outside of this project.")
    if real.exists() and not real.is_file():
        raise LeftAlone("it is not an ordinary file.")
    return real


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _diff(path: Path, before: str | None, after: str) -> str:
    """Return the change in the form of ``diff -U1``, without control characters."""
    names = ("/dev/null" if before is None else str(path), str(path))
    lines = difflib.unified_diff((before or "").splitlines(), after.splitlines(), *names, n=1, lineterm="")
    return "".join(_CONTROL.sub("?", line) + "\n" for line in lines)


def _confirm(question: str, *, sure: bool) -> bool:
    if sure:
        return True
    if not sys.stdin.isatty():
        print(f"{question} There is no terminal to ask on: --yes confirms.")
        return False
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _write(path: Path, before: str | None, text: str) -> Path | None:
    """Write ``text``; return the path of the backup, if there was a former file.

    Raises:
        LeftAlone: the file does not hold ``before`` any more, the text that was shown.
    """
    if _read(path) != before:
        raise LeftAlone("it has changed in the meantime.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if before is None:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        return None
    kept = next(p for n in range(1000) if not os.path.lexists(p := path.with_name(f"{path.name}.bak{n or ''}")))
    shutil.copy2(path, kept)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor has no path
        file.write(text)
    shutil.copymode(path, temporary)
    os.replace(temporary, path)  # noqa: PTH105 - as above
    return kept


# --- programs of the clients


def _register_user(command: Sequence[str], *, sure: bool) -> bool:
    """Register the server with `claude mcp add`; return whether it is registered."""
    line = ["claude", "mcp", "add", "--scope", "user", NAME, "--", *command]
    if shutil.which("claude") is None:
        print(f"Claude Code was not found. On a machine that has it, type:\n  {shlex.join(line)}")
        return False
    registered, output = _run_program(["claude", "mcp", "get", NAME])
    if registered and command[0] in output:
        print("claude mcp: nothing to change.")
        return True
    if registered:
        print(_CONTROL.sub("?", output))
        print("claude mcp: registered with another command, left as it is. To replace it, type:")
        print(f"  claude mcp remove --scope user {NAME} && {shlex.join(line)}")
        return False
    if not _confirm(f"Run {shlex.join(line)} ?", sure=sure):
        print("claude mcp: left as it is.")
        return False
    done, output = _run_program(line)
    print(_CONTROL.sub("?", output))
    return done


def _run_program(line: Sequence[str]) -> tuple[bool, str]:
    """Run a program; return whether it succeeded, and its output."""
    try:
        done = subprocess.run(
            line,
            cwd=Path.home(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, f"{done.stdout}\n{done.stderr}".strip()


def _inspect(command: Sequence[str], *, sure: bool) -> int:
    """Start the MCP Inspector on this server, or print how to start it."""
    line = ["npx", "-y", _INSPECTOR, *command]
    print(f"MCP Inspector, in a browser:\n  {shlex.join(line)}")
    print("Its --cli ends a call after 60 s: with it, pass timeout_s=50 to wait_run.")
    _, version = _run_program(["node", "--version"])
    match = re.fullmatch(r"v(\d+)\.(\d+)\..*", version)
    if match is None or (int(match[1]), int(match[2])) < _INSPECTOR_NODE or shutil.which("npx") is None:
        needed = ".".join(map(str, _INSPECTOR_NODE))
        print(
            f"It needs Node {needed} or newer and npx; this machine has {version if match else 'no Node'}. Not started."
        )
        return 1
    if not _confirm("Start it?", sure=sure):
        return 1
    return subprocess.run(line, check=False).returncode
