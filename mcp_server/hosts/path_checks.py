"""Whether the paths of a launch are this host's, and are there: wrong ones are refused with the line to use."""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.hosts.command_inputs import FAR, Input, inputs, of_params, program_of, simple_commands
from mcp_server.hosts.config import Environment, Host, Site, foreign_roots
from mcp_server.record.launch_request import Request

_LONGEST_LINE = 4000
_LONGEST_CONFIG = 1_000_000
_NEAR, _MOST_NEAR = 0.6, 3
_TYPO = 0.8
_MOST_NAMES = 5_000


def check_paths(request: Request, site: Site, host: Host, environment: Environment, *, strict: bool = True) -> None:
    """Refuse a launch that names another host's root, or a python, config or checkpoint that is not there.

    ``strict``: nor a script or another program that is not there. Only what is certain is refused: what a shell
    expands, what the command may make itself, and outputs are let pass.

    Raises:
        BadArgument: names the word, and the line to use instead where one is known.
    """
    check_foreign(request, Roots.of(site, host))
    if environment.python and is_missing(Path(environment.python)):
        raise BadArgument("environment", f"its python does not exist: {environment.python}.{near(environment.python)}")
    cwd = Path(request.cwd or Path.cwd()).expanduser()
    for argument, found in (
        *(("command", each) for each in inputs(request.command)),
        *(("params", each) for each in of_params(request.params, request.command)),
    ):
        if (strict or not _fails_at_once(found)) and (missing := _missing(found, cwd)) is not None:
            raise BadArgument(argument, missing + _elsewhere(found, Roots(foreign_roots(site, host), (), host.name)))


def check_foreign(request: Request, roots: Roots) -> None:
    """Refuse a launch that names another host's root, whatever else is wrong with it.

    Raises:
        BadArgument: names the path, and the line to use instead where one is known.
    """
    for argument, cause in foreign(request, roots):
        raise BadArgument(argument, cause)


def _fails_at_once(found: Input) -> bool:
    """Whether it is a script or a program other than python: a command without it ends, and says so, in a moment."""
    return found.what == "script" or (found.what == "program" and "python" not in Path(found.path).name)


@dataclass(frozen=True)
class Roots:
    """Which prefixes of paths are other hosts'. ``foreign``: what each is here, None where nobody said."""

    foreign: Mapping[str, str | None]
    own: tuple[str, ...]
    here: str

    @classmethod
    def of(cls, site: Site, host: Host) -> Roots:
        """Return those that are not ``host``'s; a root that nobody rewrites is let pass where it exists here."""
        told = foreign_roots(site, host)
        kept = {root: here for root, here in told.items() if root in host.rewrites or not Path(root).exists()}
        return cls(kept, tuple(host.roots), host.name)

    def rewritten(self, text: str) -> tuple[str, str, bool] | None:
        """Return the first path of another host in ``text``, ``text`` as it is here, and whether that is known."""
        first, known = "", True

        def fix(match: re.Match[str]) -> str:
            nonlocal first, known
            root, whole = match["root"], match["root"] + match["rest"]
            if any(len(own) > len(root) and f"{whole}/".startswith(f"{own}/") for own in self.own):
                return match[0]
            if match["host"]:
                return match[0]
            here = self.foreign[root]
            first, known = first or whole, known and here is not None
            return f"{here or root}{match['rest']}"

        if not self.foreign:
            return None
        fixed = self._pattern().sub(fix, text)
        return (first, fixed, known) if first else None

    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.foreign, key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first))
        # Neither the path of another machine (HOST:/path) nor the end of a longer one.
        return re.compile(
            rf"(?P<host>(?<![\w@.:/-])[\w@.-]+:)?(?<![\w.\-/~}}])(?P<root>{names})(?P<rest>(?:/[^\s\"':;,&|<>()]*)?)(?![\w.\-])"
        )


