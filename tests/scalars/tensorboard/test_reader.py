"""Event files become the series of a run, whatever their writers did, and however often they are read."""

import math
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from mcp_server.scalars.locate import EventFiles
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.series import ScalarsUnreadable
from mcp_server.scalars.tensorboard.find import list_event_files
from mcp_server.scalars.tensorboard.reader import EventRun
from tests.support.event_records import (
    FIRST,
    SECOND,
    THIRD,
    Point,
    append,
    everything,
    header,
    points,
    points_of,
    scalar_record,
    start,
    steps_of,
    tensor,
    values_of,
    write,
)


def accumulated(directory: Path) -> dict[str, list[Point]]:
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0}, purge_orphaned_data=True)
    accumulator.Reload()
    return {
        tag: [(one.step, one.wall_time, one.value) for one in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_a_real_writer_s_run_is_read_as_tensorboard_reads_it(tmp_path: Path) -> None:
    writer = EventFileWriter(str(tmp_path))
    for step in range(-3, 200):
        values = [Summary.Value(tag=f"train/é {n}", simple_value=step * n + 0.1) for n in range(3)]
        writer.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=values)))
    writer.add_event(
        Event(step=200, wall_time=1e9 + 200, summary=Summary(value=[Summary.Value(tag="eval", simple_value=1)]))
    )
    writer.close()
    run = ScalarReader().read(tmp_path)
    assert {tag: points_of(one) for tag, one in run.series.items()} == accumulated(tmp_path)
    assert run.notes == ()
    assert all((one.restarts, one.writers) == ((), 1) for one in run.series.values())


def test_a_point_that_is_nan_or_infinite_is_a_point(tmp_path: Path) -> None:
    values = [1.0, float("nan"), float("inf"), float("-inf"), 2.0]
    write(tmp_path / FIRST, header(), *(scalar_record(n, n, value) for n, value in enumerate(values)))
    assert np.array_equal(ScalarReader().read(tmp_path).series["loss"].values, values, equal_nan=True)


def test_without_steps_all_points_keep_the_order_logged(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), *(scalar_record(0, n, value) for n, value in enumerate([3, 1, 2])))
    write(tmp_path / SECOND, header(), *(scalar_record(0, 100 + n, value) for n, value in enumerate([5, 4])))
    run = ScalarReader().read(tmp_path)
    assert points_of(run.series["loss"]) == [(0, 0, 3), (0, 1, 1), (0, 2, 2), (0, 100, 5), (0, 101, 4)]
    assert (run.series["loss"].restarts, run.series["loss"].writers, run.notes) == ((), 1, ())


def test_a_step_logged_again_keeps_all_its_points(tmp_path: Path) -> None:
    """Several episodes end at one step, and a NaN may be followed by another value of its step."""
    values = [1.0, 2.0, math.nan, 20.0, 20.0, 3.0]
    steps = [1, 2, 2, 2, 2, 3]
    file = write(
        tmp_path / FIRST,
        header(),
        *(scalar_record(step, n, value) for n, (step, value) in enumerate(zip(steps, values, strict=True))),
    )
    reader = ScalarReader()
    run = reader.read(tmp_path)
    assert steps_of(run) == steps
    assert np.array_equal(run.series["loss"].values, values, equal_nan=True)
    assert (run.series["loss"].restarts, run.notes) == ((), ())
    append(file, scalar_record(3, 9, 30), scalar_record(3, 10, 31))
    assert values_of(reader.read(tmp_path))[-3:] == [3, 30, 31]
    assert everything(reader.read(tmp_path)) == everything(ScalarReader().read(tmp_path))


