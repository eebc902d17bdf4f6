"""Finds the earlier line of a machine, network, launcher or simulator that explains a later, general failure. Pure.

Ranks that wait for each other, a scheduler's time limit, and a policy that became NaN say what followed, not why. What
a host key, an InfiniBand port, a physics buffer or a cluster without GPUs said before is the cause, whatever came last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mcp_server.diagnosis.failure import tracebacks
from mcp_server.diagnosis.failure.evidence import FailureEvidence
from mcp_server.diagnosis.failure.ordinary_work import count_steps
from mcp_server.diagnosis.failure.statements import Weight
from mcp_server.text.lines import Line
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("diagnosis/failure/patterns", "aftermath")


_REACH_LINES = 3_000  # above a failure are searched
_VERDICT_LINES = 10  # that a scheduler prints about one end
_TEXT_CHARS = 500  # of a line
_MOST_STEPS = 10  # between a cause and its aftermath: after more, the run had survived it
_MOST_STEPS_OF_SIMULATION = 120  # a simulation goes on with wrong contacts until a value overflows


class _Cause(NamedTuple):
    group: str
    kind: str
    word: str  # a literal that the line contains
    pattern: re.Pattern[str]


class _Aftermath(NamedTuple):
    kinds: frozenset[str]
    pattern: re.Pattern[str]
    groups: tuple[str, ...]  # of the causes that explain it


def _read_table() -> tuple[list[_Cause], list[_Aftermath]]:
    causes: list[_Cause] = []
    aftermaths: list[_Aftermath] = []
    for fields in map(dict, read_blocks("diagnosis/failure/aftermath")):
        pattern = compile_lazily(fields.get("line", ""))
        if "cause" in fields:
            causes.append(_Cause(fields["cause"], fields["kind"], fields["has"].replace("[ ]", " "), pattern))
        else:
            kinds, groups = fields["after"].split(), fields["from"].split()
            aftermaths.append(_Aftermath(frozenset(kinds), pattern, tuple(groups)))
    return causes, aftermaths


_CAUSES, _AFTERMATH = _read_table()  # of a module that is imported at a failure


def find_cause_outside(lines: Sequence[Line], evidence: FailureEvidence) -> FailureEvidence | None:
    """Return the earlier line that explains ``evidence``, or None where it is itself a cause, or none is near."""
    text = evidence.text.strip()[:_TEXT_CHARS]
    groups = [
        group for one in _AFTERMATH if evidence.kind in one.kinds and one.pattern.match(text) for group in one.groups
    ]
    if "node" in groups and (lost := _find_lost_node(lines, evidence)):
        return lost
    stated = next((cause for cause in _CAUSES if cause.group in groups and _states(cause, text)), None)
    if stated is not None:
        return replace(evidence, kind=stated.kind)
    top = max(evidence.start - _REACH_LINES, 0)
    texts = [line.text[:_TEXT_CHARS] for line in lines[top : evidence.start]]
    for cause in sorted((one for one in _CAUSES if one.group in groups), key=lambda one: groups.index(one.group)):
        at = next((at for at in range(len(texts) - 1, -1, -1) if _states(cause, texts[at])), None)
        if at is None:
            continue
        at += top
        if cause.group == "resources" and (
            count_steps(lines, top, evidence.start, 1) or any(map(_RX.runs.search, texts))
        ):
            continue  # part of it ran: what waited was not what took the time
        most = _MOST_STEPS_OF_SIMULATION if cause.group == "simulator" else _MOST_STEPS
        if count_steps(lines, at + 1, evidence.start, most) < most:
            tag, said, _ = tracebacks.strip_prefixes(lines[at].text)
            return FailureEvidence(at, at, at, max(evidence.weight, Weight.PEER), cause.kind, said.strip(), tag)
    return None


def _find_lost_node(lines: Sequence[Line], evidence: FailureEvidence) -> FailureEvidence | None:
    """Return the line in which a scheduler names a lost node: some lines before the verdict, or after the errors."""
    for cause in (one for one in _CAUSES if one.group == "node"):
        top = max(evidence.start - _VERDICT_LINES, 0)
        for at in range(top, min(evidence.start + _REACH_LINES, len(lines))):
            if _states(cause, lines[at].text[:_TEXT_CHARS]):
                tag, said, _ = tracebacks.strip_prefixes(lines[at].text)
                return FailureEvidence(at, at, at, max(evidence.weight, Weight.PEER), cause.kind, said.strip(), tag)
    return None


def _states(cause: _Cause, text: str) -> bool:
    return cause.word in text and bool(cause.pattern.match(text))
