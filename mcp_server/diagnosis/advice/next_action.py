"""Proposes the next step after a failure: an action, and advice that names the setting to change. Pure.

The kind has a default. First come figures of the message, then the blocks of `*.rows`, each an action together with its
sentence, then the remedy that the message names itself, then the blocks for any error of that sort.

Checks on this host that cost next to nothing, before advice is said: modules, files, mounts, the driver.

Only where the run's directory is known: a log from elsewhere says nothing of this host.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path

from mcp_server.diagnosis.advice import FILES, GENERAL, INSIDE, LAST, SPECIAL, WRAPPED, blocks, names
from mcp_server.diagnosis.advice import message_figures as figures
from mcp_server.diagnosis.advice import message_values as values
from mcp_server.diagnosis.advice.blocks import Advice, NextStep, Scene, compose, correct
from mcp_server.diagnosis.failure.statements import name_fault
from mcp_server.text.formatting import format_size
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("diagnosis/advice/patterns", "next_action")

_LINE_CHARS, _MESSAGE_CHARS, _NEAR_CHARS = 500, 3_000, 8_000
_STOPPED = "Somebody or a limit stopped the run: ask before starting it again."

_Proposer = Callable[[Scene], "NextStep | None"]
_MOST_ENTRIES = 2_000  # of a directory
_LEAST_LIKENESS = 0.7
_FULL_SHARE, _FULL_BYTES = 0.02, 2**30
_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl")


@cache
def read_files(files: tuple[str, ...] = FILES) -> tuple[Advice, ...]:
    """Return the blocks of these files, in their order: the first that applies wins."""
    return tuple(chain.from_iterable(map(blocks.read_advice, files)))


def _propose_from(files: tuple[str, ...]) -> Iterator[_Proposer]:
    for advice in read_files(files):
        yield advice.propose


def _order_proposers(*, is_error: bool) -> Iterator[_Proposer]:
    yield from (check_host, figures.read_figures, figures.explain_timeout, names.explain_other_python)
    if is_error:
        yield from _propose_from(WRAPPED)
        yield from (values.compare_keys, names.name_today)
    yield from _propose_from(SPECIAL)
    if is_error:
        yield from (names.suggest_option, names.suggest_choice, names.find_argument)
        yield from (names.suggest_setting, values.explain_shapes)
    yield values.explain_service
    yield from _propose_from(GENERAL)
    if is_error:
        yield names.name_unknown


def _order_last(*, is_inside: bool) -> Iterator[_Proposer]:
    yield from (names.find_remedy, values.explain_record)
    yield from _propose_from(INSIDE if is_inside else LAST)  # what is wrong inside a library is not corrected there


def propose_next_step(scene: Scene, *, retryable: bool | None = None) -> NextStep:
    """Return the next step after ``scene``. ``retryable``: of a kill; a block that contradicts it is left out."""
    line, message = scene.line[:_LINE_CHARS], (scene.message or scene.line)[:_MESSAGE_CHARS]
    line, message = _RX.answer.sub(r"\1: \2", line), _RX.answer.sub(r"\1: \2", message)
    scene = scene._replace(line=line, message=message, near=f"{scene.near[:_NEAR_CHARS]}\n{message}")
    defaults = _read_defaults("kinds")
    fault = name_fault(line) if scene.kind == "cuda_error" else ""
    default = defaults.get(f"{scene.kind} {fault}") or defaults[scene.kind]
    for propose in _order_proposers(is_error=default.action == "stop"):
        step = propose(scene)
        if step and retryable in (None, step.retryable) and not blocks.is_set_already(step.advice, scene.log):
            return step
    if default.action == "stop" or scene.kind == "other":
        for propose in _order_last(is_inside=bool(scene.inside)):
            if (step := propose(scene)) and not blocks.is_set_already(step.advice, scene.log):
                return step
    if retryable is False and default.action != "stop":
        return NextStep(False, "stop", _STOPPED)
    return _compose_default(default, scene)


def propose_for_case(case: str) -> NextStep:
    """Return the step of a block of `cases.rows`, which needs no line."""
    return _compose_default(_read_defaults("cases")[case], Scene("", ""))


def _compose_default(default: Advice, scene: Scene) -> NextStep:
    step = compose(default.say, [], scene, default.action, then=default.then)
    assert step is not None  # noqa: S101 - a test composes each
    return step


@cache
def _read_defaults(name: str) -> dict[str, Advice]:
    return {block[0][1]: blocks.read_block(block) for block in read_blocks(f"diagnosis/advice/{name}")}


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
