"""The command lines that train, evaluate or serve a model, by their program, script or module. Pure.

Other arguments do not count: an editor with ``train.py`` open trains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Literal

from mcp_server.command.programs import PYTHON, PYTHON_LAUNCHERS, RUNNERS, find_entry
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_blocks

Kind = Literal["training", "evaluation", "serving", "ray", "launcher"]

_BLOCKS: list[dict[str, Any]] = [dict(block) for block in read_blocks("command/trainings")]
_MODULES, _SCRIPTS = (
    [(one["kind"], compile_lazily(one["line"])) for one in _BLOCKS if one.get("of") == of]
    for of in ("module", "script")
)
_KINDS, _VERBS = (
    {word: one[key] for one in _BLOCKS if key in one and "words" in one for word in one["words"].split()}
    for key in ("kind", "verb")
)
_PROGRAMS: dict[str, Kind] = {**dict.fromkeys(PYTHON_LAUNCHERS, "launcher"), **_KINDS}
_SUBCOMMANDS = {one["with"]: set(one["words"].split()) for one in _BLOCKS if "with" in one}
# These run code of trainings and train nothing.
_NOT_TRAINING = compile_lazily(
    r"pip|pytest|unittest|py_compile|venv|ipykernel\w*|jupyter.*|tensorboard.*|http\.server|mcp_server.*|runward"
)
# Titles that workers of Ray and vLLM give themselves.
_TITLES = ("ray::", "VLLM::")


def classify(words: Sequence[str]) -> Kind | None:
    """Return what a process with this command line does, or None where it does none of it. Pure."""
    words = words[0].split() if len(words) == 1 else words  # a process that set its own title
    if not words:
        return None
    if words[0].startswith(_TITLES):
        return "ray" if words[0].startswith("ray::") else "serving"
    name = PurePath(words[0]).name
    if name in RUNNERS:
        index = next((i for i, word in enumerate(words[1:], 1) if _is_program(word)), None)
        return classify(words[index:]) if index is not None else None
    return _classify_python(words) if PYTHON.fullmatch(name) else _classify_program(words)


def _classify_python(words: Sequence[str]) -> Kind | None:
    entry = find_entry(words)
    if entry is None or entry.kind not in ("module", "script"):
        return None
    is_module, script, rest = entry.kind == "module", PurePath(entry.value).name, words[entry.at + 1 :]
    if not is_module and script in _PROGRAMS:
        return _classify_program([script, *rest])
    if script == "default_worker.py":
        return "ray"
    name = entry.value if is_module else script.removesuffix(".py")
    if _NOT_TRAINING.fullmatch(name):
        return None
    patterns = _MODULES if is_module else _SCRIPTS
    by_name = next((kind for kind, pattern in patterns if pattern.fullmatch(name.lower())), None)
    if by_name == "other":
        return None
    return by_name if is_module else by_name or _VERBS.get(rest[0] if rest else "")


def _is_program(word: str) -> bool:
    name = PurePath(word).name
    return bool(PYTHON.fullmatch(name)) or name in _PROGRAMS


def _classify_program(words: Sequence[str]) -> Kind | None:
    name = PurePath(words[0]).name
    if (kind := _PROGRAMS.get(name)) is None:
        return None
    if (subcommands := _SUBCOMMANDS.get(name)) is not None and subcommands.isdisjoint(words[1:2]):
        return None
    return kind


def name_program(words: Sequence[str]) -> str:
    """Return a command line without the arguments, which may hold secrets: its program, and the script of it."""
    words = words[0].split() if len(words) == 1 else words
    if words[0].startswith(_TITLES) or not PYTHON.fullmatch(PurePath(words[0]).name):
        subcommand = _SUBCOMMANDS.get(PurePath(words[0]).name, set()) & set(words[1:2])
        return " ".join([words[0], *subcommand])
    entry = find_entry(words)
    named = {"module": " -m {}", "script": " {}"}.get(entry.kind, "") if entry else ""
    return words[0] + named.format(entry.value if entry else "")