def foreign_line(config: Path, roots: Roots) -> tuple[str, str] | None:
    """Return what is wrong with the first line of ``config`` that names another host's path, and what to write."""
    status = config.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LONGEST_CONFIG:
        return None
    for number, line in enumerate(config.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.lstrip().startswith("#") and (found := roots.rewritten(line)) is not None:
            text = f"{config}, line {number}: {found[0]} is a path of another host, and this is {roots.here}."
            return text, f"Write `{found[1].strip()[:200]}`." if found[2] else "Write what it is here."
    return None


def foreign(request: Request, roots: Roots) -> Iterator[tuple[str, str]]:
    """Yield every argument with another host's path in it, what is wrong, and what to write instead."""
    if not roots.foreign:
        return
    command = request.command
    if isinstance(command, str):
        simple = simple_commands(command)
        near_by = (each for each in simple if program_of(each) not in FAR)
        meant = " ; ".join(" ".join((*each.words, *each.redirected)) for each in near_by)
        if not simple and FAR.isdisjoint(re.findall(r"[\w-]+", command)):
            meant = command
        if roots.rewritten(meant) and (found := roots.rewritten(command)):
            yield _told("command", roots, found, found[1])
    elif command and command[0].rpartition("/")[2] not in FAR:
        told = [(word, roots.rewritten(word)) for word in command]
        if first := next((found for _, found in told if found), None):
            fixed = json.dumps([found[1] if found else word for word, found in told], ensure_ascii=False)
            yield _told("command", roots, (first[0], fixed, all(found[2] for _, found in told if found)), fixed)
    values: list[tuple[str, str, Any]] = [("cwd", "", request.cwd), ("tensorboard", "", request.tensorboard)]
    values += [("env", f"{name}=", value) for name, value in request.env.items()]
    values += [("params", f"{name}=", value) for name, value in request.params.items()]
    values += [("resume_args", "", word) for word in request.resume_args]
    for argument, name, value in values:
        if isinstance(value, str) and (found := roots.rewritten(value)):
            yield _told(argument, roots, found, f"{name}{found[1]}")


def _told(argument: str, roots: Roots, found: tuple[str, str, bool], fixed: str) -> tuple[str, str]:
    word, _, known = found
    text = f"{word} is a path of another host, and this is {roots.here}."
    if not known:
        return argument, f"{text} hosts.toml does not say what it is here."
    return argument, f"{text} Use `{fixed}`." if len(fixed) <= _LONGEST_LINE else text


def _missing(found: Input, cwd: Path) -> str | None:
    """Return what is wrong with an input that is certainly not there; None where it is, or could be."""
    base = cwd
    for step in found.base:
        base /= Path(step).expanduser()
    path = base / Path(found.path).expanduser()
    if not is_missing(path) or not base.is_dir():
        return None
    is_certain = found.what in ("program", "script") or Path(found.path).expanduser().is_absolute()
    if not is_certain and not _is_misspelt(Path(found.path), base):
        return None
    where = "" if Path(found.path).is_absolute() else f" in {base}"
    return f"there is no {found.what} {found.path}{where}.{near(path)}"


def _elsewhere(found: Input, roots: Roots) -> str:
    """Return, as a sentence, where a missing file of another host is here, if it is."""
    other = roots.rewritten(found.path)
    return f" Here it is {other[1]}." if other and Path(other[1]).exists() else ""


def is_missing(path: Path) -> bool:
    """Whether nothing has this name; a place that this user may not look into could hold it."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def _is_misspelt(path: Path, base: Path) -> bool:
    """Whether a relative path can only mean a file that is not there: programs look for configs in places of their own.

    Its directory is there and nothing below ``base`` ends like it, or a name that is nearly the same is there.
    """
    directory = base / path.parent
    if path.parent != Path() and directory.is_dir():
        return not _ends_like(path, base)
    while not directory.is_dir():
        close = difflib.get_close_matches(directory.name, _names(directory.parent), 1, _TYPO)
        if not close:
            return False
        directory = directory.with_name(close[0])
    names = _names(directory)
    return path.name in names or (
        bool(difflib.get_close_matches(path.name, names, 1, _TYPO)) and not _ends_like(path, base)
    )


def _ends_like(path: Path, base: Path) -> bool:
    """Whether some directory below ``base`` has ``path`` in it, so that a program could find it there."""
    left = _MOST_NAMES
    for directory, below, files in os.walk(base):
        left -= len(files) + len(below)
        below[:] = [
            name for name in below if not name.startswith(".") and name not in ("node_modules", "site-packages")
        ]
        if left < 0 or (Path(directory) / path).exists():
            return True  # or so large that it cannot be said
    return False


def near(path: str | Path) -> str:
    """Return, as a sentence, the names in a missing path's directory that it could mean."""
    path = Path(path)
    missing, directory = path.name, path.parent
    while not directory.is_dir():
        missing, directory = directory.name, directory.parent
    if directory != path.parent:
        if (directory / missing).exists():
            return f" {directory / missing} is no directory."
        alike = difflib.get_close_matches(missing, _names(directory), _MOST_NEAR, _NEAR)
        return f" {directory} has no {missing}" + (f", but {' and '.join(alike)}." if alike else ".")
    names = _names(directory)
    alike = difflib.get_close_matches(missing, names, _MOST_NEAR, _NEAR)
    if not alike and path.suffix:
        alike = [name for name in names if Path(name).suffix == path.suffix][:_MOST_NEAR]
    return f" Near: {', '.join(str(directory / name) for name in alike)}." if alike else ""


def _names(directory: Path) -> list[str]:
    names: list[str] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) >= _MOST_NAMES:
                break
    return sorted(names)
