"""Event files become the series of a run, whatever their writers did, and however often and when one looks."""

import os
import random
import shutil
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from mcp_server.scalars.series import RunScalars, ScalarsUnreadable, Series
from mcp_server.scalars.tensorboard.cache import Cache
from mcp_server.scalars.tensorboard.find import find_event_directories, list_event_files
from mcp_server.scalars.tensorboard.reader import EventReader
from mcp_server.scalars.tensorboard.scan import ScanResult, scan

Point = tuple[int, float, float]  # step, wall, value
FIRST = "events.out.tfevents.1700000000.host.1.0"
SECOND = "events.out.tfevents.1700001000.host.2.0"
THIRD = "events.out.tfevents.1700002000.host.3.0"


# --- event files by hand


def record(payload: bytes) -> bytes:
    def mask_crc(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + mask_crc(length) + payload + mask_crc(payload)


def header(version: int = 2) -> bytes:
    """TensorBoard lets falling steps replace points where the version is 1, START events where it is 2."""
    return record(Event(file_version=f"brain.Event:{version}").SerializeToString())


def told(step: int, wall: float, value: float, tag: str = "loss") -> bytes:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return record(Event(step=step, wall_time=wall, summary=summary).SerializeToString())


def points(steps: Iterable[int], wall: float = 0.0, plus: float = 0.0, tag: str = "loss") -> bytes:
    """A point each second from ``wall`` on, with the value ``step + plus``."""
    return b"".join(told(step, wall + n, step + plus, tag) for n, step in enumerate(steps))


def start(step: int, wall: float) -> bytes:
    return record(Event(step=step, wall_time=wall, session_log=SessionLog(status=SessionLog.START)).SerializeToString())


def tensor(step: int, wall: float, value: float, plugin: str = "") -> bytes:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin)) if plugin else None
    one = Summary.Value(tag="loss", tensor=TensorProto(dtype=DT_DOUBLE, double_val=[value]), metadata=metadata)
    return record(Event(step=step, wall_time=wall, summary=Summary(value=[one])).SerializeToString())


def write(path: Path, *parts: bytes | bytearray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))
    return path


def append(path: Path, *parts: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(parts)


# --- what is compared


def shown(series: Series) -> list[Point]:
    return list(zip(series.steps.tolist(), series.walls.tolist(), series.values.tolist(), strict=True))


def steps_of(run: RunScalars, tag: str = "loss") -> list[int]:
    return [int(step) for step in run.series[tag].steps]


def values_of(run: RunScalars, tag: str = "loss") -> list[float]:
    return [float(value) for value in run.series[tag].values]


def everything(run: RunScalars) -> dict[str, object]:
    return {
        tag: (
            one.steps.tobytes(),
            one.walls.tobytes(),
            one.values.tobytes(),
            one.restarts,
            one.writers,
        )
        for tag, one in run.series.items()
    }


def accumulated(directory: Path) -> dict[str, list[Point]]:
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0}, purge_orphaned_data=True)
    accumulator.Reload()
    return {
        tag: [(one.step, one.wall_time, one.value) for one in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


# --- one look


def test_a_real_writer_s_run_is_read_as_tensorboard_reads_it(tmp_path: Path) -> None:
    writer = EventFileWriter(str(tmp_path))
    for step in range(-3, 200):
        values = [Summary.Value(tag=f"train/é {n}", simple_value=step * n + 0.1) for n in range(3)]
        writer.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=values)))
    writer.add_event(
        Event(step=200, wall_time=1e9 + 200, summary=Summary(value=[Summary.Value(tag="eval", simple_value=1)]))
    )
    writer.close()
    run = EventReader().read(tmp_path)
    assert {tag: shown(one) for tag, one in run.series.items()} == accumulated(tmp_path)
    assert (run.path, run.notes, run.bytes) == (tmp_path, (), list_event_files(tmp_path)[0].stat().st_size)
    assert all((one.restarts, one.writers) == ((), 1) for one in run.series.values())


def test_a_point_that_is_nan_or_infinite_is_a_point(tmp_path: Path) -> None:
    values = [1.0, float("nan"), float("inf"), float("-inf"), 2.0]
    write(tmp_path / FIRST, header(), *(told(n, n, value) for n, value in enumerate(values)))
    assert np.array_equal(EventReader().read(tmp_path).series["loss"].values, values, equal_nan=True)


