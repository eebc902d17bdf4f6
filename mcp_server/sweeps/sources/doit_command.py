"""The launch of a doit task: its actions as one command, the place of parameters, the device. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from mcp_server.command.inputs import PlacedProgram
from mcp_server.command.programs import PYTHON_LAUNCHERS
from mcp_server.command.shell import ReadCommand, SimpleCommand, parse
from mcp_server.gpus.request import PLACEHOLDERS
from mcp_server.record.script import PARAMS
from mcp_server.sweeps.sources.cell import GpuCount, Scalar
from mcp_server.sweeps.sources.doit_tasks import DoitAction, DoitTask

_DEVICE = "device"
_PIN = f"cuda:{PLACEHOLDERS[1]}"
# These start the program that takes the arguments; `tee` or `date` in the same line do not.
_STARTS_PYTHON = re.compile(rf"(?:python|pypy)[\d.]*|{'|'.join(PYTHON_LAUNCHERS)}|uv|isaaclab\.sh|.*\.py")
_NAMED_VALUE = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=")
_FLAG = re.compile(r"--[A-Za-z][\w-]*")


@dataclass(frozen=True)
class DoitLaunch:
    """Arguments of launch_run for a task, the parameters among them, and what a person should know."""

    arguments: Mapping[str, Any]
    params: Mapping[str, Scalar]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Target:
    """The program of a task that takes the arguments: its action, its place in the action's text."""

    action: int
    command: ReadCommand
    program: SimpleCommand
    end: int


def build_launch(
    task: DoitTask, tasks: Sequence[DoitTask], cwd: str, overrides: Mapping[str, Scalar], gpus: GpuCount
) -> DoitLaunch:
    """Return how a launchable task is launched. ``tasks`` are all of its project, ``cwd`` is the directory of doit.

    Parameters follow the arguments of the program, so that they win where the last flag does. An override that is an
    option of the task is in its command already, and is a parameter as well only where the command shows its flag.
    A single GPU is named by ``--device`` where the program takes that flag.
    """
    target = _find_target(task.actions, overrides)
    written = target.command.split_options()[0] if target else {}
    params = {name: value for name, value in overrides.items() if name not in task.options or name in written}
    notes = [*_note_task(task), *_note_flags(target, params)]
    words: list[str] = []
    if gpus == 1 and target and _takes_device(target, written, tasks) and _DEVICE not in params:
        words = [f"--{_DEVICE}", _PIN]
        notes.append(f"--{_DEVICE} {_PIN} is added: the command names its leased GPU, and sees all others.")
    command = _join_actions(task.actions, target, words)
    arguments: dict[str, Any] = {"command": command, "cwd": cwd, "param_style": _find_style(target, params)}
    if len(task.actions) == 1:
        action = task.actions[0]
        arguments |= {"cwd": action.cwd or cwd} | ({"env": dict(action.env)} if action.env else {})
    return DoitLaunch(arguments, params, tuple(notes))


def _find_target(actions: Sequence[DoitAction], overrides: Mapping[str, Scalar]) -> _Target | None:
    """Return the program that has one of the overrides as a flag, else the last that starts Python, else the last."""
    targets = []
    for index, action in enumerate(actions):
        if action.kind not in ("shell", "argv"):
            continue
        command = parse(list(action.words) if action.kind == "argv" else action.text)
        programs = [each for each in command.commands if each.is_certain and each.program]
        targets += [_Target(index, command, each, _find_end(command, each)) for each in programs]
    for target in reversed(targets):
        if not overrides.keys().isdisjoint(parse(target.program.program_words).split_options()[0]):
            return target
    python = [each for each in targets if _STARTS_PYTHON.fullmatch(PurePath(each.program.program).name)]
    return next(reversed(python or targets), None)


def _find_end(command: ReadCommand, program: SimpleCommand) -> int:
    """Return where the arguments of a program end in the text of its command."""
    if not isinstance(command.source, str):
        return 0
    ends = [
        token.start
        for token in command.tokens
        if token.is_operator and token.start > program.start and not set(token.raw) & set("<>")
    ]
    comments = [start for start in command.comments if start > program.start]
    return min([*ends, *comments], default=len(command.source))


