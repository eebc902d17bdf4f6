"""Files of a run in its result directory: `experiment_log.md`, `results.md`, and `finish.flag`, which is written last.

The supervisor writes plain results at the end of the last attempt, in case no agent calls `finish_blueprint`. The first
line of a generated document names its run. A document that a person wrote is never changed. The directory belongs to
the user: links, FIFOs and devices may have these names, and a dead file server may never answer.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mcp_server.errors import RunwardError
from mcp_server.record.attempt_params import find_attempt_params
from mcp_server.record.events import read_events
from mcp_server.record.result_page import ADDITIONS_MARK, RunEnd, gpu_lines, render_page
from mcp_server.record.run_directory import RunDir, now, read_json
from mcp_server.record.script import command_text, render
from mcp_server.record.spec import RunSpec
from mcp_server.record.tracker_link import read_tracker_link
from mcp_server.system.files import open_regular, read_regular_file, write_atomic
from mcp_server.system.lock_files import may_be_locked
from mcp_server.text.formatting import duration
from mcp_server.text.secret_patterns import mask_secrets

EXPERIMENT_LOG, RESULTS_DOCUMENT, FINISH_FLAG = "experiment_log.md", "results.md", "finish.flag"
T = TypeVar("T")

_FILE_SERVER_TIMEOUT_S = 10.0
_ORIGIN = re.compile(rb"<!-- runward run (?P<run_id>[A-Za-z0-9_-]{1,120}), written by (?P<maker>[a-z_ ]{1,40})[.:]")
_ORIGIN_BYTES = 400
# Former versions wrote the facts of a launch first.
_LAUNCH_ENTRY = re.compile(
    rb"^## Launch of (?P<run_id>[A-Za-z0-9_-]{1,120})\n"
    rb"(?:<!-- runward launch of (?P=run_id) -->|\n- run: (?P=run_id))$",
    re.MULTILINE,
)
_TAIL_BYTES = 1 << 20  # searched for the entry of a launch or an end
_MAX_REPORT_CHARS, _MAX_ADDITIONS_CHARS = 20_000, 1_000_000
_LOG_HEADING = "# Experiment log\n"
# The files are for people and other programs, while the supervisor's umask keeps everything else private.
_NO_SECRETS: Mapping[str, str] = {}
_FILE_MODE, _DIRECTORY_MODE = 0o644, 0o755


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
    log = result_dir / EXPERIMENT_LOG
    try:
        make_directory(result_dir)
        fd = _open_log(log)
        try:
            former_size = _append_whole(fd, log, entry)
            try:
                remove_flag(result_dir)
            except OSError:
                _truncate_log(fd, log, former_size)
                raise
        finally:
            os.close(fd)
    except OSError as error:
        causes = {
            errno.ELOOP: f"{EXPERIMENT_LOG} is a symbolic link",
            errno.EINVAL: f"{EXPERIMENT_LOG} is not a regular file",
        }
        cause = causes.get(error.errno or 0) or error.strerror or "it cannot be written"
        if str(error.filename or "").endswith(f"/{FINISH_FLAG}"):
            cause = f"an old {FINISH_FLAG} cannot be removed: {cause}"
        raise ResultDirUnusable(result_dir, cause) from error


def make_directory(path: Path) -> None:
    """Create a result directory and the missing directories above it, as readable as the files in it.

    Raises:
        OSError: it is not a directory, or cannot be created.
    """
    missing = [above for above in (path, *path.parents) if not os.path.lexists(above)]
    path.mkdir(parents=True, exist_ok=True)
    for directory in missing:
        with contextlib.suppress(OSError):  # a file system without modes
            directory.chmod(_DIRECTORY_MODE)


def append_end(result_dir: Path, end: RunEnd, spec: RunSpec, secrets: Mapping[str, str] = _NO_SECRETS) -> None:
    """Append the end of a run to the experiment log, once; before it its launch with the command, if that is missing.

    It is missing where the run was not launched from a blueprint, or a person removed the log.

    Raises:
        OSError: the log is not a regular file, or cannot be written.
    """
    path = result_dir / EXPERIMENT_LOG
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


def write_end(
    spec: Mapping[str, Any],
    rundir: RunDir,
    *,
    state: str,
    text: str,
    failure: Mapping[str, Any] | None,
    attempts: int,
    elapsed_s: float,
) -> str | None:
    """Write log entry, plain results and flag into the ``result_dir`` of ``spec``.

    Return what failed, or None.

    Never raises, and gives up after 10 s. ``text`` is the end in one sentence, ``failure`` as in the event.
    """
    if not (result_dir := spec.get("result_dir")):
        return None

    run_spec = RunSpec.from_facts(spec)

    def write_all() -> str | None:
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
            failure=failure,
            changed=tuple(find_attempt_params(run_spec, read_events(rundir.events)).changed.values()),
            tracker=read_tracker_link(rundir.log(attempts)),
        )
        return "; ".join(_write_files(end, Path(str(result_dir)), rundir, run_spec)) or None

    try:
        problem = _call_with_timeout(write_all)
    except Exception as error:
        problem = f"{error.__class__.__name__}: {error}"
    return f"Not all results could be left in {result_dir}: {problem}." if problem else None


def remove_flag(result_dir: str | Path) -> None:
    """Remove the flag of an earlier run, so that a waiting program does not take it for the next run's flag.

    Raises:
        OSError: a flag remains.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (Path(result_dir) / FINISH_FLAG).unlink()


