"""Finds the user's own code in a traceback: what is not of Python or of a package. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcp_server.diagnosis.failure import tracebacks
from mcp_server.text.lines import Line
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/failure/patterns", "user_code")

_ROOT_PARTS = 3  # of /app/train.py, whose directory says nothing


def find_own_frames(lines: Sequence[Line], frames: Sequence[int]) -> list[int]:
    """Return those of ``frames`` that are of the user's own code. All where none is."""
    return [at for at in frames if not _RX.others_code.search(lines[at].text)] or list(frames)


def name_place(lines: Sequence[Line], frames: Sequence[int]) -> str:
    """Return the user's deepest frame as `src/train.py:88 in main`, or nothing; a line that only launches is none."""
    own = _find_places(lines, frames)
    if own and own[-1] != frames[-1] and _RX.launch.match(read_source(lines, [own[-1]])):
        return ""
    text = tracebacks.strip_prefixes(lines[own[-1]].text).text if own else ""
    match = _RX.frame.search(text) or _RX.drawn_frame.search(text)
    if match is None:
        return ""
    parts = re.split(r"[/\\]", match["file"])
    file = "/".join(parts[-2:]) if len(parts) > _ROOT_PARTS else parts[-1]
    where = match["where"] or ""
    has_name = where and not where.startswith("<")
    return f"{file}:{match['line']}" + (f" in {where}" if has_name else "")


def _find_places(lines: Sequence[Line], frames: Sequence[int]) -> list[int]:
    """Return those of ``frames`` where a user may correct something: of no package, and of no framework's checkout."""
    own = [
        at for at in frames if not _RX.others_code.search(lines[at].text) and not _RX.launchers.search(lines[at].text)
    ]
    imported = _find_imported(lines, own)
    others = (_RX.checkout, _RX.own_program, _RX.editable)
    return [at for at in own if at not in imported and not any(one.search(lines[at].text) for one in others)]


def _find_imported(lines: Sequence[Line], frames: Sequence[int]) -> set[int]:
    """Return those of ``frames`` that are of a package imported from elsewhere than the program's own directory."""
    for n, at in enumerate(frames[:-1]):
        if (name := _RX.imports.match(read_source(lines, [at]))) is None:
            continue
        importer, imported = _read_file(lines[at].text), _read_file(lines[frames[n + 1]].text)
        package = re.search(rf"^(.*[/\\]){re.escape(name[1])}[/\\]__init__\.py$", imported)
        if package is None or f"/{name[1]}" in importer or importer.startswith(package[1]):
            continue
        own_root = importer.rpartition("/")[0].rpartition("/")[0]
        if not own_root or not package[1].startswith(f"{own_root}/"):
            return set(frames[n + 1 :])
    return set()


def _read_file(text: str) -> str:
    match = _RX.frame.search(text) or _RX.drawn_frame.search(text)
    return match["file"] if match else ""


def name_started_library(lines: Sequence[Line], frames: Sequence[int]) -> str:
    """Return the package that raised the error where the user's code does no more than start it, else nothing."""
    own = _find_places(lines, frames)
    is_started = not own or bool(_RX.entry.match(read_source(lines, [own[-1]])))
    return name_library(lines, frames) if is_started else ""


def is_of_records(lines: Sequence[Line], frames: Sequence[int]) -> bool:
    """Return whether the error was raised in code of the user that gives records of the data."""
    own = _find_places(lines, frames)
    return bool(own) and bool(_RX.of_records.search(lines[own[-1]].text))


def read_source(lines: Sequence[Line], frames: Sequence[int]) -> str:
    """Return the line of code that the last frame shows, or nothing."""
    if not frames or frames[-1] + 1 >= len(lines):
        return ""
    text = tracebacks.strip_prefixes(lines[frames[-1] + 1].text).text
    return text.strip() if text[:1].isspace() and not tracebacks.is_frame(text) else ""


def name_library(lines: Sequence[Line], frames: Sequence[int]) -> str:
    """Return the package in whose code the last frame is, or nothing where it is the user's own."""
    text = lines[frames[-1]].text if frames else ""
    if checkout := _RX.checkout.search(text):
        return next(filter(None, checkout.groups()), "")
    match = _RX.package.search(text)
    return match[1] if match and _RX.others_code.search(text) else ""
