"""Samples become events, figures and a record. A failing sampler is reported once. Time is virtual."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mcp_server.gpus.snapshot import Gpu, Snapshot
from mcp_server.record.events import EventLog, read_events
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import RunSpec
from mcp_server.supervisor.control import ControlInputs
from mcp_server.supervisor.gpus import gpu_monitor
from mcp_server.supervisor.gpus.gpu_monitor import GpuMonitor

TWO = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-00000001-0000-4000-8000-000000000001")
NO_PROCESS = 2**22 + 1  # above the largest pid that Linux gives


def sample(*utils: int | None, **facts: Any) -> Snapshot:
    return Snapshot(gpus=tuple(Gpu(index=n, uuid=TWO[n], utilisation=util, **facts) for n, util in enumerate(utils)))


@dataclass
class FakeSampler:
    """A sampler whose next reads return ``reads``."""

    fd: int | None = 7
    pid: int | None = NO_PROCESS
    reads: list[list[Snapshot] | Exception | None] = field(default_factory=list)
    closed: bool = False

    def read(self) -> list[Snapshot] | None:
        samples = self.reads.pop(0)
        if isinstance(samples, Exception):
            raise samples
        return samples

    def close(self) -> None:
        self.closed = True


class Scene:
    """A monitor with virtual time, fake samplers in the order of their start, and the events that it reported."""

    def __init__(
        self, tmp_path: Path, *samplers: FakeSampler | Exception, uuids: Sequence[str] = TWO, **how: Any
    ) -> None:
        self.now_s = 1_000.0
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.record = tmp_path / "gpus.jsonl"
        self.starts: list[tuple[str, Mapping[str, str], Sequence[str], float]] = []
        self._samplers = list(samplers)
        self.monitor = GpuMonitor(
            *("python", {"LD_LIBRARY_PATH": "/nvml"}, uuids),
            **{"report": lambda *event: self.events.append(event), **how},
            record=self.record,
            sampler=self._make,
            clock=lambda: self.now_s,
        )
        self.monitor.start()

    def _make(self, *arguments: Any) -> Any:
        self.starts.append(arguments)
        sampler = self._samplers.pop(0)
        if isinstance(sampler, Exception):
            raise sampler
        return sampler

    def read(self, sampler: FakeSampler, *samples: list[Snapshot] | Exception | None, every_s: float = 5.0) -> None:
        """Let the monitor read these one after the other."""
        for each in samples:
            self.now_s += every_s
            sampler.reads.append(each)
            self.monitor.read()

    def wait_until_due(self) -> None:
        assert self.monitor.due_s is not None
        self.now_s = self.monitor.due_s
        self.monitor.check_deadline(self.now_s)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.events]


LOST = "The sampler of the GPUs does not work: {} The run goes on."


# --- while the sampler works


def test_the_sampler_is_started_with_the_runs_environment_and_gpus(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeSampler(fd=9, pid=os.getpid()), every_s=2.0)
    assert scene.starts == [("python", {"LD_LIBRARY_PATH": "/nvml"}, TWO, 2.0)]
    assert (scene.monitor.fd, scene.monitor.pid) == (9, os.getpid())


def test_a_monitor_that_has_not_started_or_has_no_gpus_does_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, uuids=())
    monitor = scene.monitor
    monitor.read()
    monitor.check_deadline(1e9)
    assert (monitor.fd, monitor.pid, monitor.due_s, monitor.figures(), monitor.idle_s()) == (None, None, None, {}, None)
    assert scene.starts == []
    assert scene.events == []


def test_a_deviation_is_reported_with_its_kind_and_its_facts(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler())
    scene.read(sampler, [sample(50, 50, xids=(79,))], [sample(50, 50, xids=(79,))])
    assert scene.kinds == ["gpu_deviation"] * 2
    assert scene.events[1] == (
        "gpu_deviation",
        "GPU 1 (GPU-00000001): Xid 79, fallen off the bus: a fault of the GPU or its driver.",
        {"what": "xid", "gpu": TWO[1], "xid": 79, "by_program": False},
    )


def test_the_requirements_and_the_window_of_the_run_are_used(tmp_path: Path) -> None:
    require = {"max_sm_clock_mhz": 1_410, "power_limit_w": 500, "count": 2}
    scene = Scene(tmp_path, sampler := FakeSampler(), require=require, window_s=30.0)
    fast = sample(90, 0, sm_clock_mhz=1_980, power_limit_w=700.0)
    scene.read(sampler, *[[fast]] * 8)
    assert sorted(facts["what"] for _, _, facts in scene.events) == ["clock", "clock", "imbalance", "power", "power"]


def test_snapshots_that_were_read_together_are_as_far_apart_as_they_were_taken(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler())
    hot = sample(90, 90, throttle=("thermal",))
    scene.read(sampler, [hot, hot, hot], every_s=60)
    assert scene.kinds == ["gpu_deviation"] * 2
    assert "for 10 s" in scene.events[0][1]


def test_a_read_without_a_whole_sample_is_normal(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler())
    scene.read(sampler, [], [])
    assert scene.events == []
    assert not sampler.closed


def test_figures_and_the_idle_time_are_of_the_whole_attempt(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler())
    scene.read(sampler, [sample(80, 40, memory_used_mib=9)], [sample(80, 40)], [sample(0, 0)])
    scene.now_s += 7
    assert scene.monitor.figures() == {
        TWO[0]: {"mean_util": 40.0, "peak_mib": 9},
        TWO[1]: {"mean_util": 20.0, "peak_mib": 9},
    }
    assert scene.monitor.idle_s() == 7.0
    scene.monitor.close()
    assert scene.monitor.figures()[TWO[0]]["peak_mib"] == 9, "the figures remain"


def test_a_line_a_minute_is_recorded(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler())
    scene.read(sampler, *[[sample(50, None, power_w=300.0)]] * 26)
    lines = [json.loads(line) for line in scene.record.read_text().splitlines()]
    assert [line["gpus"] for line in lines] == [
        {TWO[0]: [50.0, None, 300.0, None], TWO[1]: [None, None, 300.0, None]}
    ] * 2
    assert lines[0]["at"].endswith("Z")
    assert scene.record.stat().st_mode & 0o777 == 0o600


def test_a_record_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gone", sampler := FakeSampler())
    scene.read(sampler, *[[sample(50, 50)]] * 26)
    assert scene.events == []
    assert scene.monitor.figures()


def test_a_line_that_a_full_disk_cuts_is_removed_again(tmp_path: Path) -> None:
    """A file size limit cuts a write short, as a full disk does; Python ignores the signal that comes with it."""
    scene = Scene(tmp_path, sampler := FakeSampler())
    scene.read(sampler, *[[sample(50, 50)]] * 14)
    whole = scene.record.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, before[1]))
    try:
        scene.read(sampler, *[[sample(50, 50)]] * 14)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert scene.record.read_bytes() == whole
    scene.read(sampler, *[[sample(50, 50)]] * 14)
    assert scene.record.read_bytes().count(b"\n") == 2
    assert scene.events == []


# --- while the sampler fails


def test_a_dead_sampler_is_reported_once_and_replaced_after_a_minute(tmp_path: Path) -> None:
    first, second, third = FakeSampler(), FakeSampler(fd=8), FakeSampler(fd=9)
    scene = Scene(tmp_path, first, second, third)
    scene.read(first, [sample(50, 50)], None)
    assert scene.events == [("sampler_lost", LOST.format("It ended."), {})]
    assert (first.closed, scene.monitor.fd, scene.monitor.pid) == (True, None, None)
    assert scene.monitor.due_s == scene.now_s + 60
    scene.monitor.check_deadline(scene.now_s + 59.9)
    assert len(scene.starts) == 1
    scene.wait_until_due()
    assert scene.monitor.fd == 8
    scene.read(second, [sample(50, 50)], None)
    scene.wait_until_due()
    assert (scene.monitor.fd, scene.kinds) == (9, ["sampler_lost"])


def test_the_last_samples_of_a_sampler_that_died_count(tmp_path: Path) -> None:
    @dataclass
    class Dying(FakeSampler):
        def read(self) -> list[Snapshot] | None:
            self.fd = self.pid = None
            return [sample(50, 50, memory_used_mib=5)]

    scene = Scene(tmp_path, dying := Dying())
    scene.read(dying, [])
    assert scene.kinds == ["sampler_lost"]
    assert scene.monitor.figures()[TWO[0]]["peak_mib"] == 5


def test_a_sampler_that_is_silent_for_seventy_seconds_is_replaced(tmp_path: Path) -> None:
    first, second = FakeSampler(), FakeSampler(fd=8)
    scene = Scene(tmp_path, first, second)
    scene.read(first, [sample(50, 50)], [])
    assert scene.monitor.due_s == scene.now_s - 5 + 12 * 5 + 10
    scene.wait_until_due()
    assert scene.events == [("sampler_lost", LOST.format("It was silent for too long."), {})]
    assert first.closed
    scene.wait_until_due()
    assert scene.monitor.fd == 8


def test_a_sampler_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeSampler(fd=None, pid=None), FakeSampler(fd=8))
    assert scene.events == [("sampler_lost", LOST.format("It could not be started."), {})]
    scene.wait_until_due()
    assert scene.monitor.fd == 8


def test_while_a_killed_sampler_lingers_no_second_one_starts(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as lingering:
        first, second = FakeSampler(pid=lingering.pid), FakeSampler(fd=8)
        scene = Scene(tmp_path, first, second)
        scene.read(first, None)
        scene.wait_until_due()
        assert (scene.monitor.fd, scene.monitor.pid, len(scene.starts)) == (None, lingering.pid, 1)
        lingering.kill()
    scene.wait_until_due()
    assert scene.monitor.fd == 8


def test_a_driver_without_permission_is_reported_once_and_sampled_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler())
    trouble = Snapshot(trouble="no_permission", text="NVML may not be used here.")
    scene.read(sampler, [trouble], [trouble], [sample(50, 50)])
    assert scene.events == [("sampler_lost", LOST.format("NVML may not be used here."), {})]
    assert scene.monitor.figures()[TWO[0]] == {"mean_util": 50.0}


def test_a_driver_that_hangs_is_a_deviation(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler())
    scene.read(sampler, [Snapshot(trouble="hangs", text="It was asked 10 s ago.")])
    assert scene.events == [
        ("gpu_deviation", "The GPU driver does not answer. It was asked 10 s ago.", {"what": "lost"})
    ]


# --- exceptions


def test_any_exception_is_reported_once_and_the_monitor_stays_off(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler())
    scene.read(sampler, RuntimeError("no such thing"))
    assert scene.events == [("sampler_lost", LOST.format("RuntimeError('no such thing')."), {})]
    assert sampler.closed
    scene.monitor.read()
    scene.monitor.check_deadline(1e9)
    scene.monitor.start()
    assert (scene.monitor.fd, scene.monitor.due_s, len(scene.starts), len(scene.events)) == (None, None, 1, 1)


def test_a_sampler_that_cannot_be_created_harms_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, OSError("no more processes"))
    assert scene.kinds == ["sampler_lost"]
    assert scene.monitor.due_s is None


def test_facts_of_a_wrong_type_harm_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler())
    scene.read(sampler, [sample(50, 50)], [Snapshot(gpus=(Gpu(index=0, uuid=TWO[0], power_w="much"),))])  # type: ignore[arg-type]
    assert scene.kinds == ["sampler_lost"]
    assert scene.monitor.figures()[TWO[0]]["mean_util"] == 50.0


def _raise(*_: object) -> None:
    raise OSError("nobody listens")


@pytest.mark.parametrize(
    "break_it", [lambda scene, sampler: None, lambda scene, sampler: setattr(sampler, "close", _raise)]
)
def test_a_report_or_a_close_that_raises_harms_nothing(
    tmp_path: Path, break_it: Callable[[Scene, FakeSampler], None]
) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler(), report=_raise)
    break_it(scene, sampler)
    scene.read(sampler, [sample(50, 50, lost=True)])
    scene.monitor.close()
    scene.monitor.close()
    assert scene.monitor.fd is None


def test_closing_ends_the_sampler_for_good(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sampler := FakeSampler())
    scene.monitor.close()
    scene.monitor.start()
    assert (sampler.closed, scene.monitor.fd, scene.monitor.due_s, len(scene.starts)) == (True, None, None, 1)
    assert scene.events == []


def test_the_monitor_of_an_attempt_has_the_settings_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = RunDir(tmp_path)
    rundir.attempt(2).mkdir(parents=True)
    spec = RunSpec(gpu_sample_s=2.0, gpu_window_s=40.0, require={"power_limit_w": 500})
    control = SimpleNamespace(spec=spec, rundir=rundir, events=EventLog(rundir.events))
    starts: list[tuple[Any, ...]] = []

    def sampler(*words: Any) -> FakeSampler:
        starts.append(words)
        return FakeSampler(reads=[[sample(50, 50, power_limit_w=700.0)]])

    monkeypatch.setattr(gpu_monitor, "_start_sampler", sampler)
    monitor = GpuMonitor.for_attempt(cast(ControlInputs, control), 2, TWO[:1], {"A": "1"})
    monitor.start()
    monitor.read()
    assert starts == [(sys.executable, {"A": "1"}, TWO[:1], 2.0)]
    (event,) = read_events(rundir.events)
    assert (event["kind"], event["what"], event["attempt"]) == ("gpu_deviation", "power", 2)
