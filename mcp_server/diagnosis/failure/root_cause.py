"""Finds, in all the evidence, what the run died of, and the one line that a good diagnosis quotes. Pure.

From the end backwards: what is followed by more work than a dying process can still print was survived, and so was what
looks the same as something survived. Within what is left, causes.py chooses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_server.diagnosis.failure import last_lines, tracebacks
from mcp_server.diagnosis.failure.cause_ranking import choose, named_cause
from mcp_server.diagnosis.failure.evidence import Evidence
from mcp_server.diagnosis.failure.log_statements import Weight
from mcp_server.diagnosis.failure.repeated_lines import repeated
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
class Work:
    """How much ordinary work was printed in a stretch of lines."""

    bars: int = 0
    lines: int = 0
    other: int = 0
    over: bool = False
    anew: int = 0  # of the lines and bars, those after a restart
    resumed: int = 0  # ... and those after a checkpoint was loaded

    def outlives(self, evidence: Evidence) -> bool:
        """Tell whether so much work after ``evidence`` means that it was survived."""
        if not evidence.sure:
            return self.over or self.lines + self.bars > _LAST_LINES_OF_UNSURE
        stopped = evidence.weight == Weight.STOPPED
        return (
            self.lines > _FLUSH_LINES
            or self.anew > (0 if stopped else _LAST_LINES_OF_UNSURE)
            or (self.resumed > 0 and stopped and bool(_TO_BE_RESUMED.search(evidence.text)))
            or self.bars > _LAST_BARS
            or self.other > _EPILOGUE_LINES
            or (self.over and self.lines + self.bars > 0)
        )

    @property
    def plenty(self) -> bool:
        """No more work would change the judgement."""
        return self.lines > _LAUNCHER_WORK or self.bars > _LAUNCHER_WORK


def work(lines: Sequence[Line], start: int, end: int) -> Work:
    """Measure the ordinary work between two positions, ``end`` left out."""
    done = Work()
    again = resumed = False
    for at in range(start, end):
        text = lines[at].text
        found = _WORK.search(text, 0, _FIRST_CHARS)
        done.over = done.over or bool(_OVER.search(text, 0, _FIRST_CHARS))
        if not found or _NO_WORK.match(text):
            done.other += not text[:1].isspace()
        elif found["bar"]:
            done.bars += 1
        else:
            done.lines += 1
        again = again or bool(_AGAIN.search(text, 0, _FIRST_CHARS))
        resumed = resumed or bool(_RESUMED.search(text, 0, _FIRST_CHARS))
        at_work = bool(found) and not _NO_WORK.match(text)
        done.anew += again and at_work
        done.resumed += resumed and at_work
        if done.plenty:
            break
    return done


def root(lines: Sequence[Line], evidence: Sequence[Evidence], *, failed: bool) -> Evidence | None:
    """Return the evidence to quote, or None where nothing at the end of the window proves a failure.

    ``failed``: the exit status says so; then a hint is better than nothing.
    """
    strong = _not_survived(lines, [one for one in evidence if one.weight > Weight.HINT])
    stand = _last_stand(lines, strong)
    chosen = choose(lines, stand) if stand else None
    if chosen and (chosen.weight > Weight.ECHO or chosen.kind != "other"):
        return named_cause(lines, chosen)
    if not failed and not chosen:
        return _spoken(lines, evidence) or _last_word(lines) or _repeated(lines)
    if not failed and chosen and work(lines, max(chosen.at - _LAST_HINT_LINES, 0), chosen.at).over:
        return None  # only somebody's exit code, after all was done
    word = _last_word(lines) or _repeated(lines)
    if word and word.kind != "other":
        return word
    survived = [one for one in strong if one.sure and one.weight >= Weight.STOPPED]
    return _hinted(lines, evidence) or chosen or next(reversed(survived), None)


def _hinted(lines: Sequence[Line], evidence: Sequence[Evidence]) -> Evidence | None:
    """Return the best hint near the end: the last that names a kind, else the first of the last error lines."""
    hints = [one for one in evidence[-_LAST_HINTS:] if one.weight == Weight.HINT]
    hints = [one for one in hints if not work(lines, one.at + 1, len(lines)).outlives(one)]
    for at in range(max(len(lines) - _LAST_HINT_LINES, 0), len(lines)):
        tag, text, _ = tracebacks.shape(lines[at].text)
        if kind := last_lines.hint(text):
            hints.append(Evidence(at, at, at, Weight.HINT, kind, text, tag, sure=False))
    hints.sort(key=lambda one: one.at)
    named = [one for one in hints if one.kind != "other"]
    return named[-1] if named else next(iter(hints), None)


def _last_stand(lines: Sequence[Line], strong: Sequence[Evidence]) -> list[Evidence]:
    """Return the evidence at the end of the window that no work came after, and between which no work was done."""
    if not strong or work(lines, strong[-1].end + 1, len(lines)).outlives(strong[-1]):
        return []
    stand = [strong[-1]]
    heaviest = stand[0].weight
    for one in reversed(strong[:-1]):
        between = work(lines, one.end + 1, stand[-1].start)
        if between.outlives(one):
            grace = _LAUNCHER_WORK if heaviest <= Weight.ABORT else _PEERS_WORK if heaviest == Weight.PEER else 0
            if not one.sure and between.bars + between.lines <= _LAUNCHER_WORK:
                continue  # caught; what is before it may still be the cause
            if between.bars + between.lines > grace:
                break
        stand.append(one)
        heaviest = max(heaviest, one.weight)
    return stand[::-1]


def _not_survived(lines: Sequence[Line], strong: Sequence[Evidence]) -> list[Evidence]:
    """Leave out what somebody caught who had caught the same before, at the same place, and had gone on."""
    places = [lines[one.frames[-1]].text if one.frames and not one.sure else "" for one in strong]
    survived: set[str] = set()
    later: set[str] = set()
    for n in range(len(strong) - 1, -1, -1):
        if places[n] in later and places[n] not in survived:
            between = work(lines, strong[n].end + 1, strong[n + 1].start)
            if between.bars + between.lines > 0:
                survived.add(places[n])
        later |= {places[n]} - {""}
    return [one for one, place in zip(strong, places, strict=True) if place not in survived]


def _last_word(lines: Sequence[Line]) -> Evidence | None:
    """Return a line of the last few that says that the run is over, where no work was done after it."""
    word = last_lines.last_word(lines)
    if word is None:
        return None
    after = work(lines, word.at + 1, len(lines))
    before = work(lines, max(word.at - _LAST_HINT_LINES, 0), word.at)
    if after.bars or after.lines or after.over or before.over or (word.plain and before.bars + before.lines > 0):
        return None
    return Evidence(word.at, word.at, word.at, Weight.HINT, word.kind, word.text, word.tag, sure=False)


def _repeated(lines: Sequence[Line]) -> Evidence | None:
    """Return the line that the log repeats at its end, where that means that nothing went on any more."""
    said = repeated(lines)
    if said is None or (said.kind == "stall" and _worked(lines, said.first)):
        return None
    tag, text, _ = tracebacks.shape(lines[said.at].text)
    return Evidence(said.at, said.at, said.at, Weight.HINT, said.kind, text, tag, sure=False)


def _worked(lines: Sequence[Line], since: int) -> bool:
    others = [line for line in lines[since + 1 :] if not _WAIT.search(line.text, 0, _FIRST_CHARS)]
    done = work(others, 0, len(others))
    return bool(done.bars or done.lines or done.over)


def _spoken(lines: Sequence[Line], evidence: Sequence[Evidence]) -> Evidence | None:
    """Return an exception's line that the window ends with though no traceback is there to prove it."""
    for one in reversed(evidence):
        spoken = one.weight == Weight.HINT and one.start == one.end and one.at >= len(lines) - _LAST_SPOKEN
        if spoken and _BY_PYTHON.match(one.text):
            return one
    return None


def last_work(lines: Sequence[Line]) -> Line | None:
    """Return the last line that shows the run at work."""
    near = reversed(lines[-5_000:])
    found = (line for line in near if _WORK.search(line.text, 0, _FIRST_CHARS) and not _NO_WORK.match(line.text))
    return next(found, None)
