"""Which GPUs a run can use, and why it cannot use the others. Pure: a snapshot in, a choice or the reasons out.

GPUs above a required power limit or SM clock, in one line for all of them, with the commands for a person. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from mcp_server.gpus.request import ALL, GpuRequest, Requirements
from mcp_server.gpus.snapshot import IDLE_MIB, Gpu, GpuProcess, Snapshot, shorten_uuid
from mcp_server.gpus.xid import describe_xid, worst_xid
from mcp_server.text.formatting import join_ranges

_DISTANCES = {"nvlink": 0, "pix": 1, "pxb": 2, "phb": 3, "node": 4, "sys": 5}
_UNKNOWN_DISTANCE = 6
_MOST_INSTANCES = 8  # named in a refusal
_MOST_COMBINATIONS = 13_000  # 8 of 16 are 12,870
_NEVER = ("no_driver", "no_permission")
# Without these values it is unknown whether a GPU is free.
_NEEDED = (
    *("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"),
    *("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses"),
)
_SLACK_W = 0.5  # drivers report limits in milliwatts


@dataclass(frozen=True)
class Placement:
    """The GPUs or slots chosen for a run, in ascending order of their indices."""

    uuids: tuple[str, ...]
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Unavailable:
    """Why the requested GPUs or slots are not available. ``never``: waiting cannot help.

    ``detail``: why each GPU is not, in one clause for those that have the same obstacle. ``remedy``: what a person
    should do where settings of the machine are in the way: then waiting helps only once he has done it.
    """

    cause: str
    never: bool = False
    detail: str = ""
    remedy: str = ""

    @property
    def text(self) -> str:
        """The cause and the detail."""
        return f"{self.cause} {self.detail}." if self.detail else self.cause


def find_obstacles(gpu: Gpu, holder: str | None, requirements: Requirements, run_id: str = "") -> list[str]:
    """Return why a run cannot use this GPU, with the remedy where a person has one, or empty when it can.

    A power limit or clock above the required one is not among them: ``find_excess`` names those of all GPUs together.

    ``holder``: who has leased the GPU, e.g. ``cfm-7kqz (mz) since 14:02``. Processes of ``run_id`` are not strangers.
    """
    if gpu.lost:
        return ["lost: it has fallen off the bus, and a person should reset it or reboot"]
    if gpu.hangs:
        return ["hangs: the driver does not answer for it"]
    obstacles = [f"leased by {holder}"] if holder else []
    if not gpu.uuid or gpu.uuid.startswith("index:"):
        obstacles.append("its UUID is unknown")
    failed = (gpu.failed or {}).items()
    needed = [(call, error) for call, error in failed if call.startswith(_NEEDED)]
    obstacles += [f"{call} fails: {error}" for call, error in needed if error not in ("unsupported", "hangs")]
    if recovery := _needed_recovery(gpu):
        obstacles.append(recovery)
    if gpu.mig:
        names = ", ".join(shorten_uuid(each.uuid, [other.uuid for other in gpu.instances]) for each in gpu.instances)
        instead = f"request its instances by UUID: {names}" if names else _advise(gpu, "-mig 0")
        obstacles.append(f"MIG is on: {instead}")
    if gpu.compute_mode == "prohibited":
        obstacles.append(f"its compute mode is prohibited: {_advise(gpu, '-c DEFAULT')}")
    if requirements.no_strangers:
        obstacles += _find_strangers(gpu, run_id)
    elif gpu.compute_mode == "exclusive_process" and _computing_processes(gpu, run_id):
        obstacles.append(f"its compute mode lets in one process only: {_advise(gpu, '-c DEFAULT')}")
    return obstacles + _unmet_requirements(gpu, requirements, run_id)


def _advise(gpu: Gpu, options: str) -> str:
    return f"a person should run: sudo nvidia-smi -i {gpu.index} {options}"


def _needed_recovery(gpu: Gpu) -> str | None:
    """Return what a faulty GPU needs before its next use; None when it needs nothing.

    The driver's own recovery action counts first. Xids count only for drivers that do not report one.
    """
    action, why = gpu.recovery_action, ""
    if action is None and (xid := worst_xid(gpu.xids)) is not None:
        action, why = describe_xid(xid).recovery, f" (Xid {xid})"
    if action == "reboot":
        return f"needs a reboot of the machine{why}"
    if action == "drain_p2p":
        return "needs its peers drained"
    if gpu.recovery_action not in ("reset", "drain_reset"):
        if gpu.remap_failed:
            return "row remapping has failed: it needs service"
        if gpu.remap_pending or gpu.retirement_pending:
            action, why = "reset", " (bad memory is still in use)"
    return f"needs a reset{why}: {_advise(gpu, '--gpu-reset')}" if action in ("reset", "drain_reset") else None


def _computing_processes(gpu: Gpu, run_id: str) -> list[GpuProcess]:
    others = [p for p in gpu.processes if not p.graphics and not (run_id and p.run_id == run_id)]
    return sorted(others, key=lambda p: (-(p.memory_mib or 0), p.pid))


def _find_strangers(gpu: Gpu, run_id: str) -> list[str]:
    reasons = []
    if others := _computing_processes(gpu, run_id):
        p = others[0]
        who = f"{p.command or 'a process'} of {p.user or 'a user not visible here'}"
        uses = f"uses {p.memory_mib:,} MiB" if p.memory_mib is not None else "uses it"
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        reasons.append(f"{who} {uses} (pid {p.pid}){more}")
    if (unattributed := gpu.memory_unattributed_mib or 0) > IDLE_MIB:
        reasons.append(f"{unattributed:,} MiB are used by no visible process")
    return reasons


def _unmet_requirements(gpu: Gpu, requirements: Requirements, run_id: str) -> list[str]:
    reasons = []
    if (needed := requirements.free_memory_mib) is not None:
        own = sum(p.memory_mib or 0 for p in gpu.processes if run_id and p.run_id == run_id)
        free = gpu.memory_free_mib
        if free is None:
            reasons.append(f"free memory is unknown, {needed:,} MiB required")
        elif free + own < needed:
            reasons.append(f"{free + own:,} MiB free, {needed:,} MiB required")
    return reasons


def choose_devices(
    snapshot: Snapshot,
    slots: int,
    holders: Mapping[str, str],
    request: GpuRequest,
    requirements: Requirements,
    run_id: str = "",
) -> Placement | Unavailable:
    """Choose GPUs of ``snapshot``, or some of the ``slots`` cpu slots, as ``request`` says. See ``choose_gpus``."""
    if request.cpu:
        return choose_slots(slots, holders, request)
    return choose_gpus(snapshot, holders, request, requirements, run_id)


def choose_gpus(
    snapshot: Snapshot, holders: Mapping[str, str], request: GpuRequest, requirements: Requirements, run_id: str = ""
) -> Placement | Unavailable:
    """Choose GPUs. ``holders``: who has leased a GPU, by its UUID.

    A count is met by GPUs of one model: the closest to each other, as far as the links are known, then those with most
    free memory, then the lowest indices.
    """
    if not request:
        return Placement((), ())
    if snapshot.trouble:
        text = snapshot.text or f"the driver reports no GPUs ({snapshot.trouble})"
        return Unavailable(text, never=snapshot.trouble in _NEVER)
    if request.is_mig:
        return _choose_instances(snapshot, holders, request, requirements, run_id)
    gpus = sorted(snapshot.gpus, key=lambda gpu: gpu.index)
    candidates = _find_candidates(snapshot, gpus, request, requirements)
    if isinstance(candidates, Unavailable):
        return candidates
    obstacles = {
        gpu.index: "; ".join(find_obstacles(gpu, holders.get(gpu.uuid), requirements, run_id)) for gpu in candidates
    }
    excess = find_excess(candidates, requirements)
    free = [gpu for gpu in candidates if not obstacles[gpu.index] and gpu.index not in excess.indices]
    needed = max(request.count or len(candidates), requirements.count or 0)
    if len(free) < needed:
        cause = f"{_count_gpus(needed)} requested, {len(free)} available."
        return Unavailable(cause, detail=_list_obstacles(obstacles, excess), remedy=excess.remedy)
    if not request.count:
        return _make_placement(free)
    models = [[gpu for gpu in free if gpu.name == name] for name in dict.fromkeys(gpu.name for gpu in free)]
    choices = [_choose_closest(model, request.count) for model in models if len(model) >= request.count]
    if not choices:
        cause = f"{_count_gpus(needed)} of one model requested, fewer available: {_name_together(free, needed)}."
        return Unavailable(cause, detail=_list_obstacles(obstacles, excess), remedy=excess.remedy)
    return _make_placement(min(choices, key=_rank))


def _choose_instances(
    snapshot: Snapshot, holders: Mapping[str, str], request: GpuRequest, requirements: Requirements, run_id: str
) -> Placement | Unavailable:
    pairs = {name: snapshot.find_instance(name) for name in request.ids}
    if unknown := [name for name, pair in pairs.items() if pair is None]:
        known = [instance.uuid for gpu in snapshot.gpus for instance in gpu.instances]
        there = f"There are {', '.join(known[:_MOST_INSTANCES])}" if known else "This machine has no MIG instances"
        return Unavailable(f"No MIG instance, or more than one, is {', '.join(unknown[:8])}. {there}.", never=True)
    instances = [pair for pair in pairs.values() if pair is not None]
    uuids = tuple(instance.uuid for _, instance in instances)
    if len(set(uuids)) < len(uuids):
        return Unavailable(f"A MIG instance is named twice: {', '.join(request.ids[:16])}.", never=True)
    obstacles = {
        each.uuid: find_instance_obstacles(gpu, each, holders, requirements, run_id) for gpu, each in instances
    }
    excess = find_excess({gpu.uuid: gpu for gpu, _ in instances}.values(), requirements)
    if not any(obstacles.values()) and not excess.text:
        return Placement(uuids, ())
    free = sum(not obstacles[each.uuid] and gpu.index not in excess.indices for gpu, each in instances)
    details = [f"{shorten_uuid(uuid, uuids)}: {'; '.join(texts)}" for uuid, texts in obstacles.items() if texts]
    details += [f"GPU {excess.text}"] if excess.text else []
    cause = f"{len(instances)} MIG instance{'s' * (len(instances) > 1)} requested, {free} available."
    return Unavailable(cause, detail="; ".join(details), remedy=excess.remedy)


def find_instance_obstacles(
    gpu: Gpu, instance: Gpu, holders: Mapping[str, str], requirements: Requirements, run_id: str = ""
) -> list[str]:
    """Return why a run cannot use a MIG instance of ``gpu``: what is wrong with its GPU, then what with itself."""
    whole = replace(gpu, mig=False, processes=(), memory_used_mib=None)
    of_gpu = [f"GPU {gpu.index}: {text}" for text in find_obstacles(whole, holders.get(gpu.uuid), Requirements())]
    return of_gpu or find_obstacles(instance, holders.get(instance.uuid), requirements, run_id)


def _find_candidates(
    snapshot: Snapshot, gpus: list[Gpu], request: GpuRequest, requirements: Requirements
) -> list[Gpu] | Unavailable:
    """Return the named GPUs; for a count all GPUs, among which to choose."""
    needed = max(request.count, requirements.count or 0, 1)
    if len(gpus) < needed:
        return Unavailable(f"{_count_gpus(needed)} requested, and this machine has {len(gpus)}.", never=True)
    if request.count:
        most = max(sum(other.name == gpu.name for other in gpus) for gpu in gpus)
        count = _count_gpus(request.count)
        together = _name_together(gpus, request.count)
        text = f"{count} of one model requested, and this machine has {most}: {together}."
        return Unavailable(text, never=True) if request.count > most else gpus
    if request.ids == ALL:
        return gpus
    matches = {name: snapshot.find_gpu(name) for name in request.ids}
    if unknown := [name for name, gpu in matches.items() if gpu is None]:
        indices = ", ".join(f"{gpu.index}" for gpu in gpus)
        return Unavailable(f"No GPU, or more than one, is {', '.join(unknown[:8])}. There are {indices}.", never=True)
    named = {gpu.index: gpu for gpu in matches.values() if gpu is not None}
    if len(named) < len(matches):
        return Unavailable(f"A GPU is named twice: {', '.join(request.ids[:16])}.", never=True)
    return [named[index] for index in sorted(named)]


def describe_availability(
    snapshot: Snapshot, holders: Mapping[str, str], requirements: Requirements | None = None
) -> str:
    """Return which GPUs are free, and why the others are not: ``2-3: leased by …; free: 0-1``.

    A GPU above a limit of ``requirements`` is not free for a run with them.
    """
    required = requirements or Requirements()
    obstacles = {gpu.index: "; ".join(find_obstacles(gpu, holders.get(gpu.uuid), required)) for gpu in snapshot.gpus}
    return _list_obstacles(obstacles, find_excess(snapshot.gpus, required))


def choose_slots(slots: int, holders: Mapping[str, str], request: GpuRequest) -> Placement | Unavailable:
    """Choose cpu slots out of ``slots``, the lowest numbers first."""
    named = tuple(int(word.removeprefix("cpu-")) for word in request.ids)
    if request.cpu > slots or max(named, default=0) >= slots:
        words = ", ".join(request.ids) or f"{request.cpu} cpu slots"
        return Unavailable(f"{words} requested, and this machine has {slots} cpu slots.", never=True)
    obstacles = {n: f"leased by {holders[f'cpu-{n}']}" if f"cpu-{n}" in holders else "" for n in named or range(slots)}
    free = sorted(number for number, obstacle in obstacles.items() if not obstacle)[: request.cpu]
    if len(free) < request.cpu:
        cause = f"{request.cpu} cpu slot{'s' * (request.cpu > 1)} requested, {len(free)} available."
        return Unavailable(cause, detail=_list_obstacles(obstacles, prefix="cpu-"))
    return Placement(tuple(f"cpu-{number}" for number in free), tuple(free))


def _make_placement(gpus: Iterable[Gpu]) -> Placement:
    chosen = sorted(gpus, key=lambda gpu: gpu.index)
    return Placement(tuple(gpu.uuid for gpu in chosen), tuple(gpu.index for gpu in chosen))


def _choose_closest(gpus: list[Gpu], count: int) -> Sequence[Gpu]:
    """Return the best ``count`` of ``gpus`` by ``_rank``; of very many the best set around one of them."""
    if count == 1 or not any(gpu.near for gpu in gpus):
        return sorted(gpus, key=lambda gpu: _rank([gpu]))[:count]
    if math.comb(len(gpus), count) <= _MOST_COMBINATIONS:
        return min(combinations(gpus, count), key=_rank)
    return min((_choose_around(gpu, gpus, count) for gpu in gpus), key=_rank)


def _choose_around(first: Gpu, gpus: list[Gpu], count: int) -> list[Gpu]:
    def key(gpu: Gpu) -> tuple[int, int]:
        return (0 if gpu is first else 1 + _distance(first, gpu), gpu.index)

    return sorted(gpus, key=key)[:count]


def _rank(gpus: Iterable[Gpu]) -> tuple[int, int, int, list[int]]:
    """Return a sort key, the best set first. Free memory counts in GiB: idle GPUs differ by a few MiB."""
    gpus = list(gpus)
    distances = [_distance(a, b) for a, b in combinations(gpus, 2)]
    free_gib = sum((gpu.memory_free_mib or 0) // 1024 for gpu in gpus)
    return max(distances, default=0), sum(distances), -free_gib, sorted(gpu.index for gpu in gpus)


def _distance(a: Gpu, b: Gpu) -> int:
    link = (a.near or {}).get(b.uuid) or (b.near or {}).get(a.uuid) or ""
    return _DISTANCES.get(link, _UNKNOWN_DISTANCE)


def _count_gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _name_together(gpus: Sequence[Gpu], count: int) -> str:
    indices = ", ".join(f"{gpu.index}" for gpu in gpus[:count])
    return f"name those to use together, e.g. gpus=[{indices}]"


def _list_obstacles(obstacles: Mapping[int, str], excess: Excess | None = None, prefix: str = "") -> str:
    """Return one clause an obstacle, e.g. ``0-3: leased by …; 5: lost; free: 4``."""
    indices: dict[str, list[int]] = {}
    for index in sorted(obstacles):
        indices.setdefault(obstacles[index], []).append(index)
    free = [index for index in indices.pop("", []) if excess is None or index not in excess.indices]
    clauses = [f"{join_ranges(numbers, prefix)}: {obstacle}" for obstacle, numbers in indices.items()]
    clauses += [excess.text] if excess and excess.text else []
    return "; ".join(clauses + ([f"free: {join_ranges(free, prefix)}"] if free else []))


@dataclass(frozen=True)
class Excess:
    """The GPUs above the limits of ``requirements``, by index. None: no limit is reported, so it is not known."""

    requirements: Requirements
    power_w: Mapping[int, float | None] = field(default_factory=dict)
    clock_mhz: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def indices(self) -> frozenset[int]:
        """Indices of the GPUs above a limit."""
        return frozenset((*self.power_w, *self.clock_mhz))

    @property
    def text(self) -> str:
        """What is exceeded: ``0-3: power limit 300 W, at most 275 W required``, or empty where nothing is."""
        clauses = []
        if self.power_w:
            seen = _describe(self.power_w.values(), "W", "unknown")
            most = f"at most {self.requirements.power_limit_w:g} W required"
            clauses.append((tuple(self.power_w), f"power limit {seen}, {most}"))
        if self.clock_mhz:
            most = f"at most {self.requirements.max_sm_clock_mhz:,} MHz required"
            seen = _describe(self.clock_mhz.values(), "MHz", "unknown (no cap is reported)")
            clauses.append((tuple(self.clock_mhz), f"SM clock {seen}, {most}"))
        if len(clauses) > 1 and clauses[0][0] == clauses[1][0]:
            clauses = [(clauses[0][0], ", ".join(text for _, text in clauses))]
        return "; ".join(f"{join_ranges(indices)}: {text}" for indices, text in clauses)

    @property
    def remedy(self) -> str:
        """The commands that a person should run, as one sentence, or empty where nothing is exceeded."""
        commands = []
        if self.power_w:
            commands.append(f"sudo nvidia-smi -i {_list(self.power_w)} -pl {self.requirements.power_limit_w:g}")
        if self.clock_mhz:
            commands.append(f"sudo nvidia-smi -i {_list(self.clock_mhz)} -lgc 0,{self.requirements.max_sm_clock_mhz}")
        if not commands:
            return ""
        confirm = '. Once that is done, confirm it: "clock_confirmed": true in require'
        is_unknown = None in self.clock_mhz.values()
        return f"A person should run: {' && '.join(commands)}" + (confirm if is_unknown else "")


def find_excess(gpus: Iterable[Gpu], requirements: Requirements) -> Excess:
    """Return which of ``gpus`` are above the required power limit or SM clock. A lost GPU is above none.

    A limit that is not reported is not met, but for a clock cap that a person has confirmed.
    """
    gpus = sorted((gpu for gpu in gpus if not (gpu.lost or gpu.hangs)), key=lambda gpu: gpu.index)
    power: dict[int, float | None] = {}
    clock: dict[int, int | None] = {}
    for gpu in gpus:
        most_w, most_mhz = requirements.power_limit_w, requirements.max_sm_clock_mhz
        if most_w is not None and (gpu.power_limit_w is None or gpu.power_limit_w > most_w + _SLACK_W):
            power[gpu.index] = gpu.power_limit_w
        # Drivers do not report locked clocks (-lgc), and the hardware's maximum is not a cap.
        capped = gpu.sm_clock_cap_mhz if gpu.sm_clock_cap_mhz != gpu.sm_clock_max_mhz else None
        seen = gpu.sm_clock_mhz if capped is None else capped
        if most_mhz is not None and seen is not None and seen > most_mhz:
            clock[gpu.index] = seen
        elif most_mhz is not None and capped is None and not requirements.clock_confirmed:
            clock[gpu.index] = None
    return Excess(requirements, power, clock)


def _describe(values: Iterable[float | None], unit: str, unknown: str) -> str:
    """Return the span of the values that are reported, and that others are not."""
    values = list(values)
    known = sorted(value for value in values if value is not None)
    texts = [f"{low:,g}" if (low := known[0]) == known[-1] else f"{low:,g}-{known[-1]:,g}"] if known else []
    return " or ".join([*(f"{text} {unit}" for text in texts), *([unknown] if len(known) < len(values) else [])])


def _list(indices: Mapping[int, object]) -> str:
    return ",".join(map(str, indices))
