"""Finds the user's own code in a traceback: what is not of Python or of a package. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcp_server.diagnosis.failure import tracebacks
from mcp_server.text.lines import Line

_OTHERS_CODE = re.compile(
    r"[/\\](?:site-packages|dist-packages|lib[/\\]python[\d.]+|conda[/\\]lib|envs[/\\][^/\\]+[/\\]s?bin)[/\\]"
    r"|\"<(?!stdin)|[/\\](?:pydevd?|debugpy|_pydev\w*)\b|\.(?:pyx|pxi)\b|[/\\]usr(?:[/\\]local)?[/\\]bin[/\\]"
    r"|[/\\]bin[/\\](?:torchrun|accelerate|vllm|deepspeed|ray)\b"
    r"|torch[/\\](?:nn|utils|distributed|autograd|_\w+)[/\\]|[/\\]importlib[/\\]"
)
_LAUNCHERS = re.compile(
    r"[/\\]s?bin[/\\]|runpy|\"<(?!stdin)|[/\\](?:launcher|importlib|multiprocessing|threading|_utils)\b"
    r"|distributed[/\\]run"
)
_PACKAGE = re.compile(r"[/\\](?:site-packages|dist-packages)[/\\](\w+)")
_ROOT_PARTS = 3  # of /app/train.py, whose directory says nothing
_FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<where>[\w<>.]{1,60}))?')
_DRAWN_FRAME = re.compile(r"(?P<file>[^\s:│\"]{1,300}):(?P<line>\d+) in (?P<where>[\w<>.]{1,60})")


def find_own_frames(lines: Sequence[Line], frames: Sequence[int]) -> list[int]:
    """Return those of ``frames`` that are of the user's own code. All where none is."""
    return [at for at in frames if not _OTHERS_CODE.search(lines[at].text)] or list(frames)


def name_place(lines: Sequence[Line], frames: Sequence[int]) -> str:
    """Return the deepest frame of the user's own code as `src/train.py:88 in main`, or the call into a package.

    Nothing where no frame is known.
    """
    own = [at for at in frames if not _OTHERS_CODE.search(lines[at].text)]
    entry = [at for at in frames if not _LAUNCHERS.search(lines[at].text)]
    at = own[-1] if own else next(iter(entry), None)
    text = "" if at is None else tracebacks.strip_prefixes(lines[at].text).text
    match = _FRAME.search(text) or _DRAWN_FRAME.search(text)
    if match is None:
        return ""
    parts = re.split(r"[/\\]", match["file"])
    file = "/".join(parts[-2:]) if len(parts) > _ROOT_PARTS else parts[-1]
    where = match["where"] or ""
    has_name = where and not where.startswith("<")
    return f"{file}:{match['line']}" + (f" in {where}" if has_name else "")


def read_source(lines: Sequence[Line], frames: Sequence[int]) -> str:
    """Return the line of code that the last frame shows, or nothing."""
    if not frames or frames[-1] + 1 >= len(lines):
        return ""
    text = tracebacks.strip_prefixes(lines[frames[-1] + 1].text).text
    return text.strip() if text[:1].isspace() and not tracebacks.is_frame(text) else ""


def name_library(lines: Sequence[Line], frames: Sequence[int]) -> str:
    """Return the package in whose code the last frame is, or nothing where it is the user's own."""
    text = lines[frames[-1]].text if frames else ""
    match = _PACKAGE.search(text)
    return match[1] if match and _OTHERS_CODE.search(text) else ""
