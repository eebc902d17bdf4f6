"""Diagnoses the end of a run: the exit status first, the text second. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcp_server.diagnosis.advice.blocks import Scene
from mcp_server.diagnosis.advice.next_action import propose_for_case, propose_next_step
from mcp_server.diagnosis.failure import kinds, last_lines, log_shapes, ordinary_work, root_cause, tracebacks
from mcp_server.diagnosis.failure.evidence import FailureEvidence, collect_evidence
from mcp_server.diagnosis.failure.statements import Weight
from mcp_server.text.lines import Line
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/failure/patterns", "diagnose")

_FIRST_CHARS = 1_000
_NO_OUTPUT = "(no output)"
_CONTEXT_LINES = 6
_FORE_LINES, _AFTER_LINES = 2, 2
_NEAR_LINES, _NEAR_FRAMES, _NEAR_CHARS = 8, 60, 200  # around the evidence: they name the framework
_MESSAGE_LINES, _MESSAGE_CHARS = 12, 1_000  # of the error, below its first
_SETTING_LINES = 300  # of the log's beginning and of its end: they show settings and launchers
_SETTING_CHARS, _SETTINGS_CHARS = 1_500, 100_000  # of a line, which may be a dump of all arguments; of either part
_LEAST_STEPS = 2  # that a log shows before an error: what it names had worked
_SIGNAL_BASE = 128
_TIMED_OUT, _USAGE, _SSH_FAILED = 124, 2, 255
_SHELL_CODES = {126: "not_executable", 127: "not_found"}  # of a shell that could not start a program
_KINDS_OF_STOP = {"stall": "stall", "first_step_timeout": "timeout", "imbalance": "other"}
_WATCH = "runward watch: "
_LINES_OF_SSH = 6
_LAST_WORDS, _LAST_LINES = 3, 8  # from the evidence on: the one that gives up; all, of which a wrapper prints some
_MAY_BE_NAN = frozenset({"python_error", "data_error"})
_MAY_BE_MEMORY = frozenset({"ray_error", "killed", "other"})


@dataclass(frozen=True)
class RunFacts:
    """The supervisor's knowledge in addition to the text. All fields are optional."""

    oom_killed: bool = False  # the kernel's OOM killer counted a kill in this run's cgroup
    diverged: str | None = None  # the metric line that proves divergence, from the whole run
    diverged_number: int | None = None
    diverged_since: tuple[str, str] = ("", "")  # what the metrics show, in one sentence, and the first line of it
    command: str = ""  # as it was started, with the variables that launch_run set
    cwd: str = ""  # on this host
    stopped_for: str | None = None  # a key of _KINDS_OF_STOP when the recovery policy stopped the attempt
    is_own_code: bool = False  # no shell or launcher stands between: an exit code is the program's own choice
    silence: str = ""  # for which it was stopped: "No progress for 20 s after step 17. Last line: …"


@dataclass(frozen=True)
class Diagnosis:
    """A kind of failure and the line that proves it, stripped but not shortened."""

    kind: str
    line: str
    line_number: int | None
    retryable: bool | None  # None: nothing says whether a retry helps
    action: str  # one of kinds.ACTIONS
    advice: str
    context: tuple[str, ...] = ()
    correction: str | None = None  # the advice without the call that starts the run again, where that differs
    far_side: str | None = None  # the host to which the session was lost, or a word for it
    is_last: bool = False  # the line proves nothing: it is the last one that says anything

    @property
    def is_silent(self) -> bool:
        """Whether there was no output, so that no line is the same in two attempts."""
        return self.line == _NO_OUTPUT

    @property
    def is_of_scheduler(self) -> bool:
        """Whether the line that proves it is a scheduler's, which took the machine or the time away."""
        return self.kind == "killed" and bool(_RX.scheduler.search(self.line))


def _with_advice(failure: Diagnosis, case: str) -> Diagnosis:
    step = propose_for_case(case)
    return replace(failure, advice=step.advice, correction=step.correction or None)