def test_without_steps_all_points_stand_in_the_order_told(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), *(told(0, n, value) for n, value in enumerate([3, 1, 2])))
    write(tmp_path / SECOND, header(), *(told(0, 100 + n, value) for n, value in enumerate([5, 4])))
    run = EventReader().read(tmp_path)
    assert shown(run.series["loss"]) == [(0, 0, 3), (0, 1, 1), (0, 2, 2), (0, 100, 5), (0, 101, 4)]
    assert (run.series["loss"].restarts, run.series["loss"].writers, run.notes) == ((), 1, ())


def test_a_step_told_twice_has_its_newest_value_and_is_no_restart(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), told(1, 0, 1), told(2, 1, 2), told(2, 2, 20), told(3, 3, 3))
    run = EventReader().read(tmp_path)
    assert shown(run.series["loss"]) == [(1, 0, 1), (2, 2, 20), (3, 3, 3)]
    assert (run.series["loss"].restarts, run.notes) == ((), ())


def test_a_step_that_falls_replaces_what_was_told_from_there_on(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(1), points(range(10)), points(range(4, 7), wall=100, plus=0.5))
    run = EventReader().read(tmp_path)
    assert {"loss": shown(run.series["loss"])} == accumulated(tmp_path)
    assert values_of(run) == [0, 1, 2, 3, 4.5, 5.5, 6.5]
    assert run.series["loss"].restarts == (4,)
    assert run.notes == ("Restarted at step 4: later points replace earlier ones from there on.",)


def test_points_that_come_a_little_late_are_put_where_they_belong(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points([1, 2, 4, 3, 5, 7, 8, 6]))
    series = EventReader().read(tmp_path).series["loss"]
    assert (series.values.tolist(), series.restarts) == ([1, 2, 3, 4, 5, 6, 7, 8], ())
    write(tmp_path / FIRST, header(), points([1, 2, 4, 3, 4]))
    series = EventReader().read(tmp_path).series["loss"]
    assert (series.walls.tolist(), series.restarts) == ([0, 1, 3, 4], (3,)), "step 4 was told again"


def test_a_later_file_that_starts_lower_replaces_the_tail_of_its_tags_alone(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(10)), points(range(0, 10, 3), tag="eval"))
    write(tmp_path / SECOND, header(), points(range(6, 8), wall=1_000, plus=0.5))
    run = EventReader().read(tmp_path)  # TensorBoard takes the header of the second file for the restart, at step 0
    assert (values_of(run), run.series["loss"].restarts) == ([0, 1, 2, 3, 4, 5, 6.5, 7.5], (6,))
    assert (steps_of(run, "eval"), run.series["eval"].restarts) == ([0, 3, 6, 9], ())


def test_a_start_event_replaces_the_tail_of_all_tags(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(10)), points(range(0, 10, 3), tag="eval"))
    write(tmp_path / SECOND, header(), start(5, 999), points(range(5, 8), wall=1_000, plus=0.5))
    run = EventReader().read(tmp_path)
    assert {tag: shown(one) for tag, one in run.series.items()} == accumulated(tmp_path)
    assert (values_of(run), run.series["loss"].restarts) == ([0, 1, 2, 3, 4, 5.5, 6.5, 7.5], (5,))
    assert (steps_of(run, "eval"), run.series["eval"].restarts) == ([0, 3], (5,))


def test_a_start_event_in_the_same_file_replaces_only_what_stands_before_it(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), start(0, 0), points(range(10)), start(4, 50), points([6, 7], wall=60, plus=0.5))
    run = EventReader().read(tmp_path)
    assert {"loss": shown(run.series["loss"])} == accumulated(tmp_path)
    assert (values_of(run), run.series["loss"].restarts) == ([0, 1, 2, 3, 6.5, 7.5], (4,))


def test_a_tag_of_which_a_restart_left_nothing_is_not_told(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(10)), points([8, 9], tag="eval"))
    write(tmp_path / SECOND, header(), start(5, 999))
    assert list(EventReader().read(tmp_path).series) == ["loss"]


