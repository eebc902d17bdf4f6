"""What a run leaves for people in its result directory: `experiment_log.md`, `results.md`, and `finish.flag` last.

The supervisor leaves plain ones at the end of the last attempt, in case that nobody does it better. A document
that was generated names its run in the first line; what a person wrote is never touched. The directory is the user's:
anything may stand there under these names, and a dead file server may answer never.
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

from mcp_server.record.result_page import KEPT, End, gpu_lines, page
from mcp_server.record.run_directory import RunDir, is_held, now, read_json
from mcp_server.system.files import read_regular_file, write_atomic

LOG, RESULTS, FLAG = "experiment_log.md", "results.md", "finish.flag"
T = TypeVar("T")

_PATIENCE_S = 10.0  # for a file server
_MARK = re.compile(rb"<!-- runward run (?P<run_id>[A-Za-z0-9_-]{1,120}), written by (?P<maker>[a-z_ ]{1,40})[.:]")
_MARK_BYTES = 400
_LAUNCH = re.compile(rb"^## Launch of (?P<run_id>[A-Za-z0-9_-]{1,120})\n\n- run: (?P=run_id)$", re.MULTILINE)
_TAIL_BYTES = 1 << 20  # of a log in which the note of an end is looked for
_MOST_OF_ACCOUNT, _MOST_KEPT = 20_000, 1_000_000


def close(
    spec: Mapping[str, Any],
    rundir: RunDir,
    *,
    state: str,
    text: str,
    failure: Mapping[str, Any] | None,
    attempts: int,
    elapsed_s: float,
) -> str | None:
    """Leave the end of a run in the ``result_dir`` of its spec; return what could not be done, None if nothing.

    Never raises, and gives up after 10 s. ``text`` tells the end in a sentence, ``failure`` is as events keep it.
    """
    if not (result_dir := spec.get("result_dir")):
        return None

    def act() -> str | None:
        first, last = (read_json(rundir.exit(number)) or {} for number in (1, attempts))
        end = End(
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
        )
        return "; ".join(_leave(end, Path(str(result_dir)), rundir, attempts)) or None

    try:
        problem = _patiently(act)
    except Exception as error:
        problem = f"{error.__class__.__name__}: {error}"
    return f"Not all results could be left in {result_dir}: {problem}." if problem else None


def clear_flag(result_dir: str | Path) -> None:
    """Remove an older run's flag: who waits for it must not take it for the next run's.

    Raises:
        OSError: one stays there.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (Path(result_dir) / FLAG).unlink()


def write_flag(result_dir: Path, facts: Mapping[str, Any]) -> Path:
    """Write `finish.flag`, atomically; to be done after everything else.

    Raises:
        OSError: it is not there, or empty: a full disk has room for a name at most.
    """
    path = result_dir / FLAG
    try:
        write_text(path, json.dumps(dict(facts), ensure_ascii=False) + "\n")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # whoever waits for it waits no longer
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
        raise
    return path


def note_end(result_dir: Path, end: End) -> None:
    """Append the end of a run to `experiment_log.md`, once.

    Raises:
        OSError: the log is no file, or cannot be written.
    """
    path = result_dir / LOG
    mark = f"<!-- runward end of {end.run_id} -->"
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        tail = os.pread(file.fileno(), _TAIL_BYTES, max(0, status.st_size - _TAIL_BYTES))
        if mark.encode() in tail:
            return
        file.write(b"" if status.st_size else b"# Experiment log\n")
        lines = [f"## End of {end.run_id}: {end.state}", mark, "", *end.lines]
        file.write(("\n" + "\n".join(lines) + "\n").encode(errors="replace"))
        os.fsync(file.fileno())


def document(result_dir: Path, run_id: str) -> Path:
    """Return where the document of a run goes; one of an earlier run makes room and is kept under its own name.

    That is `results.md` unless a person, or a link, has it: then `results-<run_id>.md`.

    Raises:
        OSError: the directory cannot be used.
    """
    path, own = result_dir / RESULTS, result_dir / f"results-{run_id}.md"
    if not os.path.lexists(path):
        return path
    made_of, _ = maker_of(path)
    if made_of == run_id:
        return path
    if made_of is None:
        return own
    aside = result_dir / f"results-{made_of}.md"
    if os.path.lexists(aside):
        return own
    path.rename(aside)
    return path


