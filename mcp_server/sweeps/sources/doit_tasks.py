"""The tasks of a dodo.py as values, and which of them a source means. Pure."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.sweeps.sources.cell import GpuCount

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
        DoitTask(
            name=task["name"],
            doc=task["doc"],
            group=task["group"],
            is_group=task["is_group"],
            is_delayed=task["is_delayed"],
            needs=tuple(task["needs"]),
            has_teardown=bool(task["teardown"]),
            options=task["options"],
            fault=task["fault"],
            actions=tuple(map(_parse_action, task["actions"])),
        )
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


def _parse_action(data: Mapping[str, Any]) -> DoitAction:
    command = data.get("command")
    return DoitAction(
        kind=data["kind"],
        text=command if isinstance(command, str) else data.get("path") or data.get("name") or data.get("text") or "",
        words=tuple(command) if isinstance(command, list) else (),
        cwd=data.get("cwd", ""),
        env=data.get("env", {}),
        unset=tuple(data.get("unset", ())),
        settings=tuple(data.get("settings", ())),
    )


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
    """Yield the names that the variant of a task for several GPUs can have."""
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
    """Return why no launch can run a task, and what helps."""
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
    """Return all tasks that a source can name as a sentence, with a few words on each."""
    named = [task for task in tasks if not task.is_group and not task.name.startswith("_")]
    texts = [f"{task.name} ({task.doc[:_MOST_DOC]})" if task.doc else task.name for task in named[:_MOST_NAMES]]
    more = f" and {len(named) - _MOST_NAMES} more" if len(named) > _MOST_NAMES else ""
    return f"Tasks: {', '.join(texts)}{more}." if texts else "It has no tasks at all."


def _shorten(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:200].rstrip(". ")
