"""Which GPUs a run can have, and why not the others. Pure: a snapshot in, a choice or the reasons out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from mcp_server.gpus.request import ALL, Require, Wanted, compete, require, wanted
from mcp_server.gpus.snapshot import IDLE_MIB, Gpu, GpuProcess, Snapshot

__all__ = ["PLACES", "NoRoom", "Placed", "Require", "Wanted", "compete", "offer", "place", "place_slots", "require"]
__all__ += ["spans", "unfit", "wanted"]

# What a launch may write in its command and environment for the UUIDs and the indices that it gets.
PLACES = ("{gpus}", "{gpu_indices}")

_FAR = {"nvlink": 0, "pix": 1, "pxb": 2, "phb": 3, "node": 4, "sys": 5}
_UNKNOWN_FAR = 6
_MOST_COMBINATIONS = 13_000  # 8 of 16 are 12,870
_NEVER = ("no_driver", "no_permission")
# Those after which NVIDIA's catalogue asks for a reset; the application's own (13, 31, 43, 45) are not among them.
_RESET_XIDS = frozenset({48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143})
_ACTIONS = {"reboot": "needs a reboot of the machine", "drain_p2p": "needs its peers drained"}
# A GPU that does not tell these cannot be known to be free.
_NEEDED = (
    *("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"),
    *("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses"),
)
_SLACK_W = 0.5  # drivers tell limits in milliwatts


@dataclass(frozen=True)
class Placed:
    """The GPUs or slots that can be had, in ascending order of their indices."""

    uuids: tuple[str, ...]
    indices: tuple[int, ...]


@dataclass(frozen=True)
class NoRoom:
    """Why there are none; ``never``: waiting cannot help."""

    text: str
    never: bool = False


def unfit(gpu: Gpu, holder: str | None, require: Require, run_id: str = "") -> list[str]:
    """Return why this GPU cannot be had, in words, with the remedy where a person has one; empty: it can.

    ``holder`` is who has leased it, e.g. ``cfm-7kqz (mz) since 14:02``. Processes of ``run_id`` are no strangers.
    """
    if gpu.lost:
        return ["lost: it has fallen off the bus, and a person should reset it or reboot"]
    if gpu.hangs:
        return ["hangs: the driver does not answer for it"]
    reasons = [f"leased by {holder}"] if holder else []
    if not gpu.uuid or gpu.uuid.startswith("index:"):
        reasons.append("its UUID is not told")
    failed = (gpu.failed or {}).items()
    needed = [(call, error) for call, error in failed if call.startswith(_NEEDED)]
    reasons += [f"{call} fails: {error}" for call, error in needed if error not in ("unsupported", "hangs")]
    if trouble := _trouble(gpu):
        reasons.append(trouble)
    if gpu.mig:
        reasons.append(f"MIG is on: {_type(gpu, '-mig 0')}")
    if gpu.compute_mode == "prohibited":
        reasons.append(f"its compute mode is prohibited: {_type(gpu, '-c DEFAULT')}")
    if require.no_strangers:
        reasons += _strangers(gpu, run_id)
    elif gpu.compute_mode == "exclusive_process" and _computing(gpu, run_id):
        reasons.append(f"its compute mode lets in one process only: {_type(gpu, '-c DEFAULT')}")
    return reasons + _unmet(gpu, require, run_id)


def _type(gpu: Gpu, words: str) -> str:
    return f"a person should type: sudo nvidia-smi -i {gpu.index} {words}"


def _trouble(gpu: Gpu) -> str | None:
    """Return the hardware trouble that a reset, or less than a training, would cure. The driver's own verdict first."""
    action = gpu.recovery_action
    if action in _ACTIONS:
        return _ACTIONS[action]
    xids = [xid for xid in gpu.xids if xid in _RESET_XIDS]
    if action in ("reset", "drain_reset"):
        why = ""
    elif gpu.remap_failed:
        return "row remapping has failed: it needs service"
    elif gpu.remap_pending or gpu.retirement_pending:
        why = " (bad memory waits to be set aside)"
    elif action is None and xids:
        why = f" (Xid {xids[0]})"
    else:
        return None
    return f"needs a reset{why}: {_type(gpu, '--gpu-reset')}"


def _computing(gpu: Gpu, run_id: str) -> list[GpuProcess]:
    others = [p for p in gpu.processes if not p.graphics and not (run_id and p.run_id == run_id)]
    return sorted(others, key=lambda p: (-(p.memory_mib or 0), p.pid))


