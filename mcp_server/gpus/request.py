"""The GPUs that a run requests, parsed from the words of a user. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from mcp_server.text.regex import compile_lazily

ALL = ("all",)
_MIG = "MIG-"  # begins the UUID of an instance, a part of a GPU
_FORMS = (
    'a count (2), indices or UUIDs ([4, 5], "4-7", ["GPU-8f3a"], ["MIG-8f3a"]), "all", "cpu", "cpu:2", ["cpu-0"], '
    'or "none"'
)
_MOST_NAMED = 1024
_NAME = compile_lazily(r"(?P<index>[0-9]{1,6})|(?P<uuid>(?:GPU|MIG)-[A-Za-z0-9._-]{1,96})|(?P<slot>cpu-[0-9]{1,6})")
_RANGE = compile_lazily(r"([0-9]{1,6})-([0-9]{1,6})")


@dataclass(frozen=True)
class GpuRequest:
    """``count`` GPUs, the GPUs named by ``ids``, or ``cpu`` slots, which ``ids`` may name as well.

    False when it requests nothing.
    """

    count: int = 0
    ids: tuple[str, ...] = ()
    cpu: int = 0

    def __bool__(self) -> bool:
        return bool(self.count or self.ids or self.cpu)

    @property
    def is_mig(self) -> bool:
        """Whether it names MIG instances, which have no indices."""
        return bool(self.ids) and self.ids[0].startswith(_MIG)

    @classmethod
    def from_json(cls, facts: object) -> GpuRequest | None:
        """Return the request of which ``facts`` is the JSON object (``asdict``), or None when it is something else."""
        if not isinstance(facts, dict):
            return None
        count, ids, cpu = facts.get("count"), facts.get("ids"), facts.get("cpu")
        if isinstance(count, int) and isinstance(ids, list) and isinstance(cpu, int):
            return cls(count, tuple(map(str, ids)), cpu)
        return None


@dataclass(frozen=True)
class Requirements:
    """Conditions for every GPU of a run.

    ``count``: at least so many GPUs must. ``no_strangers``: no process of another run or user computes on it.
    ``clock_confirmed``: a person has set the clock cap, which counts where the driver reports none.
    """

    free_memory_mib: int | None = None
    power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None
    count: int | None = None
    no_strangers: bool = True
    clock_confirmed: bool = False


def parse_gpus(gpus: int | str | Sequence[int | str] | None) -> GpuRequest | None:
    """Return the request that a user wrote as ``gpus``, or None when it is None.

    Raises:
        ValueError: ``gpus`` is not understood, or means a part of a GPU; the message lists what can be written.
    """
    if gpus is None:
        return None
    if isinstance(gpus, int) and not isinstance(gpus, bool):
        if gpus < 0:
            raise ValueError(f"{gpus} GPUs cannot be leased. Write {_FORMS}.")
        return GpuRequest(count=gpus)
    if isinstance(gpus, str):
        text = gpus.strip()
        if text == "none":
            return GpuRequest()
        if re.fullmatch(r"[0-9]{1,6}", text):
            return GpuRequest(count=int(text))
        if slots := re.fullmatch(r"cpu(?::([1-9][0-9]{0,5}))?", text):
            return GpuRequest(cpu=int(slots[1] or 1))
        return _parse_names(text.split(","))
    if isinstance(gpus, Sequence) and not isinstance(gpus, bytes):
        if any(isinstance(word, bool) or not isinstance(word, (int, str)) for word in gpus):
            raise ValueError(f"{gpus!r:.80} is not understood. Write {_FORMS}.")
        return _parse_names([str(word) for word in gpus]) if gpus else GpuRequest()
    raise ValueError(f"{gpus!r:.80} is not understood. Write {_FORMS}.")


def _parse_names(words: Sequence[str]) -> GpuRequest:
    ids: list[str] = []
    kinds: set[str] = set()
    for word in (word.strip() for word in words):
        if (span := _RANGE.fullmatch(word)) and 0 <= int(span[2]) - int(span[1]) < _MOST_NAMED:
            ids += map(str, range(int(span[1]), int(span[2]) + 1))
            kinds.add("gpu")
        elif name := _NAME.fullmatch(word):
            ids.append(str(int(word)) if name["index"] else f"cpu-{int(word[4:])}" if name["slot"] else word)
            kinds.add("cpu" if name["slot"] else "mig" if word.startswith(_MIG) else "gpu")
        elif len(words) == 1 and word == "all":
            return GpuRequest(ids=ALL)
        else:
            raise ValueError(f"{word[:80]!r} names no GPU. Write {_FORMS}.")
    if len(kinds) > 1:
        both = "GPUs or cpu slots" if "cpu" in kinds else "whole GPUs or MIG instances"
        raise ValueError(f"A run takes {both}, not both together.")
    if repeated := sorted({each for each in ids if ids.count(each) > 1}):
        raise ValueError(f"{', '.join(repeated[:8])} named twice.")
    return GpuRequest(ids=tuple(ids), cpu=len(ids) if kinds == {"cpu"} else 0)


def parse_requirements(facts: Mapping[str, object] | None) -> Requirements:
    """Return the requirements that a user wrote as ``require``; an unknown name is a ValueError that lists them."""
    values: dict[str, int | float | bool] = {}
    names = [field.name for field in fields(Requirements)]
    for name, value in (facts or {}).items():
        if name not in names:
            raise ValueError(f"{name!r:.80} is not known. There are {', '.join(names)}.")
        if name in ("no_strangers", "clock_confirmed"):
            if not isinstance(value, bool):
                raise ValueError(f"{name} is true or false, not {value!r:.80}.")
            values[name] = value
        elif value is not None:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{name} is a number above 0, not {value!r:.80}.")
            values[name] = float(value) if name == "power_limit_w" else math.ceil(value)
    return Requirements(**values)  # type: ignore[arg-type]  # checked by name above


def takes_several(request: GpuRequest | None) -> bool:
    """Return whether a launch requests more than one GPU, as far as its words say. ``all`` counts as several.

    MIG instances do not: they are parts of one.
    """
    if request is None or request.cpu or request.is_mig:
        return False
    return max(request.count, len(request.ids)) > 1 or request.ids == ALL


def tighten(requirements: Requirements, limits: Requirements) -> Requirements:
    """Return ``requirements`` with the lower power limit and the lower SM clock of both."""
    power = [each for each in (requirements.power_limit_w, limits.power_limit_w) if each is not None]
    clock = [each for each in (requirements.max_sm_clock_mhz, limits.max_sm_clock_mhz) if each is not None]
    return replace(requirements, power_limit_w=min(power, default=None), max_sm_clock_mhz=min(clock, default=None))


def confirm_clock(requirements: Requirements, limits: Requirements) -> Requirements:
    """Return ``requirements`` with a clock cap that ``limits`` confirm: a person wrote them for this host."""
    cap, wanted = limits.max_sm_clock_mhz, requirements.max_sm_clock_mhz
    is_confirmed = cap is not None and wanted is not None and cap <= wanted
    return replace(requirements, clock_confirmed=requirements.clock_confirmed or is_confirmed)


def may_compete(one: GpuRequest, other: GpuRequest) -> bool:
    """Return whether both requests could be met by the same GPU or slot. False when they name different ones."""
    if not one or not other or bool(one.cpu) != bool(other.cpu) or one.is_mig != other.is_mig:
        return False
    if not one.ids or not other.ids or ALL in (one.ids, other.ids):
        return True
    return any(_may_be_same(a, b) for a in one.ids for b in other.ids)


def _may_be_same(a: str, b: str) -> bool:
    if a.isdecimal() != b.isdecimal():  # the GPU of an index may have any UUID
        return True
    return a == b or (not a.startswith("cpu-") and not a.isdecimal() and (a.startswith(b) or b.startswith(a)))


# In a command, its parameters and its environment these are replaced by the UUIDs and the indices of the run's GPUs.
PLACEHOLDERS = ("{gpus}", "{gpu_indices}")
# The variables to which CUDA programs keep.
VISIBLE_DEVICES, DEVICE_ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"

# `${gpus}` is a variable of the shell.
_PLACEHOLDER = compile_lazily(r"(?<!\$)\{(?:gpus|gpu_indices)\}")
_INDICES = compile_lazily(r"(?<!\$)\{gpu_indices\}")
# These choose a GPU for rendering alone: the program still computes on the first that it sees.
_RENDERS = compile_lazily(r"EGL|RENDER|VK_|VULKAN|GLX")


def find_placeholder(text: str) -> str | None:
    """Return the first placeholder in ``text``, or None where it has none."""
    match = _PLACEHOLDER.search(text)
    return match[0] if match else None


def chooses_itself(
    command: str | Sequence[str], env: Mapping[str, str], params: Mapping[str, object], resume_args: Sequence[str]
) -> bool:
    """Return whether the program chooses its GPUs by the indices in its words, as in ``--device cuda:{gpu_indices}``.

    Where it sees only its own GPUs, ``cuda:2`` would be none of them, so nothing is pinned then. A variable that only
    selects the GPU for rendering does not count.
    """
    variables = (value for name, value in env.items() if not _RENDERS.search(name))
    words = [*_words(command), *variables, *map(str, params.values()), *resume_args]
    return any(_INDICES.search(word) for word in words)


def _words(command: str | Sequence[str]) -> Iterator[str]:
    if isinstance(command, str):
        yield command
    else:
        yield from command
