"""Changes that a retry makes: parameters, environment variables, the GPU. Pure."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_server.recovery.policy import BATCH, GPU, HALVE, NEXT_PORT, PORT
from mcp_server.text.regex import compile_lazily

_NO_BATCH = "no name in params says batch size or number of environments"
_REMEDY = "Launched with params such as num_envs or batch_size, a retry could make them smaller."
_MASTER_PORT = "MASTER_PORT"  # torch.distributed and most launchers take it
_RAY_PORT, _RAY_DIRECTORY = "RAY_PORT", "RAY_TMPDIR"
# Ray's own port is taken: its head found the session of another.
_RAY_CONFLICT = compile_lazily(r"does not match persisted value|\b(?:GCS|gcs_server|[Rr]edis)\b")
_RAY_REMEDY = (
    "Launch with RAY_PORT and RAY_TMPDIR in env, or in the environment of hosts.toml, and a command that takes them: "
    "ray start --head --port=$RAY_PORT --temp-dir=$RAY_TMPDIR."
)
# A Unix socket's path has 107 characters, and Ray appends up to 64 of its own to the directory.
LONGEST_RAY_DIRECTORY = 43
# In this order: those that fill the memory first, and that change the result least.
_BATCHES = tuple(
    compile_lazily(pattern)
    for pattern in (
        r"num_?env(?:s|ironments?)?(?:_|$)|(?:^|_)n_?env(?:s|ironments)?(?:_|$)|(?:^|_)(?:envs|environments)(?:_|$)|envs?_?num",
        r"per_device_train_batch_size",
        r"micro_?batch_?size|(?:^|_)mbs(?:_|$)",
        r"train_?batch_?size",
        r"batch_?size",
        r"batch|(?:^|_)bsz?(?:_|$)",
    )
)
_WORDS = compile_lazily(r"[^a-z0-9]+")
_FEWEST_SWAPPED = 3
_TYPO = 0.9  # of difflib; num_env and num_envs are 0.93 alike, beta1 and beta2 0.8
_NO_NUMBERS = frozenset({"null", "none", "None", "auto", "max"})  # in the place of a number
_HELD_OUT = frozenset({"eval", "val", "valid", "validation", "test"})


@dataclass(frozen=True)
class ImpossibleChange:
    """A change of a policy that no retry of a launch could make: what is wrong, and what to write."""

    text: str
    remedy: str


class ChangeImpossible(Exception):
    """These parameters do not allow a change. The message says why, and what would allow it."""


@dataclass
class ParameterChanges:
    """Parameters of the next attempt, and what else changes.

    ``params`` are all parameters, ``env`` only the variables that change. ``next_port`` names parameters, or else
    variables, that need a free port. ``descriptions`` holds one phrase for each change.
    """

    params: dict[str, object]
    env: dict[str, str] = field(default_factory=dict)
    other_gpu: bool = False
    next_port: list[str] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)


def apply_changes(
    change: Mapping[str, object], params: Mapping[str, object], env: Mapping[str, str], line: str
) -> ParameterChanges:
    """Apply the changes of a policy's step. ``line`` may name the taken port. ChangeImpossible: one cannot be made."""
    changes = ParameterChanges(dict(params))
    for name, how in change.items():
        if name == GPU:
            changes.other_gpu = True
            changes.descriptions.append("another GPU")
        elif how == NEXT_PORT:
            is_ray = name == PORT and _RAY_CONFLICT.search(line) is not None
            port = _taken_port(params, env, line, is_ray=is_ray) if name == PORT else name.removeprefix("$")
            if port not in changes.next_port:
                changes.next_port.append(port)
                changes.descriptions.append(f"another {port}")
            if is_ray and env.get(_RAY_DIRECTORY):
                changes.env[_RAY_DIRECTORY] = _next_directory(env[_RAY_DIRECTORY])
                changes.descriptions.append(f"{_RAY_DIRECTORY}={changes.env[_RAY_DIRECTORY]}")
        elif name.startswith("$"):
            changes.env[name[1:]] = str(how)
            changes.descriptions.append(f"{name[1:]}={how}")
        elif how == HALVE or isinstance(how, Mapping):
            _halve(changes, name, how["halve"]["min"] if isinstance(how, Mapping) else None)
        else:
            _set(changes, name, how)
    return changes


def find_impossible_changes(policy: Mapping[str, Any], params: Mapping[str, object]) -> Iterator[ImpossibleChange]:
    """Yield the changes of a policy in its normal form that a run with ``params`` could not make or cannot mean."""
    changes = [change for rule in policy["rules"] for step in rule["steps"] for change in step["change"].items()]
    problems = (_find_problem(name, how, params) for name, how in changes if not name.startswith(("@", "$")))
    yield from dict.fromkeys(each for each in problems if each is not None)


def _find_problem(name: str, how: object, params: Mapping[str, object]) -> ImpossibleChange | None:
    halves = how == HALVE or isinstance(how, Mapping)
    if name not in params:
        near = [other for other in params if is_near(name, other)]
        hint = f"Did you mean {' or '.join(near)}?" if near else ""
        if halves:
            text = f"a retry would halve {name}, and params has no {name}: no retry could follow."
            return ImpossibleChange(text, hint or "Add it to params with its present value, or leave the change out.")
        text = f"a retry would set {name}, and params has no {name}."
        return ImpossibleChange(text, hint) if hint else None
    value = params[name]
    if how == NEXT_PORT:
        is_port = "port" in _WORDS.split(name.lower())
        return None if is_port else ImpossibleChange(f"{name} holds no port.", 'Write "halve", or the new value.')
    if halves and not _is_number(value):
        return ImpossibleChange(f"a retry would halve {name}, which is {value!r}.", "Write its new value.")
    if not halves and isinstance(how, str) and _is_number(value) and not (_is_number(how) or how in _NO_NUMBERS):
        text = f"a retry would set {name}, which is {value!r} now, to {how!r}: not a number."
        return ImpossibleChange(text, 'Write a number, "halve", or {"halve": {"min": 64}}.')
    return None