def _strangers(gpu: Gpu, run_id: str) -> list[str]:
    reasons = []
    if others := _computing(gpu, run_id):
        p = others[0]
        who = f"{p.command or 'a process'} of {p.user or 'somebody not visible here'}"
        uses = f"uses {p.memory_mib:,} MiB" if p.memory_mib is not None else "uses it"
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        reasons.append(f"{who} {uses} (pid {p.pid}){more}")
    if (unseen := gpu.memory_unseen_mib or 0) > IDLE_MIB:
        reasons.append(f"{unseen:,} MiB are held by nobody visible")
    return reasons


def _unmet(gpu: Gpu, require: Require, run_id: str) -> list[str]:
    reasons = []
    if (needed := require.free_memory_mib) is not None:
        own = sum(p.memory_mib or 0 for p in gpu.processes if run_id and p.run_id == run_id)
        free = gpu.memory_free_mib
        if free is None:
            reasons.append(f"free memory is not told, {needed:,} MiB required")
        elif free + own < needed:
            reasons.append(f"{free + own:,} MiB free, {needed:,} MiB required")
    if (most_w := require.power_limit_w) is not None:
        limit = "not told" if gpu.power_limit_w is None else f"{gpu.power_limit_w:g} W"
        if gpu.power_limit_w is None or gpu.power_limit_w > most_w + _SLACK_W:
            reasons.append(f"power limit {limit}, at most {most_w:g} W required: {_type(gpu, f'-pl {most_w:g}')}")
    if (most_mhz := require.max_sm_clock_mhz) is not None:
        # No driver tells a clock that was locked; what the hardware could do is no cap. It is watched while it runs.
        capped = gpu.sm_clock_cap_mhz if gpu.sm_clock_cap_mhz != gpu.sm_clock_max_mhz else None
        seen = gpu.sm_clock_mhz if capped is None else capped
        if seen is not None and seen > most_mhz:
            remedy = _type(gpu, f"-lgc 0,{most_mhz}")
            reasons.append(f"SM clock {seen:,} MHz, at most {most_mhz:,} MHz required: {remedy}")
    return reasons


def offer(
    snapshot: Snapshot, slots: int, held: Mapping[str, str], wanted: Wanted, require: Require, run_id: str = ""
) -> Placed | NoRoom:
    """Choose GPUs of ``snapshot``, or of the ``slots`` cpu slots, whichever is wanted."""
    return place_slots(slots, held, wanted) if wanted.cpu else place(snapshot, held, wanted, require, run_id)


def place(
    snapshot: Snapshot, held: Mapping[str, str], wanted: Wanted, require: Require, run_id: str = ""
) -> Placed | NoRoom:
    """Choose GPUs. ``held``: by UUID, who has leased it.

    A count is met by GPUs of one model: the closest to each other, as far as the links are known, then those with most
    free memory, then the lowest indices.
    """
    if not wanted:
        return Placed((), ())
    if snapshot.trouble:
        text = snapshot.text or f"the driver tells of no GPUs ({snapshot.trouble})"
        return NoRoom(text, never=snapshot.trouble in _NEVER)
    gpus = sorted(snapshot.gpus, key=lambda gpu: gpu.index)
    asked = _asked(snapshot, gpus, wanted, require)
    if isinstance(asked, NoRoom):
        return asked
    why = {gpu.index: "; ".join(unfit(gpu, held.get(gpu.uuid), require, run_id)) for gpu in asked}
    fit = [gpu for gpu in asked if not why[gpu.index]]
    needed = max(wanted.count or len(asked), require.count or 0)
    if len(fit) < needed:
        return NoRoom(f"{_gpus(needed)} asked for, {len(fit)} can be had. {_clauses(why)}.")
    if not wanted.count:
        return _placed(fit)
    models = [[gpu for gpu in fit if gpu.name == name] for name in dict.fromkeys(gpu.name for gpu in fit)]
    choices = [_closest(model, wanted.count) for model in models if len(model) >= wanted.count]
    if not choices:
        return NoRoom(f"{_gpus(needed)} of one model asked for, fewer can be had. {_clauses(why)}.")
    return _placed(min(choices, key=_worth))


