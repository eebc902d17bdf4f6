"""Finds the remedy that an error message names itself: a suggested name, or a sentence that says what to do. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from mcp_server.diagnosis.failure.steps.row import ADVICE_CHARS, NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

_SUGGESTS = compile_lazily(r"(?i)\b(?:did|do) you mean:? ?(?:one of )?['\"`\[]*([\w./-]{1,60})")
_NEAREST = compile_lazily(r"(?i)\bclosest match\w*:? ['\"`\[]*([\w./-]{1,60})")
_SENTENCES = compile_lazily(r"(?<=[.!?])\s+|\n+")
_VERBS = (
    "please try consider make ensure use set pass add remove install increase decrease reduce upgrade downgrade "
    "specify "
    "run enable disable call provide check convert cast choose change update lower raise replace visit create "
    "switch recommend"
)
_SAYS_WHAT_TO_DO = compile_lazily(
    rf"(?i)^\W*(?:\d[.)] ?)?(?:{'|'.join(_VERBS.split())})\b"
    r"|^(?:hint|tip|solution|fix)\b:|\b(?:please|try (?:to |setting|using|increas|decreas|reduc|lower)|we recommend"
    r"|consider (?:us|sett|pass|add|reduc|increas)|^either\b|\bcan (?:create|use|set|pass|be (?:set|disabled"
    r"|enabled))\b"
    r"|\bby (?:setting|passing|using|adding|running)\b|\bor (?:pass|set|use) \w|\b(?:make sure|ensure) \w"
    r"|(?:you|we) (?:should|must|can|need to|have to|may want to|might want to|may consider|probably want))\b"
)
_SAYS_WHAT_MUST_BE = compile_lazily(
    r"(?i)\b(?:must|should|needs? to|has to|have to)"
    r" (?:be (?!(?:the |on the )?same)|end|start|have (?!the same)|equal|use|set|specify|contain|provide)\b"
    r"|\b(?:choices|choose (?:from|one)|one of|available \w+|(?:valid|supported) (?:options|values|names"
    r"|\w+s))\b ?(?:are|is|:|\[)"
    r"|\bto (?:use|enable|disable|allow|fix|avoid) \w|\brequires?\b (?:(?:the|that|at least|a|an)\b|-|`|')"
    r"|\bare probably using\b|\bis required (?:in|when|for)\b"
    r"|\bcan only be used\b|\b(?:is|are) (?:required|not (?:allowed|supported|compatible))\b|\binstead\b"
    r"|\bonly has\b|\bonly (?:supports?|works?)\b|\bno longer supported\b"
)
_COMMAND = compile_lazily(r"(?:python[\d.]*|pip3?|conda|uv|huggingface-cli|hf|git) [\w-]")
_ASIDE = compile_lazily(r"\s?\((?:see|e\.g\. see|cf\.|docs?:?)\b[^)]{0,200}\)")
_SAYS_NOTHING = compile_lazily(
    r"(?i)\b(?:bug )?report(?:s|ed|ing)?\b(?![ ._(])|\breport (?:it|this|the|a|an|to|any)\b|\bissue\b|\bbug\b|debug"
    r"|stack ?trace|traceback|documentation|\bcontact\b|\babove\b|\bbelow\b"
    r"|https?://(?!huggingface\.co)|\bretry|try again|as is\b|USE_CUDA_DSA|LAUNCH_BLOCKING|HYDRA_FULL_ERROR|FILTERING"
    r"|\bcheck (?:\w+ )?logs?\b|\.out for\b|more (?:information|details)|\bsee \w+ (?:for|in)|error[- ]?log"
    r"|asynchronously|This could because"
    r"|you can (?:list|see|check|inspect|find|read|view|learn|also)"
    r"|valid model identifier|^mapping values"
    r"|^make(?:\[\d+\])?: "
)
_EXCEPTION = compile_lazily(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\w*|[a-z_][\w]*(?:\.\w+)+)(?:\(\w+\))?: "
)
_INSTALL = compile_lazily(r"(?:(?:uv )?pip3?|conda|mamba|apt(?:-get)?) install (?!-r\b)[^`'\n,;)]{2,80}")
_IS_DEMAND = compile_lazily(r"(?i)\b(?:must|should|needs?|has to|have to|requires?|is required)\b(?! not\b)")
_SETTING = compile_lazily(
    r"`[^`]+`|(?<![\w-])--[a-z]|\b\w+=\S|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b"
    r"|\b[a-z]\w*[._][a-z]\w*\b(?!\.py)"
)
_OWN_ERRORS = frozenset({"data_error", "config_error", "python_error"})
_DEED, _DEMAND, _NAMED = 3, 2, 2
_CODE_OF_ANSWER = compile_lazily(r"^Error code: \d{3}: ")
_HEAD, _TAIL = 'The error says: "', ", then launch_run again."
_LEAST_CHARS, _CODE = 15, compile_lazily(r"[{}]|\w\(\w*\)$|^\W*(?:raise|return|File)\b")
_UNKNOWN = compile_lazily(
    r"(?:unrecognized arguments?:|[Nn]o such option:?|[Uu]nknown (?:option|flag|argument):?) '?(--?[\w-]+)"
)
_OPTION = compile_lazily(r"(?<![\w-])--?[A-Za-z][\w-]+")
_LEAST_LIKENESS = 0.75


def find_remedy(scene: Scene, least_rate: int = _DEMAND) -> NextStep | None:
    """Return the remedy that the message of ``scene`` names: what to do, else what must be true. None without one.

    ``least_rate``: 5 for what to do with the name of a setting.
    """
    text = _ASIDE.sub("", _EXCEPTION.sub("", scene.message or scene.line, count=1))
    parts = [part.strip(" \t-*•>│|║╔╚═╗╝") for part in _SENTENCES.split(text)]
    parts = [part for part in parts if part and not part.startswith("```")]
    for n, part in enumerate(parts[:-1]):
        if part.endswith(":"):  # what it announces is in the next line
            parts[n] = f"please run {parts[n + 1]}" if _COMMAND.match(parts[n + 1]) else f"{part} {parts[n + 1]}"
    said = [_EXCEPTION.sub("", part, count=1).removesuffix(" and try again.").rstrip(" .:,;") for part in parts]
    remedies = [
        one for one in said if len(one) >= _LEAST_CHARS and not (_SAYS_NOTHING.search(one) or _CODE.search(one))
    ]
    best = max(remedies, key=_rate, default="")
    if not best or _rate(best) < least_rate or (least_rate > _DEMAND and best.startswith("If ")):
        return None
    return _quote(re.sub(r"^\d[.)] ?", "", best), () if _SAYS_WHAT_TO_DO.search(best) else scene.at)


def suggest_setting(scene: Scene) -> NextStep | None:
    """Return the sentence of the message that says which setting to change, or None."""
    return find_remedy(scene, _DEED + _NAMED) if scene.kind in _OWN_ERRORS else None


def _rate(sentence: str) -> int:
    """Rate how much ``sentence`` says of what to do: most where it names a setting with that."""
    rate = _DEED if _SAYS_WHAT_TO_DO.search(sentence) else _DEMAND if _SAYS_WHAT_MUST_BE.search(sentence) else 0
    return rate + _NAMED if rate and _SETTING.search(sentence) else rate


def suggest_install(scene: Scene) -> NextStep | None:
    """Return the command that the error of a missing package names, or None."""
    commands = _INSTALL.findall(scene.line) if scene.kind == "import_error" else []
    if len(commands) != 1 or "<" in commands[0]:
        return None
    text = fill_in("Run `{0}` in this run's environment first, then launch_run again.", [commands[0].strip(" .:")], ())
    return _stop(text) if text else None


def suggest_name(scene: Scene) -> NextStep | None:
    """Return the name that the message suggests in place of a wrong one, or None."""
    suggested = _SUGGESTS.search(scene.message) or _NEAREST.search(scene.message)
    if not suggested:
        return None
    text = fill_in(f"The error suggests {{0}}: use that name {{at}}{_TAIL}", [suggested[1].rstrip(".")], scene.at)
    return _stop(text) if text else None


def suggest_option(scene: Scene) -> NextStep | None:
    """Return the option of a printed usage that is spelled nearly as one that the program does not know."""
    match, near = _UNKNOWN.search(scene.line), scene.near
    if match is None or "usage:" not in near.lower():
        return None
    usage = near[near.lower().rfind("usage:") :].partition("error:")[0]
    options = {option.strip("-").replace("-", "_"): option for option in _OPTION.findall(usage)}
    name = match[1].strip("-").replace("-", "_")
    nearest = difflib.get_close_matches(name, options, n=1, cutoff=_LEAST_LIKENESS)
    if not nearest:
        return None
    return _stop(
        f"The program has no {match[1]}: its usage lists {options[nearest[0]]}; use that, then launch_run again."
    )


def _quote(remedy: str, places: Sequence[str]) -> NextStep | None:
    """Return the step that quotes what the error says. ``places``: where to make true what must be."""
    remedy = _CODE_OF_ANSWER.sub("", remedy.replace(";", ",").replace('"', "'"))  # nothing in it ends the quotation
    if remedy.startswith("(") and remedy.endswith(")"):
        remedy = remedy[1:-1]
    if len(remedy) > ADVICE_CHARS - len(_HEAD) - 2:
        return _stop(f'{_HEAD}{remedy[: ADVICE_CHARS - len(_HEAD) - 3].rsplit(" ", 1)[0]} …".')
    do = "make that true" if _IS_DEMAND.search(remedy) else "change that"
    tails = (
        [*(f"; {do} {at}{_TAIL}" for at in places if at not in {"", "there"}), f"; {do}{_TAIL}"] if places else [_TAIL]
    )
    for tail in (*tails, "."):
        if len(text := f'{_HEAD}{remedy}"{tail}') <= ADVICE_CHARS:
            return _stop(text)
    return None


def _stop(advice: str) -> NextStep | None:
    return NextStep(False, "stop", advice) if len(advice) <= ADVICE_CHARS else None
