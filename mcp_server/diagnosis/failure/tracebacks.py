"""Reads Python tracebacks in the mixed output of several processes. Pure.

Launchers prefix every line of a rank. Without prefixes, lines of ranks are interleaved, and a progress bar or a line of
another stream may interrupt a traceback. Tracebacks are therefore followed by prefix and indentation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from mcp_server.text.lines import Line
from mcp_server.text.rows import read_patterns, read_words

_RX = read_patterns("diagnosis/failure/patterns", "tracebacks")

HEADER = "Traceback (most recent call last)"
# log_shapes.py puts the source of a line between these characters, in place of a prefix that no pattern below knows.
SOURCE_START, SOURCE_WARNS, SOURCE_END = "\x02", "\x03", "\x04"
_MAX_LINES = 1_000  # of one traceback, including the lines of other ranks in between
_ROOT_PARTS = 3  # of /app/train.py, whose directory says nothing
_MAX_OTHER_LINES = 12  # consecutive unrelated lines: the traceback was cut off

_DRAWN = ("│", "╭", "╰", "|", "❱", "└", "├")
_ENDINGS = read_words("diagnosis/failure/words")["ending"]
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


class StrippedLine(NamedTuple):
    """A line without the prefixes of launchers and loggers."""

    tag: str  # the rank or process that printed it, "" if unknown
    text: str  # the rest, with its indentation
    is_warning: bool  # logged as a warning or below


@dataclass(frozen=True)
class RaisedException:
    """One printed exception: the position of its traceback, its line, and how it was raised."""

    start: int  # positions in the list of lines, not line numbers
    end: int
    tag: str
    name: str  # the type's last part
    text: str  # the exception's line without prefixes
    frames: tuple[int, ...]
    uncaught: bool  # the first frame is <module>: nothing could catch it
    context: str  # the line above the header
    chained: str  # its link to the exception above: "", "handling" or "cause"
    is_warning: bool


@lru_cache(maxsize=8_192)
def strip_prefixes(text: str) -> StrippedLine:
    """Return ``text`` without its prefixes."""
    tag, at, stamped = "", 0, 0
    if text.startswith(SOURCE_START):
        source, _, rest = text[1:].partition(SOURCE_END)
        inner = strip_prefixes(rest)
        return StrippedLine(source.rstrip(SOURCE_WARNS) + inner.tag, inner.text, source.endswith(SOURCE_WARNS))
    if "it/s" in text or "s/it" in text:  # the text continues a progress bar's line
        bar = _RX.bar.search(text)
        if bar and text[bar.end() :].strip():
            at = bar.end()
    for _ in range(6):
        match = _RX.source_prefix.match(text, at)
        if match:
            tag += match[0].strip()
        else:
            match = _RX.stamp.match(text, at)
            stamped += match is not None
        if not match or match.end() == at:
            break
        at = match.end()
    return StrippedLine(tag, text[at:], bool(stamped and _RX.warning_level.search(text[:at])))


def without_mark(text: str) -> str:
    """Return ``text`` without the mark that log_shapes.py puts in place of an unknown prefix."""
    return text.partition(SOURCE_END)[2] if text.startswith(SOURCE_START) else text


def match_exception(text: str, *, after_frames: bool) -> re.Match[str] | None:
    """Return the match of an exception's line, or None. Outside a traceback only unmistakable names match."""
    match = _RX.exception.match(text.strip()[:600])
    if not match:
        return None
    name, message = match["name"], match["message"]
    if not name.endswith(_ENDINGS) and not (after_frames and match["path"]):
        return None
    if message is not None and len(message) > 1 and not message[1:2].isspace():
        return None  # Module::call, a URL
    if not after_frames and (not _RX.error_name.search(name) or _RX.value.match(message or "") or name == "Error"):
        return None  # MeanSquaredError: 0.02, Warning: None, Failed: 3
    return match if name[:1].isupper() or match["path"] else None


def is_header(text: str) -> bool:
    """Return whether ``text`` is the header of a traceback."""
    at = text.find(HEADER)
    return at >= 0 and not text[at + len(HEADER) :].strip(" :─━-╮│|")


def is_frame(text: str) -> bool:
    """Return whether ``text`` names a frame of a traceback."""
    return bool(_RX.frame.match(text))


def _is_body(text: str, indent: int | None) -> bool:
    """Return whether ``text`` belongs to a traceback: a frame, its source line, a drawn border."""
    width = len(text) - len(text.lstrip())
    return width > (indent or 0) or text.lstrip().startswith(_DRAWN) or bool(_RX.cell.match(text))


def is_echoed_code(lines: Sequence[Line], at: int) -> bool:
    """Return whether a line is code that Python printed: below its frame, beside its number, or after a warning."""
    tag, text, _ = strip_prefixes(lines[at].text)
    if _RX.drawn_code.match(text):
        return True
    indent = len(text) - len(text.lstrip())
    if not indent:
        return False
    for above in range(at - 1, max(at - _MAX_OTHER_LINES - 1, -1), -1):
        line_tag, body, _ = strip_prefixes(lines[above].text)
        if line_tag != tag:
            continue
        if frame := _RX.frame.match(body):
            return frame.end("indent") < indent
        if len(body) - len(body.lstrip()) < indent or not body.strip():
            return bool(_RX.warned.match(body))
    return False


