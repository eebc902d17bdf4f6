"""The warnings of a launch: its scripts, GPUs that it pins past leases, outputs that it shares with other runs."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mcp_server.backends.slurm.batch_script import warn_of_directives
from mcp_server.command.killers import find_warnings
from mcp_server.command.outputs import RUN_NAMES, find_in_command, list_redirected, resumes, warn_of_redirection
from mcp_server.command.programs import PYTHON_LAUNCHERS, SETS_VARIABLES, SHELLS, TEXT_PROGRAMS
from mcp_server.command.script_options import find_unknown_options
from mcp_server.command.shell import leave_out_helpers, parse
from mcp_server.command.started import Program, find_programs
from mcp_server.command.texts import MAKE, find_makefile, select_recipes
from mcp_server.gpus.leases import LeaseHolder, Leases
from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.request import GpuRequest, parse_gpus
from mcp_server.hosts.environment import find_targets
from mcp_server.record.results.result_page import EXPERIMENT_LOG, FINISH_FLAG
from mcp_server.record.script import PARAMS, command_text, format_arguments
from mcp_server.record.service import parse_need
from mcp_server.record.spec import RunSpec
from mcp_server.record.written_files import read_outputs
from mcp_server.recovery.changes import describe_halving
from mcp_server.recovery.policy import NONE
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore

_VISIBLE = re.compile(r"(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES=(?P<list>\d+(?:,\d+)*),?")
_CUDA = re.compile(r"(?:[\w.\-+]*=)?[\"']?(?P<pin>cuda:(?P<index>\d+))[\"']?")
# `--gpus 4` is mostly a count: 0 and lists are not.
_OPTION = re.compile(r"(?:--?|[\w.]+\.)?(?:gpu|gpu[-_]?ids?|device|device[-_]?ids?|cuda[-_]?device)", re.IGNORECASE)
_COUNT_OPTION = re.compile(r"(?:--?|[\w.]+\.)?gpus", re.IGNORECASE)
_LIST = re.compile(r"\[?(\d+(?:,\d+)*)\]?")
_MOST_DIGITS = 3
_COMPUTES = re.compile(rf"python[\d.]*|{'|'.join(PYTHON_LAUNCHERS)}|mpirun|isaaclab\.sh|ray|tune|trl|vllm")


@dataclass(frozen=True)
class Pin:
    """GPUs that a command names by index. ``is_absolute``: also where a lease makes other GPUs visible."""

    text: str
    indices: tuple[int, ...]
    is_absolute: bool


def find_pins(
    command: str | Sequence[str], env: Mapping[str, str] | None = None, params: Mapping[str, object] | None = None
) -> list[Pin]:
    """Return the GPUs that a command, its environment and its parameters pin it to, in this order."""
    more = []
    if env or params:
        variables = tuple(f"{name}={value}" for name, value in (env or {}).items())
        options = [(f"--{name.lstrip('-')}", str(value)) for name, value in (params or {}).items()]
        words = ("params", *(word for option in options for word in option))
        more = [Program("params", words, variables=variables)]
    return list(dict.fromkeys(pin for program in (*find_programs(command), *more) for pin in _pins_of(program)))


def computes(command: str | Sequence[str]) -> bool:
    """Return whether one of the programs may compute on a GPU."""
    return any(_COMPUTES.fullmatch(program.name) for program in find_programs(command))


def warn_of_pins(
    pins: Sequence[Pin], request: GpuRequest | None, holders: Mapping[int, str], present: Sequence[int]
) -> list[str]:
    """Return one sentence for each pin that takes GPUs past the leases.

    ``request`` is None where the launch asks for none. ``holders``: which run leases a GPU, by index. ``present``: the
    indices of this machine's GPUs, empty where it has none, or no driver answers.
    """
    if request is not None:
        leased = {int(name) for name in request.ids if name.isdecimal()}
        count = 0 if request.cpu or request.is_mig else request.count or len(request.ids)
        return [
            f"`{pin.text}` overrides the GPUs that are leased for this run: leave it out of the command."
            for pin in pins
            if pin.is_absolute and request and not leased.issuperset(pin.indices)
        ] + [
            f"`{pin.text}` is past this run's lease: it sees {count} of the GPUs, as cuda:0"
            f"{f' to cuda:{count - 1}' if count > 1 else ''}, whatever their indices are."
            for pin in pins
            if not pin.is_absolute and count and max(pin.indices) >= count
        ]
    return [warning for pin in pins for warning in _warn_without_lease(pin, holders, present)]


def _warn_without_lease(pin: Pin, holders: Mapping[int, str], present: Sequence[int]) -> Iterator[str]:
    leased = [index for index in pin.indices if index in holders]
    free = [index for index in pin.indices if index in present and index not in holders]
    if leased:
        names = list(dict.fromkeys(holders[index] for index in leased))
        verb = "leases" if len(names) == 1 else "lease"
        count = f"gpus={len(pin.indices)}"
        who = f"{' and '.join(names)} {verb}"
        yield f"`{pin.text}` uses GPU {_join(leased)}, which {who}: leave it out and pass {count}."
    if free:
        them, indices = "it" if len(free) == 1 else "them", _join(free)
        yield f"`{pin.text}` uses GPU {indices} without a lease, so others may take {them}: pass gpus=[{indices}]."


def _join(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


def _pins_of(program: Program) -> Iterator[Pin]:
    words = program.words[1:] if program.name in SETS_VARIABLES else ()
    for assignment in (*program.variables, *words):
        if (visible := _VISIBLE.fullmatch(assignment)) is not None:
            yield Pin(assignment, _numbers(visible["list"]), is_absolute=True)
    if program.name in TEXT_PROGRAMS or program.name in SETS_VARIABLES:
        return
    for word, following in zip(program.words, (*program.words[1:], ""), strict=False):
        if (cuda := _CUDA.fullmatch(word)) is not None:
            yield Pin(cuda["pin"], (int(cuda["index"]),), is_absolute=False)
            continue
        option, equals, value = word.partition("=")
        if not equals:
            if not option.startswith("-"):
                continue
            value = following
        listed = _LIST.fullmatch(value)
        if listed is None:
            continue
        numbers = _numbers(listed[1])
        is_list = _COUNT_OPTION.fullmatch(option) and (len(numbers) > 1 or numbers == (0,))
        if _OPTION.fullmatch(option) or is_list:
            yield Pin(f"{option}{equals or ' '}{value}", numbers, is_absolute=False)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if len(number) <= _MOST_DIGITS)


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
        warnings += warn_of_options(spec)
        home = store.home
        warnings += warn_of_shared_outputs(spec, store.list_specs(RunQuery("live")))
        if spec.like and spec.result_dir and spec.result_dir.endswith(f"-{spec.run_id}"):
            warnings.append(f"Its results go to {spec.result_dir}: those of {spec.like} stay where they are.")
        former = warn_of_former_outputs(spec, partial(store.list_specs, RunQuery("ended", mirror="")))
        warnings += former or warn_of_former_files(spec, store)
        if of_home := home.find_warning():
            warnings.append(of_home)
        warnings += find_targets(home.read_config(), environ, home.secrets)[1]
        return list(dict.fromkeys([*warnings, *_warn_of_gpus(spec, environ)]))
    except Exception as error:  # a launch never fails for a warning
        return [f"What to warn of could not be found out: {error!r}."]


def warn_of_options(spec: RunSpec) -> list[str]:
    """Return a warning for each option that a script does not have, or has twice. Reads the script; not a far one."""
    options, _ = parse(spec.command).split_options()
    twice = [
        f"{name} stands twice: {options[name]} in the command and {value} in params, which come later."
        for name, value in spec.params.items()
        if options.get(name, str(value)) != str(value) and PARAMS not in spec.command
    ]
    return twice + ([] if spec.mirror else list(find_unknown_options(parse(command_text(spec)), Path(spec.cwd))))


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


_NAMES = (*RUN_NAMES, "name", "version", "trial")
# What makes a path, or a name below it, one of a run alone.
_OWN = ("{run_id}", "RUNWARD_RUN_ID", "$(date", "`date", "${now", "{attempt}")
_MOST_NAMED = 3
_MOMENT = re.compile(r"\d{6}|\d\d[-_]\d\d[-_]\d\d")
_MOST_FORMER = 300  # the newest ended runs, whose commands are read
_OF_RUNWARD = (EXPERIMENT_LOG, FINISH_FLAG)


def warn_of_shared_outputs(spec: RunSpec, live: Iterable[RunSpec]) -> list[str]:
    """Return a warning for each live run of the same host that writes where ``spec`` does, at most three."""
    own = _list_outputs(spec)
    warnings = []
    for other in live if own or spec.result_dir else ():
        if other.run_id == spec.run_id or other.mirror != spec.mirror:
            continue
        if spec.result_dir and spec.result_dir == other.result_dir:
            warnings.append(f"{other.run_id} is live and has {spec.result_dir} for its results too: the documents mix.")
            continue
        if _list_names(spec) != _list_names(other):
            continue
        shared = [path for path in own if path in _list_outputs(other)]
        if shared:
            warnings.append(
                f"{other.run_id} is live and writes to {shared[0]} too: their files may mix. Put {{run_id}} into that "
                "path."
            )
    return warnings[:_MOST_NAMED]


def warn_of_former_outputs(spec: RunSpec, list_ended: Callable[[int], Iterable[RunSpec]]) -> list[str]:
    """Return a warning that names the newest ended run with files where ``spec`` writes, unless it resumes."""
    own = [path for path in filter(None, (*_list_outputs(spec), spec.result_dir)) if _holds_files(path)]
    if not own or spec.mirror or resumes(spec.command, spec.params):
        return []
    for other in map(_as_it_ran, list_ended(_MOST_FORMER)):
        if other.run_id == spec.run_id or _list_names(spec) != _list_names(other):
            continue
        theirs = {*_list_outputs(other), other.result_dir}
        if (path := next((path for path in own if path in theirs), None)) is not None:
            return [
                f"The files of {other.run_id}, which has ended, lie in {path}: this run may overwrite its evaluations "
                "and checkpoints. Put {run_id} into that path, or name another."
            ]
    return []


def warn_of_former_files(spec: RunSpec, store: RunStore) -> list[str]:
    """Return a warning that names the newest finished run of the same command, and a file that it wrote.

    A program may choose its directory by its settings. Paths with a time or a process in them are not written again.
    """
    ran = spec.command, spec.params, spec.env
    if spec.mirror or resumes(spec.command, spec.params) or any(mark in json.dumps(ran, default=str) for mark in _OWN):
        return []
    for other in store.list_specs(RunQuery("finished", mirror=""), _MOST_FORMER):
        is_same = (other.command, other.params, other.env) == ran and other.run_id != spec.run_id
        if not is_same or (other.cwd != spec.cwd and other.run_id != spec.like):
            continue
        records = map(read_outputs, store.directory_of(other.run_id).glob("attempts/*/outputs.json"))
        files = [file for record in records if record for file in record.files if not (file.append or file.unsure)]
        paths = [file.path for file in files if not file.listed and not _MOMENT.search(file.path)]
        if (path := next(filter(os.path.exists, paths), None)) is not None:
            return [
                f"{other.run_id} ran the same command and wrote {path}: this run may overwrite its files. Give it a "
                "directory of its own."
            ]
    return []


def _as_it_ran(spec: RunSpec) -> RunSpec:
    """Return a spec with its own id in place of ``{run_id}``: so a later launch names its files."""
    facts = {"command": spec.command, "params": spec.params, "env": spec.env, "tensorboard": spec.tensorboard}
    text = json.dumps(facts, default=str)
    return replace(spec, **json.loads(text.replace("{run_id}", spec.run_id))) if "{run_id}" in text else spec


def _holds_files(path: str) -> bool:
    """Return whether a path is a file, or a directory with any entry but those that runward writes."""
    try:
        with os.scandir(path) as entries:
            return any(entry.name not in _OF_RUNWARD for entry in entries)
    except NotADirectoryError:
        return True
    except OSError:
        return False


def _list_outputs(spec: RunSpec) -> list[str]:
    spec = replace(spec, command=leave_out_helpers(spec.command))
    text = json.dumps([spec.command, spec.params, spec.env], default=str)
    if any(mark in text for mark in _OWN):
        return []
    named = find_in_command(spec.command, spec.cwd, spec.params)
    paths = [*named, *list_redirected(spec.command, spec.cwd), *([spec.tensorboard] if spec.tensorboard else [])]
    return [path for path in dict.fromkeys(paths) if path not in (spec.cwd, os.path.expanduser("~"))]  # noqa: PTH111


def _list_names(spec: RunSpec) -> list[tuple[str, str]]:
    settings = {**parse(spec.command).split_options()[0], **spec.params}
    return sorted(
        (name, str(value))
        for name, value in settings.items()
        if name.lstrip("+-~").rpartition(".")[2].replace("-", "_").lower() in _NAMES
    )