def diagnose(
    lines: Sequence[Line], exit_code: int | None = None, signal: str | None = None, run_facts: RunFacts = RunFacts()
) -> Diagnosis | None:
    """Return the failure and the line that proves it, or None if the run did not fail.

    ``lines`` is the end of the log, at most a few MB. With exit code 0 only divergence is a failure, and a last line
    that says what is missing and that the program ends. With any other code, or a signal (`"SIGKILL"`), the run
    certainly failed. With neither, evidence at the end of the log decides.
    """
    number = 0 if run_facts.is_own_code else (exit_code or 0) - _SIGNAL_BASE
    if signal is None and 0 < number < len(kinds.SIGNALS):
        signal = f"SIG{kinds.SIGNALS[number]}"
    lost = find_lost_session(lines) if exit_code == _SSH_FAILED else None
    if lost is not None and not lost.text.startswith(_WATCH):
        return _build_lost("network_error", lost, "lost_session")
    failed = exit_code != 0 and bool(exit_code or signal or run_facts.stopped_for or run_facts.oom_killed)
    lines = log_shapes.normalize_lines(lines)
    stalled = run_facts.stopped_for == "stall"
    evidence = root_cause.find_root_cause(lines, collect_evidence(lines), failed=failed, stalled=stalled)
    if lost is not None and evidence is None and run_facts.diverged is None:
        return _build_lost("other", lost, "unseen_end")
    if exit_code == 0 and evidence and evidence.kind != "divergence":
        last = [line.text for line in lines[evidence.at : evidence.at + _LAST_WORDS]]
        ends = len([line for line in lines[evidence.at :] if line.text.strip()]) <= _LAST_LINES
        evidence = evidence if ends and any(map(last_lines.gives_up, last)) else None
    if run_facts.diverged is not None and (evidence is None or evidence.weight <= Weight.HINT):
        return _build_divergence(lines, run_facts.diverged, run_facts)
    if evidence and run_facts.diverged is not None and evidence.kind in _MAY_BE_NAN and _RX.nan.search(evidence.text):
        return _failure_from(lines, evidence, "divergence", run_facts)
    if not failed:
        return _failure_from(lines, evidence, evidence.kind, run_facts) if evidence else None
    return _diagnose_failed_run(lines, evidence, exit_code, signal, run_facts)


def _build_divergence(lines: Sequence[Line], diverged: str, run_facts: RunFacts) -> Diagnosis:
    """Return the failure that the newest metric line proves, or the first one that is not finite, and since when."""
    number = run_facts.diverged_number or _find_number(lines, diverged)
    sentence, first_line = run_facts.diverged_since
    first = _find_number(lines, first_line) if first_line else None
    if first and _RX.nan.search(first_line):  # the checkpoints before it are good, those before a later one not
        diverged, number = first_line, first
    context = (f"{sentence.rstrip('.')}{f', line {first}' if first else ''}.",) if sentence else ()
    scene = Scene("divergence", "", near=sentence, log=_read_settings(lines, run_facts.command))
    return _build_failure("divergence", diverged.strip(), number, context, scene=scene)


def _find_number(lines: Sequence[Line], text: str) -> int | None:
    """Return the number of the last line that is ``text``, which may stand behind a progress bar."""
    return next((line.number for line in reversed(lines) if line.text.endswith(text)), None)


def find_lost_session(lines: Sequence[Line]) -> Line | None:
    """Return the line with which ssh, at the end of the log, says that a session broke off after it had begun."""
    last = [line for line in lines[-50:] if line.text.strip()][-_LINES_OF_SSH:]
    if any(_RX.not_begun.search(line.text[:_FIRST_CHARS]) for line in last):
        return None
    return next((line for line in last if _RX.lost_session.match(line.text.strip()[:_FIRST_CHARS])), None)


def _build_lost(kind: str, line: Line, case: str) -> Diagnosis:
    text = line.text.strip()
    match = _RX.lost_session.match(text)
    host = next(filter(None, match.groupdict().values() if match else ()), "the far side").rstrip(".")
    return _with_advice(Diagnosis(kind, text, line.number, False, "stop", "", far_side=host), case)


