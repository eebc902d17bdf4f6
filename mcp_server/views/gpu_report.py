"""The GPU report of a machine or a run. Common values appear once, healthy GPUs in a few words."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from mcp_server.answer import Answer
from mcp_server.errors import RunwardError
from mcp_server.gpus.deviations import UsageFigures, find_imbalance
from mcp_server.gpus.health import assess_gpus, find_faults, list_notes
from mcp_server.gpus.placement import describe_availability
from mcp_server.gpus.request import Requirements, parse_gpus
from mcp_server.gpus.snapshot import IDLE_MIB, Gpu, GpuProcess, Snapshot, shorten_uuid
from mcp_server.record.state import Run, posix
from mcp_server.system.files import read_regular_file
from mcp_server.text.formatting import join_ranges

# A whole UUID is 26 tokens. Every argument that takes a UUID takes a unique prefix as well.
_WHOLE_UUIDS = 4
_MOST_RECORD_BYTES = 256 * 2**20  # of a run's GPU figures: years of minutes
_MOST_PROCESSES = 4
_SHORTEST_PREFIX = 7  # characters: "GPU-5d1"
_MOST_DEVIATIONS = 3
_DEVICES = ("GPU-", "MIG-")


class GpusUnknown(RunwardError):
    """NVML reports no GPUs: there is no driver, or it does not answer. Not the same as zero GPUs."""

    def __init__(self, snapshot: Snapshot) -> None:
        kind = "No NVIDIA driver" if snapshot.trouble == "no_driver" else "GPUs unknown"
        super().__init__(
            f"{kind}: {snapshot.text}",
            "Nothing was changed; runs go on.",
            'Next: launch_run without gpus, or with gpus="cpu" for a cpu slot.',
        )
        self.trouble = snapshot.trouble


def report_machine(
    snapshot: Snapshot,
    holders: Mapping[str, str],
    requirements: Requirements | None = None,
    limits: Requirements | None = None,
) -> GpuReport:
    """Report on all GPUs, or raise GpusUnknown. ``holders``: of leases, by UUID. ``limits``: of the host."""
    if snapshot.trouble:
        raise GpusUnknown(snapshot)
    health = assess_gpus(snapshot, holders, requirements, limits or Requirements())
    devices = [gpu.uuid for gpu in snapshot.devices]
    names = name_gpus(devices, len(devices))
    return GpuReport(
        ok=health.ok,
        reasons=list(health.reasons),
        free=[names[uuid] for uuid in health.free],
        header=describe_common(snapshot) if snapshot.gpus else None,
        driver=snapshot.driver,
        gpus=[*describe_gpus(snapshot.gpus, holders), *_describe_instances(snapshot.gpus, holders)],
    )


def report_run(run: Run, snapshot: Snapshot, usage: Mapping[str, UsageFigures]) -> GpuReport:
    """Report on a run's GPUs: ``usage`` by UUID and, while it lives, their state now. GpusUnknown: neither."""
    if not run.gpus:
        return GpuReport(ok=run.state == "queued", reasons=[_explain_no_gpus(run)], free=[], gpus=[])
    if snapshot.trouble and not usage:
        raise GpusUnknown(snapshot)
    names = name_gpus(run.gpus, len(run.gpus))
    gpus = [] if run.ended else [gpu for gpu in snapshot.devices if gpu.uuid in run.gpus]
    reasons = [f"{names[gpu.uuid]}: {fault}." for gpu in gpus for fault in find_faults(gpu)]
    if not run.ended:
        reasons += [snapshot.text] if snapshot.trouble else []
        missing = [uuid for uuid in run.gpus if uuid not in {gpu.uuid for gpu in gpus} and uuid.startswith(_DEVICES)]
        reasons += [f"{names[uuid]}: the driver does not report it." for uuid in missing if not snapshot.trouble]
    reasons += [f"{names.get(uuid, uuid)}: {text}." for uuid, text in describe_imbalance(usage).items()]
    ok = not reasons
    reasons += [f"{names[gpu.uuid]}: {note}." for gpu in gpus for note in list_notes(gpu)]
    deviations = [event for event in run.events if event["kind"] == "gpu_deviation"]
    reasons += [f"{event.get('at')}: {event.get('text')}" for event in deviations[-_MOST_DEVIATIONS:]]
    lines = {uuid: f"{name} {names[uuid]}" for uuid, name in zip(run.gpus, run.gpu_names, strict=True) if name != uuid}
    lines |= dict(zip((gpu.uuid for gpu in gpus), describe_gpus(gpus, {}, headed=False), strict=True))
    lines_with_usage = [
        "; ".join([lines.get(uuid, names[uuid]), *([_describe_usage(usage[uuid])] if uuid in usage else [])])
        for uuid in dict.fromkeys([*run.gpus, *usage])
    ]
    return GpuReport(ok=ok, reasons=reasons, free=[], driver=snapshot.driver, gpus=lines_with_usage)


