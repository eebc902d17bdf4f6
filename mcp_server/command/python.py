"""The Python that a command runs, and the programs that a Python text starts or ends. Nothing is started."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from mcp_server.command.programs import PYTHON, PYTHON_LAUNCHERS, RUNNERS, find_main, keeps_path
from mcp_server.command.shell import parse
from mcp_server.command.started import Program, find_programs
from mcp_server.system.files import read_regular_file
from mcp_server.text.rows import read_words

# Programs that lie beside the Python that they run.
_BESIDE = frozenset({*PYTHON_LAUNCHERS, "ray", "vllm", "lightning", "hydra", "doit"})


def find_python(command: str | Sequence[str], cwd: str, env: Mapping[str, str]) -> str:
    """Return the path of the Python that ``command`` runs, empty where its words alone do not show it."""
    search = env.get("PATH", os.defpath)
    for simple in parse(command).commands:
        words = simple.program_words
        directory = simple.find_directory(cwd) or "/nowhere"
        name = PurePath(simple.program).name
        if name in ("source", ".") and len(words) > 1 and words[1].endswith("/bin/activate"):
            search = f"{Path(directory) / words[1]}".rpartition("/")[0] + os.pathsep + search
            continue
        if name == "uv" and "run" in words and (Path(directory) / ".venv" / "bin" / "python").exists():
            return str(Path(directory) / ".venv" / "bin" / "python")
        main = 0 if name in _BESIDE else None if name in RUNNERS else find_main(words, _BESIDE)
        program = "" if main is None else PurePath(words[main]).name
        if main is not None and "$" not in words[main] and (PYTHON.fullmatch(program) or program in _BESIDE):
            return resolve_python(words[main], program, directory, search)
        if not keeps_path(simple.program, simple.words):
            return ""
    return ""


def resolve_python(word: str, program: str, cwd: str, search: str) -> str:
    """Return the path of the Python that a word of a command starts, found on ``search``; empty if unknown."""
    path = str(Path(cwd) / word) if "/" in word else shutil.which(word, path=search) or ""
    if path and not PYTHON.fullmatch(program):
        path = str(Path(path).parent / "python")
    # A script, such as a shim of pyenv, chooses a Python when it runs.
    return path if os.path.exists(path) and not _begins_as_script(path) else ""  # noqa: PTH110 - it may be no path


def _begins_as_script(path: str) -> bool:
    try:
        return read_regular_file(Path(path), max_bytes=2) == b"#!"
    except OSError:
        return False


# --- the text of a program

_WORDS = read_words("command/words")
_SEARCHES = frozenset({"pgrep", "pidof"})


def find_programs_of_python(text: str) -> list[Program]:
    """Return what a Python text starts by a literal text or list of words, with line numbers.

    ``os.kill(-1, …)`` is the program ``kill -9 -1``, and a loop over ``psutil.process_iter()`` that kills
    is the program ``process_iter``, as is a kill in a text that looks for processes by ``pgrep``.
    """
    if not any(word in text for word in (*_WORDS["starts"], *_WORDS["replaces"], "execl", "kill", "process_iter")):
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names, constants = _read_names(tree)
    programs: list[Program] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            started = _find_started(node, names, constants)
            programs += [replace(program, line=node.lineno) for program in started]
        elif isinstance(node, (ast.For, ast.comprehension, ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            programs += _find_kills_of_all(node)
    if not _SEARCHES.isdisjoint(program.name for program in programs):
        kills = (each.func for each in ast.walk(tree) if isinstance(each, ast.Call))
        lines = [each.lineno for each in kills if isinstance(each, ast.Attribute) and each.attr in ("kill", "killpg")]
        programs += [Program("process_iter", ("os.kill()",), line) for line in lines[:1]]
    return programs


def _read_names(tree: ast.Module) -> tuple[dict[str, str], dict[str, ast.expr]]:
    names: dict[str, str] = {}
    constants: dict[str, ast.expr] = {}
    twice: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            twice |= {name} & constants.keys()
            constants[name] = node.value
    return names, {name: value for name, value in constants.items() if name not in twice}


def _find_started(node: ast.Call, names: Mapping[str, str], constants: Mapping[str, ast.expr]) -> list[Program]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    name = names.get(name, name)
    arguments = [*node.args, *(each.value for each in node.keywords if each.arg in ("args", "cmd"))]
    if not arguments:
        return []
    if name in _WORDS["replaces by words"]:
        words = arguments if name == "create_subprocess_exec" else arguments[1:]
        return find_programs([word for each in words if isinstance(word := _read_literal(each, constants), str)])
    replaces = name in _WORDS["replaces"]
    if replaces or name in _WORDS["starts"]:
        literal = _read_literal(arguments[1 if replaces and arguments[1:] else 0], constants)
        return find_programs(literal) if literal else []
    if name in ("kill", "killpg") and ast.unparse(arguments[0]) == "-1":
        return find_programs(["kill", "-9", "-1"])
    return []


def _find_kills_of_all(node: ast.AST) -> Iterator[Program]:
    """Yield ``process_iter`` where a loop over all processes of the host kills some."""
    loops = node.generators if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)) else [node]
    for loop in loops:
        if not isinstance(loop, (ast.For, ast.comprehension)) or not isinstance(loop.target, ast.Name):
            continue
        if "process_iter" not in ast.dump(loop.iter):
            continue
        for call in ast.walk(node):
            function = call.func if isinstance(call, ast.Call) else None
            is_end = isinstance(function, ast.Attribute) and function.attr in _WORDS["ends"]
            if isinstance(call, ast.Call) and isinstance(function, ast.Attribute) and is_end:
                if ast.unparse(function.value) != loop.target.id:
                    continue
                yield Program("process_iter", ("process_iter()", f"{ast.unparse(function)}()"), call.lineno)
                return


def _read_literal(node: ast.expr, constants: Mapping[str, ast.expr]) -> str | list[str]:
    """Return a text, or a list of words, as far as it is written out; what is computed becomes `x`."""
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "x"
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [word if isinstance(word := _read_literal(each, {}), str) else "x" for each in node.elts]
    return "x"
