"""One run as the page shows it when it is opened: how it was started, what happened, what came of it."""

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.hosts.environment import list_known_secrets
from mcp_server.page.exchange import Raw
from mcp_server.page.sessions import Visitor
from mcp_server.record.attempt_params import list_earlier_ends
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.results.notes import NOTES, fold_notes, read_notes
from mcp_server.record.results.result_page import read_tracker_link
from mcp_server.record.run_directory import read_json
from mcp_server.record.state import Run
from mcp_server.results.checkpoints import find_run_checkpoints
from mcp_server.results.evaluations.evaluation_series import build_series, name_series
from mcp_server.results.evaluations.evaluations import find_run_evaluations
from mcp_server.results.evaluations.printed_evaluations import read_printed_evaluations
from mcp_server.results.far_results import name_there, show_far_files
from mcp_server.results.finish import find_own_document
from mcp_server.system.files import open_regular, read_regular_file
from mcp_server.text.formatting import format_posix, shorten_facts, shorten_line, shorten_middle, significant
from mcp_server.text.invisible import TERMINAL_ESCAPES, escape_unsendable
from mcp_server.text.secret_patterns import is_secret_variable, mask_secrets, mask_value
from mcp_server.tools.support.context import ServerContext
from mcp_server.views.log_excerpt import count_lines_before, find_line_start, find_lines
from mcp_server.views.people_rows import name_kind
from mcp_server.views.run_status import Tracker

HIDDEN = "•••"
_MOST_EVENTS, _EVENT_CHARS, _LINE_CHARS = 300, 600, 2_000
_COMMAND_CHARS, _VALUE_CHARS = 4_000, 300
_MOST_CHANGES, _MOST_CHECKPOINTS, _MOST_FIGURES = 60, 30, 60
_DOCUMENT_BYTES = 512 << 10


def describe_details(server: ServerContext, run: Run) -> dict[str, Any]:
    """Return how a run was started and what happened to it, by its record alone."""
    rundir, spec, attempt = server.store.record_of(run), run.spec, run.attempt_params
    snapshot, notes = read_code_snapshot(rundir, run.attempt), read_notes(rundir.path / NOTES)
    facts: dict[str, Any] = {
        "command": shorten_middle(mask_secrets(run.command), _COMMAND_CHARS),
        "cwd": spec.cwd,
        "params": {name: _show_value(name, value) for name, value in attempt.settings.items()},
        "params_changed": list(attempt.changed.values()),
        "env": {
            **{name: _show_value(name, value) for name, value in {**spec.env, **attempt.environment}.items()},
            **dict.fromkeys(spec.secrets, HIDDEN),
        },
        "code_kept": spec.keep_code,
        "events": [_describe_event(event) for event in fold_notes(run.events, notes)[-_MOST_EVENTS:]],
        "attempts": _list_attempts(server, run),
        "failure": _describe_failure(run),
        "notes": notes,
        "agent": _list_calls(run.run_id),
    }
    if snapshot is not None:
        changes = [line for line in snapshot.read_diff().splitlines() if line.startswith("diff --git ")]
        named = [f"M {line.rpartition(' b/')[2]}" for line in changes]
        facts |= {
            "commit": snapshot.git.commit or None,
            "changes": [*named, *(f"? {name}" for name in snapshot.git.untracked)][:_MOST_CHANGES],
            "packages": snapshot.packages,
        }
    link = read_tracker_link(rundir.log(run.attempt))
    tracker = Tracker.of(link)
    return {**facts, "tracker": None if tracker is None else tracker.model_dump(exclude_none=True)}


