"""Finds Python tracebacks in what several processes printed at once. Pure.

Launchers put a prefix before every line of a rank; without one, the lines of ranks are interleaved; a progress bar or a
line of another stream may stand in the middle. So a traceback is followed by its prefix, and by indentation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from mcp_server.text.lines import Line

_HEADER = "Traceback (most recent call last)"
_MAX_LINES = 1_000  # of one traceback, other ranks' lines in between included
_MAX_FOREIGN = 12  # lines in a row that belong to nothing: the traceback was cut off

_TAG = re.compile(
    r"\[(?:rank|default)\d+\]: ?"  # torchrun
    r"|\((?:\w[\w.:<>-]* )?(?:pid|rank)=\d+[^()]{0,80}\) ?|\((?:raylet|autoscaler)[^()]{0,80}\) ?"  # Ray, vLLM
    r"|\[\d{1,4},\d{1,5}\]<std(?:err|out)>: ?"  # mpirun
    r"|[a-z][\w.]{0,40}-\d{1,3} {1,20}\| ?"  # docker compose
    r"|\d{1,4}: (?=\S|  )|[a-z][\w-]{0,40}\d[\w.-]{0,60}: (?=Traceback|  |\S*(?:Error|Exception))"  # srun --label, pdsh
)
_STAMP = re.compile(
    r"\[\d{1,3}(?:;\d{1,3}){0,4}m"  # a colour whose escape was lost
    r"|[IWEFC]\d{3,4} \d\d:\d\d:\d\d\.\d+ +\d+ [^\]]{1,120}\] ?|\[[IWEFC]\d{3,4} [\d:.]+ [^\]]{1,120}\] ?"  # glog, c10d
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z] \d+ \d+\] ?(?:\(\w+\) )?"  # Ray's C++
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]? ?"
    r"|(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[^\]]{1,120}\] ?"  # vLLM
    r"|\[(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\] ?|(?:WARNING|ERROR|CRITICAL):[\w.]{0,80}: ?"
    r"|(?:ERROR|CRITICAL)[ :-]{1,3}(?=Traceback|[\w.]*(?:Error|Exception): )"
    r"|\[[\w.]{1,60}:\d+:\w{1,60}\] ?|[|] (?=\s|\w|Traceback)|[\w.]{1,60} - (?:ERROR|CRITICAL) - "
)
_BAR = re.compile(r"(?:it/s|s/it)[^\][]{0,400}\]")
_WARNED = re.compile(r"^\W{0,4}(?:WARN|INFO|DEBUG|[IW]\d{3,4} )|\b(?:WARNING|WARN)\b")

_FRAME = re.compile(r'(?P<indent>\W*)File "(?P<file>[^"]{0,400})", line \d+(?:, in (?P<where>.{1,200}))?')
_RICH = re.compile(r"\W{0,6}(?P<file>[^\s:│]{1,300}):\d+ in (?P<where>[\w<>.]+)")
_DRAWN = ("│", "╭", "╰", "|", "❱", "└", "├")
_CELL = re.compile(r"-+> \d|File ~|File /|Cell In\[|<ipython|\S{1,300}\.py in \w|\S{1,300}\.py:\d+, in ")
_NAME = re.compile(r"(?P<path>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Za-z_]\w*)(?:\((?P<inner>\w+)\))?(?P<said>:.*)?$")
_ENDS_AS_ONE = (
    "Error", "Exception", "Interrupt", "Exit", "Warning", "Timeout", "Expired", "Failed", "Failure", "Abort", "Fault",
    "NotFound", "Exhausted", "Unsupported", "StopIteration", "GeneratorExit", "OutOfResources", "Traceback",
)  # fmt: skip
_TELLING = re.compile(r"(?:Error|Exception|Interrupt)$|[a-z](?:Timeout|Expired|NotFound|Unsupported|Exhausted)$")
_FIGURE = re.compile(r": *(?:[-+]?[\d.]|nan|inf|None|True|False)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


class Shape(NamedTuple):
    """A line without what launchers and loggers put before it."""

    tag: str  # which rank or process printed it, "" where nobody says
    text: str  # the rest, its indentation kept
    warned: bool  # a logger called it a warning or less


@dataclass(frozen=True)
class Raised:
    """One exception as printed: where its traceback begins, where its line stands, and how it was raised."""

    start: int  # positions in the window, not line numbers
    end: int
    tag: str
    name: str  # the type's last part
    text: str  # the exception's line without prefixes
    frames: tuple[int, ...]
    uncaught: bool  # began in <module>: nobody above caught it
    context: str  # the line above the header
    chained: str  # how it is linked to the exception above: "", "handling" or "cause"
    warned: bool


@lru_cache(maxsize=8_192)
def shape(text: str) -> Shape:
    """Take the prefixes off ``text``."""
    tag, at, stamped = "", 0, 0
    if "it/s" in text or "s/it" in text:  # glued to a bar: the bar is not what is meant
        bar = _BAR.search(text)
        if bar and text[bar.end() :].strip():
            at = bar.end()
    for _ in range(6):
        found = _TAG.match(text, at)
        if found:
            tag += found[0].strip()
        else:
            found = _STAMP.match(text, at)
            stamped += found is not None
        if not found or found.end() == at:
            break
        at = found.end()
    return Shape(tag, text[at:], bool(stamped and _WARNED.search(text[:at])))


def exception_name(text: str, *, after_frames: bool) -> re.Match[str] | None:
    """Return the parts of an exception's line, or None. Outside a traceback only a telling name will do."""
    found = _NAME.match(text.strip()[:600])
    if not found:
        return None
    name, said = found["name"], found["said"]
    if not name.endswith(_ENDS_AS_ONE) and not (after_frames and found["path"]):
        return None
    if said is not None and len(said) > 1 and not said[1:2].isspace():
        return None  # Module::call, a URL
    if not after_frames and (not _TELLING.search(name) or _FIGURE.match(said or "") or name == "Error"):
        return None  # MeanSquaredError: 0.02, Warning: None, Failed: 3
    return found if name[:1].isupper() or found["path"] else None


