"""The mirror of a far host's runs: `hosts/NAME/runs/RUN_ID/`, in the layout of a run directory.

It is a copy that may be behind, never a second truth. Several servers of one state directory may write it at the same
time: they write the same bytes at the same places. What a host pushes can only change files of this layout.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcp_server.record.codec import decode
from mcp_server.record.run_directory import RunDir, read_json
from mcp_server.record.state import Liveness, LivenessReport
from mcp_server.system.files import write_atomic
from mcp_server.system.lock_files import is_locked

LAUNCHING = "launching"  # a launch whose answer has not come: locked by the server that waits for it
_LIVENESS = "liveness.json"
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")
_SMALL_FILE = re.compile(
    r"(?:spec|stop)\.json|attempts\.md|attempts/\d{1,6}/(?:exit|guard_exit|progress|outputs)\.json"
)


_LOG = re.compile(r"attempts/\d{1,6}/output\.log")


class Mirror:
    """The knowledge of this host about a far one. ``path`` is `hosts/NAME` in the state directory."""

    def __init__(self, path: Path) -> None:
        self.path, self.runs = path, path / "runs"

    def create(self) -> None:
        """Create the directories, with access for their owner alone."""
        for directory in (self.path.parent, self.path, self.runs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def directory(self, run_id: str) -> RunDir:
        """Return the mirrored directory of a run, which may not exist yet."""
        return RunDir(self.runs / run_id)

    def list_known(self) -> tuple[dict[str, int], list[str]]:
        """Return the bytes of events of each run that may change, and the ids of those that do not any more."""
        have: dict[str, int] = {}
        dead: list[str] = []
        for path in self._directories():
            if (path / LAUNCHING).exists():
                continue
            if self.read_dead(path.name) is not None:
                dead.append(path.name)
            else:
                with contextlib.suppress(FileNotFoundError):
                    have[path.name] = 0
                    have[path.name] = (path / "events.jsonl").stat().st_size
        return have, dead

    def list_unanswered_launches(self) -> list[str]:
        """Return the ids of launches whose answer has not come, and that no server waits for."""
        return [p.name for p in self._directories() if (p / LAUNCHING).exists() and not is_locked(p / LAUNCHING)]

    def read_report(self, run_id: str) -> LivenessReport | None:
        """Return what a run's host said last of its supervisor, None where it has said nothing."""
        with contextlib.suppress(ValueError, TypeError):
            return decode(LivenessReport, read_json(self.runs / run_id / _LIVENESS))
        return None

    def read_dead(self, run_id: str) -> LivenessReport | None:
        """Return the last report on a run whose supervisor is dead, None where it was not when last heard of."""
        report = self.read_report(run_id)
        return report if report is not None and report.liveness is Liveness.DEAD else None

    def apply(self, push: dict[str, Any], data: bytes, report: LivenessReport | None = None) -> None:
        """Write what a host pushed of a run. Its events come last, its liveness after everything else.

        Raises:
            OSError: it cannot be written.
            ValueError: it is not a push of this protocol.
        """
        run_id = str(push["run"])
        if not self.is_run_id(run_id):
            raise ValueError(f"not a run id: {run_id[:80]!r}")
        directory, at = self.runs / run_id, 0
        if not directory.exists() and self._is_known_elsewhere(run_id):
            return
        directory.mkdir(mode=0o700, exist_ok=True)
        for name, offset, count in push["files"]:
            content, at = data[at : at + count], at + count
            if name == "events.jsonl" or _LOG.fullmatch(name):
                _write_at(directory / name, content, int(offset))
            elif _SMALL_FILE.fullmatch(name):
                _replace(directory / name, _keep_owner(directory / name, content) if name == "spec.json" else content)
            else:
                raise ValueError(f"not a file of a run: {name[:80]!r}")
        if push.get("log"):
            attempt, _, mtime_ns = map(int, push["log"])
            _touch(RunDir(directory).log(attempt), mtime_ns)
        if report is not None:
            self.keep_report(run_id, report)

    @staticmethod
    def is_run_id(word: str) -> bool:
        """Return whether a host may name a run so. Another word could lead to files that are not its own."""
        return _RUN_ID.fullmatch(word) is not None

    def _is_known_elsewhere(self, run_id: str) -> bool:
        """Return whether a run of this machine, or of another host, has this id: no host takes its place."""
        others = (self.path.parents[1] / "runs", *self.path.parent.glob("*/runs"))
        return any((runs / run_id).exists() for runs in others if runs != self.runs)

    def keep_report(self, run_id: str, report: LivenessReport) -> None:
        """Write what a host said of a supervisor. This also wakes who waits for the run."""
        content = json.dumps(report.facts()).encode()
        path = self.runs / run_id / _LIVENESS
        with contextlib.suppress(OSError):
            if path.read_bytes() == content:
                return
        _replace(path, content)

    def write_log(self, log: Path, data: bytes, offset: int, mtime_ns: int) -> None:
        """Add a part of a log."""
        _write_at(log, data, offset)
        os.utime(log, ns=(mtime_ns, mtime_ns))

    def _directories(self) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError):
            yield from (path for path in self.runs.iterdir() if _RUN_ID.fullmatch(path.name))


def _keep_owner(spec: Path, content: bytes) -> bytes:
    """Return what a host pushed of a spec, with the owner that is known here: he can stop the run."""
    known, facts = read_json(spec) or {}, json.loads(content)
    if not isinstance(facts, dict):
        raise ValueError("a spec is an object")  # noqa: TRY004 - as for text that is not JSON
    return json.dumps({**facts, "owner": known["owner"]}).encode() if "owner" in known else content


def _write_at(path: Path, data: bytes, offset: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(fd).st_size < offset:
            raise ValueError(f"{path} lacks what was before byte {offset}")
        os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically; it need not survive a power cut, as the truth is elsewhere."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, content, durable=False)


def _touch(path: Path, mtime_ns: int) -> None:
    """Give a log the time of its original, which is by the clock of the far host."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    os.utime(path, ns=(mtime_ns, mtime_ns))
