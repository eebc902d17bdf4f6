"""The program that loads a project's dodo.py and writes its tasks as JSON. Its Python is the project's, with doit.

usage: doit_child.py REQUEST RESULT_FILE: REQUEST is JSON with ``patterns``, the tasks whose commands Python code may
be called for, and ``options``, values for the options of tasks. It imports nothing of its own package, starts no task
and leaves doit's database alone: that of this process is a file beside RESULT_FILE, which is never written.
"""

from __future__ import annotations

import fnmatch
import json
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - starts faster without pathlib
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
try:
    from doit.action import CmdAction
    from doit.cmd_base import DoitCmdBase
    from doit.control import TaskControl
    from doit.doit_cmd import DoitMain
    from doit.tools import create_folder
except ImportError:
    sys.exit(86)  # doit_process tries another Python


def main() -> int:
    """Write the tasks and return the exit status of doit."""
    RunwardTasks.request, RunwardTasks.result = json.loads(sys.argv[1]), sys.argv[2]
    doit_main = _Main()
    doit_main.config = _Config(doit_main.config, RunwardTasks.request["options"])
    database = f"--db-file={RunwardTasks.result}.db"
    return int(doit_main.run([RunwardTasks.get_name(), "--backend=json", database]) or 0)


class _Config(dict):  # type: ignore[type-arg] # the Python may be older than dict[str, …]
    """Doit's configuration, with ``options`` as defaults of every task: doit ignores those a task does not have."""

    def __init__(self, config: Any, options: Any) -> None:
        super().__init__(config)
        self.options = options

    def __bool__(self) -> bool:
        return True  # doit replaces an empty configuration

    def __contains__(self, key: object) -> bool:
        return (isinstance(key, str) and key.startswith("task:")) or super().__contains__(key)

    def __missing__(self, key: str) -> Any:
        return dict(self.options) if key.startswith("task:") else {}

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return {**value, **self.options} if key.startswith("task:") else value


class RunwardTasks(DoitCmdBase):  # type: ignore[misc]
    """The command of doit that writes all tasks."""

    doc_purpose, doc_usage, doc_description, cmd_options = "", "", None, ()
    request: Any
    result: str

    def _execute(self) -> int:
        TaskControl(self.task_list)  # completes the dependencies
        tasks = [_describe(task, self.request) for task in self.task_list]
        with open(self.result, "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
            json.dump({"cwd": os.getcwd(), "tasks": tasks}, file)  # noqa: PTH109
        return 0


class _Main(DoitMain):  # type: ignore[misc]
    DOIT_CMDS = (*DoitMain.DOIT_CMDS, RunwardTasks)


def _describe(task: Any, request: Any) -> Any:
    names = (task.name, task.subtask_of or task.name)
    is_chosen = any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in request["patterns"])
    fault = ""
    try:
        task.init_options()
    except Exception as error:  # a choice that does not exist, a text that is not a number
        task.options, fault = {}, f"{type(error).__name__}: {error}"
    return {
        "name": task.name,
        "doc": task.doc or "",
        "group": task.subtask_of or "",
        "is_group": bool(task.has_subtask),
        "is_delayed": bool(getattr(task, "loader", None)),
        "needs": [*task.task_dep, *task.setup_tasks],
        "has_teardown": bool(task.teardown),
        "options": {str(name): repr(value) for name, value in task.options.items()},
        "fault": fault,
        "actions": [_describe_action(action, is_chosen) for action in task.actions],
    }


def _describe_action(action: Any, is_chosen: bool) -> Any:
    if not isinstance(action, CmdAction):
        function = getattr(action, "py_callable", None)
        arguments = [*(getattr(action, "args", None) or ()), *(getattr(action, "kwargs", None) or {}).values()]
        if function is create_folder and len(arguments) == 1:
            return {"kind": "folder", "text": os.fspath(arguments[0])}
        return {"kind": "python", "text": getattr(function, "__name__", None) or str(action)}
    if not is_chosen and not isinstance(action._action, (str, list)):  # noqa: SLF001 - has no public name
        return {"kind": "later"}
    try:
        command = action.expand_action()
    except Exception as error:  # code of the project
        return {"kind": "fault", "text": f"{type(error).__name__}: {error}"}
    settings = dict(action.pkwargs)
    cwd, env = settings.pop("cwd", None), settings.pop("env", None)
    described = {
        "kind": "argv" if isinstance(command, list) else "shell",
        "words" if isinstance(command, list) else "text": command,
        "cwd": os.path.abspath(cwd) if cwd else "",  # noqa: PTH100
        "env": {},
        "unset": [],
        "settings": sorted(settings),
    }
    if env is not None:
        described["env"] = {str(k): str(v) for k, v in env.items() if os.environ.get(k) != v}
        described["unset"] = sorted(set(os.environ) - set(env))
    if isinstance(command, list) and action.shell:
        described["settings"].append("shell")  # the first word is a script, and the others are its arguments
    return described


if __name__ == "__main__":
    sys.exit(main())
