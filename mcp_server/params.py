"""What a launch may say of parameters and of recovery, and what is refused before anything is done."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.hosts import check_environment, names_a_secret
from mcp_server.patterns import checked
from mcp_server.script import takes_arguments
from mcp_server.supervisor import policy

_LONGEST_ARGUMENTS = 100_000  # Linux takes 128 KiB in one word, 2 MiB in all


def policy_of(value: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a recovery policy in its normal form; None for the default: report and propose.

    Raises:
        BadArgument, PatternError: it is no policy.
    """
    if value in (None, "none"):
        return None
    try:
        found = policy.policy_of(value)
    except ValueError as error:
        raise BadArgument("recovery", f"{error}") from error
    for rule in found["rules"]:
        if pattern := rule["when"].get("pattern"):
            checked(pattern)
        for step in rule["steps"]:
            for name, how in (step.get("change") or {}).items():
                _check_change(name, how)
    return found


def _check_param(argument: str, name: str, value: object) -> None:
    if not re.fullmatch(r"[+~]*[A-Za-z_][\w.\-/@]*", name):
        raise BadArgument(argument, f"has a name that cannot stand on a command line: {name[:80]!r}.")
    if names_a_secret(name):
        raise BadArgument(argument, f"{name} looks like a secret, and arguments are kept: name it in secrets instead.")
    if not isinstance(value, str | int | float | None) or (isinstance(value, str) and "\0" in value):
        raise BadArgument(argument, f"{name} must be a text, a number, true, false or null.")


def _check_change(name: str, how: object) -> None:
    """Refuse a change that no attempt could be started with.

    Raises:
        BadArgument: its name or its value cannot stand where it goes.
    """
    if name.startswith("@"):
        return
    value = "" if isinstance(how, Mapping) else how
    if not name.startswith("$"):
        _check_param("recovery", name, value)
    elif isinstance(value, bool | None) or "\0" in str(value):
        raise BadArgument("recovery", f"{name} must be a text or a number.")
    else:
        check_environment({name[1:]: str(value)})


def check_params(params: Mapping[str, Any], resume_args: list[str], command: str | list[str]) -> None:
    """Refuse parameters that have no place on the command line.

    Raises:
        BadArgument: a name that is no word, a value that is no scalar, or a command in which they have no place.
    """
    for name, value in params.items():
        _check_param("params", name, value)
    if any("\0" in word for word in resume_args):
        raise BadArgument("resume_args", "holds a NUL character.")
    if len(json.dumps([dict(params), resume_args])) > _LONGEST_ARGUMENTS:
        raise BadArgument("params", f"is longer than a command line may be: {_LONGEST_ARGUMENTS:,} characters.")
    if (params or resume_args) and not takes_arguments(command):
        cause = "go to the end of the command, if it is one program: else write {params} as a word where they belong."
        raise BadArgument("params", cause)


def check_no_secret(arguments: object, values: Iterable[str]) -> None:
    """Refuse arguments that hold the value of a secret.

    Raises:
        BadArgument: they do; arguments are kept in files, and every user of the machine can see them.
    """
    text = json.dumps(arguments, ensure_ascii=False)
    if any(value in text for value in values):
        raise BadArgument("params", "holds the value of a secret, and arguments are kept.")
