"""Proofs in lines: statements of shells, schedulers and native libraries, messages and types of exceptions. Pure.

`failures.rows` holds the patterns, and blocks of `advice/` those of failures that have an advice of their own. They are
read at the first line that looks like an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from enum import IntEnum
from functools import cache, lru_cache
from itertools import chain
from typing import NamedTuple

from mcp_server.diagnosis.advice import FILES
from mcp_server.diagnosis.failure.kinds import SIGNALS
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import fill_parts, read_blocks, read_patterns, read_words

_RX = read_patterns("diagnosis/failure/patterns", "statements")

TEXT_CHARS = 600  # of a line are searched; a hostile line of this length costs 2 ms


class Weight(IntEnum):
    """How much a line proves. The heaviest evidence left after order and rank is quoted."""

    HINT = 0  # mentions an error; proves nothing while the exit status is unknown
    ECHO = 1  # reports a failure elsewhere: launchers, parent processes, closed pipes
    ABORT = 2  # the process gave up; its reason, if any, is on another line
    STOPPED = 3  # by a signal, a scheduler or a person
    PEER = 4  # other ranks were lost
    CRASH = 5  # native code crashed, or SIGKILL
    OWN = 6  # the cause itself


class Statement(NamedTuple):
    """Weight and kind of one line."""

    weight: Weight
    kind: str


_BY_SIGNAL, _BY_TEXT = "by signal", "by text"  # in place of a kind
_SIGNALS = {
    **dict.fromkeys((1, 2, 3), (Weight.STOPPED, "killed")),
    **dict.fromkeys((4, 7, 8, 11), (Weight.CRASH, "segfault")),
    6: (Weight.ABORT, "segfault"),
    9: (Weight.CRASH, "killed"),
    15: (Weight.ECHO, "killed"),  # usually a launcher that stops the healthy ranks
}
_SIGNAL_BASE = 128  # a shell's exit code for a child killed by a signal is this plus the signal
_SOURCE = ("raise ", "return ", "assert ", "print(", "logger.", "logging.")  # a traceback shows it
_NAMES = read_words("diagnosis/failure/words")
_TRUSTED_FOR_OWN_WORDS = frozenset({"config_error", "import_error", "auth_error"})
_REFUSED_LOAD = "Weights only load failed"  # the file is whole; torch.load is not allowed to read its classes
_TEXTS = ("text", "errno", "cuda", "rocm", "cann", "tpu", "mps", "intel", "aws", "gaudi")

PARTS = {"ran_out": _RX.ran_out.pattern, "device": _RX.device.pattern}


class _Table(NamedTuple):
    messages: list[tuple[str, re.Pattern[str]]]  # a kind, and a pattern of all its neighbours in the file
    sure_types: dict[str, str]
    classes: list[tuple[str, re.Pattern[str]]]
    statements: list[tuple[str, Weight, str, re.Pattern[str]]]
    faults: list[tuple[str, re.Pattern[str]]]  # of accelerators


@cache
def read_table() -> _Table:
    """Return the patterns of `failures.rows`, in their order."""
    table = _Table([], {}, [], [], [])
    texts: list[tuple[str, list[str]]] = []  # neighbours of one kind in the file are one pattern
    for block in read_blocks("diagnosis/failure/failures"):
        fields = dict(block)
        kind = fields["kind"]
        if patterns := [fill_parts(value, PARTS) for key, value in block if key in _TEXTS]:
            if "errno" in fields:
                patterns = [_name_errors(fields["errno"].split())]
            if not texts or texts[-1][0] != kind:
                texts.append((kind, []))
            texts[-1][1].extend(patterns)
            if "fault" in fields:
                table.faults.append((fields["fault"], compile_lazily("|".join(patterns))))
        elif "line" in fields:
            word, weight = fields["has"].replace("[ ]", " "), Weight[fields["proof"].upper()]
            table.statements.append((word, weight, kind, compile_lazily(fields["line"])))
        else:
            table.sure_types.update(dict.fromkeys(fields.get("sure", "").split(), kind))
            if "class" in fields:
                table.classes.append((kind, compile_lazily(fields["class"])))
    for block in chain.from_iterable(read_blocks(f"diagnosis/advice/{name}") for name in FILES):
        if block[0][0] == "kind":  # its advice is for the only failure with this message
            dict(texts)[block[0][1]].append(dict(block)["line"])
    table.messages.extend((kind, compile_lazily("|".join(patterns))) for kind, patterns in texts)
    return table


@cache
def list_words() -> tuple[str, ...]:
    """Return literals of which every line that states a failure contains one."""
    return tuple(dict.fromkeys(word for word, *_ in read_table().statements))


def match_error_kind(text: str) -> str | None:
    """Return the kind of failure that the message ``text`` proves, or None."""
    return _match_error_kind(text[:TEXT_CHARS])


@lru_cache(maxsize=2_048)
def _match_error_kind(text: str) -> str | None:
    return next((kind for kind, pattern in read_table().messages if pattern.search(text)), None)


def _name_errors(numbers: Sequence[str]) -> str:
    """Return the pattern of errors of the system: as Python, Rust and C print the number, or its words alone."""
    number = f"(?:{'|'.join(numbers)})"
    words = "|".join(re.escape(os.strerror(int(one))) for one in numbers if not one.startswith("-"))
    printed = rf"\[Errno {number}\]|\(os error {number}\)|\bcode: {number}, kind: |\berrno\b\W{{1,3}}{number}\b"
    return rf"{printed}|: (?i:{words})[.)]?$"


def name_fault(text: str) -> str:
    """Return the family of an accelerator's failure, such as `hardware`, or nothing."""
    return next((fault for fault, pattern in read_table().faults if pattern.search(text[:TEXT_CHARS])), "")


