"""Which files that runward did not write an agent may read: those below directories that runs or the operator name.

A caller with a token may read less: what is below ``read_roots`` of config.toml or directories of its own runs. What it
learns of any other path is the same, whether something is there or not.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import open_regular_file

_MOST_LISTED = 6


def check_readable(argument: str, word: str, home: StateHome, own: Sequence[str], cwd: Path) -> None:
    """Refuse a path that a caller with a token may not read. ``own``: the directories of its runs, absolute.

    ``word`` is relative to ``cwd``.

    Raises:
        BadArgument: it is not below a directory that may be read. Does not say what is there.
    """
    roots = _Roots(home, own)
    refusal = BadArgument(
        argument,
        f"{word[:200]!r} is not below a directory that this token may read: {roots.describe() or 'none'}.",
        _remedy(home),
    )
    try:
        path = Path(os.path.normpath(cwd / Path(word).expanduser()))
        # By its name first: a look at another path would take its time, or fail, by what is there.
        if roots.name(path) and roots.hold(path, path.resolve()):
            return
    except (OSError, RuntimeError, ValueError) as error:
        raise refusal from error
    raise refusal


@contextmanager
def open_readable(
    word: str, home: StateHome, own: Sequence[str], cwd: Path, *, has_token: bool = False
) -> Iterator[Path]:
    """Yield a path that leads to the file ``word`` while it is open, whatever happens to its name meanwhile.

    It must be below ``cwd``, one of the directories ``own`` of runs, or ``read_roots`` of config.toml, after symbolic
    links are resolved. Hidden files and directories, and those of the state directory, only where ``read_roots`` names
    them. ``has_token``: the caller has one, and ``cwd`` gives it nothing.

    Raises:
        BadArgument: it may not be read, or is not a regular file.
    """
    if has_token:
        check_readable("path", word, home, own, cwd)
    roots = _Roots(home, own if has_token else [str(cwd), *own])
    try:
        named = cwd / Path(word).expanduser()
        path = named.resolve()
        if not roots.hold(named, path):
            raise BadArgument(
                "path", f"{path} is not below a directory that may be read: {roots.describe()}.", _remedy(home)
            )
        fd = open_regular_file(path, follow_links=False)
    except (OSError, RuntimeError, ValueError) as error:  # missing, too long, a loop of links, no such user, a NUL
        why = getattr(error, "strerror", None) or str(error)
        raise BadArgument("path", f"{word[:200]!r} cannot be read: {why}.", "Name a regular file.") from error
    try:
        held = Path(f"/proc/self/fd/{fd}")
        if held.exists() and not roots.hold(named, held.resolve()):
            raise BadArgument("path", f"{word[:200]!r} has changed its place meanwhile.", _remedy(home))
        yield held if held.exists() else path
    finally:
        os.close(fd)


class _Roots:
    """The directories below which files may be read: ``read_roots``, and ``own``.

    A directory of a run may not answer. It is looked at only where the path is named below it, or below none.
    """

    def __init__(self, home: StateHome, own: Iterable[str]) -> None:
        self._home = home
        self._configured = [Path(each).expanduser() for each in home.read_config().read_roots]
        self._implied = [Path(os.path.normpath(place)) for place in dict.fromkeys(own)]

    def name(self, path: Path) -> bool:
        """Return whether ``path`` is below one of them by its name alone."""
        named = [*self._configured, *(root for root in self._implied if root != Path(root.anchor))]
        return any(path.is_relative_to(root) for root in named) or any(
            path.is_relative_to(root) for root in (*_resolve(self._configured), *_resolve_implied(self._implied))
        )

    def hold(self, named: Path, path: Path) -> bool:
        """Return whether ``path``, to which the name ``named`` leads, may be read."""

        def is_near(root: Path) -> bool:
            return named.is_relative_to(root) or path.is_relative_to(root)

        near = list(filter(is_near, self._configured)), list(filter(is_near, self._implied))
        return any(
            _is_readable(path, _resolve(configured), _resolve_implied(implied), self._home)
            for configured, implied in (near, (self._configured, self._implied))
        )

    def describe(self) -> str:
        """Return their names, at most six."""
        words = [str(root) for root in (*self._configured, *self._implied) if root != Path(root.anchor)]
        more = len(words) - _MOST_LISTED
        return ", ".join([*words[:_MOST_LISTED], *([f"{more} more"] if more > 0 else [])])


def _resolve(roots: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(root.resolve() for root in roots))


def _resolve_implied(roots: Iterable[Path]) -> list[Path]:
    return [root for root in _resolve(roots) if root != Path(root.anchor)]


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