def _join_actions(actions: Sequence[DoitAction], target: _Target | None, words: Sequence[str]) -> str | list[str]:
    """Return all actions as one command, ``words`` behind the arguments of the target.

    A single program takes parameters at its end; in every other command ``{params}`` says where.
    """
    if len(actions) == 1:
        action = actions[0]
        if action.kind == "argv":
            return [*action.words, *words]
        if target is None:
            return action.text
        more = [*words] if target.command.is_one_program else [*words, PARAMS]
        return _insert(action.text, target.end, more)
    texts = []
    for index, action in enumerate(actions):
        more = [*words, PARAMS] if target and target.action == index else []
        if action.kind == "folder":
            texts.append(f"mkdir -p -- {shlex.quote(action.text)}")
            continue
        if action.kind == "argv":
            text = shlex.join(action.words) + "".join(f" {word}" for word in more)
        else:
            text = _insert(action.text, target.end if target else 0, more) if more else action.text
        texts.append(_isolate(action, text))
    return " && ".join(texts)


def _insert(text: str, at: int, words: Sequence[str]) -> str:
    if not words or PARAMS in text:
        return text
    before, after = text[:at].rstrip(), text[at:]
    return f"{before} {' '.join(words)}{' ' if after.strip() else ''}{after}".rstrip()


def _isolate(action: DoitAction, text: str) -> str:
    """Return one of several actions so that its directory, variables and operators concern no other."""
    settings = [f"cd {shlex.quote(action.cwd)}"] if action.cwd else []
    settings += [f"export {name}={shlex.quote(value)}" for name, value in sorted(action.env.items())]
    parsed = parse(text)
    if not settings and len(parsed.commands) == 1 and parsed.is_one_program:
        return text
    end = "\n" if "\n" in text or parsed.comments else " "
    return f"( {' && '.join([*settings, text.strip()])}{end})"


def _takes_device(target: _Target, written: Mapping[str, str], tasks: Sequence[DoitTask]) -> bool:
    """Return whether the program takes ``--device`` with a GPU: it, or the same program in another task, has it."""
    if _DEVICE in written:
        return written[_DEVICE].startswith("cuda") and PLACEHOLDERS[1] not in written[_DEVICE]
    script = _find_script(target.program)
    others = (
        parse(list(action.words) if action.kind == "argv" else action.text)
        for task in tasks
        for action in task.actions
        if action.kind in ("shell", "argv")
    )
    return bool(script) and any(
        f"--{_DEVICE}" in program.words and _find_script(program) == script
        for command in others
        for program in command.commands
    )


def _find_script(program: SimpleCommand) -> str:
    """Return the Python file, or the module, that a program runs."""
    placed = PlacedProgram(program.program_words)
    return placed.script or placed.module


def _find_style(target: _Target | None, params: Mapping[str, Scalar]) -> str:
    """Return ``k=v`` where the program, or else each parameter, is written so."""
    words = target.program.program_words[1:] if target else ()
    has_flags = any(_FLAG.match(word) for word in words)
    has_values = any(_NAMED_VALUE.match(word) for word in words)
    if has_values and has_flags:  # as Isaac Lab takes them: the groups of Hydra have dots
        return "k=v" if params and all("." in name or "/" in name for name in params) else "--k v"
    return "k=v" if has_values else "--k v"


def _note_task(task: DoitTask) -> list[str]:
    """Return what doit does around the commands of a task, and a run does not."""
    notes = []
    if needs := [name for name in task.needs if name != task.group]:
        notes.append(f"doit runs {', '.join(needs)} before {task.name}; a cell does not.")
    if task.has_teardown:
        notes.append(f"The teardown of {task.name} is not run.")
    if unset := sorted({name for action in task.actions for name in action.unset}):
        notes.append(f"doit runs {task.name} without {', '.join(unset[:5])}; a cell keeps them.")
    if settings := sorted({name for action in task.actions for name in action.settings}):
        notes.append(f"Settings of its actions that a cell does not have: {', '.join(settings)}.")
    if task.options:
        values = ", ".join(f"{name}={value}" for name, value in task.options.items())
        notes.append(f"Options of the task: {values}.")
    return notes


def _note_flags(target: _Target | None, params: Mapping[str, Scalar]) -> list[str]:
    """Return which flags are there twice, and which value wins."""
    if target is None:
        return ["Where the command takes arguments is not certain: it takes no parameters."]
    words = target.program.program_words
    written = parse(words).split_options()[0]
    names = [word.partition("=")[0].lstrip("+-~") for word in words if _FLAG.match(word) or _NAMED_VALUE.match(word)]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    replaced = {name: value for name, value in params.items() if name in written and written[name] != str(value)}
    return [
        *(f"{name} is in the command twice: the last value wins, {written[name]}." for name in twice),
        *(
            f"{name}={value} follows {name}={written[name]} of the command: the last value wins."
            for name, value in replaced.items()
        ),
    ]
