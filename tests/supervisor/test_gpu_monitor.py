"""Samples become events, figures and a record; a sampler that fails is told once and harms nobody. Time is virtual."""

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
from mcp_server.supervisor import gpu_monitor
from mcp_server.supervisor.control import ControlInputs
from mcp_server.supervisor.gpu_monitor import GpuMonitor, SamplerProcess

TWO = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-00000001-0000-4000-8000-000000000001")
NOBODY = 2**22 + 1  # above the largest pid that Linux gives


def sample(*utils: int | None, **told: Any) -> Snapshot:
    return Snapshot(
        gpus=tuple(Gpu(index=n, uuid=TWO[n], utilisation=util, **told) for n, util in enumerate(utils)),
    )


@dataclass
class Stand:
    """Stands in for a sampler; ``says`` is what its next reads return."""

    fd: int | None = 7
    pid: int | None = NOBODY
    says: list[list[Snapshot] | Exception | None] = field(default_factory=list)
    closed: bool = False

    def read(self) -> list[Snapshot] | None:
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def close(self) -> None:
        self.closed = True


class Scene:
    """A watch, its virtual time, its samplers in the order in which they were started, and what it told."""

    def __init__(self, tmp_path: Path, *stands: Stand | Exception, uuids: Sequence[str] = TWO, **how: Any) -> None:
        self.now_s = 1_000.0
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.record = tmp_path / "gpus.jsonl"
        self.asked: list[tuple[str, Mapping[str, str], Sequence[str], float]] = []
        self._stands = list(stands)
        self.monitor = GpuMonitor(
            *("python", {"LD_LIBRARY_PATH": "/nvml"}, uuids),
            **{"report": lambda *event: self.events.append(event), **how},
            record=self.record,
            sampler=self._make,
            clock=lambda: self.now_s,
        )
        self.monitor.start()

    def _make(self, *asked: Any) -> SamplerProcess:
        self.asked.append(asked)
        stand = self._stands.pop(0)
        if isinstance(stand, Exception):
            raise stand
        return stand

    def read(self, stand: Stand, *said: list[Snapshot] | Exception | None, every_s: float = 5.0) -> None:
        """Let the sampler say these one after the other."""
        for each in said:
            self.now_s += every_s
            stand.says.append(each)
            self.monitor.read()

    def wait_until_due(self) -> None:
        assert self.monitor.due_s is not None
        self.now_s = self.monitor.due_s
        self.monitor.check_deadline(self.now_s)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.events]


LOST = "The sampler of the GPUs does not work: {} The run goes on."


# --- while it works


def test_the_sampler_is_started_with_the_runs_environment_and_gpus(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Stand(fd=9, pid=os.getpid()), every_s=2.0)
    assert scene.asked == [("python", {"LD_LIBRARY_PATH": "/nvml"}, TWO, 2.0)]
    assert (scene.monitor.fd, scene.monitor.pid) == (9, os.getpid())


def test_a_watch_that_has_not_started_or_has_no_gpus_does_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, uuids=())
    monitor = scene.monitor
    monitor.read()
    monitor.check_deadline(1e9)
    assert (monitor.fd, monitor.pid, monitor.due_s, monitor.figures(), monitor.idle_s()) == (None, None, None, {}, None)
    assert scene.asked == []
    assert scene.events == []


def test_a_deviation_is_told_with_what_it_is_and_its_facts(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stand := Stand())
    scene.read(stand, [sample(50, 50, xids=(79,))], [sample(50, 50, xids=(79,))])
    assert scene.kinds == ["gpu_deviation"] * 2
    assert scene.events[1] == (
        "gpu_deviation",
        "GPU 1 (GPU-00000001): Xid 79, fallen off the bus: a fault of the GPU or its driver.",
        {"what": "xid", "gpu": TWO[1], "xid": 79, "by_program": False},
    )


def test_what_the_run_requires_and_the_window_reach_the_judgement(tmp_path: Path) -> None:
    require = {"max_sm_clock_mhz": 1_410, "power_limit_w": 500, "count": 2}
    scene = Scene(tmp_path, stand := Stand(), require=require, window_s=30.0)
    fast = sample(90, 0, sm_clock_mhz=1_980, power_limit_w=700.0)
    scene.read(stand, *[[fast]] * 8)
    assert sorted(facts["what"] for _, _, facts in scene.events) == ["clock", "clock", "imbalance", "power", "power"]


