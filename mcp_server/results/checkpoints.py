"""Finds the checkpoints that a run saved, with their step and size."""

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mcp_server.record.claims import Rank
from mcp_server.record.state import Run
from mcp_server.results.run_files import FileEntry, limited_scan, list_tree, rank_own, result_roots
from mcp_server.store.attribution.attribution import OwnFiles
from mcp_server.system.directory_scan import DirectoryScan
from mcp_server.system.files import is_within
from mcp_server.text.formatting import format_size
from mcp_server.text.rows import read_patterns

_RX = read_patterns("results/patterns", "checkpoints")
# First match wins: `epoch=3-step=100` has two numbers, `rl_model_5000_steps` its number before the word.
_STEPS = (_RX.step, _RX.before_steps, _RX.iteration, _RX.checkpoint, _RX.weights)
_WEIGHTS = frozenset({".pt", ".pth", ".ckpt", ".safetensors", ".distcp", ".msgpack", ".keras", ".weights"})
# Also used for many other purposes: they count only with a telling name.
_OTHERS = frozenset({".bin", ".pkl", ".npz", ".zip", ".h5", ".tar", ".onnx"})
_DEEPEST_OF_ONE, _MOST_FILES_OF_ONE, _MOST_MEMBERS = 5, 20_000, 200


@dataclass(frozen=True)
class Checkpoint:
    """A file or a directory, with the size of all its files and the change time (POSIX) of the newest one.

    ``cut``: it has more files than were counted.
    """

    path: Path
    step: int | None
    epoch: int | None
    size_bytes: int
    changed_s: float
    cut: bool = False

    @property
    def size(self) -> str:
        """Its size as text, such as ``1.23 GiB``, after ``≥`` where not all files were counted."""
        return f"{'≥ ' if self.cut else ''}{format_size(self.size_bytes)}"


def step_in_name(name: str) -> int | None:
    """Return the training step in the name of a checkpoint, or None without one. Pure."""
    stem = re.sub(r"(\.(?:pt|pth|ckpt|json|safetensors|bin|zip|pkl|npz|h5|tar|keras|msgpack|gz))+$", "", name)
    return next((int(match[1]) for pattern in _STEPS if (match := pattern.search(stem))), None)


def epoch_in_name(name: str) -> int | None:
    """Return the epoch in the name of a checkpoint, or None without one. Pure."""
    match = _RX.epoch.search(name)
    return int(match[1]) if match else None


def find_checkpoints(root: Path, scan: DirectoryScan | None = None) -> list[Checkpoint]:
    """Return the checkpoints at or below ``root``, newest first. Everything inside one is part of it."""
    checkpoints: dict[Path, Checkpoint] = {}
    scan = scan or limited_scan(max_entries=50_000)
    for _, entries in list_tree(scan, root, enter=lambda path: path not in checkpoints):
        checkpoints.update({one.path: one for one in _select_checkpoints(entries)})
    return _newest_first(checkpoints.values())


def find_run_checkpoints(
    run: Run, own: OwnFiles, find_below: Callable[[Path], list[Checkpoint]] = find_checkpoints
) -> list[Checkpoint]:
    """Return a run's own checkpoints, newest first, also those beside the one that its output named last."""
    directories = result_roots(run, own)
    if isinstance(named := run.progress.get("checkpoint"), str) and named and "\0" not in named:
        directories.append((Path(run.spec.cwd or "/") / named).parent)  # with the other checkpoints of the run
    roots = [root for root in dict.fromkeys(directories) if root != Path("/")]
    checkpoints = {one.path: one for root in roots for one in find_below(root)}
    outermost = [path for path in checkpoints if not any(above in checkpoints for above in path.parents)]
    ranks = rank_own(outermost, own)
    in_named = {path for path in ranks if any(is_within(str(path), one) for one in own.claims.named)}
    least = Rank.STATED if Rank.STATED in ranks.values() else Rank.WRITTEN if in_named else Rank.NONE
    # Where the run named a directory and saved there, a file elsewhere that it was not seen to write is another's.
    kept = [path for path, rank in ranks.items() if rank >= least or (least < Rank.STATED and path in in_named)]
    return _newest_first(checkpoints[path] for path in kept)


def _newest_first(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    return sorted(checkpoints, key=lambda one: (-one.changed_s, -(one.step or -1), str(one.path)))


def _select_checkpoints(entries: Sequence[FileEntry]) -> Iterator[Checkpoint]:
    files = [entry for entry in entries if not entry.is_dir]
    for entry in entries:
        if entry.is_dir and (_RX.directory.fullmatch(entry.path.name) or _holds_a_model(entry.path)):
            if (checkpoint := _measure_directory(entry.path)) is not None:
                yield checkpoint
        elif not entry.is_dir and _is_model(entry.path) and not _is_part(entry, files):
            yield _checkpoint(entry.path, entry.size_bytes, entry.changed_s)


def _is_weights(path: Path) -> bool:
    """Return whether a file holds weights by its name, or by a count alone or the directory where it is."""
    ending, name, place = path.suffix.lower(), path.name, path.parent.name
    if ending in _WEIGHTS or ending not in _OTHERS:
        return ending in _WEIGHTS or (ending == ".json" and _RX.numbered.fullmatch(path.stem) is not None)
    is_told = _RX.names.search(name) or (
        (_RX.place.fullmatch(place) or _RX.count.fullmatch(path.stem)) and not _RX.data.search(place)
    )
    return bool(is_told) and not _RX.data.search(name)


def _is_model(path: Path) -> bool:
    """Return whether a file is a model: by its name, or by content an archive, which Stable-Baselines3 names freely."""
    if path.suffix.lower() != ".zip" or _is_weights(path):
        return _is_weights(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return any(Path(name).suffix.lower() in _WEIGHTS for name in archive.namelist()[:_MOST_MEMBERS])
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def _is_part(entry: FileEntry, files: Iterable[FileEntry]) -> bool:
    weights = [other.path.name for other in files if _is_weights(other.path)]
    return bool(_RX.parts.search(entry.path.name)) and not all(map(_RX.parts.search, weights))


def _holds_a_model(directory: Path) -> bool:
    """Return whether a directory holds a model as libraries save it: weights and their configuration."""
    for _, entries in list_tree(limited_scan(max_depth=0, max_entries=1000), directory):
        names = {entry.path.name for entry in entries}
        return bool(names & {"config.json", "adapter_config.json"}) and any(_is_weights(each.path) for each in entries)
    return False


def _measure_directory(directory: Path) -> Checkpoint | None:
    """Return a directory as one checkpoint, or None if no file in it could be weights."""
    scan = limited_scan(max_depth=_DEEPEST_OF_ONE, max_entries=_MOST_FILES_OF_ONE)
    files = [entry for _, entries in list_tree(scan, directory) for entry in entries if not entry.is_dir]
    if not any(_is_weights(entry.path) or entry.path.suffix == ".bin" for entry in files):
        return None
    one = _checkpoint(directory, sum(entry.size_bytes for entry in files), max(entry.changed_s for entry in files))
    return replace(one, cut=scan.cut)


def _checkpoint(path: Path, size_bytes: int, changed_s: float) -> Checkpoint:
    return Checkpoint(path, step_in_name(path.name), epoch_in_name(path.name), size_bytes, changed_s)
