"""Result files and directories of runs on other hosts.

A file there stands below the mirror of its host with its path, size and time: small results with their content,
checkpoints and others empty on the disk, however large they seem. What looks for a run's results here finds them so.
Checkpoints and data are never copied.
"""

import contextlib
import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_server.backends.ssh.ssh_channel import Channel, channel_of
from mcp_server.errors import HostUnreachable
from mcp_server.record.results.result_page import EXPERIMENT_LOG, FINISH_FLAG
from mcp_server.record.state import Run
from mcp_server.results.configuration import WRITTEN_CONFIGS
from mcp_server.results.evaluations.evaluations import is_evaluation_name
from mcp_server.results.pictures import PICTURE_ENDS
from mcp_server.results.run_files import result_roots
from mcp_server.store.attribution.attribution import OwnFiles
from mcp_server.store.attribution.claim_records import files_root, move_run

_MOST_FILE_BYTES, _MOST_BYTES, _MOST_FILES = 2_000_000, 16 * 2**20, 200
_CONFIGS = frozenset(Path(name).name for name in WRITTEN_CONFIGS)
_DOCUMENT = re.compile(
    rf"{re.escape(EXPERIMENT_LOG)}|{re.escape(FINISH_FLAG)}|results(?:-[\w-]+)?\.md|code(?:-[\w-]+)?\.diff"
)
_TREES_WITHIN_S = 60.0


def show_far_files(run: Run, own: OwnFiles, *, pictures: bool = False) -> tuple[Run, str]:
    """Bring what stands here of a far run up to date. Return the run as if it had been here, and what is missing.

    ``pictures``: with the content of those that are as small as other results.
    """
    root, moved, channel = files_root(run.spec.mirror), move_run(run), channel_of(Path(run.spec.mirror))
    directories = {str(path) for path in result_roots(moved, own)}
    if isinstance(named := moved.progress.get("checkpoint"), str) and named and "\0" not in named:
        directories.add(str((Path(moved.spec.cwd or "/") / named).parent))
    inside = [os.path.normpath(path) for path in directories]
    roots = sorted(path.removeprefix(root) or "/" for path in inside if path.startswith(f"{root}/"))
    try:
        answer, _ = channel.ask("trees", timeout_s=_TREES_WITHIN_S, roots=roots)
        missing = _Tree(channel, Path(root), pictures).update(roots, answer["directories"])
    except HostUnreachable as error:
        return moved, f"{error.host} cannot be reached ({error.why}): its result files are as they were seen last."
    except OSError as error:
        return moved, f"The result files of {run.run_id} cannot be shown here: {error.strerror or error}."
    remark = f"{run.run_id} has more files than were looked at." if answer["cut"] else ""
    if missing:
        remark += f" {missing} result files of {channel.name} are too large to be read from here."
    return moved, remark.strip()


def name_there(path: Path | str, run: Run) -> Path:
    """Return the path on its host of a file that stands below the mirror."""
    text = str(path)
    return Path(text.removeprefix(files_root(run.spec.mirror)) or "/") if run.spec.mirror else Path(text)


def exists_there(path: Path, mirror: str) -> bool:
    """Return whether a far host has a path."""
    answer, _ = channel_of(Path(mirror)).ask("paths", paths=[str(path)])
    return answer["paths"][str(path)]["kind"] in ("file", "directory")