def uses_gpus_now(run: Run) -> bool:
    """Return whether the run lives and has GPUs, not only cpu slots, so that the driver reports on them."""
    return not run.ended and any(uuid.startswith(_DEVICES) for uuid in run.gpus)


def _explain_no_gpus(run: Run) -> str:
    if run.state == "queued" and run.queue_position is not None:
        request = parse_gpus(run.spec.gpus)
        what = "cpu slots" if request and request.cpu else "GPUs"
        return f"{run.run_id} waits for {what}, position {run.queue_position}: it has none yet."
    if run.ended and run.started_at is None:
        return f"{run.run_id} has no GPUs: its command never started."
    return f"{run.run_id} has no GPUs: it was launched without."


def describe_imbalance(usage: Mapping[str, UsageFigures]) -> dict[str, str]:
    """Return, by UUID, the GPUs of a run that work much less than its others."""
    means = {uuid: figures.mean_util for uuid, figures in usage.items() if figures.mean_util is not None}
    if (imbalance := find_imbalance(means)) is None:
        return {}
    others = f"the median of the run's {len(means)} GPUs is {imbalance.median:.0f}%"
    return {
        uuid: f"imbalance: it worked at {mean:.0f}%, {others}"
        for uuid, mean in means.items()
        if uuid in imbalance.lagging
    }


def name_gpus(uuids: Sequence[str], total: int) -> dict[str, str]:
    """Return the name of each of ``uuids`` in a report on ``total`` GPUs: whole, or a unique prefix."""
    return {uuid: uuid if total <= _WHOLE_UUIDS else shorten_uuid(uuid, uuids, _SHORTEST_PREFIX) for uuid in uuids}


def describe_common(snapshot: Snapshot) -> str:
    """Return the common values of all GPUs: ``8 NVIDIA H100 80GB HBM3, 81559 MiB, 700 W``."""
    return f"{len(snapshot.gpus)} {', '.join(_find_common(snapshot.gpus).values())}"


def describe_devices(names: Sequence[int | str]) -> str:
    """Return the GPUs or cpu slots of a run in few words: ``GPU 0-3``, ``cpu-1``, or empty where it has none."""
    indices = sorted(name for name in names if isinstance(name, int))
    others = [name for name in names if isinstance(name, str)]
    return ", ".join([*([f"GPU {join_ranges(indices)}"] if indices else []), *others])


def describe_free(
    snapshot: Snapshot, holders: Mapping[str, str], requirements: Requirements | None = None
) -> list[str]:
    """Return the GPUs of a machine and which are free for a run, in one line, or empty where it has none."""
    if snapshot.trouble == "no_driver" or not (snapshot.gpus or snapshot.trouble):
        return []
    if snapshot.trouble:
        return [f"GPUs unknown: {snapshot.text}"]
    models: dict[str, list[int]] = {}
    for gpu in sorted(snapshot.gpus, key=lambda gpu: gpu.index):
        memory = "" if gpu.memory_total_mib is None else f" {gpu.memory_total_mib} MiB"
        models.setdefault(f"{gpu.name or 'unknown'}{memory}", []).append(gpu.index)
    which = ", ".join(f"GPU {join_ranges(indices)} {model}" for model, indices in models.items())
    return [f"{which}; {describe_availability(snapshot, holders, requirements)}"]


