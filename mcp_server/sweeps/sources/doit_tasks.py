"""The tasks of a dodo.py as values, and which of them a source means. Pure."""

import difflib
import fnmatch
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from mcp_server.command.inputs import PlacedProgram
from mcp_server.command.programs import PYTHON_LAUNCHERS
from mcp_server.command.shell import ReadCommand, SimpleCommand, parse
from mcp_server.errors import BadArgument
from mcp_server.gpus.request import PLACEHOLDERS
from mcp_server.record.script import PARAMS
from mcp_server.sweeps.sources.cell import GpuCount, Scalar
from mcp_server.text.formatting import join_some

_VARIANTS = ("-mgpu", "_mgpu")  # in this order
_MOST_NAMES, _MOST_DOC = 60, 60


@dataclass(frozen=True)
class DoitAction:
    """A step of a task.

    ``kind``: a ``shell`` text, the words of an ``argv``, a ``folder`` to make, a ``python`` function, a command that
    cannot be known (``fault``) or was not asked for (``later``). ``text`` is the command, folder, function or reason.
    ``cwd`` is absolute, or empty for that of doit; ``unset`` and ``settings`` are what no launch repeats.
    """

    kind: str
    text: str = ""
    words: tuple[str, ...] = ()
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class DoitTask:
    """A task. ``group`` is the task that it is a subtask of. ``options`` are values of its own options by name.

    ``fault``: why its options cannot be used. ``needs``: tasks that doit runs before it.
    """

    name: str
    doc: str = ""
    group: str = ""
    is_group: bool = False
    is_delayed: bool = False
    needs: tuple[str, ...] = ()
    has_teardown: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    actions: tuple[DoitAction, ...] = ()

    @property
    def is_launchable(self) -> bool:
        """Whether it is a sequence of commands that are known."""
        kinds = {action.kind for action in self.actions}
        return not self.fault and bool(kinds & {"shell", "argv"}) and kinds <= {"shell", "argv", "folder"}


@dataclass(frozen=True)
class Choice:
    """A task that a source means, and why it is this one, where that needs words."""

    task: DoitTask
    notes: tuple[str, ...] = ()


def parse_tasks(data: Sequence[Mapping[str, Any]]) -> list[DoitTask]:
    """Return the tasks that ``doit_child`` wrote."""
    return [
        DoitTask(**{**_freeze(task), "actions": tuple(DoitAction(**_freeze(a)) for a in task["actions"])})
        for task in data
    ]


def list_patterns(words: Sequence[str]) -> list[str]:
    """Return the patterns of all tasks that ``choose_tasks`` can choose for ``words``."""
    return [*words, *(name for word in words for name in _list_variants(word))]


