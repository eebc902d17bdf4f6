"""Files of waits: durable, each its owner's alone, the first end counts, and old ones make room."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcp_server.store import wait_files
from mcp_server.store.state_home import StateHome
from mcp_server.store.wait_files import KEPT_S, WaitFiles, WaitNotFound, WaitRecord, WaitUnreadable


@pytest.fixture
def waits(tmp_path: Path) -> Path:
    return StateHome(tmp_path).waits


@pytest.fixture
def files(tmp_path: Path) -> WaitFiles:
    return WaitFiles(StateHome(tmp_path))


def made(files: WaitFiles, owner: str | None = "alice") -> WaitRecord:
    record = files.create(owner, {"until": "end"})
    assert record is not None
    return record


def age(waits: Path, record: WaitRecord, seconds: float) -> None:
    """Let nobody have asked for a wait for so long."""
    then_s = time.time() - seconds
    os.utime(waits / f"{record.wait_id}.json", (then_s, then_s))


def exists(waits: Path, record: WaitRecord) -> bool:
    return (waits / f"{record.wait_id}.json").exists()


def test_another_server_reads_what_one_has_kept(files: WaitFiles, tmp_path: Path) -> None:
    record = made(files)
    again = WaitFiles(StateHome(tmp_path)).read(record.wait_id, "alice")
    assert (again.wait_id, again.created_at, again.facts["until"]) == (record.wait_id, record.created_at, "end")
    assert again.end is None


def test_ids_cannot_be_guessed(files: WaitFiles) -> None:
    ids = {made(files).wait_id for _ in range(20)}
    assert len({wait_id.partition("-")[2] for wait_id in ids}) == 20
    assert all(len(wait_id.partition("-")[2]) == 32 for wait_id in ids), "24 random bytes"


@pytest.mark.parametrize("owner", ["bob", None, ""])
def test_a_wait_is_its_owners_alone(files: WaitFiles, owner: str | None) -> None:
    record = made(files)
    with pytest.raises(WaitNotFound) as foreign:
        files.read(record.wait_id, owner)
    with pytest.raises(WaitNotFound) as unknown:
        files.read(f"{record.wait_id[:-1]}{'A' if record.wait_id[-1] != 'A' else 'B'}", "alice")
    assert str(foreign.value) == str(unknown.value)


def test_a_wait_moved_to_an_id_of_another_owner_is_not_his(files: WaitFiles, waits: Path) -> None:
    record = made(files)
    stolen = f"{wait_files._mark('bob')}-{'x' * 32}"
    (waits / f"{record.wait_id}.json").rename(waits / f"{stolen}.json")
    with pytest.raises(WaitNotFound):
        files.read(stolen, "bob")


def test_a_link_in_place_of_a_record_is_not_read(files: WaitFiles, waits: Path, tmp_path: Path) -> None:
    record = made(files)
    file = waits / f"{record.wait_id}.json"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WaitNotFound):
        files.read(record.wait_id, "alice")


def test_of_many_ends_at_once_the_first_counts(files: WaitFiles) -> None:
    record = made(files)
    with ThreadPoolExecutor(16) as pool:
        ends = list(pool.map(lambda number: files.end(record, {"number": number}), range(64)))
    assert ends == [ends[0]] * 64
    assert files.read(record.wait_id, "alice").end == ends[0]


def test_a_removed_wait_gets_no_end(files: WaitFiles, waits: Path) -> None:
    record = made(files)
    (waits / f"{record.wait_id}.json").unlink()
    with pytest.raises(WaitNotFound):
        files.end(record, {})
    assert list(waits.iterdir()) == []


def test_a_damaged_end_is_an_error(files: WaitFiles, waits: Path) -> None:
    record = made(files)
    for damage in ("{", "[" * 100_000):
        (waits / f"{record.wait_id}.end.json").write_text(damage)
        with pytest.raises(WaitUnreadable, match="damaged"):
            files.read(record.wait_id, "alice")


def test_a_wait_that_nobody_asks_for_expires_and_one_that_is_polled_does_not(files: WaitFiles, waits: Path) -> None:
    forgotten, polled, foreign = made(files), made(files), made(files, "bob")
    files.end(forgotten, {})
    for record in (forgotten, polled, foreign):
        age(waits, record, KEPT_S + 60)
    assert files.read(polled.wait_id, "alice").ttl_s == pytest.approx(KEPT_S, abs=60)
    made(files)
    assert [exists(waits, record) for record in (forgotten, polled, foreign)] == [False, True, False]
    with pytest.raises(WaitNotFound):
        files.read(forgotten.wait_id, "alice")
    assert not list(waits.glob("*.end.json")), "its end goes with it"


def test_polling_prolongs_a_wait(files: WaitFiles, waits: Path) -> None:
    record = made(files)
    old = WaitRecord(record.wait_id, "2026-01-01T00:00:00.000Z", time.time())
    assert old.ttl_s > KEPT_S + 86400
    age(waits, record, 3600)
    files.read(record.wait_id, "alice")
    assert time.time() - (waits / f"{record.wait_id}.json").stat().st_mtime < 600


def test_an_owner_with_many_waits_loses_those_that_are_polled_no_more(
    files: WaitFiles, waits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_files, "MOST_OF_OWNER", 3)
    bobs = made(files, "bob")
    age(waits, bobs, 86400)
    records = [made(files) for _ in range(3)]
    age(waits, records[1], 3600)
    made(files)
    assert [exists(waits, record) for record in (bobs, *records)] == [True, True, False, True]
    assert files.create("alice", {}) is None, "all three are polled"
    assert [exists(waits, record) for record in (bobs, *records)] == [True, True, False, True]
    assert files.create("bob", {}) is not None


def test_what_a_dead_server_began_is_removed(files: WaitFiles, waits: Path) -> None:
    record = made(files)
    part, foreign = waits / f".{record.wait_id}.json.1-1", waits / ".bashrc"
    part.write_text("{")
    foreign.write_text("of somebody else")
    os.utime(foreign, (0, 0))
    made(files)
    assert part.exists(), "another server may be writing it"
    os.utime(part, (0, 0))
    made(files)
    assert not part.exists()
    assert foreign.exists()
