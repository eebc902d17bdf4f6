"""Files of far runs that this host copies when they are asked for; only what is new crosses the wire.

What a run's processes had open for writing, as its supervisor saw it, is the run's: such files come with `read_tb` and
`compare_runs`, into ``files/`` of the mirrored run, under their own absolute paths. Checkpoints and data are never
copied. All raise HostUnreachable where the host does not answer, but for those that say what is missing then.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from mcp_server.backends.ssh.ssh_channel import Channel, channel_of
from mcp_server.errors import HostUnreachable
from mcp_server.record.relay_channel import MOST_CONTENT_BYTES
from mcp_server.record.run_directory import RunDir
from mcp_server.record.scalar_files import find_scalar_file, parse_event_name
from mcp_server.record.written_files import Outputs, WrittenFile, read_outputs

_MOST_NEW_BYTES = 512 * 2**20  # of one call
_MOST_LOG_BYTES = 2**30
_MOST_KEPT_BYTES = 16 * 2**20
_FILES = "files"
_SHORTEST_ROOT, _MOST_PIDS, _DEEPEST = 2, 16, 5  # neither / nor /home is searched


def fetch_scalar_files(directory: RunDir, attempts: int, roots: Sequence[str], begun_s: float) -> tuple[Path, str]:
    """Bring the run's event files and tables up to date; return where they are, and what is missing as a sentence.

    ``roots``: directories there to look for event files whose names hold a process of the run, written since
    ``begun_s`` (POSIX time there). Where the host cannot be reached, they are as of the last call.
    """
    root, channel = directory.path / _FILES, channel_of(directory.path.parents[1])
    try:
        if (note := _fetch_newest(channel, directory, root, attempts, roots, begun_s)) is not None:
            return root, note
        if channel.is_away():  # and may hold what nobody here has heard of
            return root, _describe_silence(HostUnreachable(channel.name, channel.why), root)
    except HostUnreachable as error:
        return root, _describe_silence(error, root)
    return root, ""


def _fetch_newest(
    channel: Channel, directory: RunDir, root: Path, attempts: int, roots: Sequence[str], begun_s: float
) -> str | None:
    """Bring the files of the newest attempt that wrote some up to date; return what is missing, None without any."""
    left_bytes, notes = _MOST_NEW_BYTES, ""
    for number in range(attempts, 0, -1):
        outputs = read_outputs(directory.outputs(number))
        paths = [one.path for one in outputs.files if _is_own(one, outputs, directory.run_id)] if outputs else []
        if outputs is not None and not any("tfevents" in path for path in paths):
            paths += _find_by_process(channel, outputs, roots, begun_s)
        for path in paths:
            target = root / path.lstrip("/")
            if ".." in Path(path).parts or not target.is_relative_to(root):
                continue
            try:
                left_bytes -= _fetch(channel, path, target, left_bytes)
            except (OSError, ValueError) as error:
                notes = f"{path} on {channel.name} cannot be read: {error}."
            if left_bytes <= 0:
                return "The files are large: call again for the rest."
        if paths:
            return notes
    return None


def _describe_silence(error: HostUnreachable, root: Path) -> str:
    """Return what is known of the scalars of a run whose host does not answer."""
    known = "these points were read before" if root.exists() else "whether it has written some is unknown"
    return f"{error.host} cannot be reached ({error.why.rstrip('.')}): {known}."


def fetch_whole_log(directory: RunDir, attempt: int) -> Path:
    """Bring the log of an attempt up to date, however large it is, at most 1 GiB at once, and return its path."""
    path, channel = f"runs/{directory.run_id}/attempts/{attempt}/output.log", channel_of(directory.path.parents[1])
    _fetch(channel, path, directory.log(attempt), _MOST_LOG_BYTES)
    return directory.log(attempt)


def explain_old_log(directory: RunDir, attempt: int) -> str:
    """Return why the mirrored log of an attempt may not be all of it, empty where it is or its host answers."""
    channel, log = channel_of(directory.path.parents[1]), directory.log(attempt)
    silence = channel.describe_silence()
    if not silence or channel.has_whole_log(directory.run_id, attempt, log.stat().st_size if log.exists() else 0):
        return ""
    return f"{silence}: its newest output may be missing here."


def fetch_record_files(directory: RunDir, attempt: int) -> None:
    """Bring what a run's record holds beside its events up to date: kept code, use of GPUs."""
    channel = channel_of(directory.path.parents[1])
    base = f"runs/{directory.run_id}/attempts/{attempt}"
    with contextlib.suppress(HostUnreachable, OSError, ValueError):
        answer, _ = channel.ask("files", patterns=[f"{base}/code/**", f"{base}/gpus.jsonl"])
        state, left_bytes = str(channel.hello["state"]), _MOST_KEPT_BYTES
        for path in answer["files"]:
            name = Path(path).relative_to(state)
            if str(name).startswith(f"{base}/") and ".." not in name.parts and left_bytes > 0:
                left_bytes -= _fetch(channel, path, channel.mirror.path / name, left_bytes)


def _find_by_process(channel: Channel, outputs: Outputs, roots: Sequence[str], begun_s: float) -> list[str]:
    """Return the event files a few levels below ``roots`` whose names hold a process of the run."""
    patterns = [
        f"{root.rstrip('/')}/{'*/' * depth}*tfevents*.{pid}.*"
        for root in roots
        if len(Path(root).parts) > _SHORTEST_ROOT
        for pid in sorted(outputs.pids)[:_MOST_PIDS]
        for depth in range(_DEEPEST)
    ]
    with contextlib.suppress(OSError):
        answer, _ = channel.ask("files", patterns=patterns)
        return [path for path, (_, mtime_ns, _) in answer["files"].items() if mtime_ns / 1e9 >= begun_s]
    return []


def _is_own(file: WrittenFile, outputs: Outputs, run_id: str) -> bool:
    """Return whether a file holds scalars of this run alone: nobody else wrote it, or its name says whose it is."""
    name = file.path.rpartition("/")[2]
    event = parse_event_name(name)
    row = find_scalar_file(name)
    is_table = row is not None and file.size <= row.most_bytes
    if "tfevents" not in name and not is_table:
        return False
    is_named = event is not None and any(pid in outputs.pids for pid, _ in event.writers)
    return not file.unsure or run_id in file.path or is_named


def _fetch(channel: Channel, path: str, target: Path, most_bytes: int) -> int:
    """Append what is new of a far file to its copy; return the number of bytes."""
    have = target.stat().st_size if target.exists() else 0
    fetched = 0
    while fetched < most_bytes:
        answer, data = channel.ask("read", path=path, offset=have, count=MOST_CONTENT_BYTES)
        if answer["size"] < have:  # it was written anew
            target.unlink()
            have = 0
            continue
        if not data and target.exists():
            break
        channel.mirror.write_log(target, data, have, answer["mtime_ns"])
        is_short = len(data) < min(MOST_CONTENT_BYTES, answer["size"] - have)
        have += len(data)
        fetched += len(data)
        if is_short or have >= answer["size"]:
            break
    return fetched
