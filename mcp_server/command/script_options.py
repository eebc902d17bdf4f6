"""The options that a Python script's own parser takes: argparse's, click's, the fields of what tyro and its like read.

A script is read, never run, nor is its ``--help``: imports of a training may take a minute, GPUs, or write files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.command.configs import read_text
from mcp_server.command.inputs import PlacedProgram, find_placed_programs
from mcp_server.command.shell import ReadCommand, is_literal
from mcp_server.text.near_names import find_near_names

_MOST_MODULES = 8  # modules: of one line that imports
_MAIN = re.compile(r"(?ms)^(?:def main\b|if __name__ ==).*?(?=^\S|\Z)")
_USES_MAIN = re.compile(r"\bimport\b.*(?:\bmain\b|\*)|\.main\(")
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w, ]+)", re.MULTILINE)
# What may take options that are written out nowhere, or change how they are spelled.
_OPEN = re.compile(
    r"parse_known|parse_intermixed|sys[.]argv|prefix_chars|REMAINDER|parents\s*=|ignore_unknown_options|allow_extra_args"
    r"|tyro[.](?:conf|extras)|^\s*(?:import|from)\s+(?:absl|hydra|fire|typer|jsonargparse)\b",
    re.MULTILINE,
)
_NO_ABBREVIATION = re.compile(r"\ballow_abbrev\s*=\s*False\b")
_FIELD_PARSERS = frozenset({"cli", "HfArgumentParser", "parse"})  # tyro, transformers, simple_parsing, draccus
_FIELD_MODULES = ("tyro.", "simple_parsing.", "draccus.", "pyrallis.")
_CLICK = frozenset({"option", "argument", "command", "group", "pass_context", "pass_obj", "version_option"})


@dataclass(frozen=True)
class ScriptOptions:
    """``defined``: how each option is defined, by its name without dashes. ``is_whole``: there are no others.

    ``abbreviates``: argparse takes a beginning for the whole, unless the script forbids it.

    ``nested``: names below which options are that the text does not list, such as ``optim`` of ``--optim.lr``.
    """

    defined: Mapping[str, str]
    is_whole: bool = False
    abbreviates: bool = True
    nested: frozenset[str] = frozenset()

    def takes(self, name: str) -> bool:
        """Return whether a parser may take ``--name``."""
        if not self.is_whole or name.replace("-", "_").partition(".")[0] in self.nested or name == "help":
            return True
        names = (name, name[3:]) if name.startswith(("no-", "no_")) else (name,)
        return any(each.startswith(names) if self.abbreviates else each in names for each in self.defined)


def read_script(command: ReadCommand, cwd: Path) -> list[str]:
    """Return the text of the last Python script of a command, and those of modules beside it that it imports.

    Without the ``main`` of such a module, which only a program that is started runs, unless the script uses the name.
    """
    programs = find_placed_programs(command)
    text, *imported = _read_sources(programs[-1], cwd) if programs else [""]
    return [text, *(imported if _USES_MAIN.search(text) else [_MAIN.sub("", one) for one in imported])]


def _read_sources(program: PlacedProgram, cwd: Path, read: Callable[[Path], str] = read_text) -> list[str]:
    script = program.find_file(cwd)
    text = read(script) if script else ""
    lines = (re.findall(r"\w+", line[1]) for line in _IMPORT.finditer(text))
    modules = dict.fromkeys(name for names in lines for name in names[:_MOST_MODULES])
    beside = [script.with_name(f"{name}.py") for name in modules if script and name != script.stem]
    return [text, *(read(module) for module in beside if module.is_file())]


def find_unknown_options(command: ReadCommand, cwd: Path, read: Callable[[Path], str] = read_text) -> Iterator[str]:
    """Yield a sentence for each option that a command gives a script whose parser has none of this name.

    ``command``: with its parameters. ``read``: the text of a file.
    """
    for program in find_placed_programs(command):
        is_python = program.entry is not None and bool(program.script or program.module)
        words = program.words[program.last + 1 :] if is_python else ()
        words = words[: words.index("--")] if "--" in words else words
        given = dict.fromkeys(word[2:].partition("=")[0] for word in words if word.startswith("--"))
        options = read_options(*_read_sources(program, cwd, read)) if given else ScriptOptions({})
        for name in filter(is_literal, given):
            if not options.takes(name):
                near = find_near_names(name, options.defined, 1)
                hint = f": near is --{near[0]}" if near else ""
                yield f"{program.script or program.module} has no option --{name}{hint}. It would refuse to start."


def read_options(*texts: str) -> ScriptOptions:
    """Return the options that scripts define, together."""
    try:
        trees = [ast.parse(text) for text in texts]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ScriptOptions({})
    return _Reader([node for tree in trees for node in ast.walk(tree)], "\n".join(texts)).read()


class _Reader:
    def __init__(self, nodes: Sequence[ast.AST], text: str) -> None:
        self._calls = [node for node in nodes if isinstance(node, ast.Call)]
        functions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        self._functions = {node.name: node for node in functions}
        self._classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        self._assigned = [
            (ast.unparse(target), node.value)
            for node in nodes
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
        self._nodes, self._text = nodes, text
        self._defined: dict[str, str] = {}
        self._nested: set[str] = set()

    def read(self) -> ScriptOptions:
        # Each family that the text uses must be read whole.
        families = [self._read_written("add_argument"), self._read_written("option"), self._read_fields()]
        is_whole = _OPEN.search(self._text) is None and any(families) and None not in families
        abbreviates = _NO_ABBREVIATION.search(self._text) is None
        return ScriptOptions(self._defined, is_whole and self._knows_parsers(), abbreviates, frozenset(self._nested))

    def _read_written(self, method: str) -> bool | None:
        """Read the options of argparse or click. Return whether there are some, None where one is not written out."""
        calls = [call for call in self._calls if _name_function(call) == method]
        for call in calls:
            names = [each.value if isinstance(each, ast.Constant) else None for each in call.args]
            if not names or None in names:
                return None
            for name in [part for each in names if isinstance(each, str) for part in each.split("/")]:
                if name.startswith("--"):
                    self._defined.setdefault(name[2:], ast.unparse(call))
        if method == "option":
            decorators = [each for one in self._functions.values() for each in one.decorator_list]
            own = [each for each in decorators if isinstance(each, ast.Call)]
            if calls and any(_name_function(each) not in _CLICK for each in own):
                return None
        uses = sum(isinstance(node, ast.Attribute) and node.attr == method for node in self._nodes)
        return bool(calls) if uses <= len(calls) else None

    def _knows_parsers(self) -> bool:
        """Return whether each parser of argparse is made here, and handed to nothing but functions that are read."""
        parsers = {name for name, value in self._assigned if _name_function(value) == "ArgumentParser"}
        made = {name for name, value in self._assigned if _name_function(value) in self._functions}
        methods = [call.func for call in self._calls if isinstance(call.func, ast.Attribute)]
        parsing = [method.value for method in methods if method.attr == "parse_args"]
        unnamed = [each for each in parsing if ast.unparse(each) not in parsers | made]
        if any(_name_function(each) not in ("ArgumentParser", *self._functions) for each in unnamed):
            return False
        parsers |= {ast.unparse(each.value) for each in methods if each.attr in ("add_argument", "parse_args")}
        for call in self._calls:
            values = (*call.args, *(word.value for word in call.keywords))
            handed = {ast.unparse(each) for each in values if isinstance(each, (ast.Name, ast.Attribute))}
            if not handed.isdisjoint(parsers) and _name_function(call) not in self._functions:
                return False
        return bool(parsing) or not parsers

    def _read_fields(self) -> bool | None:
        """Read the fields of the classes, or arguments of the function, from which a library makes options."""
        found = False
        for call in self._calls:
            is_hf = _name_function(call) == "HfArgumentParser"
            if not is_hf and not ast.unparse(call.func).startswith(_FIELD_MODULES):
                continue
            first = call.args[0] if call.args else None
            for each in first.elts if isinstance(first, ast.Tuple) else [first]:
                name = each.id if isinstance(each, ast.Name) else ""
                if _name_function(call) not in _FIELD_PARSERS or not self._read_fields_of(name):
                    return None
            found = True
        return found

    def _read_fields_of(self, name: str) -> bool:
        if (function := self._functions.get(name)) is not None:
            arguments = [*function.args.args, *function.args.kwonlyargs]
            fields = [(each.arg, each.annotation) for each in arguments]
            if function.args.kwarg or function.args.vararg:
                return False
        elif (owner := self._classes.get(name)) is not None:
            bases = [base.id if isinstance(base, ast.Name) else "" for base in owner.bases]
            if not all(map(self._read_fields_of, bases)):
                return False
            own = [node for node in owner.body if isinstance(node, ast.AnnAssign)]
            fields = [(ast.unparse(node.target), node.annotation) for node in own]
        else:
            return False
        for field, annotation in fields:
            if annotation is None or set(re.findall(r"\w+", ast.unparse(annotation))) - _PLAIN:
                self._nested.add(field)  # perhaps a class with fields of its own
            for spelled in (field, field.replace("_", "-")):
                self._defined.setdefault(spelled, f"{field}: {ast.unparse(annotation) if annotation else ''}")
        return True


_PLAIN = frozenset(
    "str int float bool None Optional Union List list Tuple tuple Dict dict Path typing pathlib Literal".split()  # noqa: SIM905
)


def _name_function(node: ast.AST) -> str:
    """Return the last name of the function that a call calls."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