def test_a_million_steps_of_several_episodes_each_keep_every_episode(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    steps = np.sort(rng.integers(0, 785, 1957)) * 128
    write(tmp_path / FIRST, header(), *(scalar_record(int(step), n, n) for n, step in enumerate(steps)))
    run = ScalarReader().read(tmp_path)
    assert values_of(run) == list(range(1957))


@pytest.mark.parametrize(
    "steps",
    [
        [*range(0, 100, 10), 50],  # an asynchronous evaluation
        [*range(0, 100, 10), 0],  # a test at step 0
        [*range(0, 100, 10), 50, 100, 110],
        [*range(0, 100, 10), 0, 100, 110],
        [1000, *range(0, 100, 10)],  # an early one
        [*range(0, 100, 10), *range(5, 100, 10)],  # the evaluations between, afterwards
        [*range(0, 100, 10), 20, 30, 40, 100],  # three that are evaluated again
        [5, 1, 4, 2, 3],
    ],
)
def test_a_late_or_early_point_deletes_none_and_points_are_in_order_of_step(tmp_path: Path, steps: list[int]) -> None:
    write(tmp_path / FIRST, header(), points(steps))
    series = ScalarReader().read(tmp_path).series["loss"]
    assert series.steps.tolist() == sorted(steps)
    assert (series.restarts, series.cycles) == ((), 0)


@pytest.mark.parametrize("steps", [[5], [0], [50, 100, 110], [0, 100, 110, 120]])
def test_one_low_point_of_a_later_file_deletes_none(tmp_path: Path, steps: list[int]) -> None:
    """Each asynchronous evaluation may write a file of its own; a resumed run may test at step 0 first."""
    write(tmp_path / FIRST, header(), points(range(100)))
    write(tmp_path / SECOND, header(), points(steps, wall=1_000))
    series = ScalarReader().read(tmp_path).series["loss"]
    assert series.steps.tolist() == sorted([*range(100), *steps])
    assert series.restarts == ()


def test_a_resumed_run_that_tests_at_step_0_first_replaces_from_where_it_resumed(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(100)))
    write(tmp_path / SECOND, header(), points([0, *range(80, 90)], wall=1_000, plus=0.5))
    series = ScalarReader().read(tmp_path).series["loss"]
    assert series.values.tolist() == [0, 0.5, *range(1, 80), *(n + 0.5 for n in range(80, 90))]
    assert series.restarts == (80,)


def test_a_step_that_counts_batches_keeps_all_points_in_the_order_logged(tmp_path: Path) -> None:
    file = write(tmp_path / FIRST, header(), points([*range(0, 100, 10)] * 3))
    reader = ScalarReader()
    run = reader.read(tmp_path)
    assert steps_of(run) == [*range(0, 100, 10)] * 3
    assert (run.series["loss"].cycles, run.series["loss"].restarts) == (2, ())
    assert run.notes[0].startswith("Steps of loss fall back to their beginning, 2 times: all points are kept")
    append(file, points(range(0, 40, 10), wall=100))
    assert steps_of(reader.read(tmp_path)) == [*range(0, 100, 10)] * 3 + [0, 10, 20, 30]


def test_many_late_points_are_named(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points([*range(0, 100, 10), *range(5, 100, 10)]))
    assert ScalarReader().read(tmp_path).notes == (
        "Up to 9 points of loss were logged after higher steps: all are kept, sorted by step.",
    )


def test_a_falling_step_replaces_earlier_points_from_there_on(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(1), points(range(10)), points(range(4, 7), wall=100, plus=0.5))
    run = ScalarReader().read(tmp_path)
    assert {"loss": points_of(run.series["loss"])} == accumulated(tmp_path)
    assert values_of(run) == [0, 1, 2, 3, 4.5, 5.5, 6.5]
    assert run.series["loss"].restarts == (4,)
    assert run.notes == ("Restarted at step 4: later points replace earlier ones from there on.",)


def test_a_later_file_that_starts_lower_replaces_the_tail_of_its_tags_alone(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(10)), points(range(0, 10, 3), tag="eval"))
    write(tmp_path / SECOND, header(), points(range(6, 8), wall=1_000, plus=0.5))
    run = ScalarReader().read(tmp_path)  # TensorBoard takes the header of the second file for the restart, at step 0
    assert (values_of(run), run.series["loss"].restarts) == ([0, 1, 2, 3, 4, 5, 6.5, 7.5], (6,))
    assert (steps_of(run, "eval"), run.series["eval"].restarts) == ([0, 3, 6, 9], ())