def maker_of(path: Path) -> tuple[str | None, str | None]:
    """Return which run a document is of, and who generated it; (None, None) where a person may have written it."""
    try:
        if path.is_symlink():
            return None, None
        match = _MARK.match(read_regular_file(path)[:_MARK_BYTES])
    except OSError:
        return None, None
    return (match["run_id"].decode(), match["maker"].decode()) if match else (None, None)


def kept(path: Path) -> str:
    """Return what a person added to an earlier document below its last mark."""
    if maker_of(path) == (None, None):
        return ""
    text = read_regular_file(path).decode(errors="replace")
    return text.partition(KEPT)[2].removeprefix("\n")[:_MOST_KEPT]


def write_text(path: Path, text: str) -> None:
    """Replace a file for people, atomically; a link at ``path`` is replaced, not followed.

    Raises:
        OSError: nothing was changed.
    """
    write_atomic(path, text.encode(errors="replace"), mode=0o666)


def account(rundir: RunDir) -> str:
    """Return the account of the attempts of a run that was retried, without its heading; empty without one."""
    try:
        text = read_regular_file(rundir.account).decode(errors="replace")
    except OSError:
        return ""
    return text.partition("\n\n")[2].strip()[-_MOST_OF_ACCOUNT:]


def _leave(end: End, result_dir: Path, rundir: RunDir, attempts: int) -> Iterator[str]:
    """Leave log, document and flag; yield what went wrong. One that cannot be written keeps no other back."""
    try:
        result_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        yield _said(error)
        return
    written: dict[str, str] = {}
    try:
        note_end(result_dir, end)
    except OSError as error:
        yield _said(error)
    try:
        path = document(result_dir, end.run_id)
        if maker_of(path) != (end.run_id, "finish_blueprint"):
            progress = read_json(rundir.progress(attempts)) or {}
            write_text(path, _plain(end, progress, account(rundir), kept(path)))
        written["results"] = path.name
    except OSError as error:
        yield _said(error)
    try:
        if _next_live(result_dir, rundir) is None:
            write_flag(result_dir, {**end.facts, **written})
    except OSError as error:
        yield _said(error)


def _next_live(result_dir: Path, rundir: RunDir) -> str | None:
    """Return a run that was launched into ``result_dir`` after this one, and lives: the flag there is its own."""
    try:
        log = read_regular_file(result_dir / LOG)[-_TAIL_BYTES:]
    except OSError:
        return None
    later = log.partition(f"## Launch of {rundir.run_id}\n".encode())[2]
    others = (match["run_id"].decode() for match in _LAUNCH.finditer(later))
    return next((one for one in others if is_held(RunDir(rundir.path.with_name(one)).lock)), None)


def _plain(end: End, progress: Mapping[str, Any], attempts: str, added: str) -> str:
    """Return the document as far as the supervisor knows the facts."""
    sections = [("Result", [*end.lines])]
    numbers = {name: value for name, value in progress.items() if name in ("step", "total_steps", "checkpoint")}
    metrics = progress.get("metrics")
    numbers |= metrics if isinstance(metrics, Mapping) else {}
    if numbers:
        told = [f"- {name}: {value}" for name, value in numbers.items()]
        sections.append(("Last numbers in the output", told))
    if attempts:
        sections.append(("Attempts", [attempts]))
    if gpus := gpu_lines(progress.get("gpus")):
        sections.append(("GPUs", gpus))
    more = "The command is in `experiment_log.md`. finish_blueprint adds curves, evaluations, checkpoints and the code."
    return page(
        end.run_id, "the supervisor", f"Results of {end.run_id}: {end.state}", [*sections, ("More", [more])], added
    )


def _said(error: OSError) -> str:
    name = Path(str(error.filename)).name if error.filename else ""
    return f"{name}: {error.strerror or error}".strip(": ")


def _patiently(act: Callable[[], T]) -> T | str:
    """Return what ``act`` returns; on a file server that does not answer, that it did not."""
    done: list[T] = []
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            done.append(act())
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    if wrong:
        raise wrong[0]
    return done[0] if done else f"no answer within {_PATIENCE_S:g} s"
