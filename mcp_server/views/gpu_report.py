"""GPUs in few words: what all share is told once, what is healthy briefly. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mcp_server.answer import Answer
from mcp_server.errors import RunwardError
from mcp_server.gpus.health import judge, notes, trouble
from mcp_server.gpus.placement import Require
from mcp_server.gpus.snapshot import IDLE_MIB, Gpu, GpuProcess, Snapshot, short
from mcp_server.record.state import Run

# A whole UUID is 26 tokens; everything takes a beginning of it that no other has.
_WHOLE_UUIDS = 4
_MOST_PROCESSES = 4
_SHORTEST = 7  # characters: "GPU-5d1"
# Of a run's GPUs one lags when it works less than so much of their median; below _WORKING % none does.
_LAGS, _WORKING = 0.7, 20.0
_MOST_DEVIATIONS = 3


class GpusNotTold(RunwardError):
    """NVML tells of no GPUs: there is no driver, or it does not answer. Not the same as zero GPUs."""

    def __init__(self, snapshot: Snapshot) -> None:
        kind = "No NVIDIA driver" if snapshot.trouble == "no_driver" else "GPUs cannot be told"
        super().__init__(
            f"{kind}: {snapshot.text} Nothing was changed; runs go on. "
            'Next: launch_run without gpus, or with gpus="cpu" for a cpu slot.'
        )
        self.trouble = snapshot.trouble


class GpuReport(Answer):
    """The verdict first, then the free GPUs, then one line for each. ``header``: what all of them share."""

    ok: bool
    reasons: list[str]
    free: list[str]
    header: str | None = None
    driver: str | None = None
    gpus: list[str]


@dataclass(frozen=True)
class Use:
    """How a run used one GPU: mean utilisation (%), peak memory (MiB), mean power (W), highest temperature (C)."""

    mean_util: float | None = None
    peak_mib: float | None = None
    mean_w: float | None = None
    max_c: float | None = None

    @property
    def text(self) -> str:
        """It in words."""
        told = (
            ("mean", self.mean_util, "%"),
            ("peak", self.peak_mib, " MiB"),
            ("mean", self.mean_w, " W"),
            ("max", self.max_c, " C"),
        )
        return ", ".join(f"{what} {value:.0f}{unit}" for what, value, unit in told if value is not None)


def of_machine(snapshot: Snapshot, held: Mapping[str, str], require: Require | None = None) -> GpuReport:
    """Report on all GPUs; ``held`` says by UUID who has leased one.

    Raises:
        GpusNotTold: there is no driver, or it does not answer.
    """
    if snapshot.trouble:
        raise GpusNotTold(snapshot)
    verdict = judge(snapshot, held, require)
    told = names([gpu.uuid for gpu in snapshot.gpus], len(snapshot.gpus))
    return GpuReport(
        ok=verdict.ok,
        reasons=list(verdict.reasons),
        free=[told[uuid] for uuid in verdict.free],
        header=header(snapshot) if snapshot.gpus else None,
        driver=snapshot.driver,
        gpus=lines(snapshot.gpus, held),
    )


def of_run(run: Run, snapshot: Snapshot, use: Mapping[str, Use]) -> GpuReport:
    """Report on a run's GPUs and how it used them; what they do now is told as long as it lives.

    Raises:
        GpusNotTold: the driver does not answer, and nothing was recorded.
    """
    if not run.gpus:
        return GpuReport(ok=run.state == "queued", reasons=[_without(run)], free=[], gpus=[])
    if snapshot.trouble and not use:
        raise GpusNotTold(snapshot)
    told = names(run.gpus, len(run.gpus))
    its = [] if run.ended else [gpu for gpu in snapshot.gpus if gpu.uuid in run.gpus]
    reasons = [f"{told[gpu.uuid]}: {word}." for gpu in its for word in trouble(gpu)]
    if not run.ended:
        reasons += [snapshot.text] if snapshot.trouble else []
        gone = [uuid for uuid in run.gpus if uuid not in {gpu.uuid for gpu in its} and uuid.startswith("GPU-")]
        reasons += [f"{told[uuid]}: the driver does not tell of it." for uuid in gone if not snapshot.trouble]
    reasons += [f"{told.get(uuid, uuid)}: {word}." for uuid, word in imbalances(use).items()]
    ok = not reasons
    reasons += [f"{told[gpu.uuid]}: {word}." for gpu in its for word in notes(gpu)]
    reasons += [f"{e.get('at')}: {e.get('text')}" for e in run.events if e["kind"] == "gpu_deviation"][
        -_MOST_DEVIATIONS:
    ]
    now = dict(zip((gpu.uuid for gpu in its), lines(its, {}, headed=False), strict=True))
    found = [
        "; ".join([now.get(uuid, told[uuid]), *([use[uuid].text] if uuid in use else [])])
        for uuid in dict.fromkeys([*run.gpus, *use])
    ]
    return GpuReport(ok=ok, reasons=reasons, free=[], driver=snapshot.driver, gpus=found)


def is_told_by_driver(run: Run) -> bool:
    """Whether the driver has anything to say of a run: it lives, and has GPUs, not only cpu slots."""
    return not run.ended and any(uuid.startswith("GPU-") for uuid in run.gpus)


def _without(run: Run) -> str:
    """Say why a run has no GPUs."""
    if run.state == "queued":
        return f"{run.run_id} waits for GPUs, position {run.queue_position}: it has none yet."
    if run.ended and run.started_at is None:
        return f"{run.run_id} has no GPUs: its command never started."
    return f"{run.run_id} has no GPUs: it was launched without."


def imbalances(use: Mapping[str, Use]) -> dict[str, str]:
    """Return, by UUID, which of a run's GPUs work much less than the others."""
    means = {uuid: each.mean_util for uuid, each in use.items() if each.mean_util is not None}
    middle = median(means.values()) if means else 0.0
    if middle < _WORKING:
        return {}
    of = f"of the run's {len(means)} GPUs is {middle:.0f}%"
    return {
        uuid: f"imbalance: it worked at {mean:.0f}%, the median {of}"
        for uuid, mean in means.items()
        if mean < _LAGS * middle
    }


