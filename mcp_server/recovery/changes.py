"""What a retry changes: parameters, environment variables, the GPU. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mcp_server.recovery.policy import BATCH, GPU, HALVE, NEXT_PORT, PORT

_REMEDY = "Launched with params such as num_envs or batch_size, a retry could make them smaller."
_MASTER_PORT = "MASTER_PORT"  # torch.distributed and most launchers take it
# In this order: what fills the memory first, and what changes the result least.
_BATCHES = ("num_envs", "per_device_train_batch_size", "micro_batch_size", "train_batch_size", "batch_size", "batch")
_WORDS = re.compile(r"[^a-z0-9]+")
_HELD_OUT = frozenset({"eval", "val", "valid", "validation", "test"})


class Impossible(Exception):
    """A change that these parameters do not allow; says why, and what would."""


@dataclass
class Altered:
    """What the next attempt has.

    ``params``: all of them. ``env``: the variables that change. ``next_port``: names of parameters, else variables,
    that need a free port. ``told``: one phrase per change.
    """

    params: dict[str, object]
    env: dict[str, str] = field(default_factory=dict)
    other_gpu: bool = False
    next_port: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def alter(change: Mapping[str, object], params: Mapping[str, object], env: Mapping[str, str], line: str) -> Altered:
    """Make all changes of a policy's step, whose grammar policy.py has; ``line`` may name the port that is taken.

    Raises:
        Impossible: one of them cannot be made.
    """
    altered = Altered(dict(params))
    for name, how in change.items():
        if name == GPU:
            altered.other_gpu = True
            altered.told.append("another GPU")
        elif how == NEXT_PORT:
            port = _port(params, env, line) if name == PORT else name.removeprefix("$")
            if port not in altered.next_port:
                altered.next_port.append(port)
                altered.told.append(f"another {port}")
        elif name.startswith("$"):
            altered.env[name[1:]] = str(how)
            altered.told.append(f"{name[1:]}={how}")
        elif how == HALVE or isinstance(how, Mapping):
            _halve(altered, name, how["halve"]["min"] if isinstance(how, Mapping) else None)
        else:
            _set(altered, name, how)
    return altered


def _set(altered: Altered, name: str, value: object) -> None:
    before = f" {altered.params[name]} ->" if name in altered.params else ""
    altered.params[name] = value
    altered.told.append(f"{name}{before} {value}")


def _halve(altered: Altered, name: str, least: float | None) -> None:
    """Halve one parameter; of a batch the first that can be."""
    names = list(_batches(altered.params)) if name == BATCH else [name] if name in altered.params else []
    if not names:
        what = "parameter that holds a batch size or a number of environments" if name == BATCH else f"parameter {name}"
        raise Impossible(f"there is no {what}. {_REMEDY}")
    for found in names:
        if (value := half(altered.params[found], least)) is not None:
            _set(altered, found, value)
            return
    raise Impossible(f"{names[0]} is {altered.params[names[0]]}, and cannot be halved.")


def half(value: object, least: float | None = None) -> object | None:
    """Return half of ``value``, not below ``least``; None where that is nothing less, or ``value`` is no number.

    Whole numbers stay whole, and at least 1; a fraction, such as a learning rate, is simply halved. Text stays text.
    """
    if isinstance(value, str):
        try:
            parsed = half(float(value) if re.search(r"[.einEIN]", value) else int(value), least)
        except ValueError:
            return None
        return None if parsed is None else str(parsed)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if value == int(value):
        new: int | float = max(int(value) // 2, 1, math.ceil(least or 1))
    else:
        new = max(value / 2, least or 0.0)
    return new if new < value else None


def _batches(params: Mapping[str, object]) -> Iterator[str]:
    """Yield the parameters that a smaller batch may mean, the best first."""
    plain = {name: "_".join(_WORDS.split(name.lower().lstrip("-").rpartition(".")[2])) for name in params}
    for part in _BATCHES:
        for name, text in plain.items():
            if part in text and not _HELD_OUT.intersection(text.split("_")):
                yield name


def _port(params: Mapping[str, object], env: Mapping[str, str], line: str) -> str:
    """Return what holds the port that is taken: the value that ``line`` names, else the first parameter, else usual."""
    numbers = set(re.findall(r"\d{2,5}", line))
    named = [name for name in params if "port" in _WORDS.split(name.lower())]
    variables = [name for name in env if name.endswith("PORT") and name not in params]
    for name, value in [*((n, params[n]) for n in named), *((n, env[n]) for n in variables)]:
        if str(value) in numbers:
            return name
    return next(iter(named), _MASTER_PORT)
