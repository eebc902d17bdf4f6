"""Whether a machine's GPUs are fit to train on: what is wrong, what a person can do, and which are free. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcp_server.gpus.placement import Require, spans, unfit
from mcp_server.gpus.snapshot import IDLE_MIB, Gpu, Snapshot
from mcp_server.gpus.xid import BY_PROGRAM, MENDED, meaning

_NEAR_LIMIT_C = 3
_NOTHING = Require()
# First match wins: the general slowdown is set together with its cause. A power cap, synchronised and set clocks are
# how a machine is run.
_SLOWED = (
    ("hw_thermal", "too hot, and its hardware slows it down (hw_thermal): a person should look at its cooling"),
    ("thermal", "too hot, and slowed down (thermal): a person should look at its cooling"),
    ("power_brake", "slowed down by the machine's power supply (power_brake): a person should look at it"),
    ("hw_slowdown", "slowed down by its hardware (hw_slowdown): a person should look at its power and cooling"),
)
_CURES = {48: "reset", 62: "reset", 64: "reset", 79: "reset or reboot", 95: "reset", 119: "reset", 120: "reset"}


@dataclass(frozen=True)
class Verdict:
    """``ok``: what was asked can be had, or where nothing was asked: one is free and nothing is wrong.

    ``free``: UUIDs that can be had now, as required. ``reasons`` also tell what is only worth knowing.
    """

    ok: bool
    reasons: tuple[str, ...]
    free: tuple[str, ...]


def judge(snapshot: Snapshot, held: Mapping[str, str], require: Require | None = None) -> Verdict:
    """Judge the GPUs of ``snapshot``; ``held`` says by UUID who has leased one."""
    if not snapshot.gpus:
        return Verdict(False, ("There is no GPU: the driver answers, and tells of none.",), ())
    bad = {gpu.index: trouble(gpu) for gpu in snapshot.gpus}
    why = {gpu.index: unfit(gpu, held.get(gpu.uuid), require or _NOTHING) for gpu in snapshot.gpus}
    free = tuple(gpu.uuid for gpu in snapshot.gpus if not why[gpu.index])
    needed = (require.count if require else None) or 1
    enough = len(free) >= needed
    ok = enough and (require is not None or not any(bad.values()))
    found = {index: list(words) for index, words in bad.items()}
    if not enough:
        for gpu in snapshot.gpus:
            if not gpu.hangs:  # which is told with where
                found[gpu.index] += [word for word in why[gpu.index] if not _is_told(word, bad[gpu.index])]
    for gpu in snapshot.gpus:
        found[gpu.index] += notes(gpu)
    lacking = [] if enough else [f"{len(free)} of {len(snapshot.gpus)} GPUs can be had, {needed} wanted."]
    return Verdict(ok, (*lacking, *_merged(found)), free)


def trouble(gpu: Gpu) -> list[str]:
    """Return what is wrong with a GPU, whoever uses it, and what a person can do."""
    if gpu.lost:
        return unfit(gpu, None, _NOTHING)
    if gpu.hangs:
        calls = ", ".join(name for name, error in (gpu.failed or {}).items() if error == "hangs")
        return [f"hangs in {calls}: the driver does not answer; a person should look at dmesg, and reboot"]
    found = unfit(replace(gpu, processes=(), memory_used_mib=None), None, _NOTHING)
    found += [failure for failure in _failures(gpu) if failure not in found]
    if (unseen := gpu.memory_unseen_mib or 0) > IDLE_MIB:
        found.append(
            f"{unseen:,} MiB are held by nobody visible: by another container, or by what a dead process left; "
            "a person should look with: sudo fuser -v /dev/nvidia*"
        )
    found += [text for name, text in _SLOWED if name in gpu.throttle][:1]
    if _is_hot(gpu) and not {"thermal", "hw_thermal"} & {*gpu.throttle}:
        limit = f"slows down at {gpu.temperature_limit_c} C"
        found.append(f"{gpu.temperature_c} C, {limit}: a person should look at its cooling")
    if gpu.ecc_uncorrected:
        errors = f"{gpu.ecc_uncorrected} uncorrected ECC errors since the driver was loaded"
        found.append(f"{errors}: results may be wrong; a person should reset it, and replace it if they return")
    return found + [_xid(number) for number in gpu.xids if number not in BY_PROGRAM | MENDED]


def notes(gpu: Gpu) -> list[str]:
    """Return what is worth knowing of a GPU, and nothing to be done about."""
    return [
        f"Xid {number} ({meaning(number)}): "
        + ("a program's own doing, the GPU is fit" if number in BY_PROGRAM else "it mends itself")
        for number in gpu.xids
        if number in BY_PROGRAM | MENDED
    ]


def _xid(number: int) -> str:
    return f"Xid {number} ({meaning(number)}): the hardware's doing; a person should {_CURES.get(number, 'look at it')}"


def _is_hot(gpu: Gpu) -> bool:
    if gpu.temperature_c is None or not gpu.temperature_limit_c:
        return False
    return gpu.temperature_c >= gpu.temperature_limit_c - _NEAR_LIMIT_C


def _failures(gpu: Gpu) -> list[str]:
    failed = (gpu.failed or {}).items()
    return [f"{name} fails: {error}" for name, error in failed if error not in ("unsupported", "hangs")]


def _is_told(word: str, told: list[str]) -> bool:
    return any(text.startswith(word) for text in told)


def _merged(found: Mapping[int, list[str]]) -> list[str]:
    """Return one sentence a reason, e.g. ``GPU 0-3: leased by …``."""
    indices: dict[str, list[int]] = {}
    for index, words in sorted(found.items()):
        for word in words:
            indices.setdefault(word, []).append(index)
    return [f"GPU {spans(told)}: {word}." for word, told in indices.items()]
