"""Regular expressions that somebody else wrote: usable, and not able to search for ever. Pure."""

import re

from mcp_server.errors import PatternError

_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_GROUP = re.compile(r"\(([^()]*)\)([*+]|\{\d*,\})?")


def checked(pattern: str) -> re.Pattern[str]:
    """Compile ``pattern``.

    Raises:
        PatternError: it is no regular expression, too long, or repeats a repeat.
    """
    if len(pattern) > 1_000:  # noqa: PLR2004 (said in the message)
        raise PatternError(pattern, "it has more than 1,000 characters")
    try:
        regex = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(pattern, str(error)) from None
    flat = _ATOM.sub("x", pattern)
    while group := _GROUP.search(flat):  # the innermost first
        inner = re.search(r"[*+]|\{\d*,\}", group[1])
        if inner and group[2]:
            raise PatternError(pattern, "a repeat within a repeat, as in (a+)+, can take for ever")
        flat = flat[: group.start()] + ("x+" if inner else "x") + (group[2] or "") + flat[group.end() :]
    return regex
