"""Finds, in all the evidence, what the run died of, and the one line that a good diagnosis quotes. Pure.

From the end backwards: what is followed by more work than a dying process can still print was survived, and so was what
looks the same as something survived. Within what is left, causes.py chooses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_server.diagnosis.failure import last_lines, tracebacks
from mcp_server.diagnosis.failure.cause_ranking import choose_cause, resolve_general_message
from mcp_server.diagnosis.failure.evidence import FailureEvidence
from mcp_server.diagnosis.failure.log_statements import Weight
from mcp_server.text.lines import Line

# A dying Python flushes what its standard output held back, after its traceback: mostly a line or two, at most 8 KiB.
# Ten lines are the compromise: logs of healthy runs hold tracebacks that were survived more often than logs of failed
# ones end with a longer flush, and where an exit status is known nothing hangs on it.
_FLUSH_LINES = 10
_FIRST_CHARS = 300  # what a line is about, it says by then
_LAST_BARS = 6  # a bar is drawn once more when it is closed, by every rank
_EPILOGUE_LINES = 250  # of schedulers, wandb, C++ frames; a longer text is another program's
_LAST_LINES_OF_UNSURE = 3  # after a traceback that somebody may have caught
_LAUNCHER_WORK = 400  # other ranks may still work until their launcher notices
_PEERS_WORK = 40  # ... or until they wait for the lost one

_LAST_SPOKEN = 2  # lines in which an exception without a traceback is taken for the end
_BY_PYTHON = re.compile(
    r"(?:\w+\.)+\w+: |(?:Runtime|Value|Type|Key|Attribute|Assertion|Import|ModuleNotFound|OS|FileNotFound|Index)Error: "
)
_LAST_HINTS = 20
_LAST_HINT_LINES = 40

_WORK = re.compile(
    r"(?P<bar>\d+(?:\.\d+)?[kMG]?/(?:\d+(?:\.\d+)?[kMG]?|\?)(?:it)? \[[\d:]+<|\d+(?:it)? \[\d+:\d\d|━)"
    r"|(?i:\b(?:step|global_?step|iter(?:ation)?|epochs?|episode|update|timesteps?|samples)\b.{0,6}\d)"
    r"|(?i:\b(?:train_|val(?:id)?_|eval_)?(?:loss|reward|acc(?:uracy)?)\b.{0,12}\d|\btokens?/s|\beta: )|\[ *\d+/ *\d+\]"
    r"|\|\s+(?:total_timesteps|iterations|fps|n_updates|ep_len_mean)\s+\||\d\d:\d\d:\d\d.{0,60}\bINFO\b"
)
_NO_WORK = re.compile(
    r"wandb: |.*(?:sigkill_handler|Killing subprocess|local_rank|exitcode|File \"|srun: |slurmstepd: )"
)
_OVER = re.compile(
    r"(?i:training (?:is )?(?:complete|finished|done)|finished training|max epochs num)"
    r"|max_(?:epochs|steps)=\d+` reached|exits successfully|'train_runtime'|(?i:(?:completed|finished) successfully)"
)
_WAIT = re.compile(r"(?i)waiting|stuck|stalled|\bno (?:new )?(?:step|progress|output)")
# A launcher or a scheduler began anew: whatever work follows is that of another life. That the program resumed says so
# only after a stop that asks for it: it may stand in what a dying process flushes.
_AGAIN = re.compile(
    r"(?i)\b(?:re-?queued\b|restart count|restart(?:ing|ed) (?:\w+ ){0,3}(?:workers?|group|attempt|job)\b"
    r"|(?:worker group|job|attempt) (?:was )?restarted)"
)
_RESUMED = re.compile(r"(?i)\bresum(?:e|ing|ed) (?:\w+ ){0,3}(?:from|at)\b")
_TO_BE_RESUMED = re.compile(r"(?i)preempt|requeue|node.?fail")


@dataclass
class WorkCount:
    """How much ordinary work was printed in a stretch of lines."""

    bars: int = 0
    lines: int = 0
    other: int = 0
    is_over: bool = False
    after_restart: int = 0  # of the lines and bars, those after a restart
    resumed: int = 0  # ... and those after a checkpoint was loaded

    def outlives(self, evidence: FailureEvidence) -> bool:
        """Tell whether so much work after ``evidence`` means that it was survived."""
        if not evidence.sure:
            return self.is_over or self.lines + self.bars > _LAST_LINES_OF_UNSURE
        stopped = evidence.weight == Weight.STOPPED
        return (
            self.lines > _FLUSH_LINES
            or self.after_restart > (0 if stopped else _LAST_LINES_OF_UNSURE)
            or (self.resumed > 0 and stopped and bool(_TO_BE_RESUMED.search(evidence.text)))
            or self.bars > _LAST_BARS
            or self.other > _EPILOGUE_LINES
            or (self.is_over and self.lines + self.bars > 0)
        )

    @property
    def is_enough(self) -> bool:
        """No more work would change the judgement."""
        return self.lines > _LAUNCHER_WORK or self.bars > _LAUNCHER_WORK


def count_work(lines: Sequence[Line], start: int, end: int) -> WorkCount:
    """Measure the ordinary work between two positions, ``end`` left out."""
    done = WorkCount()
    again = resumed = False
    for at in range(start, end):
        text = lines[at].text
        found = _WORK.search(text, 0, _FIRST_CHARS)
        done.is_over = done.is_over or bool(_OVER.search(text, 0, _FIRST_CHARS))
        if not found or _NO_WORK.match(text):
            done.other += not text[:1].isspace()
        elif found["bar"]:
            done.bars += 1
        else:
            done.lines += 1
        again = again or bool(_AGAIN.search(text, 0, _FIRST_CHARS))
        resumed = resumed or bool(_RESUMED.search(text, 0, _FIRST_CHARS))
        at_work = bool(found) and not _NO_WORK.match(text)
        done.after_restart += again and at_work
        done.resumed += resumed and at_work
        if done.is_enough:
            break
    return done


def find_root_cause(
    lines: Sequence[Line], evidence: Sequence[FailureEvidence], *, failed: bool
) -> FailureEvidence | None:
    """Return the evidence to quote, or None where nothing at the end of the window proves a failure.

    ``failed``: the exit status says so; then a hint is better than nothing.
    """
    proofs = _drop_survived(lines, [one for one in evidence if one.weight > Weight.HINT])
    final = _final_evidence(lines, proofs)
    chosen = choose_cause(lines, final) if final else None
    if chosen and (chosen.weight > Weight.ECHO or chosen.kind != "other"):
        return resolve_general_message(lines, chosen)
    if not failed and not chosen:
        return _untraced_exception(lines, evidence) or _final_line_evidence(lines) or _repetition_evidence(lines)
    if not failed and chosen and count_work(lines, max(chosen.at - _LAST_HINT_LINES, 0), chosen.at).is_over:
        return None  # only somebody's exit code, after all was done
    final_line = _final_line_evidence(lines) or _repetition_evidence(lines)
    if final_line and final_line.kind != "other":
        return final_line
    survived = [one for one in proofs if one.sure and one.weight >= Weight.STOPPED]
    return _best_hint(lines, evidence) or chosen or next(reversed(survived), None)


def _best_hint(lines: Sequence[Line], evidence: Sequence[FailureEvidence]) -> FailureEvidence | None:
    """Return the best hint near the end: the last that names a kind, else the first of the last error lines."""
    hints = [one for one in evidence[-_LAST_HINTS:] if one.weight == Weight.HINT]
    hints = [one for one in hints if not count_work(lines, one.at + 1, len(lines)).outlives(one)]
    for at in range(max(len(lines) - _LAST_HINT_LINES, 0), len(lines)):
        tag, text, _ = tracebacks.strip_prefixes(lines[at].text)
        if kind := last_lines.guess_kind(text):
            hints.append(FailureEvidence(at, at, at, Weight.HINT, kind, text, tag, sure=False))
    hints.sort(key=lambda one: one.at)
    named = [one for one in hints if one.kind != "other"]
    return named[-1] if named else next(iter(hints), None)


def _final_evidence(lines: Sequence[Line], proofs: Sequence[FailureEvidence]) -> list[FailureEvidence]:
    """Return the evidence at the end of the window that no work came after, and between which no work was done."""
    if not proofs or count_work(lines, proofs[-1].end + 1, len(lines)).outlives(proofs[-1]):
        return []
    final = [proofs[-1]]
    heaviest = final[0].weight
    for one in reversed(proofs[:-1]):
        between = count_work(lines, one.end + 1, final[-1].start)
        if between.outlives(one):
            grace = _LAUNCHER_WORK if heaviest <= Weight.ABORT else _PEERS_WORK if heaviest == Weight.PEER else 0
            if not one.sure and between.bars + between.lines <= _LAUNCHER_WORK:
                continue  # caught; what is before it may still be the cause
            if between.bars + between.lines > grace:
                break
        final.append(one)
        heaviest = max(heaviest, one.weight)
    return final[::-1]


def _drop_survived(lines: Sequence[Line], proofs: Sequence[FailureEvidence]) -> list[FailureEvidence]:
    """Leave out what somebody caught who had caught the same before, at the same place, and had gone on."""
    places = [lines[one.frames[-1]].text if one.frames and not one.sure else "" for one in proofs]
    survived: set[str] = set()
    later: set[str] = set()
    for n in range(len(proofs) - 1, -1, -1):
        if places[n] in later and places[n] not in survived:
            between = count_work(lines, proofs[n].end + 1, proofs[n + 1].start)
            if between.bars + between.lines > 0:
                survived.add(places[n])
        later |= {places[n]} - {""}
    return [one for one, place in zip(proofs, places, strict=True) if place not in survived]


def _final_line_evidence(lines: Sequence[Line]) -> FailureEvidence | None:
    """Return a line of the last few that says that the run is over, where no work was done after it."""
    final_line = last_lines.find_final_line(lines)
    if final_line is None:
        return None
    after = count_work(lines, final_line.at + 1, len(lines))
    before = count_work(lines, max(final_line.at - _LAST_HINT_LINES, 0), final_line.at)
    if (
        after.bars
        or after.lines
        or after.is_over
        or before.is_over
        or (final_line.plain and before.bars + before.lines > 0)
    ):
        return None
    return FailureEvidence(
        final_line.at,
        final_line.at,
        final_line.at,
        Weight.HINT,
        final_line.kind,
        final_line.text,
        final_line.tag,
        sure=False,
    )


def _repetition_evidence(lines: Sequence[Line]) -> FailureEvidence | None:
    """Return the line that the log repeats at its end, where that means that nothing went on any more."""
    repetition = last_lines.find_repetition(lines)
    if repetition is None or (repetition.kind == "stall" and _has_work_after(lines, repetition.first)):
        return None
    tag, text, _ = tracebacks.strip_prefixes(lines[repetition.at].text)
    return FailureEvidence(
        repetition.at, repetition.at, repetition.at, Weight.HINT, repetition.kind, text, tag, sure=False
    )


def _has_work_after(lines: Sequence[Line], since: int) -> bool:
    others = [line for line in lines[since + 1 :] if not _WAIT.search(line.text, 0, _FIRST_CHARS)]
    done = count_work(others, 0, len(others))
    return bool(done.bars or done.lines or done.is_over)


def _untraced_exception(lines: Sequence[Line], evidence: Sequence[FailureEvidence]) -> FailureEvidence | None:
    """Return an exception's line that the window ends with though no traceback is there to prove it."""
    for one in reversed(evidence):
        is_untraced = one.weight == Weight.HINT and one.start == one.end and one.at >= len(lines) - _LAST_SPOKEN
        if is_untraced and _BY_PYTHON.match(one.text):
            return one
    return None


def find_last_work_line(lines: Sequence[Line]) -> Line | None:
    """Return the last line that shows the run at work."""
    near = reversed(lines[-5_000:])
    found = (line for line in near if _WORK.search(line.text, 0, _FIRST_CHARS) and not _NO_WORK.match(line.text))
    return next(found, None)