def names(uuids: Sequence[str], total: int) -> dict[str, str]:
    """Return how each of ``uuids`` is told on a machine of ``total`` GPUs: whole, or by its beginning."""
    return {uuid: uuid if total <= _WHOLE_UUIDS else short(uuid, uuids, _SHORTEST) for uuid in uuids}


def header(snapshot: Snapshot) -> str:
    """Return what all GPUs share: ``8 NVIDIA H100 80GB HBM3, 81559 MiB, 700 W``."""
    return f"{len(snapshot.gpus)} {', '.join(_shared(snapshot.gpus).values())}"


def lines(gpus: Sequence[Gpu], held: Mapping[str, str], *, headed: bool = True) -> list[str]:
    """Return one line a GPU; ``held`` says by UUID who has leased it. ``headed``: what all share is told elsewhere."""
    told = names([gpu.uuid for gpu in gpus], len(gpus))
    common = _shared(gpus) if headed else {"name": ""}
    return [_line(gpu, told[gpu.uuid], common, held.get(gpu.uuid)) for gpu in gpus]


def _shared(gpus: Sequence[Gpu]) -> dict[str, str]:
    kinds = {
        "name": {gpu.name or "GPU" for gpu in gpus if not gpu.lost and gpu.name},
        "memory": {_mib(gpu.memory_total_mib) for gpu in gpus if gpu.memory_total_mib is not None},
        "power": {f"{gpu.power_limit_w:.0f} W" for gpu in gpus if gpu.power_limit_w is not None},
    }
    found = {kind: next(iter(values)) for kind, values in kinds.items() if len(values) == 1}
    return {"name": "GPUs", **found}


def _mib(value: int | None) -> str:
    return f"{value} MiB"


def _line(gpu: Gpu, uuid: str, shared: Mapping[str, str], holder: str | None) -> str:
    words = [f"{gpu.index} {uuid}", *_figures(gpu, shared)]
    # Busy and faulty ones may take more words.
    more = [*faults(gpu), *uses(gpu), *([f"leased by {holder}"] if holder else [])]
    return "; ".join([" ".join(words), *more])


def _figures(gpu: Gpu, shared: Mapping[str, str]) -> list[str]:
    words = [] if shared["name"] == gpu.name or not gpu.name else [f"({gpu.name})"]
    if gpu.memory_used_mib is not None:
        total = "" if "memory" in shared or gpu.memory_total_mib is None else f"/{gpu.memory_total_mib}"
        words.append(f"{gpu.memory_used_mib}{total}MiB")
    if gpu.utilisation is not None:
        words.append(f"{gpu.utilisation}%")
    if gpu.temperature_c is not None:
        words.append(f"{gpu.temperature_c}C")
    if gpu.power_w is not None:
        limit = "" if "power" in shared or gpu.power_limit_w is None else f"/{gpu.power_limit_w:.0f}"
        words.append(f"{gpu.power_w:.0f}{limit}W")
    if gpu.sm_clock_mhz is not None:
        words.append(f"{gpu.sm_clock_mhz}MHz")
    return words


def faults(gpu: Gpu) -> list[str]:
    """Return what is out of the ordinary; what it means is among the reasons."""
    found = {
        "LOST": gpu.lost,
        "HANGS": gpu.hangs,
        f"throttled: {' '.join(gpu.throttle)}": gpu.throttle,
        f"SM clock capped at {gpu.sm_clock_cap_mhz} of {gpu.sm_clock_max_mhz} MHz": _capped(gpu),
        f"ECC errors: {gpu.ecc_uncorrected} uncorrected": gpu.ecc_uncorrected,
        f"{gpu.retired_pages} pages retired": gpu.retired_pages,
        "page retirement pending": gpu.retirement_pending,
        "row remap pending": gpu.remap_pending,
        "row remap FAILED": gpu.remap_failed,
        f"Xid {' '.join(map(str, gpu.xids))}": gpu.xids,
        f"needs: {gpu.recovery_action}": gpu.recovery_action not in (None, "none"),
        "MIG": gpu.mig,
        f"compute mode {gpu.compute_mode}": gpu.compute_mode not in (None, "default"),
        f"{gpu.memory_unseen_mib} MiB held by nobody visible": (gpu.memory_unseen_mib or 0) > IDLE_MIB,
    }
    return [text for text, is_so in found.items() if is_so]


def _capped(gpu: Gpu) -> bool:
    return bool(gpu.sm_clock_cap_mhz and gpu.sm_clock_max_mhz and gpu.sm_clock_cap_mhz < gpu.sm_clock_max_mhz)


def uses(gpu: Gpu) -> list[str]:
    """Return who computes on a GPU."""
    computing = [p for p in gpu.processes if not p.graphics]
    told = [_process(p) for p in computing[:_MOST_PROCESSES]]
    more = len(computing) - _MOST_PROCESSES
    return [*told, *([f"{more} more processes"] if more > 0 else [])]


def _process(p: GpuProcess) -> str:
    who = f"{p.user}: {p.command or 'a process'}" if p.user else "a process not visible here"
    held = f" {p.memory_mib} MiB" if p.memory_mib is not None else ""
    return f"{who} pid {p.pid}{held}" + (f" of run {p.run_id}" if p.run_id else "")
