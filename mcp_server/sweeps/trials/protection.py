"""Which paths of a sweep no trial may touch: those that a proposal names, and whether all of them are there."""

import os
from collections.abc import Sequence
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.record.code.kept_sources import run_git
from mcp_server.record.code.protected_files import (
    MODULE,
    find_matches,
    find_shadows,
    list_files,
    list_imported,
    list_tracked,
)
from mcp_server.text.formatting import join_some
from mcp_server.text.near_names import find_near_names


def violations(
    files: Sequence[str], protect: Sequence[str], *, repository: Path | None = None, base: str = ""
) -> list[str]:
    """Return those of ``files``, changed by a proposal, that it may not touch.

    They are protected, or replace a directory above what is; or are new modules that Python would import in the place
    of a protected or an installed one; or say how git writes files. Installed are those of Python, and those that
    protected code of ``base``, or code at its top, imports and has no file of.
    """
    found = find_matches(files, protect)
    found += [name for name in files if any(os.path.normpath(path).startswith(f"{name}/") for path in protect)]
    found += [name for name in files if protect and name.rpartition("/")[2] == ".gitattributes"]
    if any(map(MODULE.fullmatch, files)):
        names = list_tracked(repository, base) if repository and base else []
        new = set(files) - set(names)
        imported = list_imported(repository, base, names, protect) if repository and new else ()
        found += find_shadows(new, names, protect, imported)
    return [name for name in files if name in found]


def check_protect(repository: Path, base: str, protect: Sequence[str]) -> list[str]:
    """Return ``protect`` with paths below ``repository`` relative to it. BadArgument: it would protect nothing.

    Refused too: a protected file that differs from ``base``, whose trials would be measured by another.
    """
    names = list_tracked(repository, base)
    kept = []
    for pattern in protect:
        path = os.path.normpath(Path(pattern).expanduser())
        inside = os.path.relpath(path, repository) if Path(path).is_absolute() else path
        is_outside = inside.split("/")[0] == ".."
        if not (find_matches(names, [inside]) or any(list_files(repository, [path if is_outside else inside]))):
            there = {*names, *(f"{Path(name).parent}/" for name in names if "/" in name)}
            near = find_near_names(pattern, there) or sorted(each.name for each in repository.iterdir())
            hint = f"Near it: {join_some(list(near), 3)}."
            raise BadArgument("protect", f"{pattern!r} matches nothing in {repository}.", hint)
        kept.append((pattern if pattern.startswith("~") else path) if is_outside else inside)
    words = ("diff", "--name-only", "--relative", "-z", "--no-renames", "--no-ext-diff", base, "--", ".")
    changed = os.fsdecode(run_git(str(repository), *words)).split("\0")
    if dirty := find_matches(filter(None, changed), kept):
        cause = f"{join_some(dirty, 3)} differs from {base[:7]} in {repository}, and trials are measured by the latter."
        raise BadArgument("protect", cause, "Commit it, or leave it out.")
    return kept