def is_header(text: str) -> bool:
    """Tell whether a traceback begins here."""
    at = text.find(_HEADER)
    return at >= 0 and not text[at + len(_HEADER) :].strip(" :─━-╮│|")


def is_frame(text: str) -> bool:
    """Tell whether ``text`` names a frame of a traceback."""
    return bool(_FRAME.match(text))


def _is_body(text: str, indent: int | None) -> bool:
    """Tell whether ``text`` belongs to a traceback: a frame, its source line, a drawn border."""
    width = len(text) - len(text.lstrip())
    return width > (indent or 0) or text.lstrip().startswith(_DRAWN) or bool(_CELL.match(text))


def read(lines: Sequence[Line], header: int) -> Raised | None:
    """Return the exception whose traceback has its header at ``header``; None where it was cut off."""
    tag, _, warned = shape(lines[header].text)
    frames: list[int] = []
    indent: int | None = None
    foreign = 0
    where = ""
    for at in range(header + 1, min(header + _MAX_LINES, len(lines))):
        line_tag, text, _ = shape(lines[at].text)
        if line_tag != tag:
            continue
        if frame := _FRAME.match(text) or _RICH.match(text):
            if not frames:
                where = _entry(frame)
                indent = max(frame.end("indent") - 2, 0) if frame.re is _FRAME else 0
            frames.append(at)
            foreign = 0
        elif (found := exception_name(text, after_frames=bool(frames))) and not _is_body(text, indent):
            return Raised(
                header, at, tag, found["name"], text.strip(), tuple(frames), where == "<module>",
                *_above(lines, header, tag), warned,
            )  # fmt: skip
        elif not _is_body(text, indent) and not is_header(text):
            foreign += 1
            if foreign > _MAX_FOREIGN:
                break
    return None


def _entry(frame: re.Match[str]) -> str:
    """Say where the first frame is: `<module>` where the program itself began."""
    where = (frame["where"] or "<module>").strip()
    if where in {"_run_module_as_main", "_run_code"}:
        return "<module>"
    if frame["file"] in {"<stdin>", "<exec>", "<unknown>"}:
        return "fed"  # code that the program itself was given to run
    return where


def _above(lines: Sequence[Line], header: int, tag: str) -> tuple[str, str]:
    """Return the line above ``header`` and how it chains the exception to the one before."""
    for at in range(header - 1, max(header - 6, -1), -1):
        line_tag, text, _ = shape(lines[at].text)
        if line_tag != tag:
            continue
        text = text.strip()
        if text.startswith(_CHAINED):
            return text, "cause" if text.startswith(_CHAINED[1]) else "handling"
        return lines[at].text.strip()[-300:], ""
    return "", ""


def bare(lines: Sequence[Line], at: int) -> Raised | None:
    """Return the exception at ``at`` whose header is not there or is another rank's."""
    tag, text, warned = shape(lines[at].text)
    found = exception_name(text, after_frames=False)
    if not found:
        return None
    indent = len(text) - len(text.lstrip())
    frames, first = _frames_above(lines, at, tag, indent)
    if indent and not frames:
        return None
    return Raised(first, at, tag, found["name"], text.strip(), frames, bool(frames) and first == 0, "", "", warned)


def _frames_above(lines: Sequence[Line], at: int, tag: str, indent: int) -> tuple[tuple[int, ...], int]:
    """Return the frames right above ``at`` and where they begin; the same exception of other ranks is no border."""
    frames: list[int] = []
    first = at
    text = lines[at].text
    for above in range(at - 1, max(at - 200, -1), -1):
        line_tag, body, _ = shape(lines[above].text)
        if line_tag != tag or lines[above].text == text:
            continue
        if _FRAME.match(body):
            frames.append(above)
        elif not body[indent : indent + 1].isspace():
            break
        first = above
    return tuple(reversed(frames)), first if frames else at