def test_a_start_event_replaces_the_tail_of_all_tags(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(10)), points(range(0, 10, 3), tag="eval"))
    write(tmp_path / SECOND, header(), start(5, 999), points(range(5, 8), wall=1_000, plus=0.5))
    run = ScalarReader().read(tmp_path)
    assert {tag: points_of(one) for tag, one in run.series.items()} == accumulated(tmp_path)
    assert (values_of(run), run.series["loss"].restarts) == ([0, 1, 2, 3, 4, 5.5, 6.5, 7.5], (5,))
    assert (steps_of(run, "eval"), run.series["eval"].restarts) == ([0, 3], (5,))


def test_a_start_event_in_the_same_file_replaces_only_earlier_points(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), start(0, 0), points(range(10)), start(4, 50), points([6, 7], wall=60, plus=0.5))
    run = ScalarReader().read(tmp_path)
    assert {"loss": points_of(run.series["loss"])} == accumulated(tmp_path)
    assert (values_of(run), run.series["loss"].restarts) == ([0, 1, 2, 3, 6.5, 7.5], (4,))


def test_a_tag_of_which_a_restart_left_no_points_is_omitted(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(10)), points([8, 9], tag="eval"))
    write(tmp_path / SECOND, header(), start(5, 999))
    assert list(ScalarReader().read(tmp_path).series) == ["loss"]


def test_restarts_are_in_order_and_the_notes_stay_short(tmp_path: Path) -> None:
    write(
        tmp_path / FIRST, header(), points(range(100)), *(points(range(n, 100), wall=200 * n) for n in (50, 20, 70, 60))
    )
    run = ScalarReader().read(tmp_path)
    assert run.series["loss"].restarts == (50, 20, 70, 60)
    assert run.notes == (
        "Restarted 4 times, last at steps 20, 70, 60: later points replace earlier ones from there on.",
    )


def test_two_live_writers_keep_all_their_points_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points([1, 2, 3], wall=10.0), points([1, 2], wall=0, tag="lr"))
    write(tmp_path / SECOND, header(), start(0, 9.0), points([1, 2, 3], wall=10.5, plus=0.5))
    run = ScalarReader().read(tmp_path)
    assert values_of(run) == [1, 1.5, 2, 2.5, 3, 3.5]
    assert (run.series["loss"].writers, run.series["loss"].restarts, run.series["lr"].writers) == (2, (), 1)
    assert run.notes == ("2 processes wrote loss here, at the same time: all points are kept, in order of time.",)
    assert run.programs == ((FIRST,), (SECOND,))
    assert steps_of(run, "lr") == [1, 2], "a START of the other writer is none of its own"


def test_nothing_says_which_of_two_programs_a_later_file_goes_on_with(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(5), wall=10.0))
    write(tmp_path / SECOND, header(), points(range(5), wall=10.5, plus=0.5))
    write(tmp_path / THIRD, header(), start(0, 99), points(range(3, 6), wall=100, plus=0.25))
    run = ScalarReader().read(tmp_path)
    assert values_of(run) == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 3.25, 4.25, 5.25]
    assert (run.series["loss"].writers, run.series["loss"].restarts) == (3, ())
    assert run.programs == ((FIRST,), (SECOND,), (THIRD,))


def test_a_program_that_resumed_beside_another_keeps_its_restart(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(5), wall=10.0))
    write(tmp_path / SECOND, header(), points(range(5), wall=10.5, plus=0.5))
    write(tmp_path / "events.out.tfevents.1700002000.host.1.1", header(), points(range(3, 6), wall=100))
    run = ScalarReader().read(tmp_path)
    assert values_of(run) == [0, 0.5, 1, 1.5, 2, 2.5, 3.5, 4.5, 3, 4, 5]
    assert run.programs == ((FIRST, "events.out.tfevents.1700002000.host.1.1"), (SECOND,))


