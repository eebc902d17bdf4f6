"""Brings logs of unknown launchers and loggers into the shape that tracebacks.py reads. Pure.

The text before ``Traceback (most recent call last)`` shows what is put before a line. Lines that begin in its shape,
with other numbers and times, get a mark of their source instead. A traceback in a string of JSON becomes lines.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mcp_server.diagnosis.failure.tracebacks import HEADER, SOURCE_END, SOURCE_START, SOURCE_WARNS, strip_prefixes
from mcp_server.text.lines import LINE_CHARS, Line
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/failure/patterns", "log_shapes")

_MAX_HEADERS = 100  # the last ones are examined
_MAX_SHAPES = 16
_MAX_IN_STRING = 10  # each is read to its end: a line of nothing but headers took 17 ms
_PREFIX_CHARS = 160
_NEAR_LINES = 200  # below a header, of interleaved ranks
_KNOWN = compile_lazily(r"\W*(?:(?:Exception Group|Original) )?" + re.escape(HEADER))
_TIME = compile_lazily(r"\d+(?:[:.,/T-]\d+)+Z?|\d{6,}")
_LEVELS = r"(?:TRACE|DEBUG|INFO|SUCCESS|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_PART = compile_lazily(
    rf"(?P<time>{_TIME.pattern})|(?P<level>\b{_LEVELS}\b)|(?P<number>\d+)|(?P<space> +)|(?P<text>[^\d ]+|.)"
)
_GROUP = "+ Exception Group " + HEADER
_GROUP_LINES = 12  # without a border: of other ranks
_BORDER = r"(?P<end>) *(?:\| ?|\+ (?=Exception Group)|(?P<rule>\+[-+]{2}))"
_LINES_PER_SOURCE = 2  # a number of which every value comes with fewer lines is a counter
_ESCAPED = compile_lazily(re.escape(HEADER) + r":?(?:\\n|#012)")
_STRING = compile_lazily(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'')
_ESCAPE = compile_lazily(r"\\(?:u[0-9a-fA-F]{4}|.)")
_ESCAPES = {"\\n": "\n", "\\r": "\n", "\\t": "    ", "\\b": "", "\\f": ""}
_NAMES_ERROR = ("error", "exception", "exc_info", "exc", "err", "message", "msg", "event", "exc_value")


class Shape(NamedTuple):
    """The shape of a prefix, its words, and the groups whose numbers name a source."""

    pattern: re.Pattern[str]
    name: str
    source_groups: tuple[int, ...]


def normalize_lines(lines: Sequence[Line]) -> Sequence[Line]:
    """Return ``lines`` with tracebacks as a Python process prints them, behind at most a mark of their source."""
    expanded = [
        part for line in lines for part in [Line(line.number, text) for text in read_json_error(line.text)] or [line]
    ]
    return _flatten_groups(_mark_unknown_prefixes(expanded))


def read_json_error(text: str) -> list[str]:
    """Return the lines of the traceback that ``text`` holds as a string, or of an exception, empty if there is none."""
    if '": "' not in text and '":"' not in text and not _ESCAPED.search(text):
        return []
    if _ESCAPED.search(text):
        strings = [match[1] or match[2] or "" for match in _STRING.finditer(text)]
        held = next((string for string in strings if _ESCAPED.search(string)), None)
        if held is None:  # no quotes around it, or the line was cut
            held = text[text.index(HEADER) :].strip("\"'}")
        unescaped = _unescape(held.replace("#012", "\\n"))
        parts = [part[:LINE_CHARS] for part in unescaped.split("\n") if part.strip()]
        headers = [at for at, part in enumerate(parts) if HEADER in part]
        return parts[headers[-_MAX_IN_STRING] :] if len(headers) > _MAX_IN_STRING else parts
    if not _RX.severe.search(text):
        return []
    try:
        fields = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        return []
    values = [fields.get(name) for name in _NAMES_ERROR] if isinstance(fields, dict) else []
    held = next((value for value in values if isinstance(value, str) and _RX.exception.match(value)), "")
    return [part for part in held.split("\n") if part.strip()]


def _unescape(string: str) -> str:
    def replace_escape(match: re.Match[str]) -> str:
        escape = match[0]
        if escape[1] == "u" and len(escape) > len(r"\u"):
            return chr(int(escape[len(r"\u") :], base=16))
        return _ESCAPES.get(escape, escape[1:])

    return _ESCAPE.sub(replace_escape, string)


def _mark_unknown_prefixes(lines: Sequence[Line]) -> Sequence[Line]:
    """Replace prefixes that the headers of tracebacks show, and that are not known otherwise, by marks."""
    headers = [at for at, line in enumerate(lines) if HEADER in line.text][-_MAX_HEADERS:]
    unknown = [at for at in headers if has_unknown_prefix(lines[at].text)]
    shapes: list[Shape] = []
    for at in reversed(unknown):
        if len(shapes) >= _MAX_SHAPES:
            break
        if any(shape.pattern.match(lines[at].text) for shape in shapes):
            continue
        if shape := learn_shape(lines, at, headers):
            shapes.append(shape)
    return [Line(line.number, mark_prefix(line.text, shapes)) for line in lines] if shapes else lines


def has_unknown_prefix(header: str) -> bool:
    """Return whether the text before the header of a traceback is a prefix that tracebacks.py does not know."""
    return not _KNOWN.match(strip_prefixes(header).text)


def learn_shape(lines: Sequence[Line], header: int, headers: Sequence[int]) -> Shape | None:
    """Return the shape of the prefix of a header, if lines below have it too."""
    prefix = lines[header].text.partition(HEADER)[0]
    if len(prefix) > _PREFIX_CHARS:
        return None
    prefix = prefix.removesuffix("Exception Group ")
    parts = list(_PART.finditer(prefix))
    of_logger = any(part["time"] or part["level"] for part in parts)
    pattern = re.compile("".join(_generalize(parts)))
    near = [lines[at].text for at in range(header + 1, min(header + _NEAR_LINES, len(lines)))]
    matches = [match for text in near if (match := pattern.match(text))]
    if not any(_RX.frame.match(match.string, match.end()) for match in matches):
        return None  # the header alone has it
    own_headers = sum(
        bool(pattern.match(lines[at].text)) for at in headers[bisect_right(headers, header) - 1 :] if at < header + 200
    )
    first = pattern.match(lines[header].text)
    values = [match.groups() for match in ([first] if first else []) + matches]
    groups = range(1, pattern.groups + 1)
    sources = [
        group for group in groups if _names_source([int(row[group - 1]) for row in values], own_headers, of_logger)
    ]
    return Shape(pattern, "" if of_logger else prefix.strip(), tuple(sources))


def _generalize(parts: Sequence[re.Match[str]]) -> Iterator[str]:
    """Yield the parts of a pattern for prefixes of these parts. Plain numbers are its groups."""
    for part in parts:
        if part["time"]:
            yield r"[\d:.,/TZ-]+"
        elif part["level"]:
            yield r"[A-Z]+"
        elif part["number"]:
            yield r"(\d+)"
        elif part["space"]:
            yield " ?" if part is parts[-1] else " +"
        else:
            yield re.escape(part[0])


def _names_source(numbers: Sequence[int], headers: int, of_logger: bool) -> bool:
    """Return whether the numbers at a position name ranks or processes, rather than count lines or seconds."""
    distinct = len(set(numbers))
    if distinct == 1:
        return not of_logger  # a line of the code, or the only process
    counts_up = all(a <= b for a, b in zip(numbers, numbers[1:]))
    return distinct * _LINES_PER_SOURCE <= len(numbers) and not (counts_up and distinct > headers)


def mark_prefix(text: str, shapes: Sequence[Shape]) -> str:
    """Return ``text`` with a mark in place of a prefix of one of these shapes."""
    for shape in shapes:
        if match := shape.pattern.match(text):
            numbers = ",".join(match[group] for group in shape.source_groups)
            warns = _RX.warns.search(match[0])
            tag = (shape.name + numbers) + (SOURCE_WARNS if warns else "")
            return f"{SOURCE_START}{tag}{SOURCE_END}{text[match.end() :]}"
    return text


def _flatten_groups(lines: Sequence[Line]) -> Sequence[Line]:
    """Return ``lines`` without the borders that Python draws around the exceptions of a group."""
    flat: list[Line] = []
    border, left = re.compile(_BORDER), 0
    for line in lines:
        if _GROUP in line.text:
            prefix = line.text.partition(_GROUP)[0].rstrip()
            border, left = re.compile("".join(_generalize(list(_PART.finditer(prefix)))) + _BORDER), _GROUP_LINES
        if left and (match := border.match(line.text)):
            left = _GROUP_LINES
            rest = line.text[match.end() :]
            flat += [Line(line.number, line.text[: match.end("end")] + rest)] if rest and not match["rule"] else []
        else:
            left = max(left - 1, 0)
            flat.append(line)
    return flat
