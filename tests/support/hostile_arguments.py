"""Bad arguments for tools, made from their schemas by chance: wrong types, hostile texts, files that never answer.

A call is JSON text, so that numbers beyond all bounds and characters that are none are sent as they are.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NESTED, _MANY, _MIB, _FITTING = 1000, 10_000, 1 << 20, 0.6
# What no Python value is written as.
_RAW = {
    "@beyond@": "1e400",
    "@lists@": "[" * _NESTED + "]" * _NESTED,
    "@objects@": '{"a":' * _NESTED + "1" + "}" * _NESTED,
}
_LAUNCHES = ("launch_run", "launch_sweep")
_NUMBERS = [-1, 0, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**300, 1e308, -0.0, 5e-324, 0.1]
# Enough to be called at all; a launch is only rehearsed.
_REQUIRED: Mapping[str, Any] = {"command": "true", "name": "odd", "common": {"command": "true"}, "grid": {"seed": [1]}}
_ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "wait_run": {"timeout_s": 0},
    "launch_run": {"dry_run": True},
    "launch_sweep": {"dry_run": True},
}


@dataclass(frozen=True)
class Traps:
    """Files that must be neither read for ever nor made. ``path``: a directory for them."""

    path: Path

    def make(self) -> None:
        """Make the files."""
        self.path.mkdir()
        os.mkfifo(self.path / "fifo")
        for name, target in (("zero", "/dev/zero"), ("tty", "/dev/tty"), ("loop", "loop"), ("root", "/")):
            (self.path / name).symlink_to(target)
        with (self.path / "huge").open("wb") as file:
            file.truncate(20 << 30)
        (self.path / "deep.json").write_text("[" * 100_000)

    @property
    def executed(self) -> bool:
        """Whether something in a text was executed."""
        return self._mark.exists()

    def forget(self) -> None:
        """Remove the sign of it."""
        self._mark.unlink()

    @property
    def _mark(self) -> Path:
        return self.path / "executed"

    def texts(self) -> list[str]:
        """Return texts that a shell, YAML, ssh, tmux, a path or an answer could take for something else."""
        touch = f"touch {self._mark}"
        files = ("fifo", "zero", "tty", "loop/x", "huge", "deep.json", "root/etc/shadow", "missing", ".")
        return [
            *(str(self.path / name) for name in files),
            *(
                "/dev/stdin",
                "/dev/full",
                "/proc/self/mem",
                "/proc/1/environ",
                "file:///dev/zero",
                "../../../etc/passwd",
            ),
            *(
                f"$({touch})",
                f"`{touch}`",
                f"; {touch};",
                f"\n{touch}\n",
                f"' ; {touch} ; '",
                f"| {touch}",
                f"&& {touch}",
            ),
            *(f"#({touch})", f"!!python/object/apply:os.system ['{touch}']", f"__import__('os').system('{touch}')"),
            *(f"-oProxyCommand={touch}", f"--upload-pack={touch}", f"doit:{touch}", f"hydra:{self.path / 'fifo'}"),
            *(
                "\ud800",
                "od\udce9d",
                "nul\0nul",
                "\u202eflip\u2066",
                "\x1b]0;title\x07\x1b[2J",
                "\x9b31m",
                "\ufeff",
                "\r\n",
            ),
            *(
                "",
                " ",
                ".",
                "..",
                "/",
                "~",
                "~root",
                "*",
                "%s%n%p",
                "{run_id}",
                "{0}",
                "{x!r:>{y}}",
                "{{}}",
                "=odd:0.0",
            ),
            *(
                "null",
                "None",
                "-1",
                "1e400",
                "NaN",
                "true",
                "{}",
                "[]",
                "0x10",
                "\N{FULLWIDTH DIGIT ONE}",
                "\N{SNOWMAN}",
            ),
            *("a" * 256, "odd " * (_MIB // 4), "\u0301" * 5000, "(a+)+" * 500, "9" * 5000, "\\" * 999, '"' * 999),
        ]

    def values(self) -> list[Any]:
        """Return values of all types."""
        return [
            *self.texts(),
            *_NUMBERS,
            *(float("nan"), float("inf"), 10**4000, None, True, False),
            *([], {}, [None], [[]], [{}], {"": ""}, {"a": None}, *_RAW, {"command": "@objects@"}, ["@lists@"]),
            *(["odd"] * _MANY, {str(n): n for n in range(_MANY)}, {"\ud800": "\ud800"}, {"a\0": "\0"}, ["\udce9"]),
        ]


def hostile_calls(tools: Sequence[Mapping[str, Any]], traps: Traps, dice: random.Random) -> Iterator[tuple[str, str]]:
    """Yield for ever the name of a tool and the JSON text of its arguments, one to three of which are bad."""
    values, texts = traps.values(), traps.texts()
    while True:
        tool = dice.choice(tools)
        name, schema = str(tool["name"]), tool["inputSchema"]
        fields = sorted(schema["properties"])
        given = {each: _REQUIRED.get(each, "odd") for each in schema.get("required", ())}
        given |= _ALWAYS.get(name, {})
        for field in dice.sample(fields, min(len(fields), dice.choice((1, 1, 1, 2, 3)))):
            if dice.random() < _FITTING:
                given[field] = _fit(dice, schema["properties"][field], values, texts)
            else:
                given[field] = _spoil(dice, values, texts, given.get(field))
        if dice.random() < 0.05:
            given[dice.choice(texts)[:200]] = dice.choice(values)
        if name in _LAUNCHES and given["dry_run"] is not True:  # else a command would be started by right
            given = {each: value for each, value in given.items() if each == "dry_run" or each in _REQUIRED}
            given |= {each: _REQUIRED[each] for each in given if each in _REQUIRED}
        arguments = json.dumps(given)
        for mark, raw in _RAW.items():
            arguments = arguments.replace(f'"{mark}"', raw)
        yield name, arguments


def _fit(dice: random.Random, schema: Mapping[str, Any], values: Sequence[Any], texts: Sequence[str]) -> Any:
    """Return something of a type that the schema allows: it gets further than the check of types."""
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    chosen = dice.choice(kinds) if kinds else schema
    match chosen.get("type"):
        case "string":
            return dice.choice([*chosen.get("enum", ()), *texts])
        case "integer" | "number":
            return dice.choice(_NUMBERS)
        case "boolean":
            return dice.random() < 0.5
        case "array":
            return [_fit(dice, chosen.get("items", {}), values, texts) for _ in range(dice.randint(0, 3))]
        case "object":
            return {dice.choice(texts)[:200]: dice.choice(values) for _ in range(dice.randint(0, 3))}
        case _:
            return dice.choice(values)


def _spoil(dice: random.Random, values: Sequence[Any], texts: Sequence[str], given: Any) -> Any:
    """Return something bad: as it is, in a list, or below a key; or a dictionary of which one value is bad."""
    value = dice.choice(values)
    shape = dice.random()
    if shape < 0.6:
        return value
    if shape < 0.75:
        return [value] * dice.randint(1, 3)
    if isinstance(given, dict) and given and shape < 0.9:
        return {**given, dice.choice(sorted(given)): value}
    return {dice.choice(texts)[:500]: value, "command": "true"}