def test_processes_that_write_different_steps_or_tags_are_one_program(tmp_path: Path) -> None:
    write(tmp_path / FIRST, header(), points(range(0, 100, 10), wall=10.0))
    write(tmp_path / SECOND, header(), points(range(5), wall=12.0, tag="eval"))
    write(tmp_path / THIRD, header(), points([15], wall=11.5))
    run = ScalarReader().read(tmp_path)
    assert run.programs == ()
    assert run.notes == ("2 processes wrote loss here, at the same time: all points are kept, in order of time.",)


@pytest.mark.parametrize(("pid", "attempt", "is_doubtful"), [(1, 0, False), (2, 0, True), (2, 2, False)])
def test_a_process_that_begins_again_may_be_another_program_but_not_another_attempt(
    tmp_path: Path, pid: int, attempt: int, is_doubtful: bool
) -> None:
    second = f"events.out.tfevents.1700001000.host.{pid}.1"
    write(tmp_path / FIRST, header(), points(range(1, 9)))
    write(tmp_path / second, header(), points(range(1, 4), wall=100, plus=0.5))
    run = ScalarReader().read(EventFiles(tmp_path, {FIRST: 1, second: attempt}) if attempt else tmp_path)
    assert values_of(run) == [1.5, 2.5, 3.5]
    assert (run.series["loss"].restarts, run.series["loss"].replaced) == ((1,), 8 if is_doubtful else 0)
    doubt = (
        "Another process began again at the beginning, a restart or another program, which its file does not say: "
        "up to 8 earlier points of a tag are not shown.",
    )
    sure = ("Restarted at step 1: later points replace earlier ones from there on.",)
    assert run.notes == (doubt if is_doubtful else sure)


def test_files_of_one_second_count_in_the_order_of_their_points(tmp_path: Path) -> None:
    write(tmp_path / "events.out.tfevents.1700000000.host.999.0", header(), points(range(10)))
    write(tmp_path / "events.out.tfevents.1700000000.host.1001.0", header(), points(range(5, 8), wall=100, plus=0.5))
    assert values_of(ScalarReader().read(tmp_path)) == [0, 1, 2, 3, 4, 5.5, 6.5, 7.5]


def test_subdirectories_are_runs_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "train" / FIRST, header(), points(range(3)))
    write(tmp_path / "eval" / FIRST, header(), points(range(2)))
    assert [steps_of(ScalarReader().read(tmp_path / name)) for name in ("train", "eval")] == [[0, 1, 2], [0, 1]]
    with pytest.raises(ScalarsUnreadable, match="No event file is directly in"):
        ScalarReader().read(tmp_path)


@pytest.mark.parametrize("content", [b"", header(), b"\0" * 4096, header() + b"\0" * 4096, header()[:7]])
def test_a_file_without_scalars_is_a_run_without_series(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / FIRST, content)
    run = ScalarReader().read(tmp_path)
    assert dict(run.series) == {}


