"""Finds the root cause in the evidence, and the one line to quote. Pure.

Evidence is read from the end backwards. Evidence followed by more work than a dying process can still print was
survived, and so was evidence that looks the same. cause_ranking.py chooses among the rest.

Finds the earlier line of a machine, network, launcher or simulator that explains a later, general failure. Pure.

Ranks that wait for each other, a scheduler's time limit, and a policy that became NaN say what followed, not why. What
a host key, an InfiniBand port, a physics buffer or a cluster without GPUs said before is the cause, whatever came last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcp_server.diagnosis.failure import last_lines, tracebacks
from mcp_server.diagnosis.failure.cause_ranking import choose_cause, resolve_general_message
from mcp_server.diagnosis.failure.evidence import FailureEvidence, hint_at
from mcp_server.diagnosis.failure.kinds import HARD, VAGUE
from mcp_server.diagnosis.failure.ordinary_work import FIRST_CHARS, LAUNCHER_WORK, count_steps, count_work
from mcp_server.diagnosis.failure.statements import Weight, exception_kind, match_error_kind
from mcp_server.text.lines import Line
from mcp_server.text.regex import compile_once
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("diagnosis/failure/patterns", "root_cause")

_PEERS_WORK = 40  # lines that other ranks may print until they wait for the lost rank
_QUEUED_WORK = 400  # lines that a loop may print until it has used up what a dead thread left in a queue
_UNTRACED_LINES = 2  # last lines in which an exception without a traceback is accepted
_LAST_HINTS = 20
_NOTICE_KINDS = frozenset({"ray_error", "other", "killed", "python_error", "segfault"})
_NO_NOTICE_BY_ITSELF = frozenset({"segfault", "python_error", "other"})
_AFTER_NOTICE_LINES, _NEAR_LINES = 20, 8
_LOGGED_LINES = 60  # above a notice
_FLUSHED_LINES = 3  # of work that a dying process may still print
_LAST_HINT_LINES = 40
_REACH_LINES = 3_000  # above a failure are searched
_VERDICT_LINES = 10  # that a scheduler prints about one end
_TEXT_CHARS = 500  # of a line
_MOST_STEPS = 10  # between a cause and its aftermath: after more, the run had survived it
_MOST_STEPS_OF_SIMULATION = 120  # a simulation goes on with wrong contacts until a value overflows


def find_root_cause(
    lines: Sequence[Line], evidence: Sequence[FailureEvidence], *, failed: bool, stalled: bool = False
) -> FailureEvidence | None:
    """Return the evidence to quote, or None. ``failed``: by the exit status; ``stalled``: stopped for a stall."""
    cause = _find_cause(lines, evidence, failed=failed)
    if cause is not None and _is_notice(cause):
        behind = _find_cause_behind(lines, evidence, cause)
        if behind is None and not failed and _is_task_of_the_program(lines, cause):
            return None
        cause = resolve_general_message(lines, behind) if behind else cause
    elif cause is not None and cause.kind in VAGUE and cause.weight >= Weight.OWN:
        cause = _find_logged_before(lines, cause) or cause
    is_starved = stalled and (cause is None or not cause.sure)
    if is_starved or (cause is not None and _RX.starved.match(cause.text[:FIRST_CHARS])):
        cause = _dead_thread(lines, evidence) or cause
    return (find_cause_outside(lines, cause) or cause) if cause else None


def _is_notice(one: FailureEvidence) -> bool:
    """Return whether a line speaks of another process, or of a place, and so names no cause itself."""
    if _RX.bare_notice.match(one.text[:FIRST_CHARS]):
        return one.kind in _NOTICE_KINDS
    if one.kind not in _NOTICE_KINDS or (one.weight >= Weight.CRASH and one.kind in _NO_NOTICE_BY_ITSELF):
        return False
    return one.weight in (Weight.ECHO, Weight.ABORT) or bool(_RX.notice.search(one.text[:FIRST_CHARS]))


def _is_task_of_the_program(lines: Sequence[Line], notice: FailureEvidence) -> bool:
    """Return whether a notice is about a command that the program judges, and goes on."""
    work = count_work(lines, notice.end + 1, len(lines))
    return bool(_RX.judged.search(notice.text[:FIRST_CHARS])) and bool(work.lines + work.bars)


def _find_cause_behind(
    lines: Sequence[Line], evidence: Sequence[FailureEvidence], notice: FailureEvidence
) -> FailureEvidence | None:
    """Return the cause that the last lines of any stream state, up to some lines after ``notice``: the strongest."""
    until = notice.end + _AFTER_NOTICE_LINES
    is_bare = bool(_RX.bare_notice.match(notice.text[:FIRST_CHARS]))
    near = [one for one in evidence if one.at <= until and (is_bare or one.kind != notice.kind)]
    near = [one for one in near if not _is_notice(one)]
    raised = [one for one in near if one.weight >= Weight.PEER and _is_last_of_stream(lines, one, until)]
    if strongest := [one for one in raised if one.weight == Weight.OWN] or raised:
        return replace(choose_cause(lines, strongest), sure=True)
    logged = [
        one for one in near if one.weight == Weight.HINT and not _RX.goes_on.search(lines[one.at].text[:FIRST_CHARS])
    ]
    logged += [
        one
        for at in range(max(notice.start - _LOGGED_LINES, 0), min(until, len(lines)))
        if (one := _read_logged(lines, at, is_near=0 < notice.start - at <= _NEAR_LINES))
    ]
    logged = [one for one in logged if one.kind not in _NOTICE_KINDS and _is_last_of_stream(lines, one, until)]
    vague = "cuda_error"  # a library that aborts says so after the reason
    nearest = min(
        logged, key=lambda one: (one.at > notice.at, one.kind == vague, abs(one.at - notice.at)), default=None
    )
    return replace(nearest, weight=Weight.OWN, sure=True) if nearest else None


def _find_logged_before(lines: Sequence[Line], cause: FailureEvidence) -> FailureEvidence | None:
    """Return the last error of a hard kind that something logged shortly before a vague one, without work between."""
    for at in range(cause.start - 1, max(cause.start - _AFTER_NOTICE_LINES, -1), -1):
        work = count_work(lines, at, at + 1)
        if work.lines + work.bars:
            return None
        own = _read_logged(lines, at, is_near=False)
        if own and own.kind in HARD:
            return replace(own, weight=Weight.OWN, sure=True)
    return None


def _read_logged(lines: Sequence[Line], at: int, *, is_near: bool) -> FailureEvidence | None:
    """Return the evidence of a line that a logger calls an error, where it names an exception or a known message.

    ``is_near``: right above the notice. There a line needs no logger, if its words are rarely about anything else.
    """
    text = lines[at].text[:FIRST_CHARS]
    level = _RX.logged.search(text)
    if tracebacks.is_echoed_code(lines, at) or _RX.goes_on.search(text):
        return None
    if level is None:
        kind, said = match_error_kind(text) if is_near else None, text.strip()
        kind = kind if kind in HARD else None
    else:
        said = text[level.end() :].strip()
        raised = _RX.named.search(said)
        kind = exception_kind(raised["name"], raised[0]) if raised else match_error_kind(said)
        said = said[raised.start() :] if raised else said
    return replace(hint_at(lines, at, kind), text=said, tag=_read_stream(text)) if kind else None


def _read_stream(text: str) -> str:
    """Return the prefix of the rank, process or node that printed a line, or nothing."""
    match = _RX.stream.match(text)
    return match[0].strip() if match else tracebacks.strip_prefixes(text).tag


def _is_last_of_stream(lines: Sequence[Line], one: FailureEvidence, until: int) -> bool:
    """Return whether the stream of ``one`` showed no more than a flush of work after it."""
    stream = _read_stream(lines[one.at].text)
    after = [line for line in lines[one.end + 1 : until] if not stream or _read_stream(line.text) == stream]
    work = count_work(after, 0, len(after))
    return work.lines + work.bars <= _FLUSHED_LINES


def _dead_thread(lines: Sequence[Line], evidence: Sequence[FailureEvidence]) -> FailureEvidence | None:
    """Return the last exception that ended a thread. Whatever the thread had produced was used up after it."""
    for one in reversed(evidence):
        if one.thread:
            work = count_work(lines, one.end + 1, len(lines))
            used_up = work.bars + work.lines <= _QUEUED_WORK
            return replace(one, weight=Weight.OWN, sure=True) if used_up else None
    return None


def _find_cause(lines: Sequence[Line], evidence: Sequence[FailureEvidence], *, failed: bool) -> FailureEvidence | None:
    proofs = [one for one in evidence if one.weight > Weight.HINT]
    final = _final_evidence(lines, proofs)
    chosen = resolve_general_message(lines, choose_cause(lines, final)) if final else None
    if chosen and (chosen.weight > Weight.ECHO or chosen.kind != "other"):
        return chosen
    if not failed and not chosen:
        return _untraced_exception(lines, evidence) or _final_line_evidence(lines) or _repetition_evidence(lines)
    if not failed and chosen and count_work(lines, max(chosen.at - _LAST_HINT_LINES, 0), chosen.at).is_over:
        return None  # only a process's exit code, after all work
    final_line = _final_line_evidence(lines) or _repetition_evidence(lines)
    if final_line and final_line.kind != "other":
        return resolve_general_message(lines, final_line)
    survived = [one for one in proofs if one.sure and one.weight >= Weight.STOPPED]
    hint = _best_hint(lines, evidence)
    return resolve_general_message(lines, hint) if hint else chosen or next(reversed(survived), None)


def _best_hint(lines: Sequence[Line], evidence: Sequence[FailureEvidence]) -> FailureEvidence | None:
    hints = [one for one in evidence[-_LAST_HINTS:] if one.weight == Weight.HINT]
    hints = [one for one in hints if not count_work(lines, one.at + 1, len(lines)).outlives(one)]
    for at in range(max(len(lines) - _LAST_HINT_LINES, 0), len(lines)):
        kind = last_lines.guess_kind(tracebacks.strip_prefixes(lines[at].text).text)
        if kind and not tracebacks.is_echoed_code(lines, at):
            hints.append(hint_at(lines, at, kind))
    if (head := last_lines.find_notice(lines)) is not None:
        hints.insert(0, hint_at(lines, head, "other"))
    hints.sort(key=lambda one: one.at)
    named = [one for one in hints if one.kind != "other"]
    return named[-1] if named else next(iter(hints), None)


def _final_evidence(lines: Sequence[Line], proofs: Sequence[FailureEvidence]) -> list[FailureEvidence]:
    if not proofs or count_work(lines, proofs[-1].end + 1, len(lines)).outlives(proofs[-1]):
        return []
    final = [proofs[-1]]
    heaviest = final[0].weight
    for one in reversed(proofs[:-1]):
        between = count_work(lines, one.end + 1, final[-1].start)
        if between.outlives(one):
            grace = LAUNCHER_WORK if heaviest <= Weight.ABORT else _PEERS_WORK if heaviest == Weight.PEER else 0
            if not one.sure and between.bars + between.lines <= LAUNCHER_WORK:
                continue  # caught; earlier evidence may still be the cause
            if between.bars + between.lines > grace:
                break
        final.append(one)
        heaviest = max(heaviest, one.weight)
    return final[::-1]


def _final_line_evidence(lines: Sequence[Line]) -> FailureEvidence | None:
    final_line = last_lines.find_final_line(lines)
    if final_line is None:
        return None
    after = count_work(lines, final_line.at + 1, len(lines))
    before = count_work(lines, max(final_line.at - _LAST_HINT_LINES, 0), final_line.at)
    is_noise = final_line.plain and before.bars + before.lines > 0
    is_telling = final_line.kind != "other" and not final_line.plain  # a few lines of the shutdown may follow
    flushed = after.lines > _FLUSHED_LINES if is_telling else after.lines
    if after.bars or flushed or after.is_over or before.is_over or is_noise:
        return None
    return hint_at(lines, final_line.at, final_line.kind)


def _repetition_evidence(lines: Sequence[Line]) -> FailureEvidence | None:
    """Return the line repeated at the end of the log, when the repetition shows that the run stopped progressing."""
    repetition = last_lines.find_repetition(lines)
    if repetition is None or (repetition.kind == "stall" and _has_work_after(lines, repetition.first)):
        return None
    return hint_at(lines, repetition.at, repetition.kind)


def _has_work_after(lines: Sequence[Line], since: int) -> bool:
    others = [line for line in lines[since + 1 :] if not _RX.waiting.search(line.text, 0, FIRST_CHARS)]
    work = count_work(others, 0, len(others))
    return bool(work.bars or work.lines or work.is_over)


def _untraced_exception(lines: Sequence[Line], evidence: Sequence[FailureEvidence]) -> FailureEvidence | None:
    for one in reversed(evidence):
        is_untraced = one.weight == Weight.HINT and one.start == one.end and one.at >= len(lines) - _UNTRACED_LINES
        if is_untraced and _RX.python_exception.match(one.text):
            return one
    return None


_BLOCKS = [dict(block) for block in read_blocks("diagnosis/failure/aftermath")]
_CAUSES = [{**one, "has": one["has"].replace("[ ]", " ")} for one in _BLOCKS if "cause" in one]
_AFTERMATH = [one for one in _BLOCKS if "after" in one]


def find_cause_outside(lines: Sequence[Line], evidence: FailureEvidence) -> FailureEvidence | None:
    """Return the earlier line that explains ``evidence``, or None where it is itself a cause, or none is near."""
    text = evidence.text.strip()[:_TEXT_CHARS]
    after = [one for one in _AFTERMATH if evidence.kind in one["after"].split()]
    groups = [group for one in after if compile_once(one.get("line", "")).match(text) for group in one["from"].split()]
    if "node" in groups and (lost := _find_lost_node(lines, evidence)):
        return lost
    stated = next((cause for cause in _CAUSES if cause["cause"] in groups and _states(cause, text)), None)
    if stated is not None:
        return replace(evidence, kind=stated["kind"])
    top = max(evidence.start - _REACH_LINES, 0)
    texts = [line.text[:_TEXT_CHARS] for line in lines[top : evidence.start]]
    for cause in sorted((one for one in _CAUSES if one["cause"] in groups), key=lambda one: groups.index(one["cause"])):
        found = [at for at, said in enumerate(texts) if _states(cause, said)]
        if not found:
            continue
        at = top + found[0 if cause["cause"] == "process" else -1]  # the first that died took others along
        if cause["cause"] == "resources" and (
            count_steps(lines, top, evidence.start, 1) or any(map(_RX.runs.search, texts))
        ):
            continue  # part of it ran: what waited was not what took the time
        most = _MOST_STEPS_OF_SIMULATION if cause["cause"] == "simulator" else _MOST_STEPS
        if count_steps(lines, at + 1, evidence.start, most) < most:
            return _explain(lines, at, cause, evidence)
    return None


def _explain(lines: Sequence[Line], at: int, cause: Mapping[str, str], evidence: FailureEvidence) -> FailureEvidence:
    hint = hint_at(lines, at, cause["kind"])
    return replace(hint, weight=max(evidence.weight, Weight.PEER), text=hint.text.strip(), sure=True)


def _find_lost_node(lines: Sequence[Line], evidence: FailureEvidence) -> FailureEvidence | None:
    """Return the line in which a scheduler names a lost node: some lines before the verdict, or after the errors."""
    for cause in (one for one in _CAUSES if one["cause"] == "node"):
        top = max(evidence.start - _VERDICT_LINES, 0)
        for at in range(top, min(evidence.start + _REACH_LINES, len(lines))):
            if _states(cause, lines[at].text[:_TEXT_CHARS]):
                return _explain(lines, at, cause, evidence)
    return None


def _states(cause: Mapping[str, str], text: str) -> bool:
    return cause["has"] in text and bool(compile_once(cause["line"]).match(text))
