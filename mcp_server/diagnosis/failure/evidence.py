"""Collects all lines that may prove a failure, and assesses how much each proves. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from mcp_server.diagnosis.failure import kinds, statements, tracebacks
from mcp_server.diagnosis.failure.statements import TEXT_CHARS, Weight, exception_kind, is_sure_type, match_error_kind
from mcp_server.diagnosis.failure.tracebacks import RaisedException
from mcp_server.text.lines import Line
from mcp_server.text.rows import read_patterns, read_words

_RX = read_patterns("diagnosis/failure/patterns", "evidence")

# Limits keep hostile output cheap: the last lines that contain a word, tracebacks, candidate lines.
_MAX_LINES_PER_WORD = 2_000
_MAX_TRACEBACKS = 300
_MAX_CANDIDATES = 20_000
_MAX_BARE = 300  # exceptions without a traceback
_HEADER_WORD = "Traceback (most recent"
_NAMES = read_words("diagnosis/failure/words")
_ECHOES, _EXCEPTION_WORDS = frozenset(_NAMES["echo"]), _NAMES["part"]

_UNSURE = ((Weight.ECHO, "other"), (Weight.ABORT, "import_error"))  # a build may have failed where another way is
_ANNOUNCED_LINES = 4
_HARD = kinds.HARD - {"port_conflict"} | {"divergence", "auth_error", "network_error", "nccl_error"}
_ENDED = ("", "Terminated", "Interrupt", "Hangup")  # by somebody
_HELD_LINES = 300  # frames of a remote task
_BOX_LINES = 400
_PANIC_LINES = 6
_JULIA_STACK = "Stacktrace:"


@dataclass(frozen=True)
class FailureEvidence:
    """Lines that may prove a failure, ``start`` to ``end`` in the list of lines; the proving one is ``at``."""

    start: int
    end: int
    at: int
    weight: Weight
    kind: str
    text: str
    tag: str = ""
    sure: bool = True  # it ended a process; otherwise it may have been caught
    chained: str = ""
    frames: tuple[int, ...] = ()
    child: bool = False  # raised in a worker; its parent reports it too
    launcher: bool = False  # raised in a launcher, which ends that launch
    thread: bool = False  # ended a thread; the process went on


def hint_at(lines: Sequence[Line], at: int, kind: str) -> FailureEvidence:
    """Return the evidence of one line that mentions an error and proves nothing."""
    tag, text, _ = tracebacks.strip_prefixes(lines[at].text)
    return FailureEvidence(at, at, at, Weight.HINT, kind, text, tag, sure=False)


def collect_evidence(lines: Sequence[Line]) -> list[FailureEvidence]:
    """Return the evidence in ``lines``, in order."""
    candidates = _find_candidates(lines)
    evidence: list[FailureEvidence] = []
    taken: set[int] = set()
    headers = [at for at in candidates if tracebacks.is_header(lines[at].text)]
    for at in headers[-_MAX_TRACEBACKS:]:
        raised = tracebacks.read_traceback(lines, at)
        if raised and raised.end not in taken:
            taken.add(raised.end)
            held = _read_held_exception(lines, raised)
            taken.add(held.end)
            evidence.append(_assess_exception(lines, _complete_message(lines, held)))
        elif raised is None and at >= len(lines) - 400:
            evidence.append(_assess_cut_traceback(lines, at))
    bare = 0
    for at in reversed(candidates):
        if at in taken:
            continue
        tag, text, is_warning = tracebacks.strip_prefixes(lines[at].text)
        statement = statements.parse_statement(text)
        if statement and tracebacks.is_echoed_code(lines, at):
            continue
        if statement:
            sure = not is_warning and statement not in _UNSURE
            stated = FailureEvidence(at, at, at, statement.weight, statement.kind, text, tag, sure=sure)
            evidence += filter(None, [_read_message_below(lines, stated)])
        elif bare < _MAX_BARE and (item := _assess_bare_exception(lines, at, text, taken)):
            bare += 1
            evidence.append(item)
    boxes = [range(item.start + 1, item.end + 1) for item in evidence if _RX.box_head.match(item.text)]
    evidence = [item for item in evidence if not any(item.at in box for box in boxes)]
    evidence.sort(key=lambda item: (item.at, item.start))
    return evidence


def _read_message_below(lines: Sequence[Line], item: FailureEvidence) -> FailureEvidence | None:
    """Return a statement with the lines that belong to it, or None where the head of a box or a panic stands alone."""
    if _RX.box_head.match(item.text):
        return _read_box(lines, item)
    if item.text == _JULIA_STACK:
        above = range(item.at - 1, max(item.at - _PANIC_LINES, -1), -1)
        head = next((at for at in above if lines[at].text.startswith("ERROR: ")), None)
        text = lines[head].text if head is not None else ""
        return (
            replace(item, start=head, at=head, text=text, kind=match_error_kind(text) or "python_error")
            if head
            else None
        )
    if not _RX.panic.match(item.text):
        return item
    near = [
        (at, tracebacks.strip_prefixes(lines[at].text).text)
        for at in range(item.at + 1, item.at + _PANIC_LINES)
        if at < len(lines)
    ]
    if item.text.rstrip().endswith(":") and near:
        item = replace(item, at=near[0][0], end=near[0][0], text=near[0][1].strip())
    elif item.text.startswith("panic: ") and not any(_RX.goroutine.match(text) for _, text in near):
        return None
    return replace(item, kind=match_error_kind(item.text) or "python_error")


def _read_box(lines: Sequence[Line], item: FailureEvidence) -> FailureEvidence | None:
    """Return the head of a box, up to a line that stands as far left. The body decides the kind."""
    width = len(item.text) - len(item.text.lstrip())
    end, texts = item.at, list[str]()
    for at in range(item.at + 1, min(item.at + _BOX_LINES, len(lines))):
        tag, text, _ = tracebacks.strip_prefixes(lines[at].text)
        if tag != item.tag:
            continue
        if text.strip() and not _RX.box_body.match(text) and len(text) - len(text.lstrip()) <= width:
            break
        if text.strip():
            end = at
            texts.append(text)
    if not any(_RX.box_arrow.match(line.text) for line in lines[item.at + 1 : item.at + _PANIC_LINES]):
        return None
    texts = [text.strip("│├╰─▶ ") for text in texts]
    body = " ".join(texts)[:TEXT_CHARS]
    found = [kind for text in (body, *texts, item.text) if (kind := match_error_kind(text))]
    return replace(item, end=end, kind=next(iter(found), "import_error"))


def _read_held_exception(lines: Sequence[Line], raised: RaisedException) -> RaisedException:
    """Return the exception of the class that RayTaskError(ArrowInvalid) names, where a line below states it."""
    held = _RX.held.match(raised.text)
    if held is None:
        return raised
    stated = re.compile(rf"\s*(?:[A-Za-z_]\w*\.)*{held['name']}(?::|$)")
    frames: list[int] = []
    for at in range(raised.end + 1, min(raised.end + _HELD_LINES, len(lines))):
        tag, text, _ = tracebacks.strip_prefixes(lines[at].text)
        if tag == raised.tag and tracebacks.is_frame(text):
            frames.append(at)
        elif tag == raised.tag and stated.match(text):
            return replace(raised, end=at, name=held["name"], text=text.strip(), frames=tuple(frames) or raised.frames)
        elif tracebacks.is_header(text):
            break
    return replace(raised, name=held["name"]) if held["name"] not in _ECHOES else raised


def _find_candidates(lines: Sequence[Line]) -> list[int]:
    """Return the positions of lines that contain a keyword, found by substring search."""
    text = "\n".join(line.text for line in lines)
    starts = [0, *accumulate(len(line.text) + 1 for line in lines)]
    hits: set[int] = set()
    for word in (_HEADER_WORD, *_EXCEPTION_WORDS, *statements.list_words()):
        at = len(text)
        for _ in range(_MAX_LINES_PER_WORD):
            at = text.rfind(word, 0, at)
            if at < 0:
                break
            position = bisect_right(starts, at) - 1
            hits.add(position)
            at = starts[position]
    return sorted(hits)[-_MAX_CANDIDATES:]


def _assess_bare_exception(
    lines: Sequence[Line], at: int, text: str, assessed_lines: Container[int]
) -> FailureEvidence | None:
    """Assess the line of an exception without a header. Without frames above, it may be a mere mention."""
    raised = tracebacks.read_bare_exception(lines, at) if any(word in text for word in _EXCEPTION_WORDS) else None
    if raised is None:
        return None
    item = _assess_exception(lines, raised)
    if raised.frames and "ray::" in lines[max(raised.start - 1, 0)].text:
        return replace(item, sure=True, child=True)  # raised in a Ray actor, printed by its caller
    if raised.frames or "SyntaxError" in raised.name:
        # Ray continues with the frames of the task.
        return replace(item, sure=item.sure or raised.start - 1 in assessed_lines)
    announces = raised.text.rstrip().endswith(":") and any(_RX.item.match(line.text) for line in lines[at + 1 : at + 2])
    if announces or tracebacks.is_thrown(lines, at):  # with the list that it announces, as conda's, or with its frames
        return replace(item, sure=False)
    return replace(item, weight=min(item.weight, Weight.HINT), sure=False)


def _assess_cut_traceback(lines: Sequence[Line], header: int) -> FailureEvidence:
    """Assess a traceback without an end: the log was cut, or the process was killed while printing."""
    tag, _, is_warning = tracebacks.strip_prefixes(lines[header].text)
    end = last_frame = header
    for at in range(header + 1, min(header + 400, len(lines))):
        text = tracebacks.strip_prefixes(lines[at].text).text
        if lines[at].text[:1].isspace() or text[:1].isspace():
            end = at
            last_frame = at if tracebacks.is_frame(text) else last_frame
    weight = Weight.HINT if is_warning else Weight.ECHO
    proof = lines[last_frame].text.strip()  # the place, and not the code there
    return FailureEvidence(header, end, last_frame, weight, "python_error", proof, tag, sure=False)


def _assess_exception(lines: Sequence[Line], raised: RaisedException) -> FailureEvidence:
    files = [lines[at].text for at in raised.frames]
    kind = _kind_of_exception(lines, raised, files)
    weight = _weight_of_exception(raised, kind, files)
    statement = statements.parse_statement(raised.text) if weight == Weight.ECHO else None
    if statement and statement.weight > weight:
        weight, kind = statement
    sure = raised.uncaught or raised.name == "KeyboardInterrupt" or bool(_RX.whole_program.search(raised.context))
    at_exit = bool(files) and bool(_RX.at_exit.search(files[0]))
    if raised.is_warning or at_exit or _is_survived(raised):
        weight, sure = Weight.HINT, False
    child = bool(_RX.child.search(raised.context)) or "Original Traceback" in lines[raised.start].text
    launcher = any(_RX.launcher.search(file) for file in files[-6:])
    return FailureEvidence(
        raised.start, raised.end, raised.end, weight, kind, raised.text, raised.tag, sure or child, raised.chained,
        raised.frames, child, launcher, bool(_RX.thread.match(raised.context)),
    )  # fmt: skip


def _complete_message(lines: Sequence[Line], raised: RaisedException) -> RaisedException:
    """Return ``raised`` with what the next line says, where its own line only announces it."""
    if raised.name in _ECHOES or not raised.text.rstrip().endswith(":"):
        return raised
    for at in range(raised.end + 1, min(raised.end + _ANNOUNCED_LINES, len(lines))):
        tag, text, _ = tracebacks.strip_prefixes(lines[at].text)
        text = text.strip()
        if tag != raised.tag or not any(letter.isalpha() for letter in text):
            continue
        if _RX.announces.search(raised.text) and (inner := tracebacks.match_exception(text, after_frames=True)):
            return replace(raised, end=at, name=inner["name"].rpartition(".")[2], text=text)
        return replace(raised, text=f"{raised.text.strip()} {text}") if " " not in raised.text.strip() else raised
    return raised


def _is_survived(raised: RaisedException) -> bool:
    if _RX.survived.search(raised.context):
        return True
    passed_over = not raised.uncaught and bool(_RX.skipped.search(raised.context))
    return passed_over and not _RX.overflow_words.search(raised.context)


def _kind_of_exception(lines: Sequence[Line], raised: RaisedException, files: Sequence[str]) -> str:
    text = raised.text[:TEXT_CHARS]
    if signal_match := _RX.by_signal.search(text):
        by = signal_match[1] or ""
        return "oom_host" if by == "Killed" else "killed" if by in _ENDED else "segfault"
    kind = exception_kind(raised.name, text)
    if kind in {"python_error", "nccl_error"} and not is_sure_type(raised.name):
        kind = _kind_from_next_lines(lines, raised, kind)
    if kind == "python_error" or (kind == "data_error" and raised.name == "JSONDecodeError"):
        last = lines[raised.frames[-1] + 1].text if raised.frames and raised.frames[-1] + 1 < raised.end else ""
        in_config = any(_RX.config_files.search(file) for file in files[-3:])
        of_config = raised.name == "KeyError" and _RX.config_key.search(last)
        if of_config or (in_config and raised.name not in {"AttributeError", "TypeError"}):
            return "config_error"
    return kind


def _kind_from_next_lines(lines: Sequence[Line], raised: RaisedException, kind: str) -> str:
    """Return the kind that the next lines prove, after a line that ends in `Last error:` or `invalid values:`."""
    if not raised.text.endswith((":", "(s)", ",")) and kind != "nccl_error":
        return kind
    texts = [tracebacks.strip_prefixes(line.text).text[:300] for line in lines[raised.end + 1 : raised.end + 12]]
    texts = texts[: next((n for n, text in enumerate(texts) if tracebacks.is_header(text)), len(texts))]
    for text in texts:
        next_kind = match_error_kind(text) if not text.lstrip().startswith("File ") else None
        if next_kind == "oom_gpu" or (next_kind in _HARD and kind != "nccl_error"):
            return next_kind
    if "invalid values" in raised.text and any(_RX.nan.search(text) for text in texts):
        return "divergence"
    return kind


def _weight_of_exception(raised: RaisedException, kind: str, files: Sequence[str]) -> Weight:
    """Return how much an exception proves: the cause itself, lost peers, a stop, or an echo."""
    if kind == "killed" and raised.name not in _ECHOES:
        return Weight.STOPPED
    if raised.name in _ECHOES or _RX.echo_text.search(raised.text[:TEXT_CHARS]):
        return Weight.OWN if kind in {"oom_gpu", "oom_host"} and raised.name not in _ECHOES else Weight.ECHO
    if raised.name in _NAMES["pipe"] and any(_RX.pipes.search(file) for file in files[-4:]):
        return Weight.ECHO
    return Weight.PEER if kind == "nccl_error" else Weight.OWN