def test_damage_is_named_and_the_records_around_it_are_read(tmp_path: Path) -> None:
    data = bytearray(header() + points(range(100_000 // 40)))
    data[50_000] ^= 0xFF
    write(tmp_path / FIRST, data)
    run = ScalarReader().read(tmp_path)
    assert len(run.notes) == 1
    assert run.notes[0].startswith(f"{FIRST}: ")
    assert len(set(range(2_500)) - set(steps_of(run))) == 1


def test_damage_near_the_end_does_not_hide_later_records(tmp_path: Path) -> None:
    data = bytearray(header() + points(range(10)))
    data[len(header() + points(range(5))) + 20] ^= 0xFF
    file = write(tmp_path / FIRST, data)
    reader = ScalarReader()
    run = reader.read(tmp_path)
    assert (steps_of(run), len(run.notes)) == ([0, 1, 2, 3, 4, 6, 7, 8, 9], 1)
    append(file, points(range(10, 5_000), wall=10))
    run = reader.read(tmp_path)
    assert set(range(10, 5_000)) < set(steps_of(run))
    assert everything(run) == everything(ScalarReader().read(tmp_path))


def test_metadata_of_the_first_point_counts_for_later_reads(tmp_path: Path) -> None:
    file = write(tmp_path / FIRST, header(), tensor(0, 0, 1 / 3, plugin="scalars"))
    reader = ScalarReader(tmp_path / "cache")
    assert values_of(reader.read(tmp_path)) == [1 / 3]
    append(file, tensor(1, 1, 2 / 3))
    assert values_of(reader.read(tmp_path)) == [1 / 3, 2 / 3]


def test_returned_arrays_do_not_change_and_are_read_only(tmp_path: Path) -> None:
    file = write(tmp_path / FIRST, header(), points(range(3)))
    reader = ScalarReader()
    before = reader.read(tmp_path)
    append(file, points(range(3, 6), wall=3))
    assert (steps_of(before), steps_of(reader.read(tmp_path))) == ([0, 1, 2], [0, 1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match="read-only"):
        before.series["loss"].values[0] = 7


def expect_steps(reader: ScalarReader, directory: Path, expected: list[int]) -> None:
    """The next read gives ``expected``, as a first read does, and so does the one after it."""
    run = reader.read(directory)
    assert steps_of(run) == expected
    assert everything(run) == everything(ScalarReader().read(directory))
    assert everything(reader.read(directory)) == everything(run)


def test_a_partial_record_is_read_once_it_is_complete(tmp_path: Path) -> None:
    last, reader = scalar_record(2, 2, 2), ScalarReader()
    file = write(tmp_path / FIRST, header(), points([0, 1]))
    expect_steps(reader, tmp_path, [0, 1])
    for byte in range(len(last) - 1):
        append(file, last[byte : byte + 1])
        expect_steps(reader, tmp_path, [0, 1])
    append(file, last[-1:])
    expect_steps(reader, tmp_path, [0, 1, 2])


def test_a_page_of_zeros_is_read_once_it_is_filled_at_the_same_size(tmp_path: Path) -> None:
    data = header() + points(range(20))
    cut = len(header() + points(range(10))) + 13
    file = write(tmp_path / FIRST, data[:cut], b"\0" * (len(data) - cut))
    reader = ScalarReader()
    first = steps_of(reader.read(tmp_path))
    assert first == list(range(len(first)))
    assert len(first) == 10
    times = file.stat()
    with file.open("r+b") as filled:
        filled.write(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a network file system may tell it
    expect_steps(reader, tmp_path, list(range(20)))


def test_a_file_rewritten_smaller_or_in_place_is_read_from_its_start(tmp_path: Path) -> None:
    file = write(tmp_path / FIRST, header(), points(range(20)))
    reader = ScalarReader()
    expect_steps(reader, tmp_path, list(range(20)))
    write(file, header(), points(range(5)))
    expect_steps(reader, tmp_path, list(range(5)))
    write(file, header(), points(range(40, 60), wall=7))  # longer again before anybody looks
    expect_steps(reader, tmp_path, list(range(40, 60)))
    write(file, header(), points(range(70, 90), wall=8))  # of the same length
    expect_steps(reader, tmp_path, list(range(70, 90)))
    write(file)
    assert dict(reader.read(tmp_path).series) == {}


def test_a_file_that_replaces_another_is_read_from_its_start(tmp_path: Path) -> None:
    file = write(tmp_path / FIRST, header(), points(range(20)))
    reader = ScalarReader()
    expect_steps(reader, tmp_path, list(range(20)))
    write(tmp_path / "next", header(), points(range(30, 60))).replace(file)
    expect_steps(reader, tmp_path, list(range(30, 60)))


def test_the_first_file_is_still_followed_when_there_is_a_second(tmp_path: Path) -> None:
    first = write(tmp_path / FIRST, header(), points(range(5)))
    reader = ScalarReader()
    expect_steps(reader, tmp_path, [0, 1, 2, 3, 4])
    second = write(tmp_path / SECOND, header(), start(6, 999), points([6, 7], wall=1_000))
    expect_steps(reader, tmp_path, [0, 1, 2, 3, 4, 6, 7])
    append(first, points([5, 6], wall=5))  # held in a buffer until now
    expect_steps(reader, tmp_path, [0, 1, 2, 3, 4, 5, 6, 7])
    append(second, points([8], wall=1_002))
    expect_steps(reader, tmp_path, [0, 1, 2, 3, 4, 5, 6, 7, 8])
    append(first, points([7], wall=1_003))  # alive after all
    expect_steps(reader, tmp_path, [0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 7])


def test_a_start_event_replaces_also_late_points_of_the_file_before(tmp_path: Path) -> None:
    first = write(tmp_path / FIRST, header(), points(range(3)))
    write(tmp_path / SECOND, header(), start(4, 999))
    reader = ScalarReader()
    expect_steps(reader, tmp_path, [0, 1, 2])
    append(first, points([3, 4, 5], wall=3))
    expect_steps(reader, tmp_path, [0, 1, 2, 3])
    append(first, points([6], wall=6))
    expect_steps(reader, tmp_path, [0, 1, 2, 3])


def test_files_may_appear_and_disappear(tmp_path: Path) -> None:
    reader = ScalarReader()
    with pytest.raises(ScalarsUnreadable):
        reader.read(tmp_path)
    first = write(tmp_path / FIRST, header(), points(range(5)))
    expect_steps(reader, tmp_path, [0, 1, 2, 3, 4])
    second = write(tmp_path / SECOND, header(), points(range(5, 7), wall=9))
    expect_steps(reader, tmp_path, [0, 1, 2, 3, 4, 5, 6])
    first.rename(tmp_path / "moved.tfevents.1700000000")
    expect_steps(reader, tmp_path, [0, 1, 2, 3, 4, 5, 6])
    (tmp_path / "moved.tfevents.1700000000").unlink()
    expect_steps(reader, tmp_path, [5, 6])
    second.unlink()
    with pytest.raises(ScalarsUnreadable, match="No event file is directly in"):
        reader.read(tmp_path)


def test_appended_points_are_as_if_read_at_once(tmp_path: Path) -> None:
    """A single file, one whose points a restart replaced, one without steps: each the short way, and not."""
    file = write(tmp_path / FIRST, header(), points(range(50)), points([0], tag="a"), points([0], tag="b"))
    write(tmp_path / SECOND, header(), points(range(30, 40), wall=1_000, tag="other"))
    reader = ScalarReader()
    reader.read(tmp_path)
    wall = 50.0
    for steps in ([50, 51], [52, 52, 53], [40], [41, 42], [43], [43], [0], [0]):
        append(file, points(steps, wall=wall), points([0] * len(steps), wall=wall, tag="a"))
        append(file, points(steps, wall=wall, tag="b"))
        wall += len(steps)
        assert everything(reader.read(tmp_path)) == everything(ScalarReader().read(tmp_path))


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
        ScalarReader().read(run)
    (run / THIRD).symlink_to(file)  # a linked log is one
    (run / f"{THIRD}.again").symlink_to(file)  # and the same one tells nothing twice
    reader = ScalarReader()
    assert steps_of(reader.read(run)) == [0, 1, 2]


def test_an_unreadable_file_is_named_in_the_notes_of_the_others(
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
    run = ScalarReader().read(tmp_path)
    assert (steps_of(run), run.notes) == ([0, 1, 2], (f"{SECOND} cannot be read: Permission denied",))
    refused = (FIRST, SECOND)
    with pytest.raises(ScalarsUnreadable, match=f"{FIRST} cannot be read: Permission denied"):
        ScalarReader().read(tmp_path)


def test_runs_that_were_not_read_for_long_are_dropped_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.scalars.reading._KEPT_BYTES", 3 * (24 * 100 + 2**10 + 4 * 2**10))
    reader = ScalarReader()
    for number in range(6):
        write(tmp_path / str(number) / FIRST, header(), points(range(100)))
        reader.read(tmp_path / str(number))
    directories = [known.reader._directory.name for known in reader._readers.values()]  # type: ignore[union-attr]
    assert directories == ["3", "4", "5"]
    assert steps_of(reader.read(tmp_path / "0")) == list(range(100))


def test_runs_restarted_with_a_start_event_read_as_tensorboard_reads_them(tmp_path: Path) -> None:
    for seed in range(20):
        chance, directory, step, wall = random.Random(seed), tmp_path / str(seed), 0, 1e9
        for _ in range(chance.randrange(1, 5)):
            parts = [header(), start(step, wall)]
            for _ in range(chance.randrange(60)):
                step, wall = step + chance.choice([1, 1, 5]), wall + 1
                tags = chance.sample(["loss", "lr", "eval/é"], chance.randrange(4))
                parts += [scalar_record(step, wall, chance.random(), tag) for tag in tags]
            write(directory / f"events.out.tfevents.{int(wall)}.host.1.0", *parts)
            step, wall = max(0, step - chance.randrange(30)), wall + 10
        told_here = {tag: points_of(one) for tag, one in ScalarReader().read(directory).series.items()}
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
            parts.append(
                scalar_record(self.step, self.wall, self.chance.random(), self.chance.choice(["loss", "loss", "lr"]))
            )
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
            # Bytes that were read are not read again, except the first and the last of them.
            at = self.chance.choice([0, len(data) - 1])
            data[at] ^= 0x40
            self.file.write_bytes(data)


HISTORIES = 100  # 4,000 others were run once


@pytest.mark.slow
def test_a_last_read_after_any_history_equals_a_first_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_server.scalars.tensorboard.reader._SAVED_FIRST_BYTES", 200)
    monkeypatch.setattr("mcp_server.scalars.tensorboard.reader._SAVED_BYTES", 400)
    for seed in range(HISTORIES):
        chance, directory = random.Random(seed), tmp_path / str(seed)
        monkeypatch.setattr(
            "mcp_server.scalars.tensorboard.scan._TAIL_BYTES", chance.choice([2**20, 700])
        )  # what may yet heal
        reader = ScalarReader(tmp_path / "cache")
        writers = Writers(directory, chance)
        for _ in range(chance.randrange(3, 15)):
            writers.act()
            if chance.random() < 0.5:
                reader.read(directory)
            if chance.random() < 0.1:
                reader = ScalarReader(tmp_path / "cache")
        fresh = everything(ScalarReader().read(directory))
        assert everything(reader.read(directory)) == fresh, seed
        assert everything(ScalarReader(tmp_path / "cache").read(directory)) == fresh, seed
        shutil.rmtree(directory)


def test_of_more_tags_than_a_run_may_have_the_first_are_kept_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("collector", "tail", "reader"):
        monkeypatch.setattr(f"mcp_server.scalars.tensorboard.{module}.MOST_TAGS", 50)
    path = write(tmp_path / FIRST, header(), *(scalar_record(1, 1.0, 1.0, f"tag{n}") for n in range(200)))
    reader = ScalarReader()
    run = reader.read(tmp_path)
    assert set(run.series) == {f"tag{n}" for n in range(50)}
    assert run.notes == (f"{FIRST}: only the first 50 tags are kept, 150 more are left out",)
    (known,) = reader._readers.values()
    assert isinstance(known.reader, EventRun)
    (file,) = known.reader._files.values()
    assert len(file.plugins) <= 50, "what is known of the others would be read each time from the cache"
    append(path, *(scalar_record(2, 2.0, 2.0, f"tag{n}") for n in (0, 100, 300)))
    run = reader.read(tmp_path)
    assert (len(run.series), steps_of(run, "tag0")) == (50, [1, 2])
    write(tmp_path / SECOND, header(), scalar_record(9, 9.0, 9.0, "tag1"), scalar_record(9, 9.0, 9.0, "another"))
    run = reader.read(tmp_path)
    assert (len(run.series), steps_of(run, "tag1")) == (50, [1, 9])
    assert run.notes[0] == "All files together: only the first 50 tags are kept, 1 more are left out."
