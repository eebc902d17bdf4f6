"""Finds the remedy that an error message names itself: a suggested name, or a sentence that says what to do. Pure."""

from __future__ import annotations

import difflib
import re

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
    rf"(?i)^\W*(?:{'|'.join(_VERBS.split())})\b"
    r"|\b(?:please|try (?:to |setting|using|increas|decreas|reduc|lower)|we recommend|consider (?:us|sett|pass|add"
    r"|reduc|increas)"
    r"|(?:you|we) (?:should|must|can|need to|have to|may want to|might want to|may consider|probably want))\b"
    r"|\b(?:must|should|needs? to|has to|have to) (?:be (?!the same|on the same)|end|start|have|equal|use|set"
    r"|specify|contain|provide)\b"
    r"|\bcan only be used\b|\b(?:is|are) (?:required|not (?:allowed|supported|compatible|a valid))\b|\binstead\b"
    r"|\bonly has\b|\bonly (?:supports?|works?)\b"
)
_SAYS_NOTHING = re.compile(
    r"(?i)\breport|\bissue\b|\bbug\b|debug|stack ?trace|traceback|documentation|\bcontact\b|\babove\b|\bbelow\b"
    r"|https?://(?!huggingface\.co)|\bretry|try again|as is\b|USE_CUDA_DSA|LAUNCH_BLOCKING|HYDRA_FULL_ERROR|FILTERING"
    r"|more (?:information|details)|\bsee \w+ (?:for|in)|error[- ]?log|asynchronously|This could because"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\w*|[a-z_][\w]*(?:\.\w+)+)(?:\(\w+\))?: "
)
_HEAD, _TAIL = "The error says: ", ", then launch_run again."
_LEAST_CHARS, _CODE = 15, re.compile(r"[{}]|\w\(\w*\)$|^\W*(?:raise|return|File)\b")
_UNKNOWN = re.compile(
    r"(?:unrecognized arguments?:|[Nn]o such option:?|[Uu]nknown (?:option|flag|argument):?) '?(--?[\w-]+)"
)
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]+")
_LEAST_LIKENESS = 0.75


def find_remedy(scene: Scene) -> NextStep | None:
    """Return the remedy that the message of ``scene`` names, or None."""
    text = scene.message or scene.line
    if suggested := _SUGGESTS.search(text) or _NEAREST.search(text):
        text = fill_in(f"The error suggests {{0}}: use that name {{at}}{_TAIL}", [suggested[1].rstrip(".")], scene.at)
        return _stop(text) if text else None
    for sentence in _SENTENCES.split(_EXCEPTION.sub("", text, count=1)):
        said = _EXCEPTION.sub("", sentence.strip(" \t-*•>│|"), count=1).rstrip(" .:,;")
        if len(said) < _LEAST_CHARS or _SAYS_NOTHING.search(said) or _CODE.search(said):
            continue
        if _SAYS_WHAT_TO_DO.search(said):
            return _quote(said)
    return None


def suggest_option(scene: Scene) -> NextStep | None:
    """Return the option of a printed usage that is spelled nearly as one that the program does not know."""
    match, near = _UNKNOWN.search(scene.line), scene.near
    if match is None or "usage:" not in near.lower():
        return None
    usage = near[near.lower().rfind("usage:") :].partition("error:")[0]
    known = {option.strip("-").replace("-", "_"): option for option in _OPTION.findall(usage)}
    name = match[1].strip("-").replace("-", "_")
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=_LEAST_LIKENESS)
    if not nearest:
        return None
    return _stop(
        f"The program has no {match[1]}: its usage lists {known[nearest[0]]}; use that, then launch_run again."
    )


def _quote(said: str) -> NextStep | None:
    said = said.replace(";", ",")
    if len(said) > ADVICE_CHARS - len(_HEAD) - 1:
        return _stop(f"{_HEAD}{said[: ADVICE_CHARS - len(_HEAD) - 2].rsplit(' ', 1)[0]} ….")
    text = f"{_HEAD}{said}{_TAIL}"
    return _stop(text if len(text) <= ADVICE_CHARS else f"{_HEAD}{said}.")


def _stop(advice: str) -> NextStep | None:
    return NextStep(False, "stop", advice) if len(advice) <= ADVICE_CHARS else None
