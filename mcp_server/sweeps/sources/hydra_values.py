"""A nested configuration as overrides of a Hydra program: flat names, and values in Hydra's grammar. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from mcp_server.sweeps.sources.cell import Scalar

# Hydra reads these words as themselves; everything else is quoted.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.:@%+*?$-]*|\.{1,2}/[A-Za-z0-9_/.:@%+*?$-]*")
_KEYWORDS = frozenset({"true", "false", "null", "nan", "inf"})  # in any case
_NAME = re.compile(r"[A-Za-z_][\w.\-/@]*", re.ASCII)
_KEY_IN_TABLE = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_PREFIX = re.compile(r"[+~]{1,2}")


class NotAnOverride(ValueError):
    """A name or a value that no override of Hydra can hold."""


def list_overrides(config: Mapping[str, object]) -> Iterator[tuple[str, Scalar]]:
    """Yield names and values of a nested configuration in its order: ``trainer.logger``, ``["console"]``.

    A ``+`` or ``++`` in front of a key at any depth comes first: ``{"data": {"+seed": 1}}`` is ``+data.seed``. An empty
    table is a value. Numbers, booleans and null are themselves.

    Raises:
        NotAnOverride: names the key.
    """
    yield from _flatten(config, "", "")


def format_value(value: object) -> str:
    """Return a value in Hydra's grammar, so that the program reads this value and this type.

    Raises:
        NotAnOverride: it holds what the grammar cannot express.
    """
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_format_key(key)}:{format_value(inner)}" for key, inner in value.items()) + "}"
    if not isinstance(value, str):
        raise NotAnOverride(f"a value of the type {type(value).__name__}")
    return value if _is_plain(value) else _quote(value)


def _flatten(table: Mapping[str, object], path: str, prefix: str) -> Iterator[tuple[str, Scalar]]:
    for key, value in table.items():
        text = str(key)
        own = match[0] if (match := _PREFIX.match(text)) else ""
        name, its_prefix = f"{path}{text.removeprefix(own)}", own or prefix
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{name}.", its_prefix)
            continue
        if not _NAME.fullmatch(name):
            raise NotAnOverride(f"the key {name[:80]!r}")
        try:
            yield f"{its_prefix}{name}", _to_scalar(value)
        except NotAnOverride as error:
            raise NotAnOverride(f"{name}: {error}") from None


def _to_scalar(value: object) -> Scalar:
    """Return a value as launch_run renders it: numbers as they are, as far as JSON has them."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return format_value(value)


def _is_plain(text: str) -> bool:
    return _PLAIN.fullmatch(text) is not None and text.lower() not in _KEYWORDS


def _quote(text: str) -> str:
    """Return a text in double quotes; backslashes count only in front of a quote, and at the end."""
    text = re.sub(r'(\\*)"', lambda match: f'{match[1]}{match[1]}\\"', text)
    return '"' + re.sub(r"\\+\Z", lambda match: match[0] * 2, text) + '"'


def _format_key(key: object) -> str:
    text = str(key)
    if not _KEY_IN_TABLE.fullmatch(text) or text.lower() in _KEYWORDS:
        raise NotAnOverride(f"the key {text[:80]!r} inside a list")
    return text