def describe_results(server: ServerContext, run: Run, visitor: Visitor) -> dict[str, Any]:
    """Return what came of a run: checkpoints, evaluations, its document. Looks through its directories."""
    own, here = server.scalars.attribution.of(run), run
    if run.spec.mirror:
        here, _ = show_far_files(run, own)
    saved = find_run_checkpoints(here, own)[:_MOST_CHECKPOINTS]
    found = [*read_printed_evaluations(run, server.store.record_of(run)), *find_run_evaluations(here, own)]
    series = list(name_series(build_series(found)).items())[:_MOST_FIGURES]
    return {
        "checkpoints": [
            {
                "path": str(name_there(one.path, run)),
                "step": one.step,
                "at": format_posix(one.changed_s),
                "size": one.size_bytes,
            }
            for one in saved
        ],
        "evaluations": [
            {
                "name": name,
                "values": {
                    "last": significant(one.last.value, 6),
                    **({} if one.best is None else {"best": significant(one.best.value, 6)}),
                },
                "step": one.last.step,
                "best_is": one.best_is,
            }
            for name, one in series
        ],
        "results_md": _read_document(server, run) if visitor.owner in (None, run.spec.owner) else None,
    }


def _read_document(server: ServerContext, run: Run) -> str | None:
    facts = read_json(server.store.record_of(run).finding) or {}
    path = str(facts.get("results") or "")
    if not path or run.spec.mirror or not (path := find_own_document(Path(path), run.run_id)):
        return None
    with contextlib.suppress(OSError):
        text = read_regular_file(Path(path), max_bytes=_DOCUMENT_BYTES, follow_links=False)
        return mask_secrets(text.decode(errors="replace"))
    return None


