"""Next steps after an operation in which one value is None: which name of the line of code holds it. Pure."""

from __future__ import annotations

import re

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

_TYPES = compile_lazily(
    r"'?(?P<op>[<>]=?|[-+*/%@&|]|\*\*|//)=?'? ?(?:not supported between instances of|:) '(?P<left>[\w.]+)' and "
    r"'(?P<right>[\w.]+)'"
)
_NAME = r"[\w.]{1,60}(?:\[[^\[\]]{1,40}\])?"
_COMPARED = "{0} is None in `{1}` {at}: start it with a number (float('inf')), or test `is None` first."
_OF_SETTING = "{0} is None in `{1}` {at}: give that setting a number (or a default there), then launch_run again."
_COMPUTED = (
    "{0} is None in `{1}` {at}: find what should have set it (a function without return?), then launch_run again."
)
_SETTINGS = compile_lazily(r"(?i)^(?:self\.)?(?:args|cfg|config|opts?|hparams|flags)\b")


_EMPTY = compile_lazily(r"'NoneType' object (?:is not (?:subscriptable|iterable)|has no attribute '(?P<name>\w+)')")
_KEYS = compile_lazily(
    r"(?<![\w.])(?P<owner>[\w.]{0,80}?(?:config|cfg|conf|args|opts?|hparams|params|settings|kwargs|flags)\w{0,40})"
    r"(?P<keys>(?:\[['\"]\w{1,40}['\"]\]|\.get\(['\"]\w{1,40}['\"]\)|\.(?!get\b)\w{1,40}(?!\w*\()){1,4})"
)
_KEY = compile_lazily(r"['\"](\w+)['\"]|\.(\w+)")
_OF_ENVIRONMENT = "{0} is None or empty {at}: give it in config.environment(env_config={{...}}), then launch_run again."
_OF_CONFIG = "{0} is None {at}: give that setting a value (with what the code reads in it), then launch_run again."


def explain_empty_setting(scene: Scene) -> NextStep | None:
    """Return which setting is None where the user's own line of code reads it out of a configuration, or None."""
    empty = _EMPTY.search(scene.line)
    if empty is None or not scene.source or scene.library or scene.inside:
        return None
    found = list(_KEYS.finditer(scene.source))
    if len(found) != 1 or not _is_used(scene.source, found[0], empty["name"]):
        return None
    names = [one or other for one, other in _KEY.findall(found[0]["keys"])]
    last = empty["name"] or names[-1]
    path = names[: names.index(last)] if last in names else names
    owner = found[0]["owner"]
    named = ".".join((owner, *path)) if path else owner
    is_rllib = "ray/rllib" in scene.near or "rllib" in scene.log[:2_000]
    text = fill_in(_OF_ENVIRONMENT if is_rllib and not owner.startswith("self.") else _OF_CONFIG, [named], scene.at)
    return NextStep(False, "stop", text) if text else None


def _is_used(source: str, found: re.Match[str], attribute: str | None) -> bool:
    """Return whether the operation that failed on None is on ``found`` itself, not on what a call makes of it."""
    after = source[found.end() :]
    if attribute == "get":
        return False
    if attribute is not None:
        return bool(re.search(rf"\.{attribute}\b", found["keys"])) or bool(re.match(rf"\.{attribute}\b", after))
    return found["keys"].endswith("]") or bool(re.search(r"\bin $", source[: found.start()]))


def explain_none(scene: Scene) -> NextStep | None:
    """Return the step after an operation with None in the user's own line of code, or None."""
    match = _TYPES.search(scene.line)
    if match is None or not scene.source or scene.library or "NoneType" not in (match["left"], match["right"]):
        return None
    source = scene.source.rstrip(":").strip()
    place = compile_lazily(rf"(?P<left>{_NAME})\s*(?P<op>[<>]=?|\*\*|//|[-+*/%@&|])\s*(?P<right>{_NAME}(?!\())")
    sides = [found for found in place.finditer(source) if found["op"] == match["op"]]
    if len(sides) != 1:
        return None
    name = sides[0]["left" if match["left"] == "NoneType" else "right"]
    if name[:1].isdigit():
        return None
    advice = _OF_SETTING if _SETTINGS.match(name) else _COMPARED if match["op"][0] in "<>" else _COMPUTED
    text = fill_in(advice, [name, source], scene.at)
    return NextStep(False, "stop", text) if text else None