def test_snapshots_that_were_read_together_are_as_far_apart_as_they_were_taken(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stand := Stand())
    hot = sample(90, 90, throttle=("thermal",))
    scene.read(stand, [hot, hot, hot], every_s=60)
    assert scene.kinds == ["gpu_deviation"] * 2
    assert "for 10 s" in scene.events[0][1]


def test_nothing_whole_has_come_is_no_trouble(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stand := Stand())
    scene.read(stand, [], [])
    assert scene.events == []
    assert not stand.closed


def test_figures_and_the_idle_time_are_of_the_whole_attempt(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stand := Stand())
    scene.read(stand, [sample(80, 40, memory_used_mib=9)], [sample(80, 40)], [sample(0, 0)])
    scene.now_s += 7
    assert scene.monitor.figures() == {
        TWO[0]: {"mean_util": 40.0, "peak_mib": 9},
        TWO[1]: {"mean_util": 20.0, "peak_mib": 9},
    }
    assert scene.monitor.idle_s() == 7.0
    scene.monitor.close()
    assert scene.monitor.figures()[TWO[0]]["peak_mib"] == 9, "the figures remain"


def test_a_line_a_minute_is_recorded(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stand := Stand())
    scene.read(stand, *[[sample(50, None, power_w=300.0)]] * 26)
    lines = [json.loads(line) for line in scene.record.read_text().splitlines()]
    assert [line["gpus"] for line in lines] == [
        {TWO[0]: [50.0, None, 300.0, None], TWO[1]: [None, None, 300.0, None]},
    ] * 2
    assert lines[0]["at"].endswith("Z")
    assert scene.record.stat().st_mode & 0o777 == 0o600


def test_a_record_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gone", stand := Stand())
    scene.read(stand, *[[sample(50, 50)]] * 26)
    assert scene.events == []
    assert scene.monitor.figures()


def test_a_line_that_a_full_disk_cuts_is_taken_back(tmp_path: Path) -> None:
    """A file size limit cuts a write short, as a full disk does; Python ignores the signal that comes with it."""
    scene = Scene(tmp_path, stand := Stand())
    scene.read(stand, *[[sample(50, 50)]] * 14)
    whole = scene.record.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, before[1]))
    try:
        scene.read(stand, *[[sample(50, 50)]] * 14)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert scene.record.read_bytes() == whole
    scene.read(stand, *[[sample(50, 50)]] * 14)
    assert scene.record.read_bytes().count(b"\n") == 2
    assert scene.events == []


# --- when it does not


def test_a_dead_sampler_is_told_once_and_replaced_after_a_minute(tmp_path: Path) -> None:
    first, second, third = Stand(), Stand(fd=8), Stand(fd=9)
    scene = Scene(tmp_path, first, second, third)
    scene.read(first, [sample(50, 50)], None)
    assert scene.events == [("sampler_lost", LOST.format("It ended."), {})]
    assert (first.closed, scene.monitor.fd, scene.monitor.pid) == (True, None, None)
    assert scene.monitor.due_s == scene.now_s + 60
    scene.monitor.check_deadline(scene.now_s + 59.9)
    assert len(scene.asked) == 1
    scene.wait_until_due()
    assert scene.monitor.fd == 8
    scene.read(second, [sample(50, 50)], None)
    scene.wait_until_due()
    assert (scene.monitor.fd, scene.kinds) == (9, ["sampler_lost"])


def test_what_a_sampler_said_before_it_died_counts(tmp_path: Path) -> None:
    @dataclass
    class Dying(Stand):
        def read(self) -> list[Snapshot] | None:
            self.fd = self.pid = None
            return [sample(50, 50, memory_used_mib=5)]

    scene = Scene(tmp_path, dying := Dying())
    scene.read(dying, [])
    assert scene.kinds == ["sampler_lost"]
    assert scene.monitor.figures()[TWO[0]]["peak_mib"] == 5


def test_a_sampler_that_says_nothing_for_seventy_seconds_is_replaced(tmp_path: Path) -> None:
    first, second = Stand(), Stand(fd=8)
    scene = Scene(tmp_path, first, second)
    scene.read(first, [sample(50, 50)], [])
    assert scene.monitor.due_s == scene.now_s - 5 + 12 * 5 + 10
    scene.wait_until_due()
    assert scene.events == [("sampler_lost", LOST.format("It was silent for too long."), {})]
    assert first.closed
    scene.wait_until_due()
    assert scene.monitor.fd == 8


def test_a_sampler_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Stand(fd=None, pid=None), Stand(fd=8))
    assert scene.events == [("sampler_lost", LOST.format("It could not be started."), {})]
    scene.wait_until_due()
    assert scene.monitor.fd == 8


