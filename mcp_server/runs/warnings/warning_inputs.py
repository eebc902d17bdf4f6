"""Reads what the warnings of a launch need: the scripts that a command names, and the leases of GPUs that it pins."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mcp_server.backends.slurm.directives import warn_of_directives
from mcp_server.command.killers import find_warnings
from mcp_server.command.outputs import warn_of_redirection
from mcp_server.command.programs import SHELLS, TEXT_PROGRAMS
from mcp_server.command.started import Program, find_programs
from mcp_server.command.texts import MAKE, find_makefile, select_recipes
from mcp_server.gpus.lease_holder import LeaseHolder
from mcp_server.gpus.leases import Leases
from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.request import parse_gpus
from mcp_server.hosts.notice_targets import find_targets
from mcp_server.record.script import format_arguments
from mcp_server.record.service import parse_need
from mcp_server.record.spec import RunSpec
from mcp_server.recovery.changes import describe_halving
from mcp_server.recovery.policy import NONE
from mcp_server.runs.warnings.gpu_pins import computes, find_pins, warn_of_pins
from mcp_server.runs.warnings.live_outputs import warn_of_former_outputs, warn_of_shared_outputs
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore

_MOST_SCRIPTS, _MOST_BYTES = 8, 256 * 1024
_SCRIPT_SUFFIXES = (".sh", ".bash", ".py", ".slurm", ".sbatch", ".zsh", ".ksh")
_READERS = SHELLS | {"source", ".", "sbatch"}  # of a file of any name
_WITHIN_S = 3.0  # a driver that hangs does not delay a launch longer
_MOST_HOLDERS = 3


def collect_warnings(spec: RunSpec, store: RunStore, environ: Mapping[str, str]) -> list[str]:
    """Return what to know about the start of ``spec``, mostly nothing. Reads files, asks the driver: use a thread."""
    try:
        halving, can_halve = describe_halving(spec.recovery or NONE, spec.params)
        scripts = read_scripts(spec.command, Path(spec.cwd))
        warnings = [*find_warnings(spec.command, scripts), *warn_of_redirection(spec.command)]
        if not can_halve:
            warnings.append(f"recovery: {halving}. Pass the value that it may halve in params.")
        if spec.backend == "slurm":
            warnings += warn_of_directives(spec, scripts)
        if spec.params:
            warnings += find_warnings(["params", *format_arguments(spec.params, spec.param_style)])
        home = store.home
        warnings += warn_of_shared_outputs(spec, store.list_specs(RunQuery("live")))
        warnings += warn_of_former_outputs(spec, partial(store.list_specs, RunQuery("ended", mirror="")))
        if of_home := home.find_warning():
            warnings.append(of_home)
        warnings += find_targets(home.read_config(), environ, home.secrets)[1]
        return list(dict.fromkeys([*warnings, *_warn_of_gpus(spec, environ)]))
    except Exception as error:  # a launch never fails for a warning
        return [f"What to warn of could not be found out: {error!r}."]


class _Script(NamedTuple):
    """A script below ``base``. ``is_certain``: a shell reads it. ``targets``: those of a Makefile that are made."""

    word: str
    base: Path
    is_certain: bool = False
    targets: tuple[str, ...] | None = None


def read_scripts(command: str | list[str], cwd: Path) -> dict[str, str]:
    """Return the beginnings of at most 8 scripts by name: those of a command, and their own; of make the recipes."""
    texts: dict[Path, tuple[str, str]] = {}
    waiting = list(_list_scripts(find_programs(command), cwd))
    while waiting and len(texts) < _MOST_SCRIPTS:
        script = waiting.pop(0)
        path = script.base / script.word
        if path in texts or (text := _read_text(path, is_certain=script.is_certain)) is None:
            continue
        if script.targets is not None:
            text = select_recipes(text, script.targets)
        texts[path] = script.word, text
        if path.suffix != ".py":
            waiting += _list_scripts(find_programs(text), script.base)
    return dict(texts.values())


def _list_scripts(programs: list[Program], cwd: Path) -> Iterator[_Script]:
    base = cwd
    for program in programs:
        words = program.words
        if program.name == "cd":
            base = base.joinpath(*words[1:2])
        if program.name in TEXT_PROGRAMS:
            continue
        if program.name in MAKE:
            place = find_makefile(words)
            yield from (_Script(f"{place.directory}{name}", base, True, place.targets) for name in place.names)
        named = next((at for at, word in enumerate(words) if at and not word.startswith(("-", "+"))), 0)
        for index, word in enumerate(words[:50]):
            is_program = index == 0 and "/" in word
            is_read = index == named > 0 and program.name in _READERS and "-c" not in words[:named]
            if is_program or is_read or word.endswith(_SCRIPT_SUFFIXES):
                yield _Script(word, base, is_read)
            elif index and words[index - 1] == "-m":
                yield _Script(f"{word.replace('.', '/')}.py", base)


def _read_text(path: Path, *, is_certain: bool) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES)
            if b"\0" not in data and (is_certain or path.suffix in _SCRIPT_SUFFIXES or data.startswith(b"#!")):
                return data.decode(errors="replace")
    return None


def _warn_of_gpus(spec: RunSpec, environ: Mapping[str, str]) -> list[str]:
    request, pins = parse_gpus(spec.gpus), find_pins(spec.command, spec.env, spec.params)
    if request is not None:
        warning = Leases(Path(spec.leases)).find_warning() if request else None
        if "{gpu_indices}" in json.dumps([spec.command, spec.params]):  # the host's indices: nothing is hidden
            pins = [pin for pin in pins if pin.is_absolute]
        return [*([warning] if warning else []), *warn_of_pins(pins, request, {}, ())]
    if spec.backend == "ray":
        return []  # Ray chooses the GPUs of its jobs
    held = {uuid: holder for uuid, holder in Leases(Path(spec.leases)).holders().items() if not uuid.startswith("cpu-")}
    # The GPUs of a service, a Ray head for example, are for the runs that need it.
    services = {parse_need(text).run for text in spec.needs}
    shared = {uuid for uuid, holder in held.items() if holder.run_id in services}
    leases = {uuid: held[uuid] for uuid in held.keys() - shared if held[uuid].run_id != spec.run_id}
    if pins:
        gpus = query_gpus(sys.executable, environ, within_s=_WITHIN_S).gpus
        indices = {gpu.uuid: gpu.index for gpu in gpus}
        # What the holder saw counts where the driver does not answer here.
        holders = {indices.get(uuid, holder.index): _name(holder) for uuid, holder in leases.items()}
        leased = {index: name for index, name in holders.items() if index is not None}
        return warn_of_pins(pins, None, leased, [indices[uuid] for uuid in indices.keys() - shared])
    if leases and computes(spec.command):
        names = sorted({_name(holder) for holder in leases.values()})
        named = ", ".join(names[:_MOST_HOLDERS]) + (" and others" if len(names) > _MOST_HOLDERS else "")
        return [
            f"{named} leased GPUs that this run sees as well, because it was launched without gpus: pass gpus, or "
            'gpus="none" if it uses none.'
        ]
    return []


def _name(holder: LeaseHolder) -> str:
    return holder.run_id or holder.text
