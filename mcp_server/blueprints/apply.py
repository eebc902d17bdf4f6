"""Blueprints on this host: read from a file, checked against what is here, turned into a launch."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from mcp_server.blueprints.answers import BlueprintCheck, BlueprintProblem
from mcp_server.blueprints.command import filled
from mcp_server.blueprints.parser import LONGEST_TEXT, Blueprint, parse
from mcp_server.blueprints.paths import Places, missing, places
from mcp_server.blueprints.sections import Problem
from mcp_server.errors import RunwardError
from mcp_server.hosts.environment import names_a_secret
from mcp_server.hosts.path_checks import Roots, find_foreign_command_path
from mcp_server.record.script import LONGEST_NAME, slug
from mcp_server.record.spec import LaunchRequest
from mcp_server.text.shell import parse as parse_command

_LONGEST_LABEL = 48  # what a person reads in a list of sessions
_LONGEST_KEYWORD = 32
_LONGEST_NOTES = 2_000
_FEWEST_LETTERS = 4  # fewer tell nothing, as in a purpose written in Chinese
_ASSIGNED = re.compile(r"""(?<![\w-])([A-Za-z_]\w*)=["']?([^\s"';&|]{8,})""")
_PYTHON_WORD = r"(?:(?<=^)|(?<=[;&|(]\s)|(?<=[;&|(])|(?<=\n))(\s*(?:[A-Za-z_]\w*=\S*\s+)*){name}(?=\s|$)"


class BlueprintUnreadable(RunwardError):
    """A blueprint's file cannot be read."""

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(f"Blueprint not readable: {path[:200]!r}: {cause}. Nothing was done.")
        self.path, self.cause = path, cause


class BlueprintInvalid(RunwardError):
    """A blueprint cannot be run; ``problems`` says why, line by line."""

    def __init__(self, path: Path, problems: Iterable[Problem]) -> None:
        self.path, self.problems = path, tuple(problems)
        causes = " ".join(f"Line {problem.line}: {problem.text.rstrip('.')}." for problem in self.problems)
        super().__init__(f"{path} cannot be run. {causes} Nothing was started. Mend it, then call check_blueprint.")


def read(path: str, cwd: str | None = None) -> tuple[Path, Blueprint]:
    """Read the blueprint at ``path``; a relative one only with ``cwd``.

    Raises:
        BlueprintUnreadable: there is no regular file of UTF-8 text below 1 MB there; nothing else is opened.
    """
    try:
        file = Path(path).expanduser()
        if not file.is_absolute() and cwd is not None:
            file = Path(cwd).expanduser() / file
        if not file.is_absolute():
            raise BlueprintUnreadable(path, "the path must be absolute")
        file = Path(os.path.normpath(file))
        data = _read_regular(file)
    except (OSError, ValueError, RuntimeError) as error:  # not there, a NUL in it, no such user
        raise BlueprintUnreadable(path, (getattr(error, "strerror", None) or str(error))[:200]) from error
    if len(data) > LONGEST_TEXT:
        raise BlueprintUnreadable(path, f"it is longer than {LONGEST_TEXT:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BlueprintUnreadable(path, "it is no UTF-8 text") from error
    if "\0" in text:
        raise BlueprintUnreadable(path, "it is no text")
    return file, parse(text)


def _read_regular(file: Path) -> bytes:
    """Return the beginning of a regular file, a little more than a blueprint may have.

    Raises:
        OSError: it is none: a FIFO would wait for ever, opening a device may do something.
    """
    if not stat.S_ISREG(file.stat().st_mode):
        raise OSError(0, "it is no regular file")
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as opened:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "it is no regular file")
        return opened.read(LONGEST_TEXT + 1) or b""  # None of what would have made it wait


def check(path: str, cwd: str | None = None, roots: Roots | None = None) -> BlueprintCheck:
    """Read a blueprint and look whether what it names is on this host; starts and changes nothing.

    ``roots``: which paths are other hosts', None where nobody knows.

    Raises:
        BlueprintUnreadable: see ``read``.
    """
    file, blueprint = read(path, cwd)
    found = places(file, blueprint)
    problems = sorted(
        [*blueprint.problems, *_secrets(blueprint), *_elsewhere(found, blueprint, roots)],
        key=lambda problem: problem.line,
    )
    known = bool(blueprint.lines)  # nothing is told of a file that is no blueprint
    return BlueprintCheck(
        ok=not any(problem.fatal for problem in problems),
        purpose=blueprint.purpose if known else "",
        codebase_dir=str(found.codebase_dir),
        venv_exe=str(found.venv_exe) if found.venv_exe else None,
        yaml_path=str(found.yaml_path) if found.yaml_path else None,
        launch_command=_ASSIGNED.sub(_masked, _command(found, blueprint) or "") or None,
        result_dir=str(found.result_dir),
        time_limit_s=blueprint.time_limit_s,
        first_step_timeout_s=blueprint.first_step_timeout_s,
        first_step_pattern=blueprint.first_step_pattern,
        defaults_used=list(blueprint.defaults_used),
        notes=_cut(blueprint.notes) if known else "",
        problems=[BlueprintProblem(line=problem.line, text=problem.text) for problem in problems],
    )


def fill(
    request: LaunchRequest,
    path: Path,
    blueprint: Blueprint,
    keyword: str = "",
    environ: Mapping[str, str] | None = None,
    roots: Roots | None = None,
) -> LaunchRequest:
    """Return ``request`` with what it leaves open taken from the blueprint at ``path``; its own arguments win.

    ``keyword`` leads the name. The blueprint's python comes first in ``PATH``, so that ``python`` means it.

    Raises:
        BlueprintInvalid: it cannot be run as written, or its code, python or configuration is not on this host.
    """
    found = places(path, blueprint)
    instead = {"launch_command": request.command, "max_time": request.time_limit_s}
    fatal = [
        problem
        for problem in (*blueprint.problems, *_secrets(blueprint))
        if problem.fatal and not instead.get(problem.section)
    ]
    given = {"codebase_dir"} if request.cwd else set()
    if request.command:
        given |= {"launch_command"}
    absent = list(_elsewhere(found, blueprint, roots, leave_out=given))
    if fatal or absent:
        raise BlueprintInvalid(path, sorted([*fatal, *absent], key=lambda problem: problem.line))
    time_limit_s = blueprint.time_limit_s if request.time_limit_s is None else request.time_limit_s
    first_step_s = request.first_step_timeout_s
    if first_step_s is None and "first_step_timeout_s" not in blueprint.defaults_used:
        first_step_s = blueprint.first_step_timeout_s  # otherwise this host's default counts
    return replace(
        request,
        command=request.command or _command(found, blueprint) or "",
        cwd=request.cwd or str(found.codebase_dir),
        env={**_environment(found.venv_exe, os.environ if environ is None else environ), **request.env},
        name=request.name or name_of(path, blueprint, keyword),
        tags=list(dict.fromkeys([*request.tags, *([keyword] if keyword else []), f"blueprint:{path.stem}"])),
        time_limit_s=time_limit_s,
        first_step_timeout_s=first_step_s,
        first_step_pattern=request.first_step_pattern or blueprint.first_step_pattern,
    )


def name_of(path: Path, blueprint: Blueprint, keyword: str = "") -> str:
    """Return a run's name: the keyword and the purpose, or the file's name where the purpose has no Latin letters."""
    for label in (blueprint.purpose, path.stem, path.parent.name, "experiment"):
        words = slug(label)
        if sum(letter.isalpha() for letter in words) >= _FEWEST_LETTERS and (label != "blueprint"):
            break
    lead = slug(keyword)[:_LONGEST_KEYWORD].strip("-") if keyword else ""
    room = min(_LONGEST_LABEL, LONGEST_NAME - len(lead) - 1)
    if len(words) > room:
        words = words[: room + 1].rpartition("-")[0] or words[:room]
    if words.lower().startswith(lead.lower()):
        return lead + words[len(lead) :]  # as it is configured: sessions are searched for it
    return f"{lead}-{words}"


def _command(found: Places, blueprint: Blueprint) -> str | None:
    """Return the launch command with its variables filled in."""
    if blueprint.launch_command is None:
        return None
    seconds = f"{blueprint.time_limit_s:.0f}"  # whole ones, as `timeout` takes them
    values = dict.fromkeys(("exp_max_time", "MaxTime", "max_time", "MAX_TIME"), seconds)
    values |= {"exp_codebase_dir": str(found.codebase_dir), "exp_result_dir": str(found.result_dir)}
    values |= {f"exp_{name}": str(path) for name in ("venv_exe", "yaml_path") if (path := getattr(found, name))}
    command = filled(blueprint.launch_command, values)
    exe = found.venv_exe
    for name in ("python", "python3"):
        if exe is not None and exe.exists() and not _same(exe.parent / name, exe):
            word = _PYTHON_WORD.replace("{name}", name)
            command = re.sub(word, lambda match: f"{match[1]}{exe}", command)
    return command


def _same(path: Path, exe: Path) -> bool:
    try:
        return path.samefile(exe)
    except OSError:
        return False


def _environment(exe: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a shell finds ``exe`` first."""
    if exe is None:
        return {}
    found = {"PATH": f"{exe.parent}:{environ.get('PATH', os.defpath)}"}
    if (exe.parent.parent / "pyvenv.cfg").exists():
        found["VIRTUAL_ENV"] = str(exe.parent.parent)
    return found


def _elsewhere(
    found: Places, blueprint: Blueprint, roots: Roots | None, leave_out: Iterable[str] = ()
) -> Iterator[Problem]:
    """Yield what the blueprint names and this host has not, or keeps elsewhere: no problems of the document."""
    yield from missing(found, blueprint, roots, leave_out)
    command = _command(found, blueprint)
    if command and roots is not None and "launch_command" not in leave_out:
        foreign = find_foreign_command_path(parse_command(command), roots)
        if foreign is not None:
            text = f"[exp_launch_command]: {foreign.text}"
            yield Problem(blueprint.lines.get("launch_command", 1), text, fatal=False)


def _secrets(blueprint: Blueprint) -> Iterator[Problem]:
    """Yield secrets whose value stands in the command: it would be kept with the run, and every user sees it."""
    for name, value in _ASSIGNED.findall(blueprint.launch_command or ""):
        if names_a_secret(name) and not value.startswith("$"):
            line = blueprint.lines.get("launch_command", 1)
            text = f"{name} has its value in the command, which is kept: leave it out, name it in secrets."
            yield Problem(line, text, section="launch_command")


def _masked(match: re.Match[str]) -> str:
    """Return an assignment as an answer may hold it."""
    secret = names_a_secret(match[1]) and not match[2].startswith("$")
    return match[0].removesuffix(match[2]) + "…" if secret else match[0]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_NOTES else f"{text[: _LONGEST_NOTES - 1]}…"