def write_flag(result_dir: Path, facts: Mapping[str, Any]) -> Path:
    """Write `finish.flag` atomically. Call it after all other files are written.

    Raises:
        OSError: the flag is missing, or empty: a full disk may have room for a file name only.
    """
    path = result_dir / FINISH_FLAG
    try:
        write_text(path, json.dumps(dict(facts), ensure_ascii=False) + "\n")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # an empty flag still ends the wait of another program
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE))
        raise
    return path


def choose_document_path(result_dir: Path, run_id: str) -> Path:
    """Return the path for a run's results document: `results.md`, or `results-<run_id>.md` if that is a person's.

    A document of an earlier run is renamed to `results-<its run id>.md`.

    Raises:
        OSError: the directory cannot be used.
    """
    path, own = result_dir / RESULTS_DOCUMENT, result_dir / f"results-{run_id}.md"
    if not os.path.lexists(path):
        return path
    earlier_run, _ = read_origin(path)
    if earlier_run == run_id:
        return path
    if earlier_run is None:
        return own
    renamed = result_dir / f"results-{earlier_run}.md"
    if os.path.lexists(renamed):
        return own
    path.rename(renamed)
    return path


def read_origin(path: Path) -> tuple[str | None, str | None]:
    """Return the run id and the generator of a document.

    (None, None) if a person may have written it.
    """
    try:
        if path.is_symlink():
            return None, None
        match = _ORIGIN.match(read_regular_file(path, max_bytes=_ORIGIN_BYTES))
    except OSError:
        return None, None
    return (match["run_id"].decode(), match["maker"].decode()) if match else (None, None)


def read_additions(path: Path) -> str:
    """Return the text that a person added to a generated document below its last mark."""
    if read_origin(path) == (None, None):
        return ""
    text = read_regular_file(path).decode(errors="replace")
    return text.partition(ADDITIONS_MARK)[2].removeprefix("\n")[:_MAX_ADDITIONS_CHARS]


def write_text(path: Path, text: str) -> None:
    """Replace a file for people atomically.

    A link at ``path`` is replaced, not followed.

    Raises:
        OSError: nothing was changed.
    """
    write_atomic(path, text.encode(errors="replace"), mode=_FILE_MODE)


def read_attempts_report(rundir: RunDir) -> str:
    """Return the report on the attempts of a retried run, without its heading.

    Empty if there is none.
    """
    try:
        text = read_regular_file(rundir.account).decode(errors="replace")
    except OSError:
        return ""
    return text.partition("\n\n")[2].strip()[-_MAX_REPORT_CHARS:]


def _write_files(end: RunEnd, result_dir: Path, rundir: RunDir, spec: RunSpec) -> Iterator[str]:
    """Write log entry, document and flag.

    Yield each failure. A failure of one does not prevent the others.
    """
    try:
        make_directory(result_dir)
    except OSError as error:
        yield _describe(error)
        return
    written: dict[str, str] = {}
    try:
        append_end(result_dir, end, spec)
    except OSError as error:
        yield _describe(error)
    try:
        path = choose_document_path(result_dir, end.run_id)
        if read_origin(path) != (end.run_id, "finish_blueprint"):
            progress = read_json(rundir.progress(end.attempts)) or {}
            write_text(
                path,
                _render_plain(end, progress, read_attempts_report(rundir), read_additions(path), _name_gpus(rundir)),
            )
        written["results"] = path.name
    except OSError as error:
        yield _describe(error)
    try:
        if _find_later_live_run(result_dir, rundir) is None:
            write_flag(result_dir, {**end.facts, **written})
    except OSError as error:
        yield _describe(error)


