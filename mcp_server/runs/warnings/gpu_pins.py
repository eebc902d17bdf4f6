"""The GPUs that a command chooses by itself, and what that means beside leases. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcp_server.command.programs import PYTHON_LAUNCHERS, SETS_VARIABLES, TEXT_PROGRAMS
from mcp_server.command.started import Program, find_programs
from mcp_server.gpus.request import GpuRequest

_VISIBLE = re.compile(r"(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES=(?P<list>\d+(?:,\d+)*),?")
_CUDA = re.compile(r"(?:[\w.\-+]*=)?[\"']?(?P<pin>cuda:(?P<index>\d+))[\"']?")
# `--gpus 4` is mostly a count: 0 and lists are not.
_OPTION = re.compile(r"(?:--?|[\w.]+\.)?(?:gpu|gpu[-_]?ids?|device|device[-_]?ids?|cuda[-_]?device)", re.IGNORECASE)
_COUNT_OPTION = re.compile(r"(?:--?|[\w.]+\.)?gpus", re.IGNORECASE)
_LIST = re.compile(r"\[?(\d+(?:,\d+)*)\]?")
_MOST_DIGITS = 3
_COMPUTES = re.compile(rf"python[\d.]*|{'|'.join(PYTHON_LAUNCHERS)}|mpirun|isaaclab\.sh|ray|tune|trl|vllm")


@dataclass(frozen=True)
class Pin:
    """GPUs that a command names by index. ``is_absolute``: also where a lease makes other GPUs visible."""

    text: str
    indices: tuple[int, ...]
    is_absolute: bool


def find_pins(
    command: str | Sequence[str],
    env: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
) -> list[Pin]:
    """Return the GPUs that a command, its environment and its parameters pin it to, in this order."""
    more = []
    if env or params:
        variables = tuple(f"{name}={value}" for name, value in (env or {}).items())
        options = [(f"--{name.lstrip('-')}", str(value)) for name, value in (params or {}).items()]
        words = ("params", *(word for option in options for word in option))
        more = [Program("params", words, variables=variables)]
    return list(dict.fromkeys(pin for program in (*find_programs(command), *more) for pin in _pins_of(program)))


def computes(command: str | Sequence[str]) -> bool:
    """Return whether one of the programs may compute on a GPU."""
    return any(_COMPUTES.fullmatch(program.name) for program in find_programs(command))


def warn_of_pins(
    pins: Sequence[Pin], request: GpuRequest | None, holders: Mapping[int, str], present: Sequence[int]
) -> list[str]:
    """Return one sentence for each pin that takes GPUs past the leases.

    ``request`` is None where the launch asks for none. ``holders``: which run leases a GPU, by index. ``present``: the
    indices of this machine's GPUs, empty where it has none, or no driver answers.
    """
    if request is not None:
        leased = {int(name) for name in request.ids if name.isdecimal()}
        count = 0 if request.cpu or request.is_mig else request.count or len(request.ids)
        return [
            f"`{pin.text}` overrides the GPUs that are leased for this run: leave it out of the command."
            for pin in pins
            if pin.is_absolute and request and not leased.issuperset(pin.indices)
        ] + [
            f"`{pin.text}` is past this run's lease: it sees {count} of the GPUs, as cuda:0"
            f"{f' to cuda:{count - 1}' if count > 1 else ''}, whatever their indices are."
            for pin in pins
            if not pin.is_absolute and count and max(pin.indices) >= count
        ]
    return [warning for pin in pins for warning in _warn_without_lease(pin, holders, present)]


def _warn_without_lease(pin: Pin, holders: Mapping[int, str], present: Sequence[int]) -> Iterator[str]:
    leased = [index for index in pin.indices if index in holders]
    free = [index for index in pin.indices if index in present and index not in holders]
    if leased:
        names = list(dict.fromkeys(holders[index] for index in leased))
        verb = "leases" if len(names) == 1 else "lease"
        count = f"gpus={len(pin.indices)}"
        yield (
            f"`{pin.text}` uses GPU {_join(leased)}, which {' and '.join(names)} {verb}: leave it out and pass {count}."
        )
    if free:
        them, indices = "it" if len(free) == 1 else "them", _join(free)
        yield f"`{pin.text}` uses GPU {indices} without a lease, so others may take {them}: pass gpus=[{indices}]."


def _join(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


def _pins_of(program: Program) -> Iterator[Pin]:
    words = program.words[1:] if program.name in SETS_VARIABLES else ()
    for assignment in (*program.variables, *words):
        if (visible := _VISIBLE.fullmatch(assignment)) is not None:
            yield Pin(assignment, _numbers(visible["list"]), is_absolute=True)
    if program.name in TEXT_PROGRAMS or program.name in SETS_VARIABLES:
        return
    for word, following in zip(program.words, (*program.words[1:], ""), strict=False):
        if (cuda := _CUDA.fullmatch(word)) is not None:
            yield Pin(cuda["pin"], (int(cuda["index"]),), is_absolute=False)
            continue
        option, equals, value = word.partition("=")
        if not equals:
            if not option.startswith("-"):
                continue
            value = following
        listed = _LIST.fullmatch(value)
        if listed is None:
            continue
        numbers = _numbers(listed[1])
        is_list = _COUNT_OPTION.fullmatch(option) and (len(numbers) > 1 or numbers == (0,))
        if _OPTION.fullmatch(option) or is_list:
            yield Pin(f"{option}{equals or ' '}{value}", numbers, is_absolute=False)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if len(number) <= _MOST_DIGITS)
