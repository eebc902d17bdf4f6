"""Finds the remedy that an error message names itself: a suggested name, or a sentence that says what to do. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from mcp_server.diagnosis.failure.steps.row import ADVICE_CHARS, NextStep, Scene, fill_in

_SUGGESTS = re.compile(r"(?i)\b(?:did|do) you mean:? ?(?:one of )?['\"`\[]*([\w./-]{1,60})")
_NEAREST = re.compile(r"(?i)\bclosest match\w*:? ['\"`\[]*([\w./-]{1,60})")
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")
_VERBS = (
    "please try consider make ensure use set pass add remove install increase decrease reduce upgrade downgrade "
    "specify "
    "run enable disable call provide check convert cast choose change update lower raise replace visit create "
    "switch recommend"
)
_SAYS_WHAT_TO_DO = re.compile(
    rf"(?i)^\W*(?:\d[.)] ?)?(?:{'|'.join(_VERBS.split())})\b"
    r"|^(?:hint|tip|solution|fix)\b:|\b(?:please|try (?:to |setting|using|increas|decreas|reduc|lower)|we recommend"
    r"|consider (?:us|sett|pass|add|reduc|increas)"
    r"|(?:you|we) (?:should|must|can|need to|have to|may want to|might want to|may consider|probably want))\b"
)
_SAYS_WHAT_MUST_BE = re.compile(
    r"(?i)\b(?:must|should|needs? to|has to|have to)"
    r" (?:be (?!(?:the |on the )?same)|end|start|have (?!the same)|equal|use|set|specify|contain|provide)\b"
    r"|\b(?:choices|choose (?:from|one)|one of|available \w+|(?:valid|supported) (?:options|values|names"
    r"|\w+s))\b ?(?:are|is|:|\[)"
    r"|\brequires?\b (?:the|that|at least|a|an)\b"
    r"|\bcan only be used\b|\b(?:is|are) (?:required|not (?:allowed|supported|compatible))\b|\binstead\b"
    r"|\bonly has\b|\bonly (?:supports?|works?)\b|\bno longer supported\b"
)
_ASIDE = re.compile(r"\s?\((?:see|e\.g\. see|cf\.|docs?:?)\b[^)]{0,200}\)")
_SAYS_NOTHING = re.compile(
    r"(?i)\b(?:bug )?report(?:s|ed|ing)?\b(?![ ._(])|\breport (?:it|this|the|a|an|to|any)\b|\bissue\b|\bbug\b|debug"
    r"|stack ?trace|traceback|documentation|\bcontact\b|\babove\b|\bbelow\b"
    r"|https?://(?!huggingface\.co)|\bretry|try again|as is\b|USE_CUDA_DSA|LAUNCH_BLOCKING|HYDRA_FULL_ERROR|FILTERING"
    r"|more (?:information|details)|\bsee \w+ (?:for|in)|error[- ]?log|asynchronously|This could because"
    r"|you can (?:inspect|find|read|view|learn|also)"
    r"|valid model identifier|^mapping values"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\w*|[a-z_][\w]*(?:\.\w+)+)(?:\(\w+\))?: "
)
_INSTALL = re.compile(r"(?:(?:uv )?pip3?|conda|mamba|apt(?:-get)?) install (?!-r\b)[^`'\n,;)]{2,80}")
_IS_NOT = re.compile(r"(?i)\b(?:not (?:allowed|supported|compatible)|no longer supported|only has)\b")
_HEAD, _TAIL = "The error says: ", ", then launch_run again."
_LEAST_CHARS, _CODE = 15, re.compile(r"[{}]|\w\(\w*\)$|^\W*(?:raise|return|File)\b")
_UNKNOWN = re.compile(
    r"(?:unrecognized arguments?:|[Nn]o such option:?|[Uu]nknown (?:option|flag|argument):?) '?(--?[\w-]+)"
)
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]+")
_LEAST_LIKENESS = 0.75


def find_remedy(scene: Scene) -> NextStep | None:
    """Return the remedy that the message of ``scene`` names: what to do, else what must be true. None without one."""
    text = _ASIDE.sub("", _EXCEPTION.sub("", scene.message or scene.line, count=1))
    parts = [part.strip(" \t-*•>│|║╔╚═╗╝") for part in _SENTENCES.split(text)]
    parts = [part for part in parts if part]
    for n, part in enumerate(parts[:-1]):
        if part.endswith(":"):  # what it announces is in the next line
            parts[n] = f"{part} {parts[n + 1]}"
    said = [_EXCEPTION.sub("", part, count=1).removesuffix(" and try again.").rstrip(" .:,;") for part in parts]
    remedies = [
        one for one in said if len(one) >= _LEAST_CHARS and not (_SAYS_NOTHING.search(one) or _CODE.search(one))
    ]
    for pattern in (_SAYS_WHAT_TO_DO, _SAYS_WHAT_MUST_BE):
        for one in remedies:
            if pattern.search(one):
                return _quote(re.sub(r"^\d[.)] ?", "", one), scene.at if pattern is _SAYS_WHAT_MUST_BE else ())
    return None


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
    remedy = remedy.replace(";", ",")
    if len(remedy) > ADVICE_CHARS - len(_HEAD) - 1:
        return _stop(f"{_HEAD}{remedy[: ADVICE_CHARS - len(_HEAD) - 2].rsplit(' ', 1)[0]} ….")
    do = "change that" if _IS_NOT.search(remedy) else "make that true"
    tails = [f"; {do} {at}{_TAIL}" for at in places] if places else [_TAIL]
    for tail in (*tails, "."):
        if len(text := f"{_HEAD}{remedy}{tail}") <= ADVICE_CHARS:
            return _stop(text)
    return None


def _stop(advice: str) -> NextStep | None:
    return NextStep(False, "stop", advice) if len(advice) <= ADVICE_CHARS else None
