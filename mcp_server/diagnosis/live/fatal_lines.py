"""Which lines of a live run could prove a failure: a cheap test, behind prefixes that are learned meanwhile. Pure.

Lines of launchers and loggers are read from the header of a traceback to its first frame alone: a log without
tracebacks costs one search for the header.
"""

from __future__ import annotations

from mcp_server.diagnosis.failure import statements, tracebacks
from mcp_server.diagnosis.failure.log_shapes import Shape, has_unknown_prefix, learn_shape, mark_prefix, read_json_error
from mcp_server.diagnosis.failure.statements import Weight
from mcp_server.diagnosis.failure.tracebacks import HEADER, is_header
from mcp_server.text.lines import Line, split_lines
from mcp_server.text.regex import compile_lazily

_HEADER = HEADER.encode()
_MAX_HEADERS = 8  # in one piece of output
_BELOW_LINES, _BELOW_BYTES = 60, 8192  # below a header, until its first frame, of interleaved ranks
_MAX_SHAPES = 16
_MAX_FAILURES = 64  # of headers without a frame: the log only speaks of tracebacks
_GROUP = "Exception Group " + HEADER
_GROUP_BORDER = compile_lazily(r"(?:  )+[|] (?=[A-Za-z_])")
# Every line for which may_be_fatal() is true contains one of these literals: callers search whole chunks for them.
FATAL_WORDS: tuple[str, ...] = (
    *("Error", "xception", "KeyboardInterrupt", "rror:", "CANCELLED", "Killed"),
    *("fault", "dumped", "terminate", "atchdog", "emory", "oom"),
)
_LINE_CHARS = 1_000


def may_be_fatal(line: str) -> bool:
    """Return whether a line of a live run could prove a failure, by a cheap test."""
    if not any(word in line for word in FATAL_WORDS):
        return False
    tag, text, is_warning = tracebacks.strip_prefixes(line[:_LINE_CHARS])
    if is_warning:
        return False
    statement = statements.parse_statement(text)
    if statement and statement.weight >= Weight.ABORT:
        return True
    if text[:1].isspace():
        return False
    evidence = tracebacks.match_exception(text, after_frames=bool(tag))
    return bool(evidence and not evidence["name"].endswith(("Warning", "Traceback", "Exit")))


class LivePrefixes:
    """The prefixes that the tracebacks of one attempt have shown so far."""

    def __init__(self) -> None:
        self._shapes: list[Shape] = []
        self._lines: list[Line] = []  # a header, and what followed it without a frame
        self._failures = 0
        self._has_groups = False

    def read_output(self, piece: bytes) -> None:
        """Learn from ``piece``, which consists of whole lines."""
        if self._lines:
            self._read_below(piece[:_BELOW_BYTES])
        at = piece.find(_HEADER)
        for _ in range(_MAX_HEADERS):
            if at < 0 or self._failures >= _MAX_FAILURES or len(self._shapes) >= _MAX_SHAPES:
                return
            start = max(piece.rfind(b"\n", 0, at), piece.rfind(b"\r", 0, at)) + 1
            self._read_header(piece[start : at + _BELOW_BYTES])
            at = piece.find(_HEADER, at + len(_HEADER))

    def may_be_fatal(self, line: str) -> bool:
        """Return whether ``line``, behind any known or learned prefix, or in a field of JSON, could prove a failure."""
        text = mark_prefix(line, self._shapes)
        if self._has_groups:
            text = _GROUP_BORDER.sub("", text, count=1)
        return may_be_fatal(text) or any(map(may_be_fatal, read_json_error(line)))

    def _read_header(self, text: bytes) -> None:
        lines = split_lines(text.decode(errors="replace"))
        header = lines[0] if lines else ""
        self._has_groups = self._has_groups or _GROUP in header
        if not is_header(header) or not has_unknown_prefix(header):
            return
        if any(shape.pattern.match(header) for shape in self._shapes):
            return
        self._failures += bool(self._lines)
        self._lines = [Line(0, line) for line in lines[:_BELOW_LINES]]
        self._learn()

    def _read_below(self, text: bytes) -> None:
        left = _BELOW_LINES - len(self._lines)
        self._lines += [Line(0, line) for line in split_lines(text.decode(errors="replace"))[:left]]
        self._learn()

    def _learn(self) -> None:
        shape = learn_shape(self._lines, 0, [0])
        if shape:
            self._shapes.append(shape)
        if shape or len(self._lines) >= _BELOW_LINES:
            self._failures += not shape
            self._lines = []
