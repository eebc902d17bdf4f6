"""The GPUs of all hosts with who holds them, the queue, the hours without a run, and jobs of schedulers."""

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_server.backends.ssh.ssh_backend import query_host_gpus
from mcp_server.backends.ssh.ssh_channel import channel_of
from mcp_server.errors import RunwardError
from mcp_server.gpus.leases import LeaseHolder, Leases, lease_directory
from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.snapshot import Gpu, Snapshot
from mcp_server.record.state import Run, posix
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.system.files import read_end

HERE = "this machine"
_WITHIN_S, _KEEP_S, _WEEK_S = 1.9, 2.0, 7 * 86_400.0
_MOST_RUNS, _USAGE_BYTES, _MOST_MINUTES = 2_000, 4 << 20, 10_000
_COLUMNS = ("utilization", "memory_mib", "power_w", "temperature_c")


@dataclass
class Machines:
    """Answers what all GPUs do, at most every two seconds anew. Blocks: call it in a thread."""

    store: RunStore
    environ: Mapping[str, str]
    _answer: dict[str, Any] = field(default_factory=dict)
    _at_s: float = -_KEEP_S

    def describe(self) -> dict[str, Any]:
        """Return hosts with their GPUs, jobs of schedulers, and the hours of the last week without a run."""
        if time.monotonic() - self._at_s >= _KEEP_S:
            live = self.store.list_runs(RunQuery("live"))
            here = self._describe_here()
            far = [self._describe_far(path) for path in self.store.home.list_mirrors()]
            jobs = [
                {"run_id": run.run_id, "backend": run.spec.backend, "job_id": run.job_id, "state": run.state}
                | ({"pending_reason": run.pending_reason} if run.pending_reason else {})
                for run in live
                if run.job_id or run.spec.backend not in ("tmux", "ssh")
            ]
            idle = {host["name"]: hours for host in (here, *far) if (hours := self._measure_idle(host))}
            facts = {"hosts": [here, *far], "jobs": jobs, "queue": here["queue"], "idle_hours_week": idle}
            self._answer, self._at_s = facts, time.monotonic()
        return self._answer

    def _describe_here(self) -> dict[str, Any]:
        leases = Leases(lease_directory(self.environ))
        snapshot = query_gpus(sys.executable, self.environ, within_s=_WITHIN_S)
        holders = leases.holders()
        queue = [
            {"run_id": waiter.holder.run_id, "position": number, "needs": _name_request(waiter.request)}
            for number, waiter in enumerate(leases.waiters(), 1)
        ]
        return {"name": HERE, "here": True, "queue": queue, **_describe_gpus(snapshot, holders)}

    def _describe_far(self, mirror: Path) -> dict[str, Any]:
        facts: dict[str, Any] = {"name": mirror.name, "here": False, "gpus": []}
        channel = channel_of(mirror)
        facts["heard_s"] = round(channel.behind_s, 1)
        if channel.is_away():
            return {**facts, "error": channel.why or "It does not answer."}
        try:
            state = query_host_gpus(mirror)
        except (RunwardError, OSError) as error:
            return {**facts, "error": str(error)}
        holders = {uuid: LeaseHolder(run_id=text.partition(" ")[0]) for uuid, text in state.holders.items()}
        return {**facts, **_describe_gpus(state.snapshot, holders)}

    def _measure_idle(self, host: Mapping[str, Any]) -> dict[str, float]:
        """Return for how many of the last week's hours no run had each GPU of a host, since its first run.

        A free GPU that a run had gets ``idle_s``: how long that is ago.
        """
        indices = [str(gpu["index"]) for gpu in host["gpus"]]
        mirror = "" if host["here"] else str(self.store.home.hosts / host["name"])
        runs = self.store.list_runs(RunQuery(mirror=mirror), _MOST_RUNS) if indices else []
        if not runs:
            return {}
        now_s = time.time()
        begun_s = max(now_s - _WEEK_S, posix(runs[-1].spec.created_at))
        spans: dict[str, list[tuple[float, float]]] = {index: [] for index in indices}
        for run in runs:
            span = _measure_span(run, begun_s, now_s)
            for name in run.gpu_names if span is not None else ():
                spans.get(str(name), []).append(span or (0.0, 0.0))
        for gpu in host["gpus"]:
            ends = [posix(run.ended_at) for run in runs if run.ended_at and gpu["index"] in run.gpu_names]
            if ends and gpu.get("lease") is None:
                gpu["idle_s"] = round(max(0.0, now_s - max(ends)))
        return {index: round((now_s - begun_s - _join_spans(own)) / 3600, 1) for index, own in spans.items()}


