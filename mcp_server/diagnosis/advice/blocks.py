"""Blocks of advice: when one applies, the action, and the sentence with its parts. Pure.

Facts in the log of a failed run: its launcher, settings, packages; and parts of advice worded for that. Pure.

A log shows a setting where it assigns it: a variable at the start of a line, a keyword, a row of a table of arguments,
an option. A sentence that only recommends it shows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from mcp_server.text.regex import compile_lazily, compile_once
from mcp_server.text.rows import Block, read_blocks, read_patterns

_RX = read_patterns("diagnosis/advice/patterns", "blocks")

ADVICE_CHARS = 160
_SENTENCE = re.compile(r"(?:\b[^\W\d][\w-]* ){3}[^\W\d]\w|[\w)][.!?:] +\w")  # and no name, list or path
_LEAST_CHARS = 16  # of what a sentence quotes
_THERE = "there"  # the last resort: it names no place
_NOWHERE = ""  # no line of the user's own code is known
AGAIN = "launch_run again"
_FILLED = compile_lazily(r"\{(\d|at)\}")
_PART = compile_lazily(r"\{([a-z_]+)\}")
_SAME = {"True": "(?:[Tt]rue|1)", "true": "(?:[Tt]rue|1)", "False": "(?:[Ff]alse|0)", "false": "(?:[Ff]alse|0)"}
_ON = "(?:[Tt]rue|1|yes|on)"
_CHOICES = [dict(block) for block in read_blocks("diagnosis/advice/choices")]
_COMMAND = r"^(?:\+ |\$ |[^\n]{0,200}\b(?:python[\d.]*|torchrun|accelerate launch|deepspeed|vllm serve|srun) )"


class Scene(NamedTuple):
    """A failure, and what is known around it.

    ``line``: the line that proves it, without prefixes. ``message``: with what the error says below it. ``library``:
    whose code raised it, nothing for the user's own; ``source``: that line of code. ``near``: the lines around it.
    ``log``: the command, and both ends of the log. ``place``: the user's deepest frame, `src/train.py:88 in main`.
    ``inside``: the library that the user's code only starts. ``record``: after steps that worked, "data" in code that
    gives records of the data, else "step". ``cwd``: the run's directory on this host, where that is known.
    """

    kind: str
    line: str
    near: str = ""
    log: str = ""
    place: str = ""
    message: str = ""
    library: str = ""
    source: str = ""
    inside: str = ""
    record: str = ""
    cwd: str = ""

    @property
    def at(self) -> tuple[str, ...]:
        """Where to look, as words of a sentence, the longest first."""
        if not self.place:
            return (_NOWHERE,)
        file = self.place.partition(" in ")[0]
        return f"at {self.place}", f"at {file}", f"at {file.rpartition('/')[2]}", _THERE


class NextStep(NamedTuple):
    """One of ``kinds.ACTIONS`` and a sentence. ``correction``: that where another call starts the run again."""

    retryable: bool
    action: str
    advice: str
    correction: str = ""


class Advice(NamedTuple):
    """A block, which applies where all its patterns are found, and ``unless`` is not; empty ones always."""

    kinds: tuple[str, ...] = ()  # none: any
    line: str = ""
    text: str = ""  # in place of ``line``: searched in the whole message, line by line
    near: str = ""
    log: str = ""
    unless: str = ""  # in the log
    action: str = "stop"
    say: str = ""  # {0}: the first group of ``line`` or ``text``, then of ``log``
    then: str = ""
    seen: str = ""

    def propose(self, scene: Scene) -> NextStep | None:
        """Return the step for ``scene``, or None where the block does not apply."""
        if self.kinds and scene.kind not in self.kinds:
            return None
        whole = bool(self.text)
        pattern = compile_once(self.text, re.MULTILINE) if whole else compile_once(self.line)
        match = pattern.search(scene.message if whole else scene.line)
        if not match or (self.near and not compile_once(self.near).search(scene.near)):
            return None
        if ("{library}" in self.say and not scene.library) or ("{source}" in self.say and not scene.source):
            return None
        setting = compile_once(self.log).search(scene.log) if self.log else None
        if (self.log and not setting) or (self.unless and compile_once(self.unless).search(scene.log)):
            return None
        groups = [*match.groups(""), *(setting.groups("") if setting else ())]
        parts = [part.lstrip(" ,:;'\"`").rstrip(" .,:;'\"`").replace("', '", ", ").replace(";", ",") for part in groups]
        parts = [part.replace("'", "") if "': " in part else part for part in parts]  # of a dictionary
        parts = [part.replace('"', "'") for part in parts]  # of the program's words none ends a quotation
        if self.action == "stop" and any(
            map(_RX.again.search, [*parts, scene.source] if "{source}" in self.say else parts)
        ):
            return None  # the words of the message contradict the action
        return compose(_quote_sentences(self.say, parts), parts, scene, self.action, then=self.then)


def choose(sort: str, text: str) -> str:
    """Return the words of the first block of `choices.rows`, of that sort, whose line ``text`` shows. Or nothing."""
    found = (one["say"] for one in _CHOICES if one["sort"] == sort and compile_once(one["line"]).search(text))
    return next(found, "")


def read_advice(name: str) -> tuple[Advice, ...]:
    """Return the blocks of a file below `advice/`, in their order: the first that applies wins."""
    return tuple(map(read_block, read_blocks(f"diagnosis/advice/{name}")))


def read_block(block: Block) -> Advice:
    """Return the advice of one block."""
    fields = dict(block)
    keys = zip(Advice._fields[1:], ("line", "text", "near", "log", "not", "do", "say", "then"))
    known = {name: fields[key] for name, key in keys if key in fields}
    seen = "\n".join(value for key, value in block if key == "seen")
    return Advice(kinds=tuple(fields.get("kinds", "").split()), seen=seen, **known)


def compose(say: str, parts: Sequence[str], scene: Scene, action: str = "stop", *, then: str = "") -> NextStep | None:
    """Return the step that ``say`` states with its fields filled in, or None where it cannot be short enough.

    Fields: ``{0}``, a part; ``{ at}``, the place in the user's code, left out with the characters around it where none
    is known; ``{ there}``, a word for it; ``{library}`` and ``{source}`` of the scene; ``{run|cell}``, words for a run
    and for a cell of a sweep; and the name of a part of `parts.rows`. ``then``: the call that follows the correction.
    """
    parts = [*parts, scene.source.replace(";", ",")]
    for log in (scene.log, ""):  # parts worded for the log, and where they are too long, the usual ones
        words = word_parts(say, log)
        settled = _settle(words, scene, len(parts) - 1)
        template = f"{settled}, then {then}." if then else settled
        if filled := _fill(template, parts, scene.at):
            values, at = filled
            cell = _settle(words, scene, len(parts) - 1, is_cell=True)
            advice, correction = _put(template, values, at), _put(f"{cell}." if then else cell, values, at)
            return NextStep(action != "stop", action, advice, correction if correction != advice else "")
    return None


def correct(say: str, parts: Sequence[str], scene: Scene) -> NextStep | None:
    """Return the step of ``say``, a correction after which launch_run follows."""
    return compose(say, parts, scene, then=AGAIN)


def _settle(say: str, scene: Scene, source: int, *, is_cell: bool = False) -> str:
    """Return ``say`` with no fields but numbers and `{at}`."""

    def settle(field: re.Match[str]) -> str:
        if field["run"] is not None:
            return field["cell" if is_cell else "run"]
        name = field["place"] or field["name"]
        if name in ("at", _THERE):
            around = (field["before"] or "", field["after"] or "")
            return "" if not scene.place else ("{at}" if name == "at" else name).join(around)
        return {"library": scene.library, "source": f"{{{source}}}"}.get(name, field[0])

    return _RX.field.sub(settle, say)


def _put(template: str, parts: Sequence[str], at: str) -> str:
    return _FILLED.sub(lambda field: at if field[1] == "at" else parts[int(field[1])], template)


def _quote_sentences(say: str, parts: Sequence[str]) -> str:
    """Return ``say`` with quotes around the fields whose parts are sentences of the program, and no advice of ours."""

    def quote(field: re.Match[str]) -> str:
        before = say[: field.start()]
        is_quoted = before.count('"') % 2 or before.endswith(("'", "`"))
        return (
            field[0] if field[1] == "at" or is_quoted or not _SENTENCE.search(parts[int(field[1])]) else f'"{field[0]}"'
        )

    return _FILLED.sub(quote, say)


def _fill(template: str, parts: Sequence[str], places: Sequence[str]) -> tuple[Sequence[str], str] | None:
    """Return the parts and the most exact place with which ``template`` is short enough, the longest parts cut."""
    exact = [place for place in places if place != _THERE]
    return _cut_to_fit(template, parts, exact or places) or _cut_to_fit(template, parts, places)


def _cut_to_fit(template: str, parts: Sequence[str], places: Sequence[str]) -> tuple[Sequence[str], str] | None:
    """Return the parts and the place that fit, or None if too little would be left. A path keeps its end."""
    for at in places if "{at}" in template else ("",):
        if len(_put(template, parts, at)) <= ADVICE_CHARS:
            return parts, at
    filled = list(parts)
    at = places[-1]
    used = [n for n in range(len(filled)) if f"{{{n}}}" in template]
    for _ in used:
        over = len(_put(template, filled, at)) - ADVICE_CHARS
        if over <= 0:
            break
        longest = max((n for n in used if not _is_typed(filled[n])), key=lambda n: len(filled[n]), default=None)
        if longest is None:
            return None
        part, cut = filled[longest], -(-over // template.count(f"{{{longest}}}")) + 1
        if len(part) - cut < _LEAST_CHARS:
            return None
        filled[longest] = f"…{part[cut:]}" if "/" in part and " " not in part else _cut_words(part, cut)
    return (filled, at) if len(_put(template, filled, at)) <= ADVICE_CHARS else None


def _cut_words(part: str, cut: int) -> str:
    """Return ``part`` without at least ``cut`` characters of its end, whole words where that leaves enough."""
    kept = part[:-cut]
    words = kept.rpartition(" ")[0]
    return f"{words if len(words) >= _LEAST_CHARS else kept}…"


def _is_typed(part: str) -> bool:
    return bool(_RX.typed.fullmatch(part)) and len(part) <= ADVICE_CHARS


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
