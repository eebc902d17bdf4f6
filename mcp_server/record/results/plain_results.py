"""The plain results that the supervisor writes at the end of a run, in case no agent calls `finish_blueprint`.

Log entry, `results.md`, and `finish.flag`, which is written last. A dead file server may never answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mcp_server.record.attempt_params import describe_earlier_ends, find_attempt_params
from mcp_server.record.events import read_events
from mcp_server.record.results import result_directory as results
from mcp_server.record.results.experiment_log import append_end, list_later_launches
from mcp_server.record.results.result_page import RunEnd, gpu_lines, read_tracker_link, render_page
from mcp_server.record.run_directory import RunDir, now, read_json
from mcp_server.record.spec import RunSpec
from mcp_server.system.lock_files import may_be_locked
from mcp_server.system.time_bounds import call_aside

_FILE_SERVER_TIMEOUT_S = 10.0


def write_end(
    spec: Mapping[str, Any],
    rundir: RunDir,
    *,
    state: str,
    text: str,
    failure: Mapping[str, Any] | None,
    attempts: int,
    elapsed_s: float,
    flag: bool = True,
) -> str | None:
    """Write log entry, plain results and ``flag`` into the ``result_dir`` of ``spec``.

    Return what failed, or None.

    Never raises, and gives up after 10 s. ``text`` is the end in one sentence, ``failure`` as in the event.
    """
    if not (result_dir := spec.get("result_dir")):
        return None

    run_spec = RunSpec.from_facts(spec)

    def write_all() -> str | None:
        events = read_events(rundir.events)
        first, last = (read_json(rundir.exit(number)) or {} for number in (1, attempts))
        end = RunEnd(
            run_id=rundir.run_id,
            state=state,
            text=text,
            attempts=attempts,
            elapsed_s=elapsed_s,
            started_at=first.get("started_at"),
            ended_at=last.get("ended_at") or now(),
            log=rundir.log(attempts),
            exit_code=last.get("exit_code"),
            signal=last.get("signal"),
            earlier=describe_earlier_ends(events),
            failure=failure,
            changed=tuple(find_attempt_params(run_spec, events).changed.values()),
            tracker=read_tracker_link(rundir.log(attempts)),
        )
        return "; ".join(_write_files(end, Path(str(result_dir)), rundir, run_spec, flag=flag)) or None

    try:
        problem = next(
            iter(call_aside(_FILE_SERVER_TIMEOUT_S, write_all)), f"no answer within {_FILE_SERVER_TIMEOUT_S:g} s"
        )
    except Exception as error:
        problem = f"{error.__class__.__name__}: {error}"
    return f"Not all results could be left in {result_dir}: {problem}." if problem else None


def is_repaired(result_dir: str, run_id: str) -> bool:
    """Return whether a failed run needs no flag any more: there is one, or a later launch will write its own.

    False while a file server does not answer.
    """

    def look() -> bool:
        directory = Path(result_dir)
        return (directory / results.FINISH_FLAG).exists() or bool(list_later_launches(directory, run_id))

    try:
        return call_aside(_FILE_SERVER_TIMEOUT_S, look) == [True]
    except OSError:
        return False


def _write_files(end: RunEnd, result_dir: Path, rundir: RunDir, spec: RunSpec, *, flag: bool) -> Iterator[str]:
    """Write log entry, document and ``flag``. Yield each failure. A failure of one does not prevent the others."""
    try:
        results.make_directory(result_dir)
    except OSError as error:
        yield _describe(error)
        return
    written: dict[str, str] = {}
    try:
        append_end(result_dir, end, spec)
    except OSError as error:
        yield _describe(error)
    try:
        path = results.choose_document_path(result_dir, end.run_id)
        if results.read_origin(path) != (end.run_id, "finish_blueprint"):
            results.write_text(path, _render_plain(end, rundir, results.read_additions(path)))
        written["results"] = path.name
    except OSError as error:
        yield _describe(error)
    try:
        if flag and not _has_later_live_run(result_dir, rundir):
            results.write_flag(result_dir, {**end.facts, **written})
    except OSError as error:
        yield _describe(error)


def _has_later_live_run(result_dir: Path, rundir: RunDir) -> bool:
    """Return whether a live run was launched into ``result_dir`` after this one: the flag belongs to it."""
    later = list_later_launches(result_dir, rundir.run_id)
    return any(may_be_locked(RunDir(rundir.path.with_name(run_id)).lock) for run_id in later)


def _name_gpus(rundir: RunDir) -> dict[str, object]:
    """Return the indices of the GPUs of the newest attempt by UUID, empty where they are unknown."""
    starts = [event for event in read_events(rundir.events) if event["kind"] == "started"]
    uuids, indices = (starts[-1].get(name) for name in ("gpus", "gpu_indices")) if starts else (None, None)
    return dict(zip(uuids, indices)) if isinstance(uuids, list) and isinstance(indices, list) else {}


def _render_plain(end: RunEnd, rundir: RunDir, additions: str) -> str:
    progress = read_json(rundir.progress(end.attempts)) or {}
    sections = [("End of the run", [*end.lines])]
    numbers = {
        name: value for name, value in progress.items() if name in ("round", "step", "total_steps", "checkpoint")
    }
    metrics = progress.get("metrics")
    numbers |= metrics if isinstance(metrics, Mapping) else {}
    if numbers:
        path = str(progress.get("read_from") or "").partition("output; ")[0]
        told = [f"- {name}: {value}" for name, value in numbers.items()]
        sections.append((f"Last numbers in {path or 'the output'}", told))
    if report := results.read_attempts_report(rundir):
        sections.append(("Attempts", [report]))
    if gpus := gpu_lines(progress.get("gpus"), _name_gpus(rundir)):
        sections.append(("GPUs", gpus))
    more = f"The command is in `{results.EXPERIMENT_LOG}`. finish_blueprint adds curves, evaluations, checkpoints and "
    more += "the code."
    title = f"Results of {end.run_id}: {end.state}"
    return render_page(end.run_id, "the supervisor", title, [*sections, ("More", [more])], additions)


def _describe(error: OSError) -> str:
    name = Path(str(error.filename)).name if error.filename else ""
    return f"{name}: {error.strerror or error}".strip(": ")
