"""Dataclasses as JSON and back, by their annotations: one codec for what records, servers and relays keep or send.

Annotations are ``str | None``, ``tuple[Cell, ...]``, ``Mapping[str, Any]``, ``Literal``, enums and other dataclasses.
"""

from __future__ import annotations

import ast
import enum
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_PLAIN: Mapping[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (float, int)}
_LISTS: Mapping[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "Sequence": tuple, "frozenset": frozenset}


def encode(value: Any) -> Any:
    """Return a value as JSON, a dataclass without the fields that have their defaults."""
    if is_dataclass(value):
        named = ((one, getattr(value, one.name)) for one in fields(value))
        return {one.name: encode(each) for one, each in named if each != _default_of(one)}
    if isinstance(value, Mapping):
        return {name: encode(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(each) for each in value]
    return value.value if isinstance(value, enum.Enum) else value


def decode(kind: Callable[..., T], facts: object, *, strict: bool = False) -> T:
    """Return the dataclass ``kind`` that ``facts`` hold. What it has no fields for is left out.

    A value of a wrong type is left out as well, so that its field has its default; with ``strict`` it is an error.

    Raises:
        ValueError: ``facts`` are no such thing, or lack a field that has no default.
    """
    known = facts if isinstance(facts, dict) else {}
    values: dict[str, Any] = {}
    for name, read, default in _list_readers(kind):
        is_needed = default is MISSING
        if not is_needed and known.get(name, default) is default:  # most fields
            continue
        try:
            values[name] = read(known[name])
        except (KeyError, TypeError, ValueError) as error:
            if strict or is_needed:
                raise ValueError(f"{kind.__name__}.{name} is not as it should be") from error
    return kind(**values)


def _default_of(one: Any) -> object:
    return one.default_factory() if one.default_factory is not MISSING else one.default


@functools.cache
def _list_readers(kind: Any) -> tuple[tuple[str, _Reader, object], ...]:
    """Return name, reader and default of each field."""
    names = vars(sys.modules[kind.__module__])
    parsed = ((one, ast.parse(str(one.type), mode="eval").body) for one in fields(kind))
    return tuple((one.name, _make_reader(node, names), _default_of(one)) for one, node in parsed)


def _make_reader(node: ast.expr, names: Mapping[str, Any]) -> _Reader:
    if isinstance(node, ast.BinOp):
        return _join(_make_reader(node.left, names), _make_reader(node.right, names))
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        items = [
            _make_reader(each, names) for each in inner if not (isinstance(each, ast.Constant) and each.value is ...)
        ]
        name = getattr(node.value, "id", "")
        if name in ("dict", "Mapping"):
            return functools.partial(_read_table, items[1])
        is_row = name == "tuple" and len(items) == len(inner)
        return functools.partial(_read_list, _LISTS[name], items, is_row)
    name = getattr(node, "id", "None")
    known = type(None) if name == "None" else names.get(name)
    if name in _PLAIN or name == "None":
        return functools.partial(_read_plain, _PLAIN.get(name, (type(None),)), ())
    if name != "Any" and isinstance(known, type):
        if is_dataclass(known):
            return functools.partial(decode, known)
        return known if issubclass(known, enum.Enum) else functools.partial(_read_plain, (), ())  # a path is no JSON
    words = get_args(known)
    return functools.partial(_read_plain, tuple({type(each) for each in words}) or None, words)


def _read_plain(kinds: tuple[type, ...] | None, words: tuple[object, ...], value: Any) -> Any:
    if (kinds is None or type(value) in kinds) and (not words or value in words):
        return value
    raise TypeError


def _read_table(read: _Reader, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: read(each) for name, each in value.items()}
    raise TypeError


def _read_list(make: Callable[[Any], Any], items: list[_Reader], is_row: bool, value: Any) -> Any:
    if isinstance(value, (list, tuple)) and (not is_row or len(value) == len(items)):
        return make(read(each) for read, each in zip(items if is_row else items * len(value), value))
    raise TypeError


def _join(one: Any, other: Any) -> _Reader:
    """Return the reader of a union: one look where both types are plain."""
    if getattr(one, "func", None) is getattr(other, "func", None) is _read_plain and not (one.args[1] or other.args[1]):
        return functools.partial(_read_plain, (*one.args[0], *other.args[0]), ())

    def read(value: Any) -> Any:
        try:
            return one(value)
        except (TypeError, ValueError):
            return other(value)

    return read