def read_usage_curves(store: RunStore, run: Run) -> dict[str, Any]:
    """Return how a run used its GPUs, minute by minute as its newest attempt recorded it; None where it did not."""
    record, names = (
        store.fetch_record(run).attempt(run.attempt) / "gpus.jsonl",
        dict(zip(run.gpus, run.gpu_names, strict=True)),
    )
    times: list[str] = []
    gpus: dict[str, dict[str, list[float | None]]] = {}
    lines: list[bytes] = []
    with contextlib.suppress(OSError):
        lines = read_end(record, _USAGE_BYTES).splitlines()[-_MOST_MINUTES:]
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError, KeyError, AttributeError, TypeError):
            facts = json.loads(line)
            minute = {uuid: [*map(_read_figure, figures)] for uuid, figures in facts["gpus"].items()}
            times.append(str(facts["at"]))
            for uuid, figures in minute.items():
                columns = gpus.setdefault(str(names.get(uuid, uuid)), {name: [] for name in _COLUMNS})
                for name, value in zip(_COLUMNS, [*figures, None, None, None, None], strict=False):
                    columns[name] += [None] * (len(times) - 1 - len(columns[name])) + [value]
    return {"times": times, "gpus": gpus or None}


def _describe_gpus(snapshot: Snapshot, holders: Mapping[str, LeaseHolder]) -> dict[str, Any]:
    trouble = snapshot.text if snapshot.trouble not in (None, "no_driver") else None
    return {"gpus": [_describe_gpu(gpu, holders) for gpu in snapshot.gpus]} | ({"error": trouble} if trouble else {})


def _describe_gpu(gpu: Gpu, holders: Mapping[str, LeaseHolder]) -> dict[str, Any]:
    uuids = (gpu.uuid, *(each.uuid for each in gpu.instances))
    holder = next((holders[uuid] for uuid in uuids if uuid in holders), None)
    facts: dict[str, Any] = {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name or None,
        "memory_used_mib": gpu.memory_used_mib,
        "memory_total_mib": gpu.memory_total_mib,
        "utilization": gpu.utilisation,
        "power_w": gpu.power_w,
        "power_limit_w": gpu.power_limit_w,
        "temperature_c": gpu.temperature_c,
        "lost": gpu.lost or None,
        "lease": {"run_id": holder.run_id, "owner": holder.owner or holder.user, "since": holder.since or None}
        if holder is not None
        else None,
        "strangers": [
            {"pid": each.pid, "command": each.command, "user": each.user, "memory_mib": each.memory_mib}
            for each in gpu.processes
            if not each.graphics and each.run_id is None
        ],
    }
    return {name: value for name, value in facts.items() if value is not None}


def _name_request(request: Any) -> str:
    if request.ids:
        return f"GPU {', '.join(request.ids)}"
    count, what = (request.cpu, "cpu slot") if request.cpu else (request.count, "GPU")
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _measure_span(run: Run, begun_s: float, now_s: float) -> tuple[float, float] | None:
    if run.started_at is None or (run.ended and run.ended_at is None):
        return None
    start_s, end_s = max(begun_s, posix(run.started_at)), posix(run.ended_at) if run.ended_at else now_s
    return (start_s, end_s) if end_s > start_s else None


def _join_spans(spans: list[tuple[float, float]]) -> float:
    """Return how long at least one of these spans lasted."""
    total_s, until_s = 0.0, 0.0
    for start_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


def _read_figure(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