def describe_halving(policy: Mapping[str, Any], params: Mapping[str, object]) -> tuple[str, bool]:
    """Return which parameter ``@batch`` would halve, or why none, and whether it could; empty without that change."""
    changes = [step["change"] for rule in policy["rules"] for step in rule["steps"]]
    if not any(BATCH in change for change in changes):
        return "", True
    names = list(_batch_params(params))
    name = next((each for each in names if halve_value(params[each]) is not None), None)
    if name is not None:
        return f"{BATCH} would halve {name} ({params[name]})", True
    cause = f"{names[0]} is {params[names[0]]}" if names else _NO_BATCH
    return f"{BATCH} can halve nothing ({cause}): the run would end instead of that retry", False


def is_near(name: str, other: str) -> bool:
    """Return whether ``name`` can only be a misspelling of ``other``, or is its last part: ``num_envs`` of a group."""
    last = other.rpartition(".")[2]
    is_plural = name.rstrip("s") == other.lstrip("-").rstrip("s")
    if sorted(name) == sorted(other.lstrip("-")) and len(name) > _FEWEST_SWAPPED:
        return True  # two letters changed places: `regoin`
    return is_plural or name in (last, last.lstrip("-")) or difflib.SequenceMatcher(None, name, other).ratio() >= _TYPO


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        try:
            value = float(value.replace("_", ""))
        except ValueError:
            return False
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _set(changes: ParameterChanges, name: str, value: object) -> None:
    before = f" {changes.params[name]} ->" if name in changes.params else ""
    changes.params[name] = value
    changes.descriptions.append(f"{name}{before} {value}")


def _halve(changes: ParameterChanges, name: str, least: float | None) -> None:
    """Halve one parameter. ``@batch`` halves the first batch size that can be halved."""
    names = list(_batch_params(changes.params)) if name == BATCH else [name] if name in changes.params else []
    if not names:
        raise ChangeImpossible(f"{_NO_BATCH if name == BATCH else f'params has no {name}'}. {_REMEDY}")
    for candidate in names:
        if (value := halve_value(changes.params[candidate], least)) is not None:
            _set(changes, candidate, value)
            return
    raise ChangeImpossible(f"{names[0]} is {changes.params[names[0]]}, and cannot be halved.")


def halve_value(value: object, least: float | None = None) -> object | None:
    """Return half of ``value``, or None where that is not smaller. Whole numbers stay whole, text stays text."""
    if isinstance(value, str):
        try:
            parsed = halve_value(float(value) if re.search(r"[.einEIN]", value) else int(value), least)
        except ValueError:
            return None
        return None if parsed is None else str(parsed)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    if value == int(value):
        new: int | float = max(int(value) // 2, 1, math.ceil(least or 1))
    else:
        new = max(value / 2, least or 0.0)
    return new if new < value else None


def _batch_params(params: Mapping[str, object]) -> Iterator[str]:
    """Yield the names of parameters that determine the batch size of training, the best candidate first."""
    plain = {name: "_".join(_WORDS.split(name.lower().lstrip("-").rpartition(".")[2])) for name in params}
    for part in _BATCHES:
        for name, text in plain.items():
            if part.search(text) and not _HELD_OUT.intersection(text.split("_")):
                yield name


def _taken_port(params: Mapping[str, object], env: Mapping[str, str], line: str, *, is_ray: bool) -> str:
    """Return whose port is taken: by ``line``, else the first parameter, else MASTER_PORT; of Ray its own."""
    numbers = set(re.findall(r"(?<![\d_.-])\d{2,5}(?![\d_-])", line))
    named = [name for name in params if "port" in _WORDS.split(name.lower())]
    variables = [name for name in env if name.endswith("PORT") and name not in params]
    for name, value in [*((n, params[n]) for n in named), *((n, env[n]) for n in variables)]:
        if str(value) in numbers:
            return name
    if is_ray:
        of_ray = [name for name in named if "ray" in _WORDS.split(name.lower())]
        carriers = [*of_ray, *(name for name in (_RAY_PORT,) if name in env)]
        if not carriers:
            raise ChangeImpossible(f"no parameter or variable holds Ray's port. {_RAY_REMEDY}")
        return carriers[0]
    return next(iter(named), _MASTER_PORT)


def move_ray(env: Mapping[str, str], former: int | None, port: int) -> dict[str, str]:
    """Return the other variables of a run's own Ray that hold its ``former`` port, with ``port`` instead."""
    if former is None:
        return {}
    number = re.compile(rf"(?<!\d){former}(?!\d)")
    names = ("RAY_ADDRESS", "RAY_NAMESPACE", "RLINF_NAMESPACE")
    return {name: number.sub(str(port), env[name]) for name in names if number.search(env.get(name, ""))}


def _next_directory(path: str) -> str:
    """Return a new name beside ``path``, ``/tmp/ray-7kqz-2``, which is not longer than Ray allows."""
    base, number = path.rstrip("/"), 2
    if (counted := re.fullmatch(r"(.*)-([2-9]|[1-9]\d)", base)) is not None:
        base, number = counted[1], int(counted[2]) + 1
    parent, slash, name = base.rpartition("/")
    room = LONGEST_RAY_DIRECTORY - len(f"{parent}{slash}-{number}")
    return f"{parent}{slash}{name[-max(room, 4) :]}-{number}"  # the end of the name is unique