def _find_later_live_run(result_dir: Path, rundir: RunDir) -> str | None:
    """Return a live run that was launched into ``result_dir`` after this one, or None: the flag belongs to it."""
    try:
        with open_regular(result_dir / EXPERIMENT_LOG) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            log = file.read(_TAIL_BYTES)
    except OSError:
        return None
    later = log.partition(f"## Launch of {rundir.run_id}\n".encode())[2]
    run_ids = (match["run_id"].decode() for match in _LAUNCH_ENTRY.finditer(later))
    return next((run_id for run_id in run_ids if may_be_locked(RunDir(rundir.path.with_name(run_id)).lock)), None)


def _name_gpus(rundir: RunDir) -> dict[str, object]:
    """Return the indices of the GPUs of the newest attempt by UUID, empty where they are unknown."""
    starts = [event for event in read_events(rundir.events) if event["kind"] == "started"]
    uuids, indices = (starts[-1].get(name) for name in ("gpus", "gpu_indices")) if starts else (None, None)
    return dict(zip(uuids, indices)) if isinstance(uuids, list) and isinstance(indices, list) else {}


def _render_plain(
    end: RunEnd, progress: Mapping[str, Any], attempts_report: str, additions: str, gpu_names: Mapping[str, object]
) -> str:
    """Return a results document with the facts that the supervisor has."""
    sections = [("End of the run", [*end.lines])]
    numbers = {name: value for name, value in progress.items() if name in ("step", "total_steps", "checkpoint")}
    metrics = progress.get("metrics")
    numbers |= metrics if isinstance(metrics, Mapping) else {}
    if numbers:
        sections.append(("Last numbers in the output", [f"- {name}: {value}" for name, value in numbers.items()]))
    if attempts_report:
        sections.append(("Attempts", [attempts_report]))
    if gpus := gpu_lines(progress.get("gpus"), gpu_names):
        sections.append(("GPUs", gpus))
    more = f"The command is in `{EXPERIMENT_LOG}`. finish_blueprint adds curves, evaluations, checkpoints and the code."
    title = f"Results of {end.run_id}: {end.state}"
    return render_page(end.run_id, "the supervisor", title, [*sections, ("More", [more])], additions)


def _launch_entry(spec: RunSpec, secrets: Mapping[str, str]) -> str:
    """Return the log entry of a launch: where and when it runs, and the exact script."""
    facts = {
        "run": spec.run_id,
        "started": spec.created_at,
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
    """Return a script as a block of markdown, with secrets masked."""
    text = mask_secrets(script.rstrip("\n"), secrets)
    fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall("`+", text)), default=0))
    return f"{fence}bash\n{text}\n{fence}\n"


def _open_log(log: Path) -> int:
    """Return a descriptor that appends to the experiment log, which is created if missing.

    Raises:
        OSError: the log is a link or not a regular file, or cannot be opened.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(log, flags)
    except FileNotFoundError:
        fd = os.open(log, flags | os.O_CREAT, _FILE_MODE)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.fchmod(fd, _FILE_MODE)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", str(log))


def _append_whole(fd: int, log: Path, entry: str) -> int:
    """Append all of ``entry`` or nothing.

    Return the former size of the log in bytes.

    Raises:
        OSError: nothing was appended.
    """
    size = os.fstat(fd).st_size
    head = _LOG_HEADING
    if size:
        head = "" if os.pread(fd, 1, size - 1) == b"\n" else "\n"
    data = f"{head}\n{entry}".encode(errors="replace")
    complete = False
    try:
        complete = os.write(fd, data) == len(data)
        os.fsync(fd)
    finally:
        if not complete:
            _truncate_log(fd, log, size)
    if not complete:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return size


def _truncate_log(fd: int, log: Path, size: int) -> None:
    """Restore the former size of the log in bytes.

    Remove the log if it was empty.
    """
    os.ftruncate(fd, size)
    if not size:
        log.unlink(missing_ok=True)


def _describe(error: OSError) -> str:
    name = Path(str(error.filename)).name if error.filename else ""
    return f"{name}: {error.strerror or error}".strip(": ")


def _call_with_timeout(function: Callable[[], T]) -> T | str:
    """Return the result of ``function``, or a sentence if a file server does not answer in time."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_FILE_SERVER_TIMEOUT_S)
    if errors:
        raise errors[0]
    return results[0] if results else f"no answer within {_FILE_SERVER_TIMEOUT_S:g} s"