def read_traceback(lines: Sequence[Line], header: int) -> RaisedException | None:
    """Return the exception whose traceback header is at ``header``, or None if the traceback was cut off."""
    tag, _, is_warning = strip_prefixes(lines[header].text)
    frames: list[int] = []
    indent: int | None = None
    other_lines = 0
    where = ""
    follows_body = False
    found: tuple[int, str, str] | None = None  # at first a class of the program, such as OutOfBudget
    for at in range(header + 1, min(header + _MAX_LINES, len(lines))):
        line_tag, text, _ = strip_prefixes(lines[at].text)
        if line_tag != tag:
            continue
        if frame := _RX.frame.match(text) or _RX.drawn_frame.match(text):
            if not frames:
                where = _entry_point(frame)
                indent = max(frame.end("indent") - 2, 0) if frame.re is _RX.frame else 0
            frames.append(at)
            other_lines, follows_body = 0, True
        elif (match := match_exception(text, after_frames=bool(frames))) and not _is_body(text, indent):
            found = at, match["name"], text.strip()
            break
        elif not _is_body(text, indent) and not is_header(text):
            unusual = _RX.unusual.fullmatch(text[indent or 0 :]) if follows_body and not found else None
            if unusual and not _RX.value.match(unusual["message"]):
                found = at, unusual["name"], text.strip()
            follows_body = False
            other_lines += 1
            if other_lines > _MAX_OTHER_LINES:
                break
        else:
            follows_body = bool(frames)
    if found is None:
        return None
    context, chained = _context_above(lines, header, tag)
    end, name, line = found
    return RaisedException(
        header, end, tag, name, line, tuple(frames), where == "<module>", context, chained, is_warning
    )


def _entry_point(frame: re.Match[str]) -> str:
    """Return the function of the first frame: `<module>` for the start of the program."""
    where = (frame["where"] or "<module>").strip()
    if where in {"_run_module_as_main", "_run_code"}:
        return "<module>"
    if frame["file"] in {"<stdin>", "<exec>", "<unknown>"}:
        return "<code>"  # code that the program runs from a string
    return where


def _context_above(lines: Sequence[Line], header: int, tag: str) -> tuple[str, str]:
    for at in range(header - 1, max(header - 6, -1), -1):
        line_tag, text, _ = strip_prefixes(lines[at].text)
        text = text.strip()
        if line_tag != tag or not text:
            continue
        if text.startswith(_CHAINED):
            return text, "cause" if text.startswith(_CHAINED[1]) else "handling"
        return without_mark(lines[at].text).strip()[-300:], ""
    return "", ""


def read_bare_exception(lines: Sequence[Line], at: int) -> RaisedException | None:
    """Return the exception at ``at``, whose header is missing or belongs to another rank."""
    tag, text, is_warning = strip_prefixes(lines[at].text)
    match = match_exception(text, after_frames=is_thrown(lines, at))
    if not match:
        return None
    indent = len(text) - len(text.lstrip())
    frames, first = _frames_above(lines, at, tag, indent)
    if indent and not frames:
        return None
    return RaisedException(
        first, at, tag, match["name"], text.strip(), frames, bool(frames) and first == 0, "", "", is_warning
    )


def is_thrown(lines: Sequence[Line], at: int) -> bool:
    """Return whether a frame stands below a line, as Java, JavaScript and .NET print an exception."""
    return at + 1 < len(lines) and bool(_RX.thrown.match(strip_prefixes(lines[at + 1].text).text))


def _frames_above(lines: Sequence[Line], at: int, tag: str, indent: int) -> tuple[tuple[int, ...], int]:
    """Return the frames above ``at`` and their first position. The same exception of other ranks is skipped."""
    frames: list[int] = []
    first = at
    text = lines[at].text
    for above in range(at - 1, max(at - 200, -1), -1):
        line_tag, body, _ = strip_prefixes(lines[above].text)
        if line_tag != tag or lines[above].text == text:
            continue
        if _RX.frame.match(body):
            frames.append(above)
        elif not body[indent : indent + 1].isspace():
            break
        first = above
    return tuple(reversed(frames)), first if frames else at


# --- the user's own code in a traceback: what is not of Python or of a package


def find_own_frames(lines: Sequence[Line], frames: Sequence[int]) -> list[int]:
    """Return those of ``frames`` that are of the user's own code. All where none is."""
    return [at for at in frames if not _RX.others_code.search(lines[at].text)] or list(frames)


def name_place(lines: Sequence[Line], frames: Sequence[int]) -> str:
    """Return the user's deepest frame as `src/train.py:88 in main`, or nothing; a line that only launches is none."""
    own = _find_places(lines, frames)
    if own and own[-1] != frames[-1] and _RX.launch.match(read_source(lines, [own[-1]])):
        return ""
    text = strip_prefixes(lines[own[-1]].text).text if own else ""
    match = _RX.place.search(text) or _RX.drawn_place.search(text)
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
    others = (_RX.checkout, _RX.own_program, _RX.editable)
    return [at for at in own if not any(one.search(lines[at].text) for one in others)]


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
    text = strip_prefixes(lines[frames[-1] + 1].text).text
    return text.strip() if text[:1].isspace() and not is_frame(text) else ""


def name_library(lines: Sequence[Line], frames: Sequence[int]) -> str:
    """Return the package in whose code the last frame is, or nothing where it is the user's own."""
    text = lines[frames[-1]].text if frames else ""
    if checkout := _RX.checkout.search(text):
        return next(filter(None, checkout.groups()), "")
    match = _RX.package.search(text)
    return match[1] if match and _RX.others_code.search(text) else ""
