"""The examples of the guides and agent files: tool calls, arguments, commands, settings. As they stand in the text."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcp_server.cli.parser import make_parser
from mcp_server.resources.documents import Shelf, list_files

SHELVES: tuple[Shelf, ...] = ("prompts", "agents")
TEXTS = {f"{shelf}/{path.name}": path.read_text("utf-8") for shelf in SHELVES for path in list_files(shelf)}
HOLE = "\ufffc"
"""Stands for what an example leaves to its reader: ``...``, or a bare name such as ``run_id``."""

_CALL = re.compile(r"(?<![.\w])([a-z]+_[a-z_]+|preflight|propose)\(")
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class ToolCall:
    """One call of a text: its tool, and its arguments with ``HOLE`` where the text leaves something out."""

    guide: str
    tool: str
    text: str
    arguments: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{self.guide}: {self.text}"


def calls(text: str) -> Iterator[tuple[str, str]]:
    """Every ``tool(…)`` of a text: its name and the text between the parentheses."""
    for match in _CALL.finditer(text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield match[1], text[match.end() : end - 1]


def quoted(text: str) -> Iterator[str]:
    """The text in backquotes within a line."""
    yield from re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and text of every fenced block."""
    for match in re.finditer(r"^(`{3,})(\w*)\n(.*?)^\1", text, re.DOTALL | re.MULTILINE):
        yield match[2], match[3]


def read_arguments(inside: str) -> dict[str, Any]:
    """Return the arguments of a call.

    Raises:
        SyntaxError, ValueError: it is no call.
    """
    source = inside.replace("…", "...")
    source = re.sub(r"\{\s*\.\.\.\s*\}|=(?=\s*[,)]|\s*$)", lambda m: "..." if m[0][0] == "{" else "=...", source)
    source = re.sub(r"(?:,\s*\.\.\.\s*)(?=[}\])]|$)", "", source.strip())
    call = ast.parse(f"f({source})", mode="eval").body
    assert isinstance(call, ast.Call)
    if any(not (isinstance(each, ast.Constant) and each.value is ...) for each in call.args):
        raise ValueError(f"an argument has no name: {inside}")
    return {str(each.arg): _read(each.value) for each in call.keywords}


def _read(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return HOLE if value is ... else value
        case ast.Name(id=name):
            return _WORDS.get(name, HOLE)
        case ast.List(elts=items):
            return [_read(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            assert all(isinstance(key, ast.Constant) for key in keys)
            return {key.value: _read(value) for key, value in zip(keys, values, strict=True) if key}  # type: ignore[attr-defined]
        case ast.UnaryOp():
            return ast.literal_eval(node)
    raise ValueError(f"not a value: {ast.unparse(node)}")


def list_calls() -> list[ToolCall]:
    """Return every call of all texts that has arguments, each once."""
    found: dict[tuple[str, str], ToolCall] = {}
    for guide, text in TEXTS.items():
        for tool, inside in calls(text):
            words = " ".join(inside.split())
            if words.strip(" .…"):
                found.setdefault((tool, words), ToolCall(guide, tool, f"{tool}({words})", read_arguments(words)))
    return list(found.values())


def list_assignments() -> list[tuple[str, str, dict[str, Any]]]:
    """Return every piece in backquotes that is arguments alone, such as ``gpus=1, queue=true``, with its guide."""
    pieces = [(guide, piece) for guide, text in TEXTS.items() for piece in quoted(text)]
    found = []
    for guide, piece in pieces:
        if re.match(r"[a-z]\w*=(?![=\s])", piece):
            try:
                found.append((guide, piece, read_arguments(piece)))
            except (SyntaxError, ValueError):
                continue  # of a shell or of Hydra: `k=v`, `actor/kl_loss=0.1`
    return found


def list_settings() -> list[tuple[str, str]]:
    """Return every piece in backquotes that is a line of TOML, with its guide."""
    return [(guide, piece) for guide, text in TEXTS.items() for piece in quoted(text) if re.match(r"\w+ = \S", piece)]


def list_commands(texts: dict[str, str]) -> list[tuple[str, str]]:
    """Return every command line of runward in blocks and backquotes, with its guide."""
    found: dict[str, str] = {}
    for guide, text in texts.items():
        lines = [cell for _, block in blocks(text) for line in block.splitlines() for cell in re.split(r"\s{2,}", line)]
        for piece in [*lines, *quoted(text)]:
            match = re.match(r"(?:\$ )?(?:\S*/)?(runward [a-z].*)|.* -- (?:ssh .*)?\S*/(runward serve.*)", piece)
            if match:
                found.setdefault((match[1] or match[2]).partition("  #")[0].rstrip(";"), guide)
    for guide, _, arguments in [(c.guide, c.tool, c.arguments) for c in list_calls()]:
        if str(arguments.get("command", "")).startswith("runward "):
            found.setdefault(str(arguments["command"]), guide)
    return [(guide, line) for line, guide in found.items()]


def check_command(line: str) -> str | None:
    """Return why the parser of the command line refuses a command, None if it takes it.

    A verb alone names the command; ``[…]`` may be left out, and is given.
    """
    words = shlex.split(re.sub(r"\[([^\]]*)\]", r"\1", line))[1:]
    parser = make_parser()
    (verbs,) = (each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    if words[0] not in verbs:
        return f"no command {words[0]}"
    if len(words) == 1:
        return None
    parsers = [parser, *verbs.values()]
    parsers += [
        sub
        for verb in verbs.values()
        for action in verb._actions
        if isinstance(action, argparse._SubParsersAction)
        for sub in action.choices.values()
    ]
    for each in parsers:
        each.error = _refuse
    try:
        parser.parse_args(words)
    except _Refused as refused:
        return str(refused)
    return None


class _Refused(Exception):
    """The parser refuses a command line."""


def _refuse(message: str) -> Any:
    raise _Refused(message)