def _asked(snapshot: Snapshot, gpus: list[Gpu], wanted: Wanted, require: Require) -> list[Gpu] | NoRoom:
    """Return the GPUs among which to choose, or those that were named."""
    needed = max(wanted.count, require.count or 0, 1)
    if len(gpus) < needed:
        return NoRoom(f"{_gpus(needed)} asked for, and this machine has {len(gpus)}.", never=True)
    if wanted.count:
        most = max(sum(other.name == gpu.name for other in gpus) for gpu in gpus)
        text = f"{_gpus(wanted.count)} of one model asked for, and this machine has {most}: name those to use together."
        return NoRoom(text, never=True) if wanted.count > most else gpus
    if wanted.ids == ALL:
        return gpus
    named = {word: snapshot.find(word) for word in wanted.ids}
    if unknown := [word for word, gpu in named.items() if gpu is None]:
        have = ", ".join(f"{gpu.index}" for gpu in gpus)
        return NoRoom(f"No GPU, or more than one, is {', '.join(unknown[:8])}. There are {have}.", never=True)
    found = {gpu.index: gpu for gpu in named.values() if gpu is not None}
    if len(found) < len(named):
        return NoRoom(f"A GPU is named twice: {', '.join(wanted.ids[:16])}.", never=True)
    return [found[index] for index in sorted(found)]


def place_slots(slots: int, held: Mapping[str, str], wanted: Wanted) -> Placed | NoRoom:
    """Choose cpu slots out of ``slots``, the lowest numbers first."""
    named = tuple(int(word.removeprefix("cpu-")) for word in wanted.ids)
    if wanted.cpu > slots or max(named, default=0) >= slots:
        asked = ", ".join(wanted.ids) or f"{wanted.cpu} cpu slots"
        return NoRoom(f"{asked} asked for, and this machine has {slots} cpu slots.", never=True)
    why = {n: f"leased by {held[f'cpu-{n}']}" if f"cpu-{n}" in held else "" for n in named or range(slots)}
    free = sorted(number for number, reason in why.items() if not reason)[: wanted.cpu]
    if len(free) < wanted.cpu:
        return NoRoom(f"{wanted.cpu} cpu slots asked for, {len(free)} can be had. {_clauses(why)}.")
    return Placed(tuple(f"cpu-{number}" for number in free), tuple(free))


def _placed(gpus: Iterable[Gpu]) -> Placed:
    chosen = sorted(gpus, key=lambda gpu: gpu.index)
    return Placed(tuple(gpu.uuid for gpu in chosen), tuple(gpu.index for gpu in chosen))


def _closest(gpus: list[Gpu], count: int) -> Sequence[Gpu]:
    """Return the ``count`` of ``gpus`` that are worth most together; of very many the best found from each one on."""
    if count == 1 or not any(gpu.near for gpu in gpus):
        return sorted(gpus, key=lambda gpu: _worth([gpu]))[:count]
    if math.comb(len(gpus), count) <= _MOST_COMBINATIONS:
        return min(combinations(gpus, count), key=_worth)
    return min((_around(gpu, gpus, count) for gpu in gpus), key=_worth)


def _around(first: Gpu, gpus: list[Gpu], count: int) -> list[Gpu]:
    distance: Callable[[Gpu], tuple[int, int]] = lambda gpu: (0 if gpu is first else 1 + _far(first, gpu), gpu.index)  # noqa: E731
    return sorted(gpus, key=distance)[:count]


def _worth(gpus: Iterable[Gpu]) -> tuple[int, int, int, list[int]]:
    """Return a key by which the best set comes first. Free memory in GiB: idle GPUs differ by a few MiB."""
    gpus = list(gpus)
    distances = [_far(a, b) for a, b in combinations(gpus, 2)]
    free_gib = sum((gpu.memory_free_mib or 0) // 1024 for gpu in gpus)
    return max(distances, default=0), sum(distances), -free_gib, sorted(gpu.index for gpu in gpus)


def _far(a: Gpu, b: Gpu) -> int:
    link = (a.near or {}).get(b.uuid) or (b.near or {}).get(a.uuid) or ""
    return _FAR.get(link, _UNKNOWN_FAR)


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _clauses(why: Mapping[int, str]) -> str:
    """Return one clause a reason, e.g. ``0-3: leased by …; 5: lost; free: 4``."""
    indices: dict[str, list[int]] = {}
    for index in sorted(why):
        indices.setdefault(why[index], []).append(index)
    free = indices.pop("", [])
    told = [f"{spans(found)}: {reason}" for reason, found in indices.items()]
    return "; ".join(told + ([f"free: {spans(free)}"] if free else []))


def spans(numbers: Iterable[int]) -> str:
    """Return ascending numbers compactly: ``0-3, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
