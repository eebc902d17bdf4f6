"""Names the right one where a message quotes a wrong value and lists the right ones. Pure."""

from __future__ import annotations

import difflib
import re

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

_VALUE = r"(?<!\w)['\"`]([\w./+:@-][^'\"`\n()\[\]]{0,79})['\"`]"
# A list after a word that says that it holds what is right.
_LIST = compile_lazily(
    r"(?i)\b(?:choose (?:from|one of|one)"
    r"|(?:should|must|can|may|has to)(?: only)? be (?:a \w+ among|one of|in|either)"
    r"|(?:is|are) not (?:one of|in|among)"
    r"|(?:allowed|available|valid|supported|possible|permitted|known|registered|existing|current|implemented|accepted"
    r"|legal)\b[\w /-]{0,40}?(?:are|is)?"
    r"|options are|choices(?: are)?|expected one of|one of|use any of the following"
    r"|available options in '[^']{1,60}')"
    r"(?!\w)[\w ,]{0,30}?[:=]?\s*(?:\w+\()?"
    r"([\[({][^\])}]{1,900}[\])}]|(?:\n[ \t]*[\w./-]+(?=\n|$))+"
    r"|['\"`][\w./-]+['\"`](?:(?:,| or| and|, or) ?['\"`][\w./-]+['\"`])+)"
)
_NOT_KNOWN = "unknown|invalid|unsupported|unrecogni[sz]ed|unexpected|bad|no such|undefined|wrong|unregistered"
_KNOWN = "valid|supported|found|exist|recogni[sz]ed|available|implemented|registered"
_WRONG = compile_lazily(
    rf"(?i)(?:invalid choice|(?:{_NOT_KNOWN})(?: \w+){{0,4}}|got(?: an?)?(?: \w+){{0,2}}|could not find|received|value"
    rf"|not find|couldn't find|no|key)[:=]? ?{_VALUE}"
    rf"|{_VALUE},? (?:is|was|are|not|does|could|for|as)\b[\w ]{{0,30}}?(?:not\b|in|{_NOT_KNOWN}|{_KNOWN})"
)
_WATCHED = compile_lazily(
    r"monitor='([^']{1,60})'\)`? could not find the monitored key in the returned metrics: \[([^\]]+)"
)
_STOPPED_BY = compile_lazily(
    r"conditioned on metric `([\w/.-]+)` which is not available.{0,200}following: ([\w/., `-]{1,400})"
)
_ITEM = compile_lazily(r"[^\s'\"`,()\[\]{}|]+")
_QUOTED_ITEM = compile_lazily(r"['\"`]([^'\"`\n]{1,80})['\"`]")
_LEAST_LIKENESS = 0.78
_LEAST_ITEMS = (1, 2)  # in brackets, in parentheses
_MOST_SHOWN = 70
_MOST_ITEMS = 200


def suggest_choice(scene: Scene) -> NextStep | None:
    """Return the value nearest to the wrong one among those that the message lists, else the list, or None."""
    text = scene.message
    listed = _LIST.search(text)
    if listed is None:
        return None
    items = (_QUOTED_ITEM.findall(listed[1]) or _ITEM.findall(listed[1]))[:_MOST_ITEMS]
    outside = f"{text[: listed.start(1)]} {text[listed.end(1) :]}"
    wrong = next((next(filter(None, match.groups())) for match in _WRONG.finditer(outside)), "")
    if len(items) < _LEAST_ITEMS[listed[1][0] == "("] or not wrong or wrong in items:
        return None
    short = wrong.rpartition("/")[2]
    near = difflib.get_close_matches(wrong, items, 1, _LEAST_LIKENESS) or difflib.get_close_matches(
        short, items, 1, _LEAST_LIKENESS
    )
    if near:
        advice = "{0} is none of the values it takes: use {1}, the nearest, {at}, then launch_run again."
        filled = fill_in(advice, [wrong, near[0]], scene.at)
    else:
        shown = ", ".join(difflib.get_close_matches(wrong, items, len(items), 0.0))
        if len(shown) > _MOST_SHOWN:
            shown = f"{shown[:_MOST_SHOWN].rpartition(',')[0] or shown[:_MOST_SHOWN]} …"
        filled = fill_in(
            "{0} is none of the values it takes: choose of {1} {at}, then launch_run again.", [wrong, shown], scene.at
        )
    return NextStep(False, "stop", filled) if filled else None


def suggest_metric(scene: Scene) -> NextStep | None:
    """Return the logged metric that is spelled nearly as the one to watch, or None."""
    watched = _WATCHED.search(scene.line) or _STOPPED_BY.search(scene.line)
    if watched is None or scene.kind not in {"python_error", "config_error"}:
        return None
    wrong, items = watched[1], _ITEM.findall(watched[2])
    plain = {re.sub(r"[\W_]+", "", item).lower(): item for item in reversed(items)}
    near = difflib.get_close_matches(re.sub(r"[\W_]+", "", wrong).lower(), plain, 1, _LEAST_LIKENESS)
    if not near:
        return None
    advice = "{0} is not logged, but {1} is: set monitor='{1}', or self.log('{0}', ...), then launch_run again."
    text = fill_in(advice, [wrong, plain[near[0]]], ())
    return NextStep(False, "stop", text) if text else None