def _diagnose_failed_run(
    lines: Sequence[Line],
    evidence: FailureEvidence | None,
    exit_code: int | None,
    signal: str | None,
    run_facts: RunFacts,
) -> Diagnosis:
    is_own_cause = evidence is not None and evidence.weight >= Weight.PEER and evidence.kind != "killed"
    if run_facts.oom_killed and not (
        evidence and evidence.weight == Weight.OWN and evidence.kind not in _MAY_BE_MEMORY
    ):
        return _failure_from(lines, evidence, "oom_host", run_facts)
    if run_facts.stopped_for in _KINDS_OF_STOP and not (evidence and is_own_cause and evidence.sure):
        kind, last = _KINDS_OF_STOP[run_facts.stopped_for], ordinary_work.find_last_work_line(lines)
        failure = (
            _build_failure(kind, last.text, last.number, ()) if last else _failure_from(lines, None, kind, run_facts)
        )
        if kind == "stall" and run_facts.silence:  # the last line proves nothing
            failure = replace(failure, line=run_facts.silence, is_last=False)
        case = {"timeout": "no_first_step", "other": "imbalance"}.get(kind)
        return _with_advice(failure, case) if case else failure
    by_signal = ("segfault" if signal in kinds.CRASH_SIGNALS else "killed") if signal else None
    if evidence is None and exit_code in _SHELL_CODES:
        return _with_advice(_failure_from(lines, None, "config_error", run_facts), _SHELL_CODES[exit_code])
    if evidence is None:
        by_code = {_TIMED_OUT: "timeout", _USAGE: "config_error" if last_lines.has_usage(lines[-60:]) else None}.get(
            exit_code or 0
        )
        failure = _failure_from(lines, None, by_signal or by_code or "other", run_facts, signal or "")
        if failure.kind == "other" and not failure.advice:
            return replace(_with_advice(failure, "unproven"), retryable=None, action="stop")
        return failure
    heard_only = evidence.weight <= Weight.ABORT
    kind = by_signal if by_signal and heard_only and evidence.kind not in kinds.HARD else evidence.kind
    return _failure_from(lines, evidence, kind, run_facts, signal or "")


def _failure_from(
    lines: Sequence[Line], evidence: FailureEvidence | None, kind: str, run_facts: RunFacts, signal: str = ""
) -> Diagnosis:
    if evidence is not None:
        line = lines[evidence.at]
        context = _context(lines, evidence)
        scene = Scene(
            kind,
            "",
            near=_text_near(lines, max(evidence.start, evidence.at - _NEAR_FRAMES), evidence.at),
            log=_read_settings(lines, run_facts.command),
            place=tracebacks.name_place(lines, evidence.frames),
            library=tracebacks.name_library(lines, evidence.frames),
            message=_read_message(lines, evidence.at),
            source=tracebacks.read_source(lines, evidence.frames),
            inside=tracebacks.name_started_library(lines, evidence.frames),
            record=_read_record(lines, evidence),
            cwd=run_facts.cwd,
        )
        return _build_failure(kind, _quote_line(line, evidence), line.number, context, signal, scene)
    at = next(
        (n for n in range(len(lines) - 1, -1, -1) if not _RX.meaningless.match(lines[n].text[:400])), len(lines) - 1
    )
    if at < 0:
        return replace(_build_failure(kind, _NO_OUTPUT, None, (), signal), is_last=True)
    *context_above, last = (
        tracebacks.without_mark(line.text).strip() for line in lines[max(at - _FORE_LINES, 0) : at + 1]
    )
    scene = Scene(kind, "", near=_text_near(lines, at, at), log=_read_settings(lines, run_facts.command))
    failure = _build_failure(kind, last or _NO_OUTPUT, lines[at].number, (*context_above, last), signal, scene)
    return replace(failure, is_last=True)


def _read_record(lines: Sequence[Line], evidence: FailureEvidence) -> str:
    """Return "data" or "step" for an error after which earlier steps had worked, else nothing."""
    if ordinary_work.count_steps(lines, evidence.start - _SETTING_LINES, evidence.start, _LEAST_STEPS) < _LEAST_STEPS:
        return ""
    return "data" if tracebacks.is_of_records(lines, evidence.frames) else "step"