def test_restarts_are_told_in_their_order_and_the_notes_stay_short(tmp_path: Path) -> None:
    write(
        tmp_path / FIRST, header(), points(range(100)), *(points(range(n, 100), wall=200 * n) for n in (50, 20, 70, 60))
    )
    run = EventReader().read(tmp_path)
    assert run.series["loss"].restarts == (50, 20, 70, 60)
    assert run.notes == (
        "Restarted 4 times, last at steps 20, 70, 60: later points replace earlier ones from there on.",
    )


def test_two_live_writers_keep_all_their_points_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points([1, 2, 3], wall=10.0), points([1, 2], wall=0, tag="lr"))
    write(tmp_path / SECOND, header(), start(0, 9.0), points([1, 2, 3], wall=10.5, plus=0.5))
    run = EventReader().read(tmp_path)
    assert values_of(run) == [1, 1.5, 2, 2.5, 3, 3.5]
    assert (run.series["loss"].writers, run.series["loss"].restarts, run.series["lr"].writers) == (2, (), 1)
    assert run.notes == ("2 processes write loss at the same time: all their points are kept, in order of time.",)
    assert steps_of(run, "lr") == [1, 2], "a START of the other writer is none of its own"


def test_a_restart_after_two_live_writers_replaces_points_of_both(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(5), wall=10.0))
    write(tmp_path / SECOND, header(), points(range(5), wall=10.5, plus=0.5))
    write(tmp_path / THIRD, header(), points(range(3, 6), wall=100, plus=0.1))
    loss = EventReader().read(tmp_path).series["loss"]
    assert loss.values.tolist() == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5, 3.1, 4.1, 5.1], abs=1e-6)
    assert (loss.writers, loss.restarts) == (2, (3,))


def test_files_of_one_second_count_in_the_order_of_their_points(tmp_path: Path) -> None:
    write(tmp_path / "events.out.tfevents.1700000000.host.999.0", header(), points(range(10)))
    write(tmp_path / "events.out.tfevents.1700000000.host.1001.0", header(), points(range(5, 8), wall=100, plus=0.5))
    assert values_of(EventReader().read(tmp_path)) == [0, 1, 2, 3, 4, 5.5, 6.5, 7.5]


def test_subdirectories_are_runs_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "train" / FIRST, header(), points(range(3)))
    write(tmp_path / "eval" / FIRST, header(), points(range(2)))
    assert [steps_of(EventReader().read(tmp_path / name)) for name in ("train", "eval")] == [[0, 1, 2], [0, 1]]
    with pytest.raises(ScalarsUnreadable, match="No event file is directly in"):
        EventReader().read(tmp_path)


@pytest.mark.parametrize("content", [b"", header(), b"\0" * 4096, header() + b"\0" * 4096, header()[:7]])
def test_a_file_that_tells_nothing_is_a_run_without_series(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / FIRST, content)
    run = EventReader().read(tmp_path)
    assert (dict(run.series), run.bytes) == ({}, len(content))