@dataclass
class _Tree:
    """The files of one host, below ``root``."""

    channel: Channel
    root: Path
    pictures: bool
    _wanted: list[tuple[Path, str, int, int]] = field(default_factory=list)
    _missing: int = 0

    def update(self, roots: Sequence[str], directories: dict[str, list[list[Any]]]) -> int:
        """Make the files as listed, and remove others below ``roots``. Return how many results were left out."""
        kept: set[Path] = set()
        for directory, files in directories.items():
            if not directory.startswith("/") or ".." in Path(directory).parts:
                continue
            for name, size, mtime_ns in files:
                if "/" not in name and name not in ("", "..") and self._place(directory, name, size, mtime_ns):
                    kept.add(self.root / directory.lstrip("/") / name)
        for top in roots:
            for path, _, names in os.walk(self.root / top.lstrip("/")):
                for name in names:
                    if (file := Path(path) / name) not in kept:
                        file.unlink(missing_ok=True)
        self._fetch()
        return self._missing

    def _place(self, directory: str, name: str, size: int, mtime_ns: int) -> bool:
        target = self.root / directory.lstrip("/") / name
        is_picture = self.pictures and target.suffix.lower() in PICTURE_ENDS
        is_result = is_picture or is_evaluation_name(target) or name in _CONFIGS
        if is_result and size > _MOST_FILE_BYTES:
            self._missing += 1
            return False
        with contextlib.suppress(FileNotFoundError):
            status = target.lstat()
            is_empty = is_picture and not status.st_blocks  # it stood here before anybody wanted to see it
            if (status.st_size, status.st_mtime_ns) == (size, mtime_ns) and not is_empty:
                return True
        if is_result:
            self._wanted.append((target, f"{directory}/{name}", size, mtime_ns))
            return True
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        with target.open("xb") as file:
            file.truncate(size)  # no block on the disk
        os.utime(target, ns=(mtime_ns, mtime_ns))
        return True

    def _fetch(self) -> None:
        """Copy the newest results, as far as their limits go."""
        newest = sorted(self._wanted, key=lambda one: -one[3])
        left, chosen = _MOST_BYTES, []
        for one in newest[:_MOST_FILES]:
            if one[2] <= left:
                chosen.append(one)
                left -= one[2]
        self._missing += len(newest) - len(chosen)
        for target, *_ in newest:
            target.unlink(missing_ok=True)
        if not chosen:
            return
        answer, content = self.channel.ask("contents", timeout_s=_TREES_WITHIN_S, paths=[one[1] for one in chosen])
        at = 0
        for (target, _, _, mtime_ns), size in zip(chosen, answer["sizes"], strict=False):
            if size >= 0:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                target.write_bytes(content[at : at + size])
                os.utime(target, ns=(mtime_ns, mtime_ns))
                at += size


@contextlib.contextmanager
def documents_of(run: Run, directory: str) -> Iterator[Path]:
    """Give a copy of the documents of a far directory to a ``with`` block, and write back what it has changed.

    The flag is written last. HostUnreachable: nobody knows whether all was written, and a second call completes it.
    LaunchFailed: a document has changed there meanwhile. OSError: it cannot be written.
    """
    channel = channel_of(Path(run.spec.mirror))
    with tempfile.TemporaryDirectory(prefix="runward-") as name:
        copy = Path(name)
        escaped = re.sub(r"([*?[])", r"[\1]", directory.rstrip("/"))
        listed, _ = channel.ask("files", patterns=[f"{escaped}/*"])
        paths = [path for path in listed["files"] if _DOCUMENT.fullmatch(Path(path).name)]
        answer, content = channel.ask("contents", paths=paths)
        if len(answer["sizes"]) < len(paths):
            raise OSError(errno.EFBIG, f"the documents there have more than {_MOST_BYTES >> 20} MiB", directory)
        at = 0
        known: dict[str, bytes] = {}
        for path, size in zip(paths, answer["sizes"], strict=True):
            if size >= 0:
                known[Path(path).name] = content[at : at + size]
                (copy / Path(path).name).write_bytes(content[at : at + size])
                at += size
        yield copy
        changed = [path for path in copy.iterdir() if known.get(path.name) != path.read_bytes()]
        order = sorted(changed, key=lambda path: (path.name == FINISH_FLAG, path.name != EXPERIMENT_LOG, path.name))
        files = [[path.name, _hash(known.get(path.name)), path.stat().st_size] for path in order]
        data = b"".join(path.read_bytes() for path in order)
        channel.ask("write_documents", directory=directory, files=files, data=data)


def _hash(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()
