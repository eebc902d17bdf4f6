"""A scan visits a tree level by level, follows no link, and stops at each of its limits."""

import os
from pathlib import Path

import pytest

from mcp_server.system.directory_scan import DirectoryScan


def names(scan: DirectoryScan, root: Path, **options: object) -> list[tuple[str, list[str]]]:
    tree = scan.walk(root, lambda entry: entry.name if entry.is_file() else None, **options)  # type: ignore[arg-type]
    return [(path.relative_to(root).as_posix(), sorted(items)) for path, items in tree]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("b/file", "a/file", "a/c/deep", ".hidden/file", "file"):
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).touch()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "root")
    return tmp_path / "root"


def test_levels_are_visited_in_order_and_links_are_not_followed(root: Path) -> None:
    scan = DirectoryScan(5)
    expected = [(".", ["file"]), (".hidden", ["file"]), ("a", ["file"]), ("b", ["file"]), ("a/c", ["deep"])]
    assert names(scan, root) == expected
    assert not scan.cut


def test_skipped_names_and_refused_directories_are_not_visited(root: Path) -> None:
    visited = names(DirectoryScan(5), root, skip=lambda name: name[0] == ".", enter=lambda path: path.name != "a")
    assert [path for path, _ in visited] == [".", "b"]


def test_a_decision_to_enter_may_depend_on_the_entries_of_the_parent(root: Path) -> None:
    entered: list[Path] = []
    for path, _ in DirectoryScan(5).walk(root, lambda _: None, enter=lambda path: path.parent in entered):
        entered.append(path)
    assert root / "a" / "c" in entered


@pytest.mark.parametrize(
    ("scan", "visited"),
    [
        (DirectoryScan(0), 1),
        (DirectoryScan(1), 4),
        (DirectoryScan(5, max_directories=2), 2),
        (DirectoryScan(5, max_entries=3), 1),
        (DirectoryScan(5, max_s=-1.0), 0),
    ],
)
def test_a_limit_cuts_the_scan(root: Path, scan: DirectoryScan, visited: int) -> None:
    (root / "file").unlink()
    (root / "link").unlink()
    assert len(names(scan, root)) == visited
    assert scan.cut


def test_a_directory_gives_at_most_so_many_entries(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    ((_, files),) = names(DirectoryScan(5, max_entries_each=7), tmp_path)
    assert len(files) == 7


def test_a_missing_directory_is_empty(tmp_path: Path) -> None:
    assert names(DirectoryScan(5), tmp_path / "none") == [(".", [])]
    os.mkfifo(tmp_path / "pipe")
    assert names(DirectoryScan(5), tmp_path / "pipe") == [(".", [])]