def is_sure_type(name: str) -> bool:
    """Return whether the exception ``name`` is of one kind whatever its message."""
    return name in read_table().sure_types


def exception_kind(name: str, text: str) -> str:
    """Return the kind of an exception, from the last part of its type and its whole line."""
    if _REFUSED_LOAD in text:
        return "python_error"
    if sure := read_table().sure_types.get(name):
        return sure
    kind = match_error_kind(text)
    if name in _NAMES["quoting"] and kind not in _TRUSTED_FOR_OWN_WORDS:
        return "python_error"
    if (
        name in _NAMES["path"]
        and kind not in {"disk_full", "network_error"}
        and not _RX.object_store_denied.search(text)
    ):
        return "data_error"
    return kind or next((kind for kind, words in read_table().classes if words.search(name)), "python_error")


def parse_statement(text: str) -> Statement | None:
    """Return the statement of ``text``, a line without prefixes, or None for ordinary output."""
    text = text[:TEXT_CHARS].lstrip()
    return None if text.startswith(_SOURCE) else _parse_statement(text)


@lru_cache(maxsize=4_096)
def _parse_statement(text: str) -> Statement | None:
    for word, weight, kind, pattern in read_table().statements:
        match = pattern.match(text) if word in text else None
        if match:
            if kind == _BY_SIGNAL:
                return _from_signal(match)
            return _from_text(text, weight) if kind == _BY_TEXT else Statement(weight, kind)
    return None


def _from_signal(match: re.Match[str]) -> Statement:
    signal = next(filter(None, match.groups()), "")
    number = SIGNALS.index(signal) if signal in SIGNALS else int(signal if signal.isdecimal() else 0)
    return Statement(*_SIGNALS.get(number % _SIGNAL_BASE, (Weight.ECHO, "other")))


def _from_text(text: str, weight: Weight) -> Statement:
    kind = match_error_kind(text)
    if kind is None:
        return Statement(weight, "segfault" if weight == Weight.ABORT else "other")
    return Statement(Weight.PEER if kind == "nccl_error" else Weight.OWN, kind)
