"""Directories in which runs that lived at one time wrote over each other's files, as far as it was seen. Pure.

Event files of two runs in one directory are one curve to TensorBoard. A table to which both append, a database and a
lock are shared on purpose, and so are caches and what lies outside the directories of the runs.
"""

from collections.abc import Iterator, Sequence

from mcp_server.record.scalar_files import DATABASES, parse_event_name
from mcp_server.store.attribution.claims import Claims, is_within
from mcp_server.text.formatting import join_some

_ON_PURPOSE = (*DATABASES, ".lock", ".pid")
_FEW = 2


def describe_shared(claims: Sequence[Claims]) -> dict[str, str]:
    """Return a sentence for each directory in which several runs write the same files, with their ids and a file."""
    writers: dict[str, list[Claims]] = {}
    for one in sorted(claims, key=lambda one: one.run_id):
        for place in _list_places(one):
            writers.setdefault(place, []).append(one)
    shared: dict[str, dict[str, str]] = {}
    for place, runs in sorted(writers.items()):
        directory, _, name = place.rpartition("/")
        for one in runs:
            if any(_lived_together(one, other) for other in runs):
                shared.setdefault(directory, {}).setdefault(one.run_id, name or "event files")
    return {
        directory: f"{_join(list(names))} write the same files in {directory} "
        f"({next(iter(names.values()))}): what is there may be of any of them. Give each a directory of its own, with "
        "{run_id}."
        for directory, names in shared.items()
    }


def _join(ids: Sequence[str]) -> str:
    return " and ".join(ids) if len(ids) <= _FEW else join_some(ids, _FEW)


def _list_places(claims: Claims) -> Iterator[str]:
    """Yield the files that a run had open for writing; event files as their directory, with a slash at its end."""
    places = dict.fromkeys(
        f"{path.rpartition('/')[0]}/" if parse_event_name(path.rpartition("/")[2]) else path
        for path, file in claims.written.items()
        if not (file.listed or file.append or path.endswith(_ON_PURPOSE))
    )
    for place in places:
        is_own = any(is_within(place, one) for one in (claims.cwd, *claims.named))
        if is_own and not any(part.startswith((".", "__")) or "cache" in part.lower() for part in place.split("/")):
            yield place


def _lived_together(one: Claims, other: Claims) -> bool:
    return one is not other and one.begun_s < other.ended_s and other.begun_s < one.ended_s
