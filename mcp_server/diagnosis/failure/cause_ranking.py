"""Chooses the one line that names the cause of a failure. Pure.

Preferred are: the rank that failed first over ranks affected by it, a cause over its echo, the words of the process
itself over those of the kernel, a scheduler or Ray, and specific messages over general ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from mcp_server.diagnosis.failure import tracebacks
from mcp_server.diagnosis.failure.evidence import FailureEvidence
from mcp_server.diagnosis.failure.kinds import HARD, VAGUE
from mcp_server.diagnosis.failure.ordinary_work import count_work
from mcp_server.diagnosis.failure.statements import Weight, exception_kind, match_error_kind
from mcp_server.text.lines import Line
from mcp_server.text.regex import compile_once
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("diagnosis/failure/patterns", "cause_ranking")

_FIRST_CHARS = 300  # of a line are searched
_AT_ONCE_LINES = 6  # an error at most this far before a stop caused the stop
_EPILOGUE_LINES = 250
_NEAR_LINES = 1_000  # searched for launchers of several processes
_DETAIL_LINES = 60  # searched for the specific line of a general message

# Kinds that a later, vaguer exception of the same chain does not replace.
_HARD = HARD | {"divergence", "killed"}
_CALL_LINES, _REPORT_LINES = 4, 2
_BY_TEXT = "by text"  # the explaining line decides the kind
_GENERAL = [dict(block) for block in read_blocks("diagnosis/failure/general")]


def choose_cause(lines: Sequence[Line], candidates: Sequence[FailureEvidence]) -> FailureEvidence:
    """Return the evidence to quote. ``candidates`` is not empty, and no work follows it."""
    candidates = _latest_launch(_join_chains(candidates))
    multi_process = _is_multi_process(lines, candidates)
    stops = [one for one in candidates if one.weight == Weight.STOPPED]
    causes: Sequence[FailureEvidence] = [one for one in candidates if one.weight == Weight.OWN]
    if stops and causes:
        before = [one for one in causes if one.sure and one.at < stops[0].at]
        causes = before if multi_process or (before and stops[0].at - before[-1].at <= _AT_ONCE_LINES) else []
    causes = [one for one in causes if one.sure] or causes
    causes = [one for one in causes if not _RX.mixed.match(one.text)] or causes
    if causes:
        return _pick_cause(lines, causes, multi_process=multi_process)
    return _pick_heaviest(candidates)


def _pick_cause(lines: Sequence[Line], causes: Sequence[FailureEvidence], *, multi_process: bool) -> FailureEvidence:
    """Return the first cause of ranks that failed together, or the last of processes that ran one after another."""
    if not multi_process:
        child = next((one for one in causes if one.child), None)
        chosen = child or _find_beginning(lines, causes)
        if chosen.kind in {"cuda_error", "oom_host", *VAGUE}:
            chosen = next((one for one in causes if _RX.physx_memory.match(one.text)), chosen)
        return _find_first_report(causes, chosen)
    if causes[0].kind in VAGUE and not causes[0].tag:
        causes = [one for one in causes if one.child] or causes  # the actor's error caused the driver's
    rank = next((m[1] for line in reversed(lines[-400:]) if (m := _RX.root_rank.search(line.text[:200]))), None)
    alike = [one for one in causes if one.kind == causes[0].kind]
    # The rank that failed first according to the launcher; of ranks with the same failure, rank 0.
    for named in (f"rank{rank}]", "rank0]", " GPU 0 "):
        matches = [one for one in alike if named in one.tag or named in one.text]
        if matches:
            return _prefer_what(matches[0], matches)
    return _prefer_what(causes[0], causes)


def _find_beginning(lines: Sequence[Line], causes: Sequence[FailureEvidence]) -> FailureEvidence:
    """Return the last cause, or an earlier one without work in between, of which it is a consequence.

    A dying process meets its fault once more; a program that never began leaves the next one without its results.
    """
    chosen = causes[-1]
    for one, following in zip(reversed(causes[:-1]), reversed(causes[1:])):
        work = count_work(lines, one.end + 1, following.start)
        if work.lines + work.bars > 0:
            break
        is_again = one.kind == chosen.kind and one.sure and one.frames and not chosen.frames
        if is_again or (chosen.kind in VAGUE and one.sure and one.kind not in VAGUE):
            chosen = one
    return chosen


def _find_first_report(causes: Sequence[FailureEvidence], chosen: FailureEvidence) -> FailureEvidence:
    """Return the first of the adjacent lines with which one native library reports the same failure."""
    for one in reversed(causes[: next(n for n, each in enumerate(causes) if each is chosen)]):
        if one.kind != chosen.kind or one.frames or chosen.frames or chosen.start - one.end > _REPORT_LINES:
            break
        chosen = one
    return chosen


def _prefer_what(first: FailureEvidence, causes: Sequence[FailureEvidence]) -> FailureEvidence:
    """Prefer the final `what():` line to the log of a watchdog before it, for the same rank and kind."""
    died = [one for one in causes if one.kind == first.kind and one.text.lstrip().startswith("what():")]
    return died[0] if died and not first.frames else first


def _pick_heaviest(candidates: Sequence[FailureEvidence]) -> FailureEvidence:
    """Return the heaviest evidence: the first lost peer or crash, or the last line of a launcher or scheduler."""
    stops = [one for one in candidates if one.weight == Weight.STOPPED]
    harder = [one for one in candidates if one.weight > Weight.STOPPED]
    peers = [one.at for one in harder if one.weight == Weight.PEER]
    if peers:  # after ranks lost each other, the launcher kills the rest
        harder = [one for one in harder if one.kind != "killed" or one.at < peers[0]]
    if stops and (not harder or stops[0].at < harder[0].at):
        return max(stops, key=lambda one: (_stop_detail(one), one.at))
    if not harder:
        heaviest = max(one.weight for one in candidates)
        last = [one for one in candidates if one.weight == heaviest]
        own = heaviest == Weight.ABORT
        specific = [
            one for one in last if own and not (_RX.aborted.match(one.text) or _RX.launcher_report.search(one.text))
        ]
        return next(
            (one for one in specific if one.text.lstrip().startswith("what():")), (specific[:1] or last[-1:])[0]
        )
    heaviest = max(one.weight for one in harder)
    matches = [one for one in harder if one.weight == heaviest]
    if heaviest == Weight.PEER:
        return matches[0]
    by_itself = [one for one in matches if not _RX.launcher_report.search(one.text)]
    return next((one for one in by_itself if not _RX.general_crash.match(one.text)), (by_itself[:1] or matches[-1:])[0])


def _stop_detail(one: FailureEvidence) -> int:
    """Rank a line about a stop: 3 for a reason, 2 for the whole job, 1 for one of its steps."""
    text = one.text
    return 3 if "DUE TO" in text else 2 if "JOB" in text or "ignal" in text or "exiting" in text else 1


def _join_chains(candidates: Sequence[FailureEvidence]) -> list[FailureEvidence]:
    """Merge exceptions raised while another was handled. Usually the last one is kept."""
    joined: list[FailureEvidence] = []
    for one in candidates:
        if one.chained and joined and one.weight <= Weight.OWN:
            before = joined[-1]
            vaguer = one.kind in VAGUE or one.weight < before.weight
            hard = before.kind in _HARD or (one.chained == "cause" and before.kind not in VAGUE)
            is_second_try = one.kind == before.kind and one.chained == "handling" and _is_of_module(one, before)
            if before.weight > Weight.HINT and (_RX.empty_wrapper.match(one.text) or _RX.second_reader.match(one.text)):
                kind = one.kind if before.kind in VAGUE else before.kind
                joined[-1] = replace(before, sure=before.sure or one.sure, kind=kind)
                continue
            if before.weight > Weight.HINT and (is_second_try or (vaguer and (hard or one.weight < before.weight))):
                joined[-1] = replace(before, sure=before.sure or one.sure)
                continue
            if before.tag == one.tag:
                joined.pop()
        joined.append(one)
    return joined


def _is_of_module(one: FailureEvidence, other: FailureEvidence) -> bool:
    """Return whether one library raised both, whose second way failed as well."""
    modules = [match["module"] for text in (one.text, other.text) if (match := _RX.module.match(text))]
    return len(modules) == 2 and modules[0] == modules[1]  # noqa: PLR2004 - both


def _latest_launch(candidates: Sequence[FailureEvidence]) -> Sequence[FailureEvidence]:
    """Drop launches that ended before a later one failed. Ranks that lost others may say so below their launcher."""
    failed_later = is_reported = False
    for n in range(len(candidates) - 1, -1, -1):
        one = candidates[n]
        if one.launcher and failed_later:
            return candidates[n + 1 :]
        is_reported = is_reported or one.launcher
        is_failure = one.weight > Weight.PEER or (one.weight == Weight.PEER and is_reported)
        failed_later = failed_later or (is_failure and not one.launcher)
    return candidates


def _is_multi_process(lines: Sequence[Line], candidates: Sequence[FailureEvidence]) -> bool:
    if any(one.launcher or one.weight == Weight.PEER or one.tag for one in candidates):
        return True
    start, end = candidates[0].start, candidates[-1].end + _EPILOGUE_LINES
    near = [*lines[start : start + _NEAR_LINES], *lines[max(end - _NEAR_LINES, start) : end]]
    return any(_RX.multi_process.search(line.text, 0, _FIRST_CHARS) for line in near)


def _list_texts(lines: Sequence[Line], first: int, last: int) -> Iterator[tuple[int, str]]:
    """Yield the positions and the texts, without prefixes, of the lines from ``first`` up to ``last``."""
    for at in range(max(first, 0), min(last, len(lines))):
        yield at, tracebacks.strip_prefixes(lines[at].text).text


def _inner_exception(lines: Sequence[Line], evidence: FailureEvidence) -> FailureEvidence:
    for at, text in _list_texts(lines, evidence.at, evidence.at + _CALL_LINES):
        match = _RX.represented.match(text.strip())
        name = match["name"].rpartition(".")[2] if match else ""
        if match and tracebacks.match_exception(f"{name}: x", after_frames=True):
            kind = exception_kind(name, f"{name}: {match['args']}")
            return replace(evidence, at=at, end=at, kind=kind, text=text.strip())
    return evidence


def _detail_of_graph(lines: Sequence[Line], evidence: FailureEvidence) -> FailureEvidence | None:
    """Return what TensorFlow says below the places of the graph: a line of a known kind, or the one above its node."""
    for at, text in _list_texts(lines, evidence.at + 1, evidence.at + _DETAIL_LINES):
        kind = None if tracebacks.is_frame(text) or text[:1].isspace() else match_error_kind(text)
        if kind:
            return replace(evidence, at=at, end=at, kind=kind, text=text)
        if _RX.node.match(text) and at > evidence.at + 1:
            return replace(evidence, at=at - 1, end=at, text=tracebacks.strip_prefixes(lines[at - 1].text).text)
    return None


def resolve_general_message(lines: Sequence[Line], evidence: FailureEvidence) -> FailureEvidence:
    """Replace a general message by the nearby line that states the specific cause."""
    text = evidence.text.strip()
    if _RX.general_heading.match(text) and (detail := _detail_of_graph(lines, evidence)):
        return detail
    if _RX.call.match(text):
        return _inner_exception(lines, evidence)
    return _find_specific_cause(lines, evidence, text)


def _find_first_alike(lines: Sequence[Line], last: int, text: str) -> int:
    """Return the first of the lines shortly above that say the same as ``last``, with other numbers."""
    texts = _list_texts(lines, last - _DETAIL_LINES, last)
    said = _RX.numbers.sub("", text)
    return next((at for at, other in texts if _RX.numbers.sub("", other.lstrip()) == said), last)


def _find_specific_cause(lines: Sequence[Line], evidence: FailureEvidence, text: str) -> FailureEvidence:
    above = range(evidence.at - 1, max(evidence.at - _DETAIL_LINES, -1), -1)
    below = range(evidence.at + 1, min(evidence.at + _DETAIL_LINES, len(lines)))
    for one in _GENERAL:
        if one.get("kind", evidence.kind) != evidence.kind or not compile_once(one.get("line", "")).match(text):
            continue
        where = one.get("where", "around" if evidence.kind == "ray_error" else "above")
        for at in chain(above if where != "below" else (), below if where != "above" else ()):
            text_near = tracebacks.strip_prefixes(lines[at].text).text.lstrip()
            if compile_once(one["cause"]).match(text_near):
                at = proof_at = _find_first_alike(lines, at, text_near) if at < evidence.at else at  # noqa: PLW2901
                text_near = tracebacks.strip_prefixes(lines[at].text).text.lstrip()
                if re.match(r"Error in .*:\s*$", text_near) and at + 1 < len(lines):  # R's message begins below
                    proof_at, text_near = at + 1, lines[at + 1].text.strip()
                said = text_near.partition(" : ")[2] or text_near  # R's message, without the call
                proof = (match_error_kind(said) or one.get("else")) if one.get("as") == _BY_TEXT else one.get("as")
                weight = max(evidence.weight, Weight.OWN) if proof not in (None, evidence.kind) else evidence.weight
                return replace(
                    evidence, at=proof_at, text=text_near, kind=proof or evidence.kind, weight=weight, frames=()
                )
    return evidence
