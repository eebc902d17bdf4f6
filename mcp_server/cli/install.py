"""`runward install`: makes this server known to a client, and gives Claude Code the agents.

Nothing is changed that was not shown and confirmed. What is replaced is kept beside it as ``.bak``.
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
# What a file of somebody else could say to a terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class LeftAlone(Exception):
    """A file that is not touched; says why."""


@dataclass(frozen=True)
class Step:
    """A file, the directory that it may not lead out of, and what makes its new text of its old one."""

    path: Path
    root: Path | None
    edit: Callable[[str], str]


def run(arguments: argparse.Namespace) -> int:
    """Register the server with ``arguments.client`` (``project``, ``yes``); return the exit status.

    0: it is registered now, or was before. 1: something was left as it was, since nobody confirmed it or it could
    not be done.

    Raises:
        BadArgument: it is for a project, and the working directory is gone.
    """
    command, project = server_command(sys.executable), _here() if arguments.project else None
    if arguments.client == "inspector":
        return _inspect(command, sure=arguments.yes)
    steps = [_codex(command, project)] if arguments.client == "codex" else _claude(command, project)
    done = [_take(step, sure=arguments.yes) for step in steps]
    if arguments.client == "claude" and project is None:
        done.append(_register_user(command, sure=arguments.yes))
    return 0 if all(done) else 1


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise BadArgument("--project", "there is no working directory any more. cd to the project first.") from error


def server_command(python: str) -> list[str]:
    """Return how a client starts this server: by the command beside this Python, or by uvx where that runs it."""
    parts = Path(python).parts
    if "uv" in parts and any(part.startswith(("archive-v", "environments-v")) for part in parts):
        return ["uvx", NAME, "serve"]  # a directory that uv may empty at any time
    beside = Path(python).parent / NAME
    return [str(beside), "serve"] if os.access(beside, os.X_OK) else [python, "-m", "mcp_server", "serve"]


# --- what there is to do


def _claude(command: Sequence[str], project: Path | None) -> list[Step]:
    own = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    target = (project / ".claude" if project else own) / "agents"
    steps = [Step(target / file.name, project, partial(_exactly, file)) for file in list_files("agents")]
    if project is not None:
        # A project's file is shared: a program inside the project is named as everybody finds it.
        program = Path(command[0])
        shown = str(program.relative_to(project)) if program.is_relative_to(project) else command[0]
        edit = partial(in_mcp_json, command=[shown, *command[1:]])
        steps.append(Step(project / ".mcp.json", project, edit))
    return steps


def _exactly(file: Path, _: str) -> str:
    return file.read_text(encoding="utf-8")


def _codex(command: Sequence[str], project: Path | None) -> Step:
    own = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
    path = (project / ".codex" if project else own) / "config.toml"
    return Step(path, project, partial(in_codex_toml, command=command))


# --- one file


def _take(step: Step, *, sure: bool) -> bool:
    """Show what would change, ask, and change it; return whether the file is as it should be."""
    try:
        path = _target(step)
        before = _read(path)
        after = step.edit(before or "")
        if after == before:
            print(f"{path}: nothing to change.")
            return True
        print(_shown(path, before, after), end="")
        if not _confirmed(f"{'Create' if before is None else 'Change'} {path}?", sure=sure):
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
    """Return the file that is meant, links followed.

    Raises:
        LeftAlone: it is outside of the project, or no ordinary file.
    """
    try:
        real = step.path.resolve()
    except RuntimeError as error:
        raise LeftAlone("its links lead in a circle.") from error
    # A project comes from others: a link in it must not choose what is overwritten.
    if step.root is not None and not real.is_relative_to(step.root.resolve()):
        raise LeftAlone(f"it leads to {real}, outside of this project.")
    if real.exists() and not real.is_file():
        raise LeftAlone("it is no ordinary file.")
    return real


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _shown(path: Path, before: str | None, after: str) -> str:
    """Return what will change, as ``diff -U1`` shows it, harmless to a terminal."""
    names = ("/dev/null" if before is None else str(path), str(path))
    lines = difflib.unified_diff((before or "").splitlines(), after.splitlines(), *names, n=1, lineterm="")
    return "".join(_CONTROL.sub("?", line) + "\n" for line in lines)


def _confirmed(question: str, *, sure: bool) -> bool:
    if sure:
        return True
    if not sys.stdin.isatty():
        print(f"{question} There is no terminal to ask at: --yes confirms.")
        return False
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _write(path: Path, before: str | None, text: str) -> Path | None:
    """Write ``text``; return where the former file was kept.

    Raises:
        LeftAlone: it is not ``before`` any more, which was shown.
    """
    if _read(path) != before:
        raise LeftAlone("it has changed meanwhile.")
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


# --- other programs


def _register_user(command: Sequence[str], *, sure: bool) -> bool:
    """Let Claude Code itself write its user's settings; return whether the server is in them."""
    line = ["claude", "mcp", "add", "--scope", "user", NAME, "--", *command]
    if shutil.which("claude") is None:
        print(f"Claude Code was not found here. Where it is, type:\n  {shlex.join(line)}")
        return False
    known, said = _ask_program(["claude", "mcp", "get", NAME])
    if known and command[0] in said:
        print("claude mcp: nothing to change.")
        return True
    if known:
        print(f"{_CONTROL.sub('?', said)}\nclaude mcp: registered otherwise, and left as it is. To replace it, type:")
        print(f"  claude mcp remove --scope user {NAME} && {shlex.join(line)}")
        return False
    if not _confirmed(f"Run {shlex.join(line)} ?", sure=sure):
        print("claude mcp: left as it is.")
        return False
    done, said = _ask_program(line)
    print(_CONTROL.sub("?", said))
    return done


def _ask_program(line: Sequence[str]) -> tuple[bool, str]:
    """Run a program of the user's; return whether it succeeded, and what it said."""
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
    """Start the MCP Inspector on this server, or say how."""
    line = ["npx", "-y", _INSPECTOR, *command]
    print(f"MCP Inspector, in a browser:\n  {shlex.join(line)}")
    print("Its --cli gives up after 60 s a call: there, pass timeout_s=50 to wait_run.")
    _, version = _ask_program(["node", "--version"])
    found = re.fullmatch(r"v(\d+)\.(\d+)\..*", version)
    if found is None or (int(found[1]), int(found[2])) < _INSPECTOR_NODE or shutil.which("npx") is None:
        needed = ".".join(map(str, _INSPECTOR_NODE))
        print(f"It needs Node {needed} or newer and npx; here is {version if found else 'no Node'}. Not started.")
        return 1
    if not _confirmed("Start it?", sure=sure):
        return 1
    return subprocess.run(line, check=False).returncode
