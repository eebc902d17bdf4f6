"""The files of a run in its result directory: their names, texts, how they are replaced, and which are a person's.

The first line of a generated document names its run. A document that a person wrote is never changed. The directory
belongs to the user: links, FIFOs and devices may have these names. The page of a
run in a tracker, or its offline directory, is what wandb, SwanLab or MLflow print.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mcp_server.record.run_directory import RunDir
from mcp_server.system.files import open_regular, read_regular_file, write_atomic
from mcp_server.text.formatting import clock
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


ADDITIONS_MARK = "<!-- Below this line is yours: it is kept when the document is written again. -->"

_NO_NAMES: Mapping[str, object] = {}
Maker = Literal["finish_blueprint", "the supervisor"]


@dataclass(frozen=True)
class RunEnd:
    """The end of a run, from its directory. Times in ISO 8601 UTC, durations in seconds."""

    run_id: str
    state: str
    text: str
    attempts: int
    elapsed_s: float | None
    started_at: str | None
    ended_at: str | None
    log: Path
    exit_code: int | None = None
    signal: str | None = None
    earlier: str | None = None  # how the attempts before ended
    failure: Mapping[str, Any] | None = None
    changed: Sequence[str] = ()  # what retries changed, e.g. `num_envs 8192 → 4096 after attempt 1`
    tracker: TrackerLink | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Content of `finish.flag`. Absent values are omitted."""
        facts = {name: getattr(self, name) for name in ("started_at", "elapsed_s", "attempts", "exit_code", "signal")}
        facts["failure"] = self.failure.get("kind") if self.failure else None
        present = {name: value for name, value in facts.items() if value is not None}
        return {"run_id": self.run_id, "state": self.state, "ended_at": self.ended_at, **present}

    @property
    def lines(self) -> list[str]:
        """The end as items of a markdown list."""
        lines = [
            f"- End: {' '.join(self.text.split()) or self.state}",
            f"- Started: {self.started_at or 'never'}",
            f"- Ended: {self.ended_at or 'unknown when'}",
            f"- Attempts: {self.attempts}{f' ({self.earlier})' if self.earlier else ''}",
            f"- Log: `{self.log}`",
        ]
        if self.elapsed_s is not None:
            lines.insert(3, f"- Took: {clock(self.elapsed_s)}")
        lines += [self.tracker.line] if self.tracker else []
        lines += [f"- Changed by a retry: {one}" for one in self.changed]
        return [*lines, *failure_lines(self.failure)]


def origin_line(run_id: str, maker: Maker) -> str:
    """Return the first line of a generated document. It names the run and the generator."""
    return f"<!-- runward run {run_id}, written by {maker}: what you change above the last mark is overwritten. -->"


def render_page(
    run_id: str, maker: Maker, title: str, sections: Sequence[tuple[str, Sequence[str]]], additions: str = ""
) -> str:
    """Return a document of headed sections. ``additions`` is a person's text below the last mark."""
    body = "\n\n".join(f"## {heading}\n\n" + "\n".join(lines) for heading, lines in sections)
    return f"{origin_line(run_id, maker)}\n# {title}\n\n{body}\n\n{ADDITIONS_MARK}\n{additions}"


def failure_lines(failure: Mapping[str, Any] | None) -> list[str]:
    """Return the cause of a failure as items of a markdown list. Empty without a failure."""
    if not failure:
        return []
    at = f" (line {failure['line_number']} of the log)" if failure.get("line_number") else ""
    line = " ".join(str(failure.get("line", "")).split()).replace("`", "'")
    lines = [f"- Failure: {failure.get('kind')}{at}" + (f": `{line}`" if line else "")]
    return [*lines, f"- Advice: {failure['advice']}"] if failure.get("advice") else lines


def gpu_lines(gpus: object, names: Mapping[str, object] = _NO_NAMES) -> list[str]:
    """Return the usage of each GPU as items of a markdown list, under its index in ``names`` where it has one."""
    lines = []
    for uuid, usage in gpus.items() if isinstance(gpus, Mapping) else ():
        values = [
            f"{label} {usage[name]:g} {unit}"
            for name, label, unit in (
                ("peak_mib", "peak memory", "MiB"),
                ("mean_util", "mean utilisation", "%"),
                ("mean_w", "mean power", "W"),
                ("max_c", "hottest", "°C"),
            )
            if isinstance(usage, Mapping) and isinstance(usage.get(name), (int, float))
        ]
        name = f"GPU {names[uuid]}" if isinstance(names.get(uuid), int) else f"`{uuid}`"
        lines.append(f"- {name}: {', '.join(values) or 'no samples'}")
    return lines


_HEAD_BYTES, _TAIL_BYTES = 2**20, 2**18
_CODES = compile_lazily(r"\x1b\[[0-9;:?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
# wandb: 🚀 View run NAME at: https://…/runs/ID; swanlab: 🚀 View run at https://…; MLflow: 🏃 View run NAME at: …
_PAGE = compile_lazily(r"View run\b[^\n]{0,200}?\s(https?://[^\s'\"<>)\]]+)")
_RUN = compile_lazily(r"/runs/([\w.-]+)")
_DIRECTORY = compile_lazily(
    r"(?:wandb|swanlab)[^\n]{0,40}?(?:saved locally in|wandb sync|swanlab sync|swanlab watch):?\s+[`'\"]?"
    r"((?:[~.]?/|[\w-]+/)[^\s`'\"]+)"
)
_RUN_DIRECTORY = compile_lazily(r"(?:offline-)?run-\d{8}_\d{6}-([\w]+)$")


class TrackerLink(NamedTuple):
    """``url``: the page of the run, or "". ``directory``: where an offline run is stored, or ""."""

    url: str = ""
    run_id: str = ""
    directory: str = ""

    @property
    def line(self) -> str:
        """The link as an item of a markdown list."""
        run = f" (run {self.run_id})" if self.run_id else ""
        return f"- Tracker: {self.url}{run}" if self.url else f"- Tracker, offline: `{self.directory}`{run}"


def find_tracker_link(text: str) -> TrackerLink | None:
    """Return the newest page that is named in printed text, without a query that may hold a key, else a directory."""
    plain = _CODES.sub("", text) if "\x1b" in text else text
    pages = _PAGE.findall(plain)
    if pages:
        url = str(pages[-1]).partition("?")[0].rstrip(".,;")
        run = _RUN.search(url)
        return TrackerLink(re.sub(r"//[^/@]*@", "//", url), run[1] if run else "")
    directories = [str(path).rstrip("/.,;") for path in _DIRECTORY.findall(plain)]
    named = [path for path in directories if _RUN_DIRECTORY.search(path)] or directories
    if not named:
        return None
    run = _RUN_DIRECTORY.search(named[-1])
    return TrackerLink(directory=named[-1], run_id=run[1] if run else "")


def read_tracker_link(log: Path) -> TrackerLink | None:
    """Return the link in the beginning or the end of a log. Trackers print it at the start and at the end of a run."""
    try:
        with open_regular(log) as file:
            head = file.read(_HEAD_BYTES)
            if b"View run" not in head and b"swan" not in head and b"wandb" not in head:
                return None  # both announce themselves at the start
            size = file.seek(0, 2)
            file.seek(max(len(head), size - _TAIL_BYTES))
            tail = file.read(_TAIL_BYTES)
    except OSError:
        return None
    return find_tracker_link((head + b"\n" + tail).decode(errors="replace"))
