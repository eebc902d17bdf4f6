"""Event files and their directories are found, links and other files are not followed."""

import os
from pathlib import Path

from mcp_server.scalars.tensorboard.find import find_event_directories, list_event_files
from tests.support.event_records import FIRST, SECOND, header, points, write


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
    directories = find_event_directories(root, deepest=4)
    assert [path.relative_to(root).as_posix() for path, _ in directories] == ["a/train", ".", "a/b/c/deep"]
    assert directories[1][1] == 1e9
    assert (len(find_event_directories(root)), len(find_event_directories(root, most=1))) == (4, 1)
    assert find_event_directories(tmp_path / "absent") == []