def test_a_sampler_that_even_a_kill_does_not_end_has_no_second_beside_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as lingering:
        first, second = Stand(pid=lingering.pid), Stand(fd=8)
        scene = Scene(tmp_path, first, second)
        scene.read(first, None)
        scene.wait_until_due()
        assert (scene.monitor.fd, scene.monitor.pid, len(scene.asked)) == (None, lingering.pid, 1)
        lingering.kill()
    scene.wait_until_due()
    assert scene.monitor.fd == 8


def test_a_driver_that_tells_of_no_gpus_is_told_once_and_asked_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stand := Stand())
    trouble = Snapshot(trouble="no_permission", text="NVML may not be used here.")
    scene.read(stand, [trouble], [trouble], [sample(50, 50)])
    assert scene.events == [("sampler_lost", LOST.format("NVML may not be used here."), {})]
    assert scene.monitor.figures()[TWO[0]] == {"mean_util": 50.0}


def test_a_driver_that_hangs_is_a_deviation(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stand := Stand())
    scene.read(stand, [Snapshot(trouble="hangs", text="It was asked 10 s ago.")])
    assert scene.events == [
        ("gpu_deviation", "The GPU driver does not answer. It was asked 10 s ago.", {"what": "lost"}),
    ]


# --- whatever raises


def test_whatever_raises_is_told_once_and_the_watch_stays_off(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stand := Stand())
    scene.read(stand, RuntimeError("no such thing"))
    assert scene.events == [("sampler_lost", LOST.format("RuntimeError('no such thing')."), {})]
    assert stand.closed
    scene.monitor.read()
    scene.monitor.check_deadline(1e9)
    scene.monitor.start()
    assert (scene.monitor.fd, scene.monitor.due_s, len(scene.asked), len(scene.events)) == (None, None, 1, 1)


def test_a_sampler_that_cannot_even_be_made_harms_nobody(tmp_path: Path) -> None:
    scene = Scene(tmp_path, OSError("no more processes"))
    assert scene.kinds == ["sampler_lost"]
    assert scene.monitor.due_s is None


def test_facts_that_no_gpu_has_harm_nobody(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stand := Stand())
    scene.read(stand, [sample(50, 50)], [Snapshot(gpus=(Gpu(index=0, uuid=TWO[0], power_w="much"),))])  # type: ignore[arg-type]
    assert scene.kinds == ["sampler_lost"]
    assert scene.monitor.figures()[TWO[0]]["mean_util"] == 50.0


def _raise(*_: object) -> None:
    raise OSError("nobody listens")


@pytest.mark.parametrize("break_it", [lambda scene, stand: None, lambda scene, stand: setattr(stand, "close", _raise)])
def test_nobody_who_listens_and_nothing_to_close_harm_nobody(
    tmp_path: Path, break_it: Callable[[Scene, Stand], None]
) -> None:
    scene = Scene(tmp_path, stand := Stand(), report=_raise)
    break_it(scene, stand)
    scene.read(stand, [sample(50, 50, lost=True)])
    scene.monitor.close()
    scene.monitor.close()
    assert scene.monitor.fd is None


def test_closing_ends_the_sampler_for_good(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stand := Stand())
    scene.monitor.close()
    scene.monitor.start()
    assert (stand.closed, scene.monitor.fd, scene.monitor.due_s, len(scene.asked)) == (True, None, None, 1)
    assert scene.events == []


def test_an_attempts_watch_is_as_the_launch_has_set_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = RunDir(tmp_path)
    rundir.attempt(2).mkdir(parents=True)
    spec = RunSpec(gpu_sample_s=2.0, gpu_window_s=40.0, require={"power_limit_w": 500})
    control = SimpleNamespace(spec=spec, rundir=rundir, events=EventLog(rundir.events))
    asked: list[tuple[Any, ...]] = []

    def stand(*words: Any) -> Stand:
        asked.append(words)
        return Stand(says=[[sample(50, 50, power_limit_w=700.0)]])

    monkeypatch.setattr(gpu_monitor, "_start_sampler", stand)
    monitor = GpuMonitor.for_attempt(cast(ControlInputs, control), 2, TWO[:1], {"A": "1"})
    monitor.start()
    monitor.read()
    assert asked == [(sys.executable, {"A": "1"}, TWO[:1], 2.0)]
    (event,) = read_events(rundir.events)
    assert (event["kind"], event["what"], event["attempt"]) == ("gpu_deviation", "power", 2)
