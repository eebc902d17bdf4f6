"""A run's log as the page shows it: a part by its place in the file, with its colours, or the lines that match."""

import re
from pathlib import Path
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.hosts.environment import list_known_secrets
from mcp_server.page.exchange import Raw
from mcp_server.record.state import Run
from mcp_server.system.files import open_regular
from mcp_server.text.formatting import shorten_line
from mcp_server.text.invisible import TERMINAL_ESCAPES, escape_unsendable
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.tools.support.context import ServerContext
from mcp_server.views.log_excerpt import count_lines_before, find_line_start, find_lines

_TAIL_BYTES, _MOST_BYTES = 128 << 10, 256 << 10
_BEFORE_LINES = 100  # of the line that is asked for
_MOST_MATCHES, _MATCH_CHARS = 500, 400
_COLOUR = re.compile(rb"(\x1b\[[0-9;:]{0,64}m)")
_BEGUN_ESCAPE = re.compile(rb"\x1b[^a-zA-Z\x07\\]{0,64}\Z")


def read_log_part(
    server: ServerContext, run: Run, attempt: int | None, *, after: int | None = None, line: int | None = None
) -> dict[str, Any]:
    """Return text from byte ``after``, or around ``line``; else the end. BadArgument: there is no such attempt."""
    number, path = _find(server, run, attempt)
    size = path.stat().st_size if path.is_file() else 0
    start = max(0, size - _TAIL_BYTES)
    if after is not None:
        start = min(after, size)
    elif line is not None:
        start = find_line_start(path, max(1, line - _BEFORE_LINES))
    data = b""
    if size:
        with open_regular(path) as file:
            file.seek(start)
            data = file.read(_MOST_BYTES if after is not None else _TAIL_BYTES)
    if start and after is None and line is None:  # in the midst of a line
        begun = data.find(b"\n") + 1
        start, data = start + begun, data[begun:]
    data = _leave_out_begun(data)
    answer: dict[str, Any] = {"attempt": number, "attempts": run.attempt, "size": size}
    answer |= {"start": start, "end": start + len(data)}
    if after is None:
        before = count_lines_before(path, start)
        answer["first_line"] = None if before is None else before + 1
    text = clean_output(data, server)
    return {**answer, "text": Raw(text), "note": server.store.explain_old_log(run, number) or None}


def find_in_log(server: ServerContext, run: Run, attempt: int | None, pattern: str) -> dict[str, Any]:
    """Return the first lines in which a pattern is found. PatternError: it is none."""
    number, path = _find(server, run, attempt)
    found, has_more = find_lines(path, pattern, _MOST_MATCHES)
    known = list_known_secrets(server.environ, server.home.secrets)
    text = mask_secrets("\n".join(shorten_line(line.text, _MATCH_CHARS).replace("\n", " ") for line in found), known)
    lines = text.split("\n") if found else []
    matches = [{"line": line.number, "text": each} for line, each in zip(found, lines, strict=False)]
    return {"attempt": number, "matches": matches, "more": has_more}


def clean_output(data: bytes, server: ServerContext) -> str:
    """Return output with its colours, without other sequences of a terminal and without secrets."""
    parts = [
        part if number % 2 else TERMINAL_ESCAPES.sub(b"", part) if b"\x1b" in part else part
        for number, part in enumerate(_COLOUR.split(data))
    ]
    text = mask_secrets(
        b"".join(parts).decode(errors="replace"), list_known_secrets(server.environ, server.home.secrets)
    )
    pieces = re.split(r"(\x1b\[[0-9;:]{0,64}m)", text.replace("\a", ""))
    return "".join(piece if number % 2 else escape_unsendable(piece) for number, piece in enumerate(pieces))


def _find(server: ServerContext, run: Run, attempt: int | None) -> tuple[int, Path]:
    number = attempt or run.attempt
    if not 1 <= number <= run.attempt:
        raise BadArgument("attempt", f"{run.run_id} has {run.attempt}.")
    return number, server.store.fetch_log(run, number)


def _leave_out_begun(data: bytes) -> bytes:
    """Return ``data`` without the beginning of a character or a sequence at its end: the next part has it whole."""
    if (begun := _BEGUN_ESCAPE.search(data)) is not None and begun.start():
        return data[: begun.start()]
    for back in range(1, min(4, len(data))):
        if data[-back] >= 0xC0:  # noqa: PLR2004 - the first byte of a character
            whole = 2 + (data[-back] >= 0xE0) + (data[-back] >= 0xF0)  # noqa: PLR2004
            return data[:-back] if back < whole else data
        if data[-back] < 0x80:  # noqa: PLR2004 - a character of one byte
            break
    return data
