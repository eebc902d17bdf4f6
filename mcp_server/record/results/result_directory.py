"""The files of a run in its result directory: their names, how they are replaced, and which are a person's.

The first line of a generated document names its run. A document that a person wrote is never changed. The directory
belongs to the user: links, FIFOs and devices may have these names. `experiment_log` appends to the log, `plain_results`
writes what the supervisor knows at the end of a run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp_server.record.results.result_page import ADDITIONS_MARK
from mcp_server.record.run_directory import RunDir
from mcp_server.system.files import read_regular_file, write_atomic
from mcp_server.text.regex import compile_lazily

EXPERIMENT_LOG, RESULTS_DOCUMENT, FINISH_FLAG = "experiment_log.md", "results.md", "finish.flag"
# The files are for people and other programs, while the supervisor's umask keeps everything else private.
FILE_MODE, _DIRECTORY_MODE = 0o644, 0o755

_ORIGIN = compile_lazily(rb"<!-- runward run (?P<run_id>[A-Za-z0-9_-]{1,120}), written by (?P<maker>[a-z_ ]{1,40})[.:]")
_ORIGIN_BYTES = 400
_MAX_REPORT_CHARS, _MAX_ADDITIONS_CHARS = 20_000, 1_000_000


def make_directory(path: Path) -> None:
    """Create a result directory and the missing directories above it, as readable as the files in it."""
    missing = [above for above in (path, *path.parents) if not os.path.lexists(above)]
    path.mkdir(parents=True, exist_ok=True)
    for directory in missing:
        with contextlib.suppress(OSError):  # a file system without modes
            directory.chmod(_DIRECTORY_MODE)


def remove_flag(result_dir: str | Path) -> None:
    """Remove the flag of an earlier run, so that a waiting program does not take it for the next run's flag."""
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
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE))
        raise
    return path


def choose_document_path(result_dir: Path, run_id: str) -> Path:
    """Return the path for a run's results document: `results.md`, or `results-<run_id>.md` if that is a person's.

    A document of an earlier run is renamed to `results-<its run id>.md`.
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
    """Return the run id and the generator of a document. (None, None) if a person may have written it."""
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
    """Replace a file for people atomically. A link at ``path`` is replaced, not followed."""
    write_atomic(path, text.encode(errors="replace"), mode=FILE_MODE)


def read_attempts_report(rundir: RunDir) -> str:
    """Return the report on the attempts of a retried run, without its heading. Empty if there is none."""
    try:
        text = read_regular_file(rundir.account).decode(errors="replace")
    except OSError:
        return ""
    return text.partition("\n\n")[2].strip()[-_MAX_REPORT_CHARS:]
