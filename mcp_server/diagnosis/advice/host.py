"""Checks on this host that cost next to nothing, before advice is said: modules, files, mounts, the driver.

Only where the run's directory is known: a log from elsewhere says nothing of this host.
"""

from __future__ import annotations

import difflib
import os
from contextlib import suppress
from pathlib import Path

from mcp_server.diagnosis.advice.blocks import NextStep, Scene, compose, correct
from mcp_server.text.formatting import format_size
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/advice/patterns", "host")

_MOST_ENTRIES = 2_000  # of a directory
_LEAST_LIKENESS = 0.7
_FULL_SHARE, _FULL_BYTES = 0.02, 2**30
_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl")


def check_host(scene: Scene) -> NextStep | None:
    """Return the step that a look at this host proves, or None."""
    if not scene.cwd:
        return None
    with suppress(OSError, ValueError):
        for check in (_find_module, _find_near_path, _find_full_mount, _find_driver):
            if step := check(scene, Path(scene.cwd)):
                return step
    return None


def _find_module(scene: Scene, cwd: Path) -> NextStep | None:
    """Return where a missing module is, if it is the program's own: then a path is missing, and no package."""
    match = _RX.module.search(scene.line) if scene.kind == "import_error" else None
    if match is None:
        return None
    for root in (cwd, cwd / "src", cwd.parent):
        package = root / match[1]
        if package.with_suffix(".py").is_file() or any(name.endswith(".py") for name in _list_names(package)):
            say = "{0} is the program's own: set PYTHONPATH={1} in env"
            return correct(say, [match[1], str(root)], scene)
    return None


def _find_near_path(scene: Scene, cwd: Path) -> NextStep | None:
    """Return the name that a missing file may have meant, or the directory that is missing."""
    match = _RX.missing_path.search(scene.line) if scene.kind in {"data_error", "config_error"} else None
    if match is None:
        return None
    path = cwd / (match[1] or match[2])
    if path.exists():
        return None
    if not path.parent.is_dir():
        missing = next(each for each in reversed(path.parents) if not each.exists())
        return correct("{0} does not exist on this host: correct that path or mount it", [str(missing)], scene)
    near = difflib.get_close_matches(path.name, _list_names(path.parent), 1, _LEAST_LIKENESS)
    if not near:
        return None
    say = "{0} does not exist, but beside it is {1}: correct the name"
    return correct(say, [match[1] or match[2], near[0]], scene)


def _find_full_mount(scene: Scene, cwd: Path) -> NextStep | None:
    """Return which mount is full, of the file that could not be written, else of the run's directory."""
    if scene.kind != "disk_full" or _RX.quota.search(scene.line):
        return None
    named = _RX.path.search(scene.message)
    path = Path(os.path.realpath(cwd / named[1] if named else cwd))
    mount = next(each for each in (path, *path.parents) if os.path.ismount(each))
    space = os.statvfs(mount)
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    if free > max(_FULL_SHARE * total, _FULL_BYTES):
        return None
    say = "{0} has {1} of {2} free: write elsewhere, or ask a person to free space there"
    return correct(say, [str(mount), format_size(free), format_size(total)], scene)


def _find_driver(scene: Scene, _: Path) -> NextStep | None:
    if scene.kind != "cuda_error" or not _RX.no_device.search(scene.line):
        return None
    if any(map(os.path.exists, _DRIVERS)):
        return None
    say = "This host has no NVIDIA driver: {launch_run|launch the cell} on one that has it, or use the CPU."
    return compose(say, [], scene)


def _list_names(directory: Path) -> list[str]:
    with suppress(OSError), os.scandir(directory) as entries:
        return [entry.name for _, entry in zip(range(_MOST_ENTRIES), entries)]
    return []
