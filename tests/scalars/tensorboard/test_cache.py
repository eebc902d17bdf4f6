"""The cache spares a second reader the work of the first, and is never trusted beyond its checksums."""

import os
import random
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.tensorboard.cache import Cache
from mcp_server.scalars.tensorboard.scan import ScanResult, scan
from tests.support.event_records import FIRST, SECOND, append, everything, header, points, start, steps_of, write


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three tags and a START event, large enough to be cached."""
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
    first = ScalarReader(cache).read(run)
    assert stat.S_IMODE(cache.stat().st_mode) == stat.S_IMODE(cache.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry_of(cache).stat().st_mode) == 0o600
    scans = Scans(monkeypatch)
    second = ScalarReader(cache).read(run)
    assert (everything(second), second.notes) == (everything(first), first.notes)
    assert scans.bytes == 0
    append(run / FIRST, points(range(2_100, 2_200), wall=4e3))
    third = ScalarReader(cache).read(run)
    assert everything(third) == everything(ScalarReader().read(run))
    assert steps_of(third)[-1] == 2_199


def test_a_few_points_more_do_not_write_the_cache_again(run: Path, cache: Path) -> None:
    reader = ScalarReader(cache)
    reader.read(run)
    before = entry_of(cache).stat()
    append(run / FIRST, points(range(2_100, 2_200), wall=4e3))
    reader.read(run)
    assert entry_of(cache).stat() == before


def test_a_damaged_entry_is_never_used(run: Path, cache: Path) -> None:
    expected = everything(ScalarReader(cache).read(run))
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
        assert everything(ScalarReader(cache).read(run)) == expected
        assert entry_of(cache).read_bytes() == whole, "made again"


def test_an_entry_of_another_version_or_that_others_can_write_is_none(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ScalarReader(cache).read(run)
    scans, size = Scans(monkeypatch), (run / FIRST).stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr("mcp_server.scalars.tensorboard.cache._MAGIC", b"rwscal99")
        ScalarReader(cache).read(run)
    assert scans.bytes == size
    ScalarReader(cache).read(run)
    assert scans.bytes == 2 * size, "the entry of the other version was none for this one"
    entry_of(cache).chmod(0o666)
    ScalarReader(cache).read(run)
    assert scans.bytes == 3 * size
    cache.chmod(0o777)
    ScalarReader(cache).read(run)
    assert scans.bytes == 4 * size


def test_an_entry_is_of_one_file_as_it_was(run: Path, cache: Path) -> None:
    ScalarReader(cache).read(run)
    file = run / FIRST
    changes: tuple[Callable[[], object], ...] = (
        lambda: write(file, header(), points(range(3_000), wall=5)),  # in place, and longer
        lambda: write(file, header(), points(range(10))),
        lambda: write(run / "other", header(), points(range(2_500), wall=6)).replace(file),
        lambda: file.rename(run / SECOND),
    )
    for change in changes:
        change()
        assert everything(ScalarReader(cache).read(run)) == everything(ScalarReader().read(run))


def test_a_cache_that_cannot_be_written_is_no_error(run: Path, tmp_path: Path) -> None:
    place = write(tmp_path / "file") / "cache"
    assert len(ScalarReader(place).read(run).series) == 2


def test_the_oldest_entries_and_abandoned_parts_are_removed(tmp_path: Path, cache: Path) -> None:
    reader = ScalarReader(cache)
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


def test_threads_may_read_at_the_same_time(run: Path, cache: Path) -> None:
    expected = everything(ScalarReader().read(run))
    reader = ScalarReader(cache)
    with ThreadPoolExecutor(8) as pool:
        assert all(everything(one) == expected for one in pool.map(reader.read, [run] * 40))
