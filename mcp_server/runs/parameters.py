"""What a launch may say of parameters and of recovery, and what is refused before anything is done."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.hosts.environment import check_environment
from mcp_server.record.script import takes_arguments
from mcp_server.recovery import policy
from mcp_server.text.regex import compile_user_pattern
from mcp_server.text.secret_patterns import names_a_secret
from mcp_server.text.shell import parse

_LONGEST_ARGUMENTS = 100_000  # Linux takes 128 KiB in one word, 2 MiB in all


def checked_policy(value: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a recovery policy in its normal form; None for the default: report and propose.

    Raises:
        BadArgument, PatternError: it is no policy.
    """
    if value in (None, "none"):
        return None
    try:
        found = policy.normalize_policy(value)
    except ValueError as error:
        raise BadArgument("recovery", f"{error}") from error
    for rule in found["rules"]:
        if pattern := rule["when"].get("pattern"):
            compile_user_pattern(pattern)
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
    if (params or resume_args) and not takes_arguments(parse(command)):
        cause = (
            "has no place in this command, which is no single program: write {params} as a word of its own, outside "
            "quotes, where the arguments belong."
        )
        raise BadArgument("params" if params else "resume_args", cause)


def check_no_secret(arguments: Mapping[str, object], values: Iterable[str]) -> None:
    """Refuse arguments, by their names, that hold the value of a secret.

    Raises:
        BadArgument: one does; arguments are kept in files, and every user of the machine can see them.
    """
    secrets = list(values)
    for argument, value in arguments.items():
        if any(secret in text for text in _texts(value) for secret in secrets):
            raise BadArgument(
                argument, "holds the value of a secret, and arguments are kept: name it in secrets instead."
            )


def _texts(value: object) -> Iterator[str]:
    """Yield every name and every value in ``value`` as text."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    else:
        yield str(value)
