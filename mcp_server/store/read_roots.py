"""Which files that runward did not write an agent may read: those below directories that runs or the operator name.

A caller with a token may read less: what is below ``read_roots`` of config.toml or directories of its own runs. What it
learns of any other path is the same, whether something is there or not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.record.state import Run
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import open_regular_file

_MOST_LISTED = 6


def check_readable(argument: str, word: str, home: StateHome, runs: Iterable[Run], cwd: Path) -> None:
    """Refuse a path that a caller with a token may not read. Its runs are ``runs``. ``word`` is relative to ``cwd``.

    Raises:
        BadArgument: it is not below a directory that may be read. Does not say what is there.
    """
    runs = list(runs)
    configured_roots, implied_roots = (
        _list_configured_roots(home),
        _list_implied_roots(runs, *(home.runs / run.run_id for run in runs)),
    )
    refusal = BadArgument(
        argument,
        f"{word[:200]!r} is not below a directory that this token may read: "
        f"{_list([*configured_roots, *implied_roots]) or 'none'}.",
        _remedy(home),
    )
    try:
        path = Path(os.path.normpath(cwd / Path(word).expanduser()))
        # By its name first: a look at another path would take its time, or fail, by what is there.
        named = [Path(each).expanduser() for each in home.read_config().read_roots]
        if any(path.is_relative_to(root) for root in (*named, *configured_roots, *implied_roots)) and _is_readable(
            path.resolve(), configured_roots, implied_roots, home
        ):
            return
    except (OSError, RuntimeError, ValueError) as error:
        raise refusal from error
    raise refusal


@contextmanager
def open_readable(
    word: str, home: StateHome, runs: Iterable[Run], cwd: Path, *, has_token: bool = False
) -> Iterator[Path]:
    """Yield a path that leads to the file ``word`` while it is open, whatever happens to its name meanwhile.

    It must be below ``cwd``, a directory of one of ``runs``, or ``read_roots`` of config.toml, after symbolic links are
    resolved. Hidden files and directories, and those of the state directory, only where ``read_roots`` names them.
    ``has_token``: the caller has one, ``runs`` are its own, and ``cwd`` gives it nothing.

    Raises:
        BadArgument: it may not be read, or is not a regular file.
    """
    runs = list(runs)
    if has_token:
        check_readable("path", word, home, runs, cwd)
    more = [home.runs / run.run_id for run in runs] if has_token else [cwd, home.runs]
    configured_roots, implied_roots = _list_configured_roots(home), _list_implied_roots(runs, *more)
    try:
        path = (cwd / Path(word).expanduser()).resolve()
        if not _is_readable(path, configured_roots, implied_roots, home):
            raise BadArgument(
                "path",
                f"{path} is not below a directory that may be read: {_list([*configured_roots, *implied_roots])}.",
                _remedy(home),
            )
        fd = open_regular_file(path, follow_links=False)
    except (OSError, RuntimeError, ValueError) as error:  # missing, too long, a loop of links, no such user, a NUL
        why = getattr(error, "strerror", None) or str(error)
        raise BadArgument("path", f"{word[:200]!r} cannot be read: {why}.", "Name a regular file.") from error
    try:
        held = Path(f"/proc/self/fd/{fd}")
        if held.exists() and not _is_readable(held.resolve(), configured_roots, implied_roots, home):
            raise BadArgument("path", f"{word[:200]!r} has changed its place meanwhile.", _remedy(home))
        yield held if held.exists() else path
    finally:
        os.close(fd)


def _list_configured_roots(home: StateHome) -> list[Path]:
    return [Path(each).expanduser().resolve() for each in home.read_config().read_roots]


def _list_implied_roots(runs: Iterable[Run], *more: Path) -> list[Path]:
    places = [*map(str, more)]
    for run in runs:
        places += filter(None, (run.spec.cwd, run.spec.result_dir, run.spec.tensorboard))
    roots = (Path(place).resolve() for place in dict.fromkeys(places) if place)
    return [root for root in dict.fromkeys(roots) if root != Path(root.anchor)]


def _is_readable(path: Path, configured_roots: list[Path], implied_roots: list[Path], home: StateHome) -> bool:
    if any(path.is_relative_to(root) for root in configured_roots):
        return True
    state = home.path.resolve()
    if path.is_relative_to(records := home.runs.resolve()):
        return any(path.is_relative_to(root) for root in implied_roots if root.is_relative_to(records))
    if path.is_relative_to(state):
        return False
    return any(
        path.is_relative_to(root) and not any(part.startswith(".") for part in path.relative_to(root).parts)
        for root in implied_roots
    )


def _remedy(home: StateHome) -> str:
    return f"A person can add its directory to read_roots in {home.path / 'config.toml'}."


def _list(roots: list[Path]) -> str:
    words = [str(root) for root in roots[:_MOST_LISTED]]
    more = len(roots) - _MOST_LISTED
    return ", ".join([*words, *([f"{more} more"] if more > 0 else [])])
