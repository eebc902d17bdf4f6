"""A run's parameters as its script takes them, and the script with other variables. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence


def arguments(params: Mapping[str, object], style: str, extra: Sequence[str] = ()) -> list[str]:
    """Return parameters as a command line takes them: ``--k v`` or ``k=v``, then ``extra``.

    A flag that is true stands alone in the first style; one that is false, or None, is left out of it.
    """
    words: list[str] = []
    for name, value in params.items():
        if style == "k=v":
            words.append(f"{name}={_text(value)}")
        elif value is True:
            words.append(f"--{name}")
        elif value is not False and value is not None:
            words += [f"--{name}", _text(value)]
    return [*words, *extra]


def cd_line(cwd: str) -> str:
    """Return the line of a run's script before which everything is exported."""
    return f"cd -- {shlex.quote(cwd)} || exit"


def with_variables(script: str, cwd: str, changed: Mapping[str, str]) -> str:
    """Return a run's script with some variables set anew."""
    before, line, after = script.partition(f"{cd_line(cwd)}\n")
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(changed.items()))
    return f"{before}{exports}{line}{after}"


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
