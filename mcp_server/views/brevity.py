"""How answers stay short: what is left out of a heartbeat, and of answers about many runs. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from mcp_server.answer import Answer
from mcp_server.record.state import ENDED, Run
from mcp_server.text.formatting import duration, estimate_tokens, round_seconds, shorten_line
from mcp_server.views.run_status import SHOWN, Failure, RunStatus, printed_exception

HEARTBEAT_TOKENS = 45
FAILURE_TOKENS = 300
_FAILURE_FRAME_TOKENS = 24  # of the reason, the wait and its schedule
# What a failure that is too long leaves out, in this order: characters of its line, and of each line around it.
_FAILURE_CHARS = ((180, 60), (140, 60), (140, 40), (100, 40), (100, 0))
# Of {"reason":"heartbeat","runs":[{"run_id":"","state":"running"}]}, and of ,"step": and the like.
_FRAME_TOKENS, _KEY_TOKENS = 18, {"step": 3, "metrics": 2, "tail": 3, "last_output_s": 5, "next_timeout_s": 5}
MANY_TOKENS = 1900  # of an answer about any number of runs
FULL_TOKENS = 1200  # of them for statuses in full
_TAIL_CHARS = 40
_MINUTE = len("2026-11-27T05:10")
_URGENCY = (
    *("failed", "lost", "killed", "timed_out", "stalled", "running", "retrying", "starting", "queued", "finished"),
    "imported",
)


def shorten_heartbeat(status: RunStatus, next_timeout_s: float) -> tuple[RunStatus, float | None]:
    """Return the ``status`` of a live run without news in 45 tokens, and the wait, where a long id leaves room."""
    facts = status.model_dump()
    if any(SHOWN[name].is_news for name in facts):
        return status, next_timeout_s
    if "tail" in facts:
        facts["tail"] = [shorten_line(line, _TAIL_CHARS) for line in facts["tail"][-1:]]
    shortened = {name: value for name, value in facts.items() if SHOWN[name].heartbeat == 1}
    if "step" in shortened or "last_output_s" not in facts:
        more = {"next_timeout_s": next_timeout_s}
    else:
        more = {"last_output_s": facts["last_output_s"], "next_timeout_s": next_timeout_s}
    more |= {name: facts[name] for name in sorted(facts, key=_rank) if _rank(name) > 1}
    left = HEARTBEAT_TOKENS - _FRAME_TOKENS - estimate_tokens(status.run_id)
    left -= sum(_tokens_of_field(name, value) for name, value in shortened.items() if name not in ("run_id", "state"))
    for name, value in more.items():
        if (tokens := _tokens_of_field(name, value)) <= left:
            left -= tokens
            shortened[name] = value
    next_timeout = shortened.pop("next_timeout_s", None)
    return RunStatus.model_validate(shortened), next_timeout


def _rank(name: str) -> int:
    return SHOWN[name].heartbeat


def shorten_failure(status: RunStatus) -> RunStatus:
    """Return the ``status`` of a failed run in 300 tokens: what to do stays whole, the line is in the log."""
    failure = status.failure
    if failure is None or failure.line is None:
        return status
    for chars, around in _FAILURE_CHARS:
        if estimate_answer(status) <= FAILURE_TOKENS - _FAILURE_FRAME_TOKENS:
            break
        context = [shorten_line(line.strip(), around) for line in failure.context or ()] if around else None
        shorter = {"line": shorten_line(failure.line, chars), "context": context or None}
        status = status.model_copy(update={"failure": failure.model_copy(update=shorter)})
    return status


def row_of(status: RunStatus, *, dated: bool = False) -> RunStatus:
    """Return a status as one short line of a list; ``dated``: also when it started, to the minute, and its time."""
    facts = status.model_dump()
    rows = {"all"} if status.state in ENDED else {"all", "live"}
    row = {name: value for name, value in facts.items() if SHOWN[name].row in rows}
    if status.failure is not None:
        row["failure"] = Failure(kind=status.failure.kind)
    if status.exit_code:
        row["exit_code"] = status.exit_code
    if status.state == "killed" and status.stopped_by:
        row["stopped_by"] = status.stopped_by
    if status.state in ENDED and status.earlier:
        row |= {"attempt": status.attempt, "earlier": status.earlier}
    if dated and status.started_at:
        row |= {"started_at": f"{status.started_at[:_MINUTE]}Z", "elapsed_s": status.elapsed_s}
    return RunStatus.model_validate(row)


def without_details(status: RunStatus) -> RunStatus:
    """Return a status as one of several: without what does not help to decide."""
    return status.model_copy(update=dict.fromkeys(name for name, shown in SHOWN.items() if shown.of_one))


def add_tail(status: RunStatus, lines: Sequence[str]) -> RunStatus:
    """Return ``status`` with the last lines of the output, if any; what they show is not said as context as well."""
    if not lines:
        return status
    failure = status.failure
    if failure is not None and set(failure.context or ()) <= set(lines):
        failure = failure.model_copy(update={"context": None})
    return status.model_copy(update={"tail": list(lines), "failure": failure})


def line_of(run: Run) -> str:
    """Return an ended run as one line of text: ``cell-07-ab3d failed oom_gpu, exit 1, 40 s``."""
    kind = f" {run.failure['kind']}" if run.failure is not None else ""
    end = f", exit {run.exit_code}" if run.exit_code else f", {run.signal}" if run.signal else ""
    elapsed_s = run.elapsed_s(0.0) if run.ended else None
    took = f", {duration(round_seconds(elapsed_s))}" if elapsed_s is not None else ""
    odd = ", printed an exception" if printed_exception(run) is not None else ""
    before = f" (before: {run.earlier})" if run.earlier else ""
    return f"{run.run_id} {run.state}{kind}{end}{took}{odd}{before}"


def sort_by_urgency(runs: Iterable[Run]) -> list[Run]:
    """Return runs in the order in which they deserve a look: failures, other ends, trouble, and what finished."""
    return sorted(runs, key=lambda run: _URGENCY.index(run.state) if run.state in _URGENCY else len(_URGENCY))


def estimate_answer(answer: Answer) -> int:
    """Return about how many tokens an answer has."""
    return _tokens(answer)


def fit(items: Sequence[Any], tokens: int, *, least: int = 0) -> int:
    """Return how many of ``items``, from the first on, have at most ``tokens`` together. At least ``least``."""
    spent = 0
    for count, item in enumerate(items):
        spent += _tokens(item) + 1
        if spent > tokens and count >= least:
            return count
    return len(items)


def count_states(runs: Iterable[Run]) -> dict[str, int]:
    """Return how many runs are in each state, the most frequent first."""
    return dict(Counter(run.state for run in runs).most_common())


def _tokens_of_field(name: str, value: Any) -> int:
    return _KEY_TOKENS.get(name, 4) + _tokens(value)


def _tokens(value: Any) -> int:
    facts = value.model_dump() if hasattr(value, "model_dump") else value
    return estimate_tokens(json.dumps(facts, ensure_ascii=False, separators=(",", ":")))