def _show_value(name: str, value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    if is_secret_variable(name, text):
        return HIDDEN
    return shorten_middle(mask_value(name, text), _VALUE_CHARS)


def _describe_event(event: Mapping[str, Any]) -> dict[str, Any]:
    text = shorten_facts(mask_secrets(str(event.get("text", ""))), _EVENT_CHARS)
    facts = {"seq": event["seq"], "at": event.get("at"), "kind": event["kind"], "text": text}
    return facts | ({"attempt": event["attempt"]} if "attempt" in event else {})


def _list_attempts(server: ServerContext, run: Run) -> list[dict[str, Any]]:
    rundir, ends = server.store.record_of(run), dict(list_earlier_ends(run.events))
    attempts: list[dict[str, Any]] = []
    for number in sorted({int(event.get("attempt") or 1) for event in run.events if event["kind"] == "started"}):
        end = read_json(rundir.exit(number)) or {}
        start = next(e for e in run.events if e["kind"] == "started" and int(e.get("attempt") or 1) == number)
        cause = ends.get(number) or (run.failure or {}).get("kind") if number <= run.attempt else None
        if number == run.attempt and not run.ended:
            cause = None
        attempts.append(
            {
                "n": number,
                "started_at": start.get("at"),
                "ended_at": end.get("ended_at"),
                "exit_code": end.get("exit_code"),
                "signal": end.get("signal"),
                "cause": name_kind(str(cause)) if cause else None,
            }
        )
    return attempts


def _describe_failure(run: Run) -> dict[str, Any] | None:
    if not run.failure:
        return None
    known = ("kind", "line_number", "advice", "action", "retryable", "correction")
    facts = {name: run.failure[name] for name in known if name in run.failure}
    lines = [shorten_line(str(line), _LINE_CHARS) for line in run.failure.get("context") or ()]
    line = shorten_line(str(run.failure.get("line", "")), _LINE_CHARS)
    return {**facts, "words": name_kind(str(run.failure.get("kind"))), "line": line, "context": lines}


def _list_calls(run_id: str) -> dict[str, str]:
    name = json.dumps(run_id)
    return {
        "watch": f"wait_run(run_ids=[{name}])",
        "log": f"read_log(run_id={name})",
        "curves": f"read_tb(run_id={name})",
    }


_TAIL_BYTES, _MOST_BYTES = 128 << 10, 256 << 10
_BEFORE_LINES = 100  # of the line that is asked for
_MOST_MATCHES, _MATCH_CHARS = 500, 400
_COLOUR = re.compile(rb"(\x1b\[[0-9;:]{0,64}m)")
_BEGUN_ESCAPE = re.compile(rb"\x1b[^a-zA-Z\x07\\]{0,64}\Z")


def read_log_part(
    server: ServerContext, run: Run, attempt: int | None, *, after: int | None = None, line: int | None = None
) -> dict[str, Any]:
    """Return text from byte ``after``, or around ``line``; else the end. BadArgument: there is no such attempt."""
    number, path = _find(server, run, attempt)
    size = path.stat().st_size if path.is_file() else 0
    start = max(0, size - _TAIL_BYTES)
    if after is not None:
        start = min(after, size)
    elif line is not None:
        start = find_line_start(path, max(1, line - _BEFORE_LINES))
    data = b""
    if size:
        with open_regular(path) as file:
            file.seek(start)
            data = file.read(_MOST_BYTES if after is not None else _TAIL_BYTES)
    if start and after is None and line is None:  # in the midst of a line
        begun = data.find(b"\n") + 1
        start, data = start + begun, data[begun:]
    data = _leave_out_begun(data)
    answer: dict[str, Any] = {"attempt": number, "attempts": run.attempt, "size": size}
    answer |= {"start": start, "end": start + len(data)}
    if after is None:
        before = count_lines_before(path, start)
        answer["first_line"] = None if before is None else before + 1
    text = clean_output(data, server)
    return {**answer, "text": Raw(text), "note": server.store.explain_old_log(run, number) or None}


def find_in_log(server: ServerContext, run: Run, attempt: int | None, pattern: str) -> dict[str, Any]:
    """Return the first lines in which a pattern is found. PatternError: it is none."""
    number, path = _find(server, run, attempt)
    found, has_more = find_lines(path, pattern, _MOST_MATCHES)
    known = list_known_secrets(server.environ, server.home.secrets)
    text = mask_secrets("\n".join(shorten_line(line.text, _MATCH_CHARS).replace("\n", " ") for line in found), known)
    lines = text.split("\n") if found else []
    matches = [{"line": line.number, "text": each} for line, each in zip(found, lines, strict=False)]
    return {"attempt": number, "matches": matches, "more": has_more}


def clean_output(data: bytes, server: ServerContext) -> str:
    """Return output with its colours, without other sequences of a terminal and without secrets."""
    parts = [
        part if number % 2 else TERMINAL_ESCAPES.sub(b"", part) if b"\x1b" in part else part
        for number, part in enumerate(_COLOUR.split(data))
    ]
    text = mask_secrets(
        b"".join(parts).decode(errors="replace"), list_known_secrets(server.environ, server.home.secrets)
    )
    pieces = re.split(r"(\x1b\[[0-9;:]{0,64}m)", text.replace("\a", ""))
    return "".join(piece if number % 2 else escape_unsendable(piece) for number, piece in enumerate(pieces))


def _find(server: ServerContext, run: Run, attempt: int | None) -> tuple[int, Path]:
    number = attempt or run.attempt
    if not 1 <= number <= run.attempt:
        raise BadArgument("attempt", f"{run.run_id} has {run.attempt}.")
    return number, server.store.fetch_log(run, number)


def _leave_out_begun(data: bytes) -> bytes:
    """Return ``data`` without the beginning of a character or a sequence at its end: the next part has it whole."""
    if (begun := _BEGUN_ESCAPE.search(data)) is not None and begun.start():
        return data[: begun.start()]
    for back in range(1, min(4, len(data))):
        if data[-back] >= 0xC0:  # noqa: PLR2004 - the first byte of a character
            whole = 2 + (data[-back] >= 0xE0) + (data[-back] >= 0xF0)  # noqa: PLR2004
            return data[:-back] if back < whole else data
        if data[-back] < 0x80:  # noqa: PLR2004 - a character of one byte
            break
    return data