def describe_gpus(gpus: Sequence[Gpu], holders: Mapping[str, str], *, headed: bool = True) -> list[str]:
    """Return one line a GPU. ``headed``: a header has the common values, so that the lines omit them."""
    names = name_gpus([gpu.uuid for gpu in gpus], len(gpus))
    common = _find_common(gpus) if headed else {"name": ""}
    return [_describe_gpu(gpu, names[gpu.uuid], common, holders.get(gpu.uuid)) for gpu in gpus]


def _find_common(gpus: Sequence[Gpu]) -> dict[str, str]:
    values = {
        "name": {gpu.name or "GPU" for gpu in gpus if not gpu.lost and gpu.name},
        "memory": {f"{gpu.memory_total_mib} MiB" for gpu in gpus if gpu.memory_total_mib is not None},
        "power": {f"{gpu.power_limit_w:.0f} W" for gpu in gpus if gpu.power_limit_w is not None},
    }
    return {"name": "GPUs", **{kind: next(iter(texts)) for kind, texts in values.items() if len(texts) == 1}}


def _describe_gpu(gpu: Gpu, name: str, common: Mapping[str, str], holder: str | None) -> str:
    words = [f"{gpu.index} {name}", *_list_values(gpu, common)]
    more = [*list_flags(gpu), *list_processes(gpu), *([f"leased by {holder}"] if holder else [])]
    return "; ".join([" ".join(words), *more])


def _describe_instances(gpus: Sequence[Gpu], holders: Mapping[str, str]) -> Iterator[str]:
    names = name_gpus([each.uuid for gpu in gpus for each in gpu.instances], sum(len(gpu.instances) for gpu in gpus))
    for gpu in gpus:
        for each in gpu.instances:
            profile = each.name.removeprefix(gpu.name).removeprefix(" MIG").strip()
            memory = [f"{each.memory_used_mib}/{each.memory_total_mib}MiB"] if each.memory_used_mib is not None else []
            words = " ".join([f"{gpu.index} {names[each.uuid]}", *([profile] if profile else []), *memory])
            holder = holders.get(each.uuid)
            yield "; ".join([words, *list_processes(each), *([f"leased by {holder}"] if holder else [])])


def _list_values(gpu: Gpu, common: Mapping[str, str]) -> list[str]:
    words = [] if common["name"] == gpu.name or not gpu.name else [f"({gpu.name})"]
    if gpu.memory_used_mib is not None:
        total = "" if "memory" in common or gpu.memory_total_mib is None else f"/{gpu.memory_total_mib}"
        words.append(f"{gpu.memory_used_mib}{total}MiB")
    if gpu.utilisation is not None:
        words.append(f"{gpu.utilisation}%")
    if gpu.temperature_c is not None:
        words.append(f"{gpu.temperature_c}C")
    if gpu.power_w is not None:
        limit = "" if "power" in common or gpu.power_limit_w is None else f"/{gpu.power_limit_w:.0f}"
        words.append(f"{gpu.power_w:.0f}{limit}W")
    if gpu.sm_clock_mhz is not None:
        words.append(f"{gpu.sm_clock_mhz}MHz")
    return words


