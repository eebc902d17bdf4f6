"""Facts in the log of a failed run: its launcher, settings, packages; and parts of advice worded for that. Pure.

A log shows a setting where it assigns it: a variable at the start of a line, a keyword, a row of a table of arguments,
an option. A sentence that only recommends it shows nothing.
"""

from __future__ import annotations

import re
from functools import cache

from mcp_server.text.regex import compile_lazily, compile_once
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("diagnosis/advice/patterns", "shown")


_PART = compile_lazily(r"\{([a-z_]+)\}")
_SAME = {"True": "(?:[Tt]rue|1)", "true": "(?:[Tt]rue|1)", "False": "(?:[Ff]alse|0)", "false": "(?:[Ff]alse|0)"}
_ON = "(?:[Tt]rue|1|yes|on)"
_COMMAND = r"^(?:\+ |\$ |[^\n]{0,200}\b(?:python[\d.]*|torchrun|accelerate launch|deepspeed|vllm serve|srun) )"


def word_parts(say: str, log: str) -> str:
    """Return ``say`` with the words of its parts that suit what ``log`` shows; fields of another kind as they are."""

    def word(field: re.Match[str]) -> str:
        wordings = _read_parts().get(field[1], (("", field[0]),))
        return next(words for condition, words in wordings if not condition or (log and _holds(condition, log)))

    return _PART.sub(word, say)


@cache
def _read_parts() -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the wordings of each part with their conditions, the one without a condition last."""
    parts = {}
    for (key, name), (_, usual), *others in read_blocks("diagnosis/advice/parts"):
        if key == "part":
            conditions = [value for _, value in others[::2]]
            parts[name] = (*zip(conditions, (value for _, value in others[1::2])), ("", usual))
    return parts


@cache
def _read_conditions() -> dict[str, dict[str, str]]:
    return {block[0][1]: dict(block) for block in read_blocks("diagnosis/advice/parts") if block[0][0] == "shown"}


def _holds(condition: str, log: str) -> bool:
    """Return whether the log shows ``condition``, such as `slurm, not docker`."""
    return all(is_shown(name.removeprefix("not "), log) != name.startswith("not ") for name in condition.split(", "))


def is_shown(name: str, log: str) -> bool:
    """Return whether ``log`` shows what a block of `parts.rows` describes: a launcher, a setting, a package."""
    shown = _read_conditions()[name]
    if "log" in shown and compile_once(shown["log"]).search(log):
        return True
    if "pip" in shown:
        return is_installed(shown["pip"], log)
    return "name" in shown and bool(_assignment(shown["name"], shown.get("value", _ON)).search(log))


def is_set_already(advice: str, log: str) -> bool:
    """Return whether ``log`` shows a setting with the value that ``advice`` asks for."""
    return any(
        name in log and _assignment(re.escape(name), _SAME.get(value, re.escape(value))).search(log)
        for name, value in _RX.assigned.findall(advice)
    )


def is_installed(package: str, log: str) -> bool:
    """Return whether ``log`` shows that ``package`` is installed."""
    name = "[-_]".join(map(re.escape, re.split("[-_]", package)))
    shown = (
        rf"Requirement already satisfied: {name}\b(?![-_.\w])",
        rf"Successfully installed (?:.{{0,2000}} )?{name}-\d",
        rf"\s*{name}(?:==| +)\d+\.\d",
    )
    return bool(re.search(rf"(?im)^(?:{'|'.join(shown)})", log))


@cache
def _assignment(name: str, value: str) -> re.Pattern[str]:
    """Return a pattern of the ways in which logs show ``name`` with ``value``."""
    end = rf"['\"]?{value}(?![\w])" if not value.startswith("(?:[1-9]") else rf"['\"]?{value}"
    return re.compile(
        rf"(?m){_COMMAND}[^\n]*?--{name}[= ]{end}"
        rf"|^(?:[\w-]{{1,60}}=\S{{0,200}} ){{0,8}}[\W_]{{0,6}}(?:export |set |env )?"
        rf"['\"]?{name}['\"]?"
        rf"(?: ?[=:] ?| set by environment to |[ .]{{3,80}}| +[|│] +){end}"
        rf"|[(,{{\[] ?['\"]?{name}['\"]?(?: ?[=:] ?){end}|[(,] {name}: {end}|, {name}: {end}"
    )
