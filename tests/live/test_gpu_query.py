"""Asking for GPUs once and again and again: what hangs, crashes, is slow, or dies."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mcp_server.gpus import query
from mcp_server.gpus.nvml.call_timeout import Caller, CallTimeout
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.views import gpu_report
from tests.support.fake_nvml import UUIDS, Machine, machine


@pytest.fixture
def nvml(tmp_path: Path) -> Machine:
    return machine(tmp_path)


def ask(found: Machine, **more: object) -> Snapshot:
    return query.query_gpus(sys.executable, found.whole_environ, **more)  # type: ignore[arg-type]


# --- what does not answer


def test_a_hanging_gpu_keeps_what_was_told_before(nvml: Machine) -> None:
    nvml.tells("hang nvmlDeviceGetPowerUsage 30 1")
    gpu = ask(nvml).gpus[1]
    assert gpu.hangs
    assert (gpu.uuid, gpu.memory_total_mib, gpu.power_w) == (UUIDS[1], 81559, None)
    assert (gpu.failed or {})["nvmlDeviceGetPowerUsage"] == "hangs"


def test_gpus_that_do_not_tell_their_uuid_can_be_named(nvml: Machine) -> None:
    nvml.tells("hang nvmlDeviceGetHandleByIndex_v2 30", gpus=3)
    snapshot = ask(nvml)
    assert [gpu.uuid for gpu in snapshot.gpus] == ["index:0", "index:1", "index:2"]
    assert all(gpu.hangs for gpu in snapshot.gpus)
    assert snapshot.find_gpu("index:1") == snapshot.find_gpu("1")
    assert gpu_report.report_machine(snapshot, {}).free == []


def test_a_driver_that_starts_every_gpu_anew_is_slow_and_does_not_hang(nvml: Machine) -> None:
    nvml.tells("hang nvmlDeviceGetHandleByIndex_v2 0.6", gpus=2)
    assert [gpu.hangs for gpu in ask(nvml).gpus] == [False, False]


def test_a_driver_that_does_not_come_back_is_given_up(nvml: Machine) -> None:
    nvml.tells("hang nvmlInitWithFlags 30")
    snapshot = ask(nvml, within_s=0.5)
    assert snapshot.trouble == "hangs"
    assert "A person should look at `dmesg`" in snapshot.text


def test_a_slow_driver_is_left_started_for_whoever_asks_next(
    nvml: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "_abandoned", [])
    nvml.tells("hang nvmlInitWithFlags 2")
    assert ask(nvml, within_s=1.0).trouble == "hangs"
    (left,) = query._abandoned
    nvml.tells()
    assert ask(nvml, within_s=10.0).trouble is None
    assert left.poll() is None
    assert left.wait(30) == 0, "it ends by itself"


def test_a_driver_that_holds_many_processes_is_asked_no_more(nvml: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"]) as held:
        monkeypatch.setattr(query, "_abandoned", [held] * 16)
        assert ask(nvml).trouble == "hangs"
        held.kill()
        held.wait()
        assert ask(nvml).trouble is None, "the kernel has let go of them"


def test_what_cannot_be_started_is_told(nvml: Machine, tmp_path: Path) -> None:
    assert query.query_gpus(str(tmp_path / "python"), {}).trouble == "failed"
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho 'no such module' >&2\nexit 3\n")
    silent.chmod(0o700)
    assert "no such module" in query.query_gpus(str(silent), {}).text
    garbage = tmp_path / "garbage"
    garbage.write_text('#!/bin/sh\necho "[1]"\n')
    garbage.chmod(0o700)
    assert query.query_gpus(str(garbage), {}).trouble == "failed"


def test_a_call_that_hangs_is_left_behind_and_may_come_back() -> None:
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


# --- again and again


def samples(sampler: query.GpuSampler, count: int) -> list[Snapshot]:
    found: list[Snapshot] = []
    until_s = time.monotonic() + 20
    while len(found) < count and time.monotonic() < until_s and (fd := sampler.fd) is not None:
        select.select([fd], [], [], 1)
        found += sampler.read() or []
    return found


def test_a_sampler_tells_its_gpus_as_they_change_and_each_xid_once(nvml: Machine) -> None:
    nvml.tells(gpus=3)
    sampler = query.GpuSampler(sys.executable, nvml.whole_environ, [UUIDS[0], UUIDS[2]], 0.05)
    try:
        first = samples(sampler, 1)[0]
        assert [gpu.index for gpu in first.gpus] == [0, 2]
        nvml.tells("xid 2 31", "xid 2 79", "xid 1 48", "proc 2 1 4000", gpus=3)
        seen = samples(sampler, 4)
        assert sorted(xid for s in seen for xid in s.gpus[1].xids) == [31, 79]
        assert seen[-1].gpus[1].memory_used_mib == 4000
        nvml.tells("fault nvmlDeviceGetUUID 15 2", gpus=3)
        lost = next(gpus[-1] for gpus in (s.gpus for s in samples(sampler, 5)) if gpus[-1].lost)
        assert lost.uuid == UUIDS[2], "it is known from before"
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
def test_a_sampler_goes_on_where_xids_are_not_told_as_events(nvml: Machine, line: str) -> None:
    nvml.tells(line)
    sampler = query.GpuSampler(sys.executable, nvml.whole_environ, [], 0.02)
    try:
        assert [len(s.gpus) for s in samples(sampler, 3)][:3] == [2, 2, 2]
    finally:
        sampler.close()


def test_a_sampler_goes_on_beside_a_gpu_that_hangs_and_asks_it_no_more(nvml: Machine) -> None:
    nvml.tells("hang nvmlDeviceGetPowerUsage 60 1")
    sampler = query.GpuSampler(sys.executable, nvml.whole_environ, UUIDS[:2], 0.02)
    try:
        assert [[gpu.hangs for gpu in s.gpus] for s in samples(sampler, 5)][:5] == [[False, True]] * 5
        threads = len(list(Path(f"/proc/{sampler.pid}/task").iterdir()))
        assert samples(sampler, 5)
        assert len(list(Path(f"/proc/{sampler.pid}/task").iterdir())) == threads
    finally:
        sampler.close()


def test_a_sampler_that_dies_is_told_dead(nvml: Machine, tmp_path: Path) -> None:
    assert query.GpuSampler(str(tmp_path / "python"), {}, [], 1).alive is False
    nvml.tells("crash nvmlInitWithFlags")
    sampler = query.GpuSampler(sys.executable, nvml.whole_environ, [], 1)
    assert samples(sampler, 1) == []
    assert sampler.read() is None


def test_a_sampler_ends_when_nobody_reads_it(nvml: Machine) -> None:
    words = [sys.executable, "-I", str(query.PROGRAM), "--every", "600"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=nvml.whole_environ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 0