def list_flags(gpu: Gpu) -> list[str]:
    """Return the unusual states of a GPU in a few words each. The reasons of a report explain them."""
    cap_mhz, max_mhz = gpu.sm_clock_cap_mhz, gpu.sm_clock_max_mhz
    flags = {
        "LOST": gpu.lost,
        "HANGS": gpu.hangs,
        f"throttled: {' '.join(gpu.throttle)}": gpu.throttle,
        f"SM clock capped at {cap_mhz} of {max_mhz} MHz": cap_mhz and max_mhz and cap_mhz < max_mhz,
        f"ECC errors: {gpu.ecc_uncorrected} uncorrected": gpu.ecc_uncorrected,
        f"{gpu.retired_pages} pages retired": gpu.retired_pages,
        "page retirement pending": gpu.retirement_pending,
        "row remap pending": gpu.remap_pending,
        "row remap FAILED": gpu.remap_failed,
        f"Xid {' '.join(map(str, gpu.xids))}": gpu.xids,
        f"needs: {gpu.recovery_action}": gpu.recovery_action not in (None, "none"),
        "MIG": gpu.mig,
        f"compute mode {gpu.compute_mode}": gpu.compute_mode not in (None, "default"),
        f"{gpu.memory_unattributed_mib} MiB used by no visible process": (gpu.memory_unattributed_mib or 0) > IDLE_MIB,
    }
    return [text for text, is_set in flags.items() if is_set]


def list_processes(gpu: Gpu) -> list[str]:
    """Return the processes that compute on a GPU, the first few one by one."""
    computing = [p for p in gpu.processes if not p.graphics]
    more = len(computing) - _MOST_PROCESSES
    listed = [_describe_process(p) for p in computing[:_MOST_PROCESSES]]
    return [*listed, *([f"{more} more processes"] if more > 0 else [])]


def _describe_process(p: GpuProcess) -> str:
    who = f"{p.user}: {p.command or 'a process'}" if p.user else "a process not visible here"
    memory = f" {p.memory_mib} MiB" if p.memory_mib is not None else ""
    return f"{who} pid {p.pid}{memory}" + (f" of run {p.run_id}" if p.run_id else "")


def _describe_usage(figures: UsageFigures) -> str:
    words = (
        ("mean", figures.mean_util, "%"),
        ("peak", figures.peak_mib, " MiB"),
        ("mean", figures.mean_w, " W"),
        ("max", figures.max_c, " C"),
    )
    return ", ".join(f"{name} {value:.0f}{unit}" for name, value, unit in words if value is not None)


def read_usage(run: Run, record: Path, now_s: float, since_s: float | None = None) -> dict[str, UsageFigures]:
    """Return a run's GPU usage by UUID: of the attempt, or by ``record`` since ``since_s`` s before ``now_s``."""
    if since_s is None:
        recorded = run.progress.get("gpus")
        items = recorded.items() if isinstance(recorded, Mapping) else ()
        return {uuid: _parse_figures(each) for uuid, each in items if isinstance(each, Mapping)}
    minutes: dict[str, list[list[Any]]] = defaultdict(list)
    for facts in _read_minutes(record):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            if posix(facts["at"]) >= now_s - since_s:
                for uuid, figures in facts["gpus"].items():
                    minutes[uuid].append(list(figures))
    return {uuid: _combine_minutes(each) for uuid, each in minutes.items()}


def _read_minutes(path: Path) -> Iterable[dict[str, Any]]:
    with contextlib.suppress(OSError):
        for line in read_regular_file(path, max_bytes=_MOST_RECORD_BYTES).splitlines():
            with contextlib.suppress(ValueError, RecursionError):  # the last line may be incomplete
                facts = json.loads(line)
                if isinstance(facts, dict):
                    yield facts


def _combine_minutes(minutes: list[list[Any]]) -> UsageFigures:
    columns = [[value for value in column if _is_number(value)] for column in zip(*minutes, strict=False)]
    columns += [[]] * (len(UsageFigures._fields) - len(columns))
    means = [fmean(column) if column else None for column in columns]
    peaks = [max(column) if column else None for column in columns]
    return UsageFigures(mean_util=means[0], peak_mib=peaks[1], mean_w=means[2], max_c=peaks[3])


def _parse_figures(figures: Mapping[str, Any]) -> UsageFigures:
    values = {name: figures.get(name) for name in UsageFigures._fields}
    return UsageFigures(**{name: value for name, value in values.items() if _is_number(value)})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class GpuReport(Answer):
    """Whether all is well and why not, then the free GPUs, then one line a GPU. ``header``: their common values."""

    ok: bool
    reasons: list[str]
    free: list[str]
    header: str | None = None
    driver: str | None = None
    gpus: list[str]