def choose_tasks(tasks: Sequence[DoitTask], words: Sequence[str], gpus: GpuCount, project: str) -> list[Choice]:
    """Return the tasks that names and patterns mean, each once. A group means its subtasks.

    With several GPUs the ``-mgpu`` variant of a task is chosen where there is one, and a pattern never chooses both.
    Tasks that a pattern meets and no launch can run are left out with a note. ``project`` is the directory of dodo.py.

    Raises:
        BadArgument: no task has a name, or a named task is not a command; names all tasks, or the reason.
    """
    by_name = {task.name: task for task in tasks}
    choices: dict[str, Choice] = {}
    left_out: list[str] = []
    if not words:
        raise BadArgument("source", f"names no task of doit in {project}.", _list_names(tasks))
    for word in words:
        matches = [task for task in tasks if _means(word, task)]
        if not matches:
            near = difflib.get_close_matches(word, by_name, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            cause = f"doit has no task {word[:80]!r} in {project}."
            raise BadArgument("source", cause, hint + _list_names(tasks))
        for task in matches:
            choice = _choose_variant(task, by_name, gpus)
            if (
                _is_pattern(word)
                and gpus is not None
                and not _are_several(gpus)
                and (plain := _find_plain(task, by_name))
            ):
                left_out.append(f"{task.name} (the variant of {plain} for several GPUs)")
            elif choice.task.is_launchable:
                choices.setdefault(choice.task.name, choice)
            elif _is_pattern(word):
                left_out.append(f"{choice.task.name} ({_explain(choice.task)[0]})")
            else:
                reason, remedy = _explain(choice.task)
                raise BadArgument("source", f"task {choice.task.name} is not a command: {reason}.", remedy)
    left_out = list(dict.fromkeys(left_out))
    if not choices:
        raise BadArgument("source", f"no task that {', '.join(words)} means is a command: {'; '.join(left_out)}.")
    first, *rest = choices.values()
    if left_out:
        first = Choice(first.task, (*first.notes, f"Left out of the sweep: {'; '.join(left_out)}."))
    return [first, *rest]


def _freeze(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}


def _means(word: str, task: DoitTask) -> bool:
    """Return whether a name or pattern means a task: by its own name, or as a subtask by the name of its group."""
    if task.is_group:
        return False
    if not _is_pattern(word):
        return word in (task.name, task.group)
    names = [name for name in (task.name, task.group) if name]
    return not task.name.startswith("_") and any(fnmatch.fnmatchcase(name, word) for name in names)


def _is_pattern(word: str) -> bool:
    return any(letter in word for letter in "*?[")


def _list_variants(name: str) -> Iterator[str]:
    group, colon, subtask = name.partition(":")
    for ending in _VARIANTS:
        yield f"{name}{ending}"
        if colon:
            yield f"{group}{ending}:{subtask}"


def _choose_variant(task: DoitTask, by_name: Mapping[str, DoitTask], gpus: GpuCount) -> Choice:
    if not _are_several(gpus) or _find_plain(task, by_name):
        return Choice(task)
    variant = next((by_name[name] for name in _list_variants(task.name) if name in by_name), None)
    if variant is None and task.name.endswith(_VARIANTS):
        return Choice(task)
    if variant is None:
        return Choice(task, (f"There is no task {task.name}-mgpu: {task.name} itself gets {gpus} GPUs.",))
    return Choice(variant, (f"{variant.name} in the place of {task.name}, because a cell has {gpus} GPUs.",))


def _are_several(gpus: GpuCount) -> bool:
    return gpus == "all" or (gpus is not None and gpus > 1)


def _find_plain(task: DoitTask, by_name: Mapping[str, DoitTask]) -> str | None:
    """Return the task that ``task`` is the variant for several GPUs of; None where it is not such a variant."""
    return next((name for name in by_name if task.name in _list_variants(name)), None)


def _explain(task: DoitTask) -> tuple[str, str]:
    if task.is_delayed:
        return "doit creates it only while other tasks run", f"Launch `doit run {task.name}` as a command."
    for action in task.actions:
        if action.kind == "python":
            remedy = f"Move it into a task of its own, or launch `doit run {task.name}` as a command."
            return f"it runs the Python function {action.text} in doit's own process", remedy
    if task.fault:
        return f"its options cannot be used: {_shorten(task.fault)}", ""
    for action in task.actions:
        if action.kind == "fault":
            return f"its command cannot be known without running other tasks: {_shorten(action.text)}", ""
    if task.needs:
        return f"it has no command, only tasks that it needs: {', '.join(task.needs[:_MOST_NAMES])}", "Name these."
    return "it has no action", ""


def _list_names(tasks: Sequence[DoitTask]) -> str:
    named = [task for task in tasks if not task.is_group and not task.name.startswith("_")]
    texts = [f"{task.name} ({task.doc[:_MOST_DOC]})" if task.doc else task.name for task in named]
    return f"Tasks: {join_some(texts, _MOST_NAMES)}." if texts else "It has no tasks at all."


def _shorten(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:200].rstrip(". ")


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
    placed = PlacedProgram(program.program_words)
    return placed.script or placed.module


def _find_style(target: _Target | None, params: Mapping[str, Scalar]) -> str:
    words = target.program.program_words[1:] if target else ()
    has_flags = any(_FLAG.match(word) for word in words)
    has_values = any(_NAMED_VALUE.match(word) for word in words)
    if has_values and has_flags:  # as Isaac Lab takes them: the groups of Hydra have dots
        return "k=v" if params and all("." in name or "/" in name for name in params) else "--k v"
    return "k=v" if has_values else "--k v"


def _note_task(task: DoitTask) -> list[str]:
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
