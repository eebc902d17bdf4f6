"""`experiment_log.md` of a result directory: an entry with the command of each launch, an entry for each end.

At an end the supervisor also writes plain results, `results.md` and `finish.flag`, which is the last, in case no agent
calls `finish_blueprint`. A dead file server may never answer. The log is a person's file too: entries
are appended, whole or not at all, and nothing else in it is changed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mcp_server.errors import RunwardError
from mcp_server.record.attempt_params import describe_earlier_ends, find_attempt_params
from mcp_server.record.events import read_events
from mcp_server.record.results import result_page as results
from mcp_server.record.results.result_page import RunEnd, gpu_lines, read_tracker_link, render_page
from mcp_server.record.run_directory import RunDir, now, read_json
from mcp_server.record.script import command_text, render
from mcp_server.record.spec import RunSpec
from mcp_server.system.files import append_whole, read_end
from mcp_server.system.lock_files import may_be_locked
from mcp_server.system.time_bounds import call_aside
from mcp_server.text.formatting import duration
from mcp_server.text.regex import compile_lazily
from mcp_server.text.secret_patterns import mask_secrets

# Former versions wrote the facts of a launch first.
_LAUNCH_ENTRY = compile_lazily(
    rb"^## Launch of (?P<run_id>[A-Za-z0-9_-]{1,120})\n"
    rb"(?:<!-- runward launch of (?P=run_id) -->|\n- run: (?P=run_id))$",
    re.MULTILINE,
)
_TAIL_BYTES = 1 << 20  # searched for the entry of a launch or an end
_LOG_HEADING = "# Experiment log\n"
_NO_SECRETS: Mapping[str, str] = {}


class ResultDirUnusable(RunwardError):
    """The result directory of a blueprint cannot be written."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"Result directory not usable: {path}: {cause}.", "Nothing was started.", "Name another directory."
        )
        self.path = path


def append_launch(result_dir: Path, spec: RunSpec, secrets: Mapping[str, str] = _NO_SECRETS) -> None:
    """Append the launch of ``spec`` to the experiment log in ``result_dir``: first its command.

    Both are created if missing. The values of ``secrets``, by name, and what looks like a secret are masked.

    Removes the flag of an earlier run, and changes nothing else. A refused launch leaves no entry.

    Raises:
        ResultDirUnusable: a file cannot be created or written, the log is not a regular file, or a flag cannot be
            removed.
    """
    entry = _launch_entry(spec, secrets)
    log = result_dir / results.EXPERIMENT_LOG
    try:
        results.make_directory(result_dir)
        fd = _open_log(log)
        try:
            former_size = _append_whole(fd, log, entry)
            try:
                results.remove_flag(result_dir)
            except OSError:
                _truncate_log(fd, log, former_size)
                raise
        finally:
            os.close(fd)
    except OSError as error:
        causes = {
            errno.ELOOP: f"{results.EXPERIMENT_LOG} is a symbolic link",
            errno.EINVAL: f"{results.EXPERIMENT_LOG} is not a regular file",
        }
        cause = causes.get(error.errno or 0) or error.strerror or "it cannot be written"
        if str(error.filename or "").endswith(f"/{results.FINISH_FLAG}"):
            cause = f"an old {results.FINISH_FLAG} cannot be removed: {cause}"
        raise ResultDirUnusable(result_dir, cause) from error


def append_end(result_dir: Path, end: RunEnd, spec: RunSpec, secrets: Mapping[str, str] = _NO_SECRETS) -> None:
    """Append the end of a run to the experiment log, once. Before it its launch with the command, if that is missing.

    It is missing where the run was not launched from a blueprint, or a person removed the log.
    """
    path = result_dir / results.EXPERIMENT_LOG
    marker = f"<!-- runward end of {end.run_id} -->"
    with os.fdopen(_open_log(path), "r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        tail = os.pread(file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        if marker.encode() in tail:
            return
        text = "" if size else _LOG_HEADING
        if spec.command and not any(m["run_id"] == end.run_id.encode() for m in _LAUNCH_ENTRY.finditer(tail)):
            text += f"\n{_launch_entry(spec, secrets)}"
        lines = mask_secrets("\n".join(end.lines), secrets)
        text += f"\n## End of {end.run_id}: {end.state}\n{marker}\n\n{lines}\n"
        file.write(text.encode(errors="replace"))
        os.fsync(file.fileno())


def list_later_launches(result_dir: Path, run_id: str) -> list[str]:
    """Return the ids of the runs that were launched into ``result_dir`` after ``run_id``, or empty without a log."""
    try:
        log = read_end(result_dir / results.EXPERIMENT_LOG, _TAIL_BYTES)
    except OSError:
        return []
    later = log.partition(f"## Launch of {run_id}\n".encode())[2]
    return [match["run_id"].decode() for match in _LAUNCH_ENTRY.finditer(later)]


def _launch_entry(spec: RunSpec, secrets: Mapping[str, str]) -> str:
    """Return the log entry of a launch: where and when it runs, and the exact script."""
    facts = {
        "run": spec.run_id,
        "launched": spec.created_at,
        "host": spec.host,
        "directory": spec.cwd,
        "blueprint": spec.blueprint or "",
        "time limit": duration(spec.time_limit_s) if spec.time_limit_s else "none",
        "owner": spec.owner,
    }
    lines = [mask_secrets(f"- {name}: {' '.join(value.split())}", secrets) for name, value in facts.items() if value]
    head = (
        f"## Launch of {spec.run_id}\n<!-- runward launch of {spec.run_id} -->\n\n{_fence(command_text(spec), secrets)}"
    )
    # The script has the variables as well; secrets by name only.
    return f"{head}\n" + "\n".join(lines) + f"\n- script:\n\n{_fence(render(spec), secrets)}"


def _fence(script: str, secrets: Mapping[str, str]) -> str:
    text = mask_secrets(script.rstrip("\n"), secrets)
    fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall("`+", text)), default=0))
    return f"{fence}bash\n{text}\n{fence}\n"


def _open_log(log: Path) -> int:
    """Return a descriptor that appends to the experiment log, which is created if missing."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(log, flags)
    except FileNotFoundError:
        fd = os.open(log, flags | os.O_CREAT, results.FILE_MODE)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.fchmod(fd, results.FILE_MODE)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", str(log))


def _append_whole(fd: int, log: Path, entry: str) -> int:
    """Append all of ``entry`` or nothing. Return the former size of the log in bytes."""
    size = os.fstat(fd).st_size
    head = _LOG_HEADING
    if size:
        head = "" if os.pread(fd, 1, size - 1) == b"\n" else "\n"
    data = f"{head}\n{entry}".encode(errors="replace")
    if not append_whole(fd, data):
        _truncate_log(fd, log, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(fd)
    return size


def _truncate_log(fd: int, log: Path, size: int) -> None:
    """Restore the former size of the log in bytes. Remove the log if it was empty."""
    os.ftruncate(fd, size)
    if not size:
        log.unlink(missing_ok=True)


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