def _quote_line(line: Line, evidence: FailureEvidence) -> str:
    """Return the line that proves the failure, with the next one's words where it only holds an exception's name."""
    text = line.text.strip()
    name = tracebacks.strip_prefixes(text).text.strip()
    is_completed = name.endswith(":") and evidence.text.startswith(name)
    return f"{text}{evidence.text[len(name) :]}" if is_completed else text or evidence.text


def _read_message(lines: Sequence[Line], at: int) -> str:
    tag, first, _ = tracebacks.strip_prefixes(lines[at].text)
    texts, prefix = [first.strip()], lines[at].text.removesuffix(first)
    for line in lines[at + 1 : at + 1 + _MESSAGE_LINES]:
        line_tag, text, _ = tracebacks.strip_prefixes(line.text)
        if prefix and text == line.text and text.startswith(prefix):  # that of a rank, before a line of any shape
            line_tag, text = tag, text.removeprefix(prefix)
        if line_tag != tag:
            continue
        if tracebacks.is_header(text) or tracebacks.is_frame(text) or _RX.ends_message.match(text):
            break
        texts.append(text.strip())
    return "\n".join(text[:_MESSAGE_CHARS] for text in texts if text)


def _read_settings(lines: Sequence[Line], command: str) -> str:
    first, last = lines[:_SETTING_LINES], lines[_SETTING_LINES:][-_SETTING_LINES:]
    begin, end = ("\n".join(line.text[:_SETTING_CHARS] for line in part) for part in (first, last))
    return "\n".join((command, begin[:_SETTINGS_CHARS], end[-_SETTINGS_CHARS:]))


def _text_near(lines: Sequence[Line], first: int, last: int) -> str:
    near = lines[max(first - _NEAR_LINES, 0) : last + _NEAR_LINES]
    return "\n".join(line.text[:_NEAR_CHARS] for line in near)


def _build_failure(
    kind: str, line: str, number: int | None, context: tuple[str, ...], signal: str = "", scene: Scene | None = None
) -> Diagnosis:
    line = tracebacks.without_mark(line).strip()
    text = tracebacks.strip_prefixes(line).text.strip() or line
    is_kill = kind == "killed"
    retryable = _is_retryable_kill(line, signal) if is_kill else None
    scene = (scene or Scene(kind, ""))._replace(kind=kind, line=f"{text} {signal}" if is_kill else text)
    step = propose_next_step(scene, retryable=retryable)
    return Diagnosis(kind, line, number, step.retryable, step.action, step.advice, context, step.correction or None)


def _is_retryable_kill(line: str, signal: str) -> bool:
    if _RX.deliberate_stop.search(line) or signal == "SIGINT":
        return False
    return bool(_RX.outside_stop.search(line)) or "CANCELLED" not in line


def _context(lines: Sequence[Line], evidence: FailureEvidence) -> tuple[str, ...]:
    """Return a few lines around the root line: the last frames of the user's code, or the neighbouring lines."""
    root_line = tracebacks.strip_prefixes(lines[evidence.at].text).text.strip()
    if not evidence.frames:
        near = range(max(evidence.at - _FORE_LINES, 0), min(evidence.at + _AFTER_LINES + 1, len(lines)))
        texts = [
            root_line if at == evidence.at else tracebacks.strip_prefixes(lines[at].text).text.strip() for at in near
        ]
        return tuple(dict.fromkeys(filter(None, texts)))
    context: list[str] = []
    for at in tracebacks.find_own_frames(lines, evidence.frames)[-_FORE_LINES:]:
        tag, frame, _ = tracebacks.strip_prefixes(lines[at].text)
        below = (tracebacks.strip_prefixes(line.text) for line in lines[at + 1 : min(at + 8, evidence.at)])
        code = next((shape.text.rstrip() for shape in below if shape.tag == tag), "")
        context += [frame.rstrip(), code if not tracebacks.is_frame(code) else ""]
    after = [n for n in range(evidence.at + 1, min(evidence.at + 3, len(lines))) if lines[n].text[:1].isspace()]
    context += [root_line, *(lines[n].text.strip() for n in after[:1])]
    return tuple(dict.fromkeys(filter(None, context)))[-_CONTEXT_LINES:]
