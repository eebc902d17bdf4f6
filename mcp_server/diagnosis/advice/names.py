"""Reads the names in a message: a wrong one beside the right ones, one that has changed, a remedy it names. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache

from mcp_server.diagnosis.advice.blocks import ADVICE_CHARS, AGAIN, NextStep, Scene, compose, correct, is_installed
from mcp_server.diagnosis.failure.kinds import OF_PROGRAM
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("diagnosis/advice/patterns", "names")

# --- a wrong value beside the right ones

_ITEM = compile_lazily(r"[^\s'\"`,()\[\]{}|]+")
_LEAST_LIKENESS = 0.75
_LEAST_ITEMS = (1, 2)  # in brackets, in parentheses
_MOST_SHOWN = 70
_MOST_ITEMS = 200


def suggest_choice(scene: Scene) -> NextStep | None:
    """Return the value nearest to the wrong one among those that the message lists, else the list, or None."""
    text = scene.message
    listed = _RX.list.search(text)
    if listed is None:
        return None
    items = (_RX.quoted_item.findall(listed[1]) or _ITEM.findall(listed[1]))[:_MOST_ITEMS]
    outside = f"{text[: listed.start(1)]} {text[listed.end(1) :]}"
    wrong = next((next(filter(None, match.groups())) for match in _RX.wrong.finditer(outside)), "")
    if len(items) < _LEAST_ITEMS[listed[1][0] == "("] or not wrong or wrong in items:
        return None
    short = wrong.rpartition("/")[2]
    near = difflib.get_close_matches(wrong, items, 1, _LEAST_LIKENESS) or difflib.get_close_matches(
        short, items, 1, _LEAST_LIKENESS
    )
    if near:
        return correct("{0} is none of the values it takes: use {1}, the nearest{, at}", [wrong, near[0]], scene)
    shown = ", ".join(difflib.get_close_matches(wrong, items, len(items), 0.0))
    if len(shown) > _MOST_SHOWN:
        shown = f"{shown[:_MOST_SHOWN].rpartition(',')[0] or shown[:_MOST_SHOWN]} …"
    return correct("{0} is none of the values it takes: choose of {1}{ at}", [wrong, shown], scene)


# --- a name that the program does not know

_NO_NAMES = frozenset("is was for in of the type name and or with to a an".split())  # noqa: SIM905 - a list of words
_KINDS = frozenset({"python_error", "config_error"})
_OF_CALLS = frozenset({"argument", "field", "option"})  # said of what the user's own call passes, and quotes


def name_unknown(scene: Scene) -> NextStep | None:
    """Return which setting to correct, where the message says that what it names is not known. Or None."""
    if scene.kind not in _KINDS:
        return None
    match = _RX.before.search(scene.line) or _RX.after.search(scene.line)
    if match is None or match["name"].lower() in _NO_NAMES:
        return None
    is_quoted = scene.line[match.start("name") - 1] in "'\"`<"
    if match["noun"].lower() in _OF_CALLS and (scene.library or not is_quoted):
        return None
    say = "{0} has no {1} {2}: correct that setting, or use a version that has it{ (at)}"
    return correct(say, [scene.library or "The program", match["noun"].lower(), match["name"].rstrip(".")], scene)


# --- a remedy that the message names itself

_DEED, _DEMAND, _NAMED = 3, 2, 2
_HEAD = 'The error says: "'
_LEAST_CHARS, _CODE = 15, compile_lazily(r"[{}]|\w\(\w*\)$|^\W*(?:raise|return|File)\b")


def find_remedy(scene: Scene, least_rate: int = _DEMAND) -> NextStep | None:
    """Return the remedy that a message names: what to do, else what must be true. ``least_rate``: 5 with a setting."""
    text = _RX.aside.sub("", _RX.exception.sub("", scene.message or scene.line, count=1))
    parts = [part.strip(" \t*•>│|║╔╚═╗╝├╰─▶✘✖").lstrip("- ") for part in _RX.ends_sentence.split(text)]
    parts = [part for part in parts if part and not part.startswith("```")]
    for n, part in enumerate(parts[:-1]):
        if part.endswith(":") and len(parts) > n + 2 and not _RX.command.match(parts[n + 1]):
            parts[n] = ""  # of several things to look at none is known to be the one
        elif part.endswith(":"):  # what it announces is in the next line
            parts[n] = f"please run {parts[n + 1]}" if _RX.command.match(parts[n + 1]) else f"{part} {parts[n + 1]}"
    said = [_RX.exception.sub("", part, count=1).removesuffix(" and try again.").rstrip(" .:,;") for part in parts]
    remedies = [
        one for one in said if len(one) >= _LEAST_CHARS and not (_RX.says_nothing.search(one) or _CODE.search(one))
    ]
    best = max(remedies, key=_rate, default="")
    if (
        not best
        or _rate(best) < least_rate
        or (best.startswith("If ") and (least_rate > _DEMAND or not _RX.setting.search(best)))
    ):
        return None
    return _quote(re.sub(r"^\d[.)] ?", "", best), () if _RX.says_what_to_do.search(best) else scene.at)


def suggest_setting(scene: Scene) -> NextStep | None:
    """Return the sentence of the message that says which setting to change, or None."""
    return find_remedy(scene, _DEED + _NAMED) if scene.kind in OF_PROGRAM else None


def _rate(sentence: str) -> int:
    if _RX.says_what_failed.match(sentence):
        return 0
    demands = _RX.says_what_must_be.search(sentence)
    rate = _DEED if _RX.says_what_to_do.search(sentence) else _DEMAND if demands else 0
    return rate + _NAMED if rate and _RX.setting.search(sentence) else rate


def suggest_option(scene: Scene) -> NextStep | None:
    """Return the option of a printed usage that is spelled nearly as one that the program does not know."""
    match, near = _RX.unknown.search(scene.line), scene.near
    if match is None or "usage:" not in near.lower():
        return None
    usage = near[near.lower().rfind("usage:") :].partition("error:")[0]
    printed = [option for option in _RX.option.findall(usage) if option != match[1]]
    options = {option.strip("-").replace("-", "_"): option for option in printed}
    name = match[1].strip("-").replace("-", "_")
    nearest = difflib.get_close_matches(name, options, n=1, cutoff=_LEAST_LIKENESS)
    if not nearest:
        return None
    return correct("The program has no {0}: its usage lists {1}; use that", [match[1], options[nearest[0]]], scene)


def _quote(remedy: str, places: Sequence[str]) -> NextStep | None:
    """Return the step that quotes what the error says. ``places``: where to make true what must be."""
    remedy = _RX.code_of_answer.sub("", remedy.replace(";", ",").replace('"', "'"))  # nothing in it ends the quotation
    if remedy.startswith("(") and remedy.endswith(")"):
        remedy = remedy[1:-1]
    said = f'{_HEAD}{remedy}"'
    if len(said) + 1 > ADVICE_CHARS:
        return NextStep(False, "stop", f'{said[: ADVICE_CHARS - 3].rsplit(" ", 1)[0]} …".')
    do = "make that true" if _RX.is_demand.search(remedy) else "change that"
    corrections = [f"; {do} {at}" for at in places if at not in {"", "there"}] + [f"; {do}"] if places else [""]
    for correction in corrections:
        if len(text := f"{said}{correction}, then {AGAIN}.") <= ADVICE_CHARS:
            return NextStep(False, "stop", text, f"{said}{correction}.")
    return NextStep(False, "stop", f"{said}.")


# --- a value that the command gives


def find_argument(scene: Scene) -> NextStep | None:
    """Return the option of the command whose value the message names: that is to be corrected, and no source file."""
    command = scene.log.partition("\n")[0]
    if not command or scene.kind not in OF_PROGRAM:
        return None
    for quoted in _RX.quoted.finditer(scene.line):
        value = next(filter(None, quoted.groups()))
        given = re.search(rf"(?<!\S)(--?[\w.-]+(?= |=)|\+*[\w./]+(?==))[ =](['\"]?){re.escape(value)}\2(?!\S)", command)
        if given:
            say = "{0} is the value of {1} in the command: correct it there"
            return correct(say, [value, given[1].lstrip("+")], scene)
    return None


# --- names and packages of other versions


def name_today(scene: Scene) -> NextStep | None:
    """Return what takes the place of the argument, attribute or module that ``scene`` lacks, or None."""
    line = scene.line
    if match := _RX.argument.search(line):
        used, where = match[2] or match[3], f"{match[1] or ''}\n{scene.line}\n{scene.library}"
        for place, new in _read_renames("arg").get(used, ()):
            if re.search(place, where):
                return correct("This version takes no {0}: write {1}{ at}", [used, new], scene)
    if match := _RX.no_attribute.search(line):
        owner, name = (match[1], match[2]) if match[1] else (match[4], match[3])
        for _, successor in _read_renames("name").get(f"{owner}.{name}", ()):
            if _RX.package.search(successor):
                return correct("{0} has no {1} any more: install {2}", [owner, name, successor], scene)
            say = "{0} has no {1} any more: use {2}{ at}, or an older version of the package."
            return compose(say, [owner, name, successor], scene)
    if scene.kind == "import_error" and (match := _RX.no_module.search(line)):
        module = match[1]
        packages = _read_renames("lacks")
        for _, package in packages.get(module) or packages.get(module.partition(".")[0]) or ():
            say = "Module {0} is missing: pip install {1} into this run's environment"
            return correct(say, [module, package], scene)
    return None


@cache
def _read_renames(key: str) -> dict[str, list[tuple[str, str]]]:
    renames: dict[str, list[tuple[str, str]]] = {}
    for block in read_blocks("diagnosis/advice/renames"):
        fields = dict(block)
        if key in fields:
            renames.setdefault(fields[key], []).append((fields.get("in", ""), fields["use"]))
    return renames


_OTHER_PYTHON = (
    "{0} was installed for another Python than the run's: start it with that environment's python, or use "
    "`python -m pip install {0}`."
)


def explain_other_python(scene: Scene) -> NextStep | None:
    """Return the step where a module is missing that the log shows as installed before, or None."""
    match = _RX.missing.search(scene.line) if scene.kind == "import_error" else None
    if match is None or not is_installed(match[1], scene.log):
        return None
    return compose(_OTHER_PYTHON, [match[1].replace("_", "-")], scene)
