"""Queries and samplers whose driver hangs, crashes, is slow, or dies."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mcp_server.gpus import query
from mcp_server.gpus.nvml.device import Caller, CallTimeout
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.views import gpu_report
from tests.support.fake_nvml import UUIDS, Machine, machine


@pytest.fixture
def nvml(tmp_path: Path) -> Machine:
    return machine(tmp_path)


def query_once(nvml: Machine, **more: object) -> Snapshot:
    return query.query_gpus(sys.executable, nvml.full_environ, **more)  # type: ignore[arg-type]


# --- queries


def test_a_hanging_gpu_keeps_the_facts_that_it_reported_before(nvml: Machine) -> None:
    nvml.report("hang nvmlDeviceGetPowerUsage 30 1")
    gpu = query_once(nvml).gpus[1]
    assert gpu.hangs
    assert (gpu.uuid, gpu.memory_total_mib, gpu.power_w) == (UUIDS[1], 81559, None)
    assert (gpu.failed or {})["nvmlDeviceGetPowerUsage"] == "hangs"


def test_gpus_without_a_uuid_are_named_by_their_index(nvml: Machine) -> None:
    nvml.report("hang nvmlDeviceGetHandleByIndex_v2 30", gpus=3)
    snapshot = query_once(nvml)
    assert [gpu.uuid for gpu in snapshot.gpus] == ["index:0", "index:1", "index:2"]
    assert all(gpu.hangs for gpu in snapshot.gpus)
    assert snapshot.find_gpu("index:1") == snapshot.find_gpu("1")
    assert gpu_report.report_machine(snapshot, {}).free == []


def test_a_driver_that_starts_every_gpu_on_first_use_is_slow_and_does_not_hang(nvml: Machine) -> None:
    nvml.report("hang nvmlDeviceGetHandleByIndex_v2 0.6", gpus=2)
    assert [gpu.hangs for gpu in query_once(nvml).gpus] == [False, False]


def test_a_driver_that_does_not_return_is_abandoned(nvml: Machine) -> None:
    nvml.report("hang nvmlInitWithFlags 30")
    snapshot = query_once(nvml, within_s=2.0)
    assert snapshot.trouble == "hangs"
    assert "A person should look at `dmesg`" in snapshot.text


@pytest.mark.slow
def test_a_slow_driver_is_kept_started_for_the_next_query(
    nvml: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "_abandoned", [])
    nvml.report("hang nvmlInitWithFlags 8")
    assert query_once(nvml, within_s=3.0).trouble == "hangs"
    (left,) = query._abandoned
    nvml.report()
    assert query_once(nvml, within_s=10.0).trouble is None
    assert left.poll() is None
    assert left.wait(30) == 0, "it ends by itself"


def test_a_driver_with_many_hanging_processes_is_not_queried(nvml: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"]) as held:
        monkeypatch.setattr(query, "_abandoned", [held] * 16)
        assert query_once(nvml).trouble == "hangs"
        held.kill()
        held.wait()
        assert query_once(nvml).trouble is None, "the kernel has let go of them"


def test_a_query_that_cannot_start_or_answer_is_reported(nvml: Machine, tmp_path: Path) -> None:
    assert query.query_gpus(str(tmp_path / "python"), {}).trouble == "failed"
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho 'no such module' >&2\nexit 3\n")
    silent.chmod(0o700)
    assert "no such module" in query.query_gpus(str(silent), {}).text
    garbage = tmp_path / "garbage"
    garbage.write_text('#!/bin/sh\necho "[1]"\n')
    garbage.chmod(0o700)
    assert query.query_gpus(str(garbage), {}).trouble == "failed"


def test_a_call_that_hangs_is_abandoned_and_may_return() -> None:
    read, write = os.pipe()
    caller = Caller()
    with pytest.raises(CallTimeout):
        caller.call(lambda: os.read(read, 1), 0.01)
    assert not caller.has_returned()
    os.write(write, b"x")
    assert caller.has_returned(10)
    with pytest.raises(ZeroDivisionError):
        Caller().call(lambda: 1 // 0, 10)
    os.close(read)
    os.close(write)


# --- samplers


def samples(sampler: query.GpuSampler, count: int) -> list[Snapshot]:
    snapshots: list[Snapshot] = []
    until_s = time.monotonic() + 20
    while len(snapshots) < count and time.monotonic() < until_s and (fd := sampler.fd) is not None:
        select.select([fd], [], [], 1)
        snapshots += sampler.read() or []
    return snapshots


def test_a_sampler_reports_changes_of_its_gpus_and_each_xid_once(nvml: Machine) -> None:
    nvml.report(gpus=3)
    sampler = query.GpuSampler(sys.executable, nvml.full_environ, [UUIDS[0], UUIDS[2]], 0.05)
    try:
        first = samples(sampler, 1)[0]
        assert [gpu.index for gpu in first.gpus] == [0, 2]
        nvml.report("xid 2 31", "xid 2 79", "xid 1 48", "proc 2 1 4000", gpus=3)
        seen = samples(sampler, 4)
        assert sorted(xid for s in seen for xid in s.gpus[1].xids) == [31, 79]
        assert seen[-1].gpus[1].memory_used_mib == 4000
        nvml.report("fault nvmlDeviceGetUUID 15 2", gpus=3)
        lost = next(gpus[-1] for gpus in (s.gpus for s in samples(sampler, 5)) if gpus[-1].lost)
        assert lost.uuid == UUIDS[2], "its UUID is known from before"
    finally:
        sampler.close()
    assert (sampler.alive, sampler.fd, sampler.pid, sampler.read()) == (False, None, None, None)


@pytest.mark.parametrize(
    "line",
    [
        *("fault nvmlEventSetCreate 3", "fault nvmlDeviceRegisterEvents 3"),
        *("fault nvmlEventSetWait_v2 999", "hang nvmlEventSetWait_v2 30", "hang nvmlDeviceRegisterEvents 30"),
    ],
)
def test_a_sampler_continues_without_xid_events(nvml: Machine, line: str) -> None:
    nvml.report(line)
    sampler = query.GpuSampler(sys.executable, nvml.full_environ, [], 0.02)
    try:
        assert [len(s.gpus) for s in samples(sampler, 3)][:3] == [2, 2, 2]
    finally:
        sampler.close()


def test_a_sampler_continues_with_a_hanging_gpu_and_does_not_query_it_again(nvml: Machine) -> None:
    nvml.report("hang nvmlDeviceGetPowerUsage 60 1")
    sampler = query.GpuSampler(sys.executable, nvml.full_environ, UUIDS[:2], 0.02)
    try:
        assert [[gpu.hangs for gpu in s.gpus] for s in samples(sampler, 5)][:5] == [[False, True]] * 5
        threads = len(list(Path(f"/proc/{sampler.pid}/task").iterdir()))
        assert samples(sampler, 5)
        assert len(list(Path(f"/proc/{sampler.pid}/task").iterdir())) == threads
    finally:
        sampler.close()


def test_a_dead_sampler_reads_none(nvml: Machine, tmp_path: Path) -> None:
    assert query.GpuSampler(str(tmp_path / "python"), {}, [], 1).alive is False
    nvml.report("crash nvmlInitWithFlags")
    sampler = query.GpuSampler(sys.executable, nvml.full_environ, [], 1)
    assert samples(sampler, 1) == []
    assert sampler.read() is None


def test_a_sampler_ends_when_its_pipe_is_closed(nvml: Machine) -> None:
    words = [sys.executable, "-I", str(query.PROGRAM), "--every", "600"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=nvml.full_environ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 0


def test_a_query_that_gets_no_time_is_not_blamed_on_the_driver() -> None:
    snapshot = query.query_gpus(sys.executable, {}, within_s=0.001)
    assert (snapshot.trouble, "this host is busy" in snapshot.text, "dmesg" in snapshot.text) == ("failed", True, False)