def test_damage_is_named_and_what_stands_around_it_is_told(tmp_path: Path) -> None:
    data = bytearray(header() + points(range(100_000 // 40)))
    data[50_000] ^= 0xFF
    write(tmp_path / FIRST, data)
    run = EventReader().read(tmp_path)
    assert len(run.notes) == 1
    assert run.notes[0].startswith(f"{FIRST}: ")
    assert len(set(range(2_500)) - set(steps_of(run))) == 1


def test_damage_near_the_end_does_not_hide_what_stands_behind_it(tmp_path: Path) -> None:
    data = bytearray(header() + points(range(10)))
    data[len(header() + points(range(5))) + 20] ^= 0xFF
    file = write(tmp_path / FIRST, data)
    reader = EventReader()
    run = reader.read(tmp_path)
    assert (steps_of(run), len(run.notes)) == ([0, 1, 2, 3, 4, 6, 7, 8, 9], 1)
    append(file, points(range(10, 5_000), wall=10))
    run = reader.read(tmp_path)
    assert set(range(10, 5_000)) < set(steps_of(run))
    assert everything(run) == everything(EventReader().read(tmp_path))


def test_metadata_comes_with_the_first_point_only_also_where_a_look_stops_behind_it(tmp_path: Path) -> None:
    file = write(tmp_path / FIRST, header(), tensor(0, 0, 1 / 3, plugin="scalars"))
    reader = EventReader(tmp_path / "cache")
    assert values_of(reader.read(tmp_path)) == [1 / 3]
    append(file, tensor(1, 1, 2 / 3))
    assert values_of(reader.read(tmp_path)) == [1 / 3, 2 / 3]


def test_what_was_returned_stays_as_it_was_and_cannot_be_written(tmp_path: Path) -> None:
    file = write(tmp_path / FIRST, header(), points(range(3)))
    reader = EventReader()
    before = reader.read(tmp_path)
    append(file, points(range(3, 6), wall=3))
    assert (steps_of(before), steps_of(reader.read(tmp_path))) == ([0, 1, 2], [0, 1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match="read-only"):
        before.series["loss"].values[0] = 7


def test_the_newest_values_come_from_the_ends_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(10)), points([4], tag="eval"))
    write(tmp_path / SECOND, header(), points(range(6, 8), wall=1_000, plus=0.5))
    assert EventReader().newest(tmp_path) == {"loss": (7, 1_001.0, 7.5), "eval": (4, 0.0, 4.0)}
    with pytest.raises(ScalarsUnreadable):
        EventReader().newest(tmp_path / "absent")


# --- one look after another: each step is (what happens to the files, the steps told then)


def looks(reader: EventReader, directory: Path, expected: list[int]) -> None:
    """The next look tells ``expected``, as a reader that never looked before does, and then nothing is new."""
    assert reader.changed(directory)
    run = reader.read(directory)
    assert steps_of(run) == expected
    assert everything(run) == everything(EventReader().read(directory))
    assert not reader.changed(directory)
    assert everything(reader.read(directory)) == everything(run)


def test_a_partial_record_is_told_once_it_is_whole(tmp_path: Path) -> None:
    last, reader = told(2, 2, 2), EventReader()
    file = write(tmp_path / FIRST, header(), points([0, 1]))
    looks(reader, tmp_path, [0, 1])
    for byte in range(len(last) - 1):
        append(file, last[byte : byte + 1])
        looks(reader, tmp_path, [0, 1])
    append(file, last[-1:])
    looks(reader, tmp_path, [0, 1, 2])


def test_a_page_of_zeros_is_told_once_it_is_filled_though_the_size_stays(tmp_path: Path) -> None:
    data = header() + points(range(20))
    cut = len(header() + points(range(10))) + 13
    file = write(tmp_path / FIRST, data[:cut], b"\0" * (len(data) - cut))
    reader = EventReader()
    first = steps_of(reader.read(tmp_path))
    assert first == list(range(len(first)))
    assert len(first) == 10
    times = file.stat()
    with file.open("r+b") as filled:
        filled.write(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a network file system may tell it
    looks(reader, tmp_path, list(range(20)))


def test_a_file_rewritten_smaller_or_in_place_is_read_anew(tmp_path: Path) -> None:
    file = write(tmp_path / FIRST, header(), points(range(20)))
    reader = EventReader()
    looks(reader, tmp_path, list(range(20)))
    write(file, header(), points(range(5)))
    looks(reader, tmp_path, list(range(5)))
    write(file, header(), points(range(40, 60), wall=7))  # longer again before anybody looks
    looks(reader, tmp_path, list(range(40, 60)))
    write(file, header(), points(range(70, 90), wall=8))  # of the same length
    looks(reader, tmp_path, list(range(70, 90)))
    write(file)
    assert reader.changed(tmp_path)
    assert dict(reader.read(tmp_path).series) == {}


def test_a_file_that_takes_the_place_of_another_is_read_anew(tmp_path: Path) -> None:
    file = write(tmp_path / FIRST, header(), points(range(20)))
    reader = EventReader()
    looks(reader, tmp_path, list(range(20)))
    write(tmp_path / "next", header(), points(range(30, 60))).replace(file)
    looks(reader, tmp_path, list(range(30, 60)))


def test_the_first_file_is_still_followed_when_there_is_a_second(tmp_path: Path) -> None:
    first = write(tmp_path / FIRST, header(), points(range(5)))
    reader = EventReader()
    looks(reader, tmp_path, [0, 1, 2, 3, 4])
    second = write(tmp_path / SECOND, header(), start(6, 999), points([6, 7], wall=1_000))
    looks(reader, tmp_path, [0, 1, 2, 3, 4, 6, 7])
    append(first, points([5, 6], wall=5))  # held in a buffer until now
    looks(reader, tmp_path, [0, 1, 2, 3, 4, 5, 6, 7])
    append(second, points([8], wall=1_002))
    looks(reader, tmp_path, [0, 1, 2, 3, 4, 5, 6, 7, 8])
    append(first, points([7], wall=1_003))  # alive after all
    looks(reader, tmp_path, [0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 7])


def test_a_start_event_replaces_also_what_the_file_before_it_tells_late(tmp_path: Path) -> None:
    first = write(tmp_path / FIRST, header(), points(range(3)))
    write(tmp_path / SECOND, header(), start(4, 999))
    reader = EventReader()
    looks(reader, tmp_path, [0, 1, 2])
    append(first, points([3, 4, 5], wall=3))
    looks(reader, tmp_path, [0, 1, 2, 3])
    append(first, points([6], wall=6))
    looks(reader, tmp_path, [0, 1, 2, 3])


def test_files_come_and_go(tmp_path: Path) -> None:
    reader = EventReader()
    assert not reader.changed(tmp_path)
    with pytest.raises(ScalarsUnreadable):
        reader.read(tmp_path)
    first = write(tmp_path / FIRST, header(), points(range(5)))
    looks(reader, tmp_path, [0, 1, 2, 3, 4])
    second = write(tmp_path / SECOND, header(), points(range(5, 7), wall=9))
    looks(reader, tmp_path, [0, 1, 2, 3, 4, 5, 6])
    first.rename(tmp_path / "moved.tfevents.1700000000")
    looks(reader, tmp_path, [0, 1, 2, 3, 4, 5, 6])
    (tmp_path / "moved.tfevents.1700000000").unlink()
    looks(reader, tmp_path, [5, 6])
    second.unlink()
    assert reader.changed(tmp_path)
    with pytest.raises(ScalarsUnreadable, match="No event file is directly in"):
        reader.read(tmp_path)
    assert not reader.changed(tmp_path)


def test_points_put_behind_are_as_if_read_at_once(tmp_path: Path) -> None:
    """A single file, one whose points a restart replaced, one without steps: each the short way, and not."""
    file = write(tmp_path / FIRST, header(), points(range(50)), points([0], tag="a"), points([0], tag="b"))
    write(tmp_path / SECOND, header(), points(range(30, 40), wall=1_000, tag="other"))
    reader = EventReader()
    reader.read(tmp_path)
    wall = 50.0
    for steps in ([50, 51], [52, 52, 53], [40], [41, 42], [43], [43], [0], [0]):
        append(file, points(steps, wall=wall), points([0] * len(steps), wall=wall, tag="a"))
        append(file, points(steps, wall=wall, tag="b"))
        wall += len(steps)
        assert everything(reader.read(tmp_path)) == everything(EventReader().read(tmp_path))


# --- what lies about


def test_pipes_directories_and_links_that_lead_nowhere_are_passed_over(tmp_path: Path) -> None:
    file = write(tmp_path / "elsewhere" / FIRST, header(), points(range(3)))
    run = tmp_path / "run"
    run.mkdir()
    os.mkfifo(run / FIRST)
    (run / SECOND).mkdir()
    (run / f"{THIRD}.loop").symlink_to(run / f"{THIRD}.loop")
    (run / f"{THIRD}.pipe").symlink_to(run / FIRST)
    (run / f"{THIRD}.null").symlink_to("/dev/zero")
    (run / "events.out.tfevents.17.profile-empty").write_bytes(b"")
    assert list_event_files(run) == []
    with pytest.raises(ScalarsUnreadable):
        EventReader().read(run)
    (run / THIRD).symlink_to(file)  # a linked log is one
    (run / f"{THIRD}.again").symlink_to(file)  # and the same one tells nothing twice
    reader = EventReader()
    assert (steps_of(reader.read(run)), reader.changed(run)) == ([0, 1, 2], False)


def test_a_file_that_may_not_be_read_is_named_beside_those_that_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / FIRST, header(), points(range(3)))
    write(tmp_path / SECOND, header(), points(range(3, 5), wall=9))
    opened = os.open

    def refuse(path: str, *args: int) -> int:
        if str(path).endswith(refused):
            raise PermissionError(13, "Permission denied")
        return opened(path, *args)

    monkeypatch.setattr("mcp_server.scalars.tensorboard.tail.os.open", refuse)
    refused: str | tuple[str, ...] = SECOND
    run = EventReader().read(tmp_path)
    assert (steps_of(run), run.notes) == ([0, 1, 2], (f"{SECOND} cannot be read: Permission denied",))
    refused = (FIRST, SECOND)
    with pytest.raises(ScalarsUnreadable, match=f"{FIRST} cannot be read: Permission denied"):
        EventReader().read(tmp_path)


def test_event_files_are_listed_oldest_first(tmp_path: Path) -> None:
    names = [
        "events.out.tfevents.99.b",
        "events.out.tfevents.100.a",
        "x.tfevents.100.b.v2",
        "events.out.tfevents.1700000000",
    ]
    for name in [*reversed(names), "model.ckpt"]:
        write(tmp_path / name)
    assert [path.name for path in list_event_files(tmp_path)] == names


def test_runs_are_found_below_a_root_newest_first(tmp_path: Path) -> None:
    root, outside = tmp_path / "logs", tmp_path / "outside"
    for age, name in enumerate([".", "a/train", "a/b/c/deep", "a/b/c/d/deeper"]):
        file = write(root / name / FIRST, header())
        os.utime(file, (1e9 - age, 1e9 - age))
    write(root / "a/train" / SECOND, header(), points([1]))
    write(outside / FIRST, header())
    (root / "out").symlink_to(outside)
    (root / "a/loop").symlink_to(root)
    found = find_event_directories(root, deepest=4)
    assert [one.path.relative_to(root).as_posix() for one in found] == ["a/train", ".", "a/b/c/deep"]
    assert (found[0].files, found[0].bytes) == (2, 2 * len(header()) + len(told(1, 0, 1)))
    assert (found[1].newest_s, len(find_event_directories(root)), len(find_event_directories(root, most=1))) == (
        1e9,
        4,
        1,
    )
    assert find_event_directories(tmp_path / "absent") == []


# --- the cache


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three tags and a START event, large enough to be kept."""
    directory = tmp_path / "run"
    body = [header(), start(0, 0.0), points(range(2_000)), points(range(700), tag="eval/é")]
    write(directory / FIRST, *body, start(1_990, 2e3), points(range(1_990, 2_100), wall=2e3))
    return directory


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "state" / "scalars"


class Scans:
    """Counts the bytes that are given to the scan of event files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0

        def counted(fd: int, start: int, size: int, plugins: Mapping[str, str], *, final: bool = False) -> ScanResult:
            self.bytes += size - start
            return scan(fd, start, size, plugins, final=final)

        monkeypatch.setattr("mcp_server.scalars.tensorboard.tail.scan", counted)


def entry_of(cache: Path) -> Path:
    (entry,) = cache.iterdir()
    return entry


def test_a_second_reader_starts_where_the_first_stopped(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = EventReader(cache).read(run)
    assert stat.S_IMODE(cache.stat().st_mode) == stat.S_IMODE(cache.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry_of(cache).stat().st_mode) == 0o600
    scans = Scans(monkeypatch)
    second = EventReader(cache).read(run)
    assert (everything(second), second.notes, second.bytes) == (everything(first), first.notes, first.bytes)
    assert scans.bytes == 0
    append(run / FIRST, points(range(2_100, 2_200), wall=4e3))
    third = EventReader(cache).read(run)
    assert everything(third) == everything(EventReader().read(run))
    assert steps_of(third)[-1] == 2_199


def test_a_few_points_more_do_not_write_the_cache_again(run: Path, cache: Path) -> None:
    reader = EventReader(cache)
    reader.read(run)
    before = entry_of(cache).stat()
    append(run / FIRST, points(range(2_100, 2_200), wall=4e3))
    reader.read(run)
    assert entry_of(cache).stat() == before


def test_a_damaged_entry_is_never_told(run: Path, cache: Path) -> None:
    expected = everything(EventReader(cache).read(run))
    whole = entry_of(cache).read_bytes()
    chance = random.Random(1)
    for _ in range(60):
        data = bytearray(whole)
        at = chance.choice([chance.randrange(len(data)), chance.randrange(400)])
        if chance.random() < 0.3:
            data = data[:at]
        elif chance.random() < 0.2:
            data += b"more"
        else:
            data[at] ^= 1 << chance.randrange(8)
        entry_of(cache).write_bytes(data)
        assert everything(EventReader(cache).read(run)) == expected
        assert entry_of(cache).read_bytes() == whole, "made again"


def test_an_entry_of_another_version_or_that_others_can_write_is_none(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EventReader(cache).read(run)
    scans, size = Scans(monkeypatch), (run / FIRST).stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr("mcp_server.scalars.tensorboard.cache._MAGIC", b"rwscal99")
        EventReader(cache).read(run)
    assert scans.bytes == size
    EventReader(cache).read(run)
    assert scans.bytes == 2 * size, "the entry of the other version was none for this one"
    entry_of(cache).chmod(0o666)
    EventReader(cache).read(run)
    assert scans.bytes == 3 * size
    cache.chmod(0o777)
    EventReader(cache).read(run)
    assert scans.bytes == 4 * size


def test_an_entry_is_of_one_file_as_it_was(run: Path, cache: Path) -> None:
    EventReader(cache).read(run)
    file = run / FIRST
    changes: tuple[Callable[[], object], ...] = (
        lambda: write(file, header(), points(range(3_000), wall=5)),  # in place, and longer
        lambda: write(file, header(), points(range(10))),
        lambda: write(run / "other", header(), points(range(2_500), wall=6)).replace(file),
        lambda: file.rename(run / SECOND),
    )
    for change in changes:
        change()
        assert everything(EventReader(cache).read(run)) == everything(EventReader().read(run))


def test_a_cache_that_cannot_be_written_is_no_error(run: Path, tmp_path: Path) -> None:
    place = write(tmp_path / "file") / "cache"
    assert len(EventReader(place).read(run).series) == 2


def test_the_oldest_entries_and_abandoned_parts_are_removed(tmp_path: Path, cache: Path) -> None:
    reader = EventReader(cache)
    for number in range(4):
        write(tmp_path / str(number) / FIRST, header(), points(range(2_000), wall=number))
        reader.read(tmp_path / str(number))
        newest = max(cache.iterdir(), key=lambda entry: entry.stat().st_mtime)
        os.utime(newest, (1e9 + number, 1e9 + number))
    size = next(cache.iterdir()).stat().st_size
    os.utime(write(cache / "dead.part"), (1e9, 1e9))
    write(cache / "alive.part")
    reader._cache = Cache(cache, most_bytes=2 * size + size // 2)
    write(tmp_path / "4" / FIRST, header(), points(range(2_000), wall=4))
    reader.read(tmp_path / "4")
    left = sorted(int(entry.stat().st_mtime) for entry in cache.glob("*.scalars"))
    assert (len(left), left[0], [part.name for part in cache.glob("*.part")]) == (2, 1_000_000_003, ["alive.part"])


def test_runs_looked_at_long_ago_leave_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_server.scalars.tensorboard.reader._KEPT_BYTES", 3 * (24 * 100 + 2**10 + 4 * 2**10))
    reader = EventReader()
    for number in range(6):
        write(tmp_path / str(number) / FIRST, header(), points(range(100)))
        reader.read(tmp_path / str(number))
    assert [Path(name).name for name in reader._runs] == ["3", "4", "5"]
    assert not reader.changed(tmp_path / "0"), "how far it was read is still known"
    assert steps_of(reader.read(tmp_path / "0")) == list(range(100))


def test_threads_may_look_at_the_same_time(run: Path, cache: Path) -> None:
    expected = everything(EventReader().read(run))
    reader = EventReader(cache)
    with ThreadPoolExecutor(8) as pool:
        assert all(everything(one) == expected for one in pool.map(reader.read, [run] * 40))


# --- at random


def test_runs_restarted_with_a_start_event_are_told_as_tensorboard_tells_them(tmp_path: Path) -> None:
    for seed in range(20):
        chance, directory, step, wall = random.Random(seed), tmp_path / str(seed), 0, 1e9
        for _ in range(chance.randrange(1, 5)):
            parts = [header(), start(step, wall)]
            for _ in range(chance.randrange(60)):
                step, wall = step + chance.choice([1, 1, 5]), wall + 1
                tags = chance.sample(["loss", "lr", "eval/é"], chance.randrange(4))
                parts += [told(step, wall, chance.random(), tag) for tag in tags]
            write(directory / f"events.out.tfevents.{int(wall)}.host.1.0", *parts)
            step, wall = max(0, step - chance.randrange(30)), wall + 10
        told_here = {tag: shown(one) for tag, one in EventReader().read(directory).series.items()}
        assert told_here == {tag: told_there for tag, told_there in accumulated(directory).items() if told_there}, seed


class Writers:
    """What writers, restarts and file systems do to the event files of a run, by chance."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory, self.chance = directory, chance
        self.wall, self.step, self.files = 1e9, 0, 0
        self.pending = b""
        self.file = directory
        self.restart()

    def act(self) -> None:
        actions = (
            [self.append] * 6 + [self.partial] * 3 + [self.truncate, self.replace, self.restart, self.zero, self.flip]
        )
        self.chance.choice(actions)()

    def bytes_more(self) -> bytes:
        parts = []
        for _ in range(self.chance.choice([1, 3, 40])):
            self.step += self.chance.choice([1] * 8 + [0, 2, 2, -1])
            self.wall += self.chance.random()
            parts.append(told(self.step, self.wall, self.chance.random(), self.chance.choice(["loss", "loss", "lr"])))
        if self.chance.random() < 0.1:
            self.step = max(0, self.step - self.chance.randrange(20))
            parts.append(start(self.step, self.wall))
        return b"".join(parts)

    def append(self) -> None:
        append(self.file, self.pending, self.bytes_more())
        self.pending = b""

    def partial(self) -> None:
        data = self.pending + self.bytes_more()
        cut = self.chance.randrange(len(data) + 1)
        append(self.file, data[:cut])
        self.pending = data[cut:]

    def truncate(self) -> None:
        os.truncate(self.file, self.chance.randrange(self.file.stat().st_size + 1))
        self.pending = b""

    def replace(self) -> None:
        write(self.directory / "next", header(), self.bytes_more()).replace(self.file)
        self.pending = b""

    def restart(self) -> None:
        self.files += 1
        self.step = max(0, self.step - self.chance.randrange(30))
        if self.files > 1 and self.chance.random() < 0.3:
            self.wall -= 5  # beside the one before
        self.file = self.directory / f"events.out.tfevents.{int(self.wall)}.host.{self.files}.0"
        write(self.file, header(), start(self.step, self.wall) if self.chance.random() < 0.5 else b"")
        self.pending = b""

    def zero(self) -> None:
        append(self.file, b"\0" * self.chance.choice([7, 500]))
        self.pending = b""

    def flip(self) -> None:
        data = bytearray(self.file.read_bytes())
        if data:
            # Bytes that were read are not looked at again, but for the first and the last of them.
            at = self.chance.choice([0, len(data) - 1])
            data[at] ^= 0x40
            self.file.write_bytes(data)


HISTORIES = 200  # 4,000 others were run once


def test_whatever_happened_in_between_the_last_look_tells_what_a_first_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.scalars.tensorboard.reader._SAVED_FIRST_BYTES", 200)
    monkeypatch.setattr("mcp_server.scalars.tensorboard.reader._SAVED_BYTES", 400)
    for seed in range(HISTORIES):
        chance, directory = random.Random(seed), tmp_path / str(seed)
        monkeypatch.setattr(
            "mcp_server.scalars.tensorboard.scan._TAIL_BYTES", chance.choice([2**20, 700])
        )  # what may yet heal
        reader = EventReader(tmp_path / "cache")
        writers = Writers(directory, chance)
        for _ in range(chance.randrange(3, 15)):
            writers.act()
            if chance.random() < 0.5:
                reader.read(directory)
            if chance.random() < 0.1:
                reader = EventReader(tmp_path / "cache")
        fresh = everything(EventReader().read(directory))
        assert everything(reader.read(directory)) == fresh, seed
        assert everything(EventReader(tmp_path / "cache").read(directory)) == fresh, seed
        assert not reader.changed(directory), seed
        shutil.rmtree(directory)
