"""Scalars in the databases of Trackio and MLflow; no file next to them is touched."""

import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from mcp_server.scalars.formats.detect import ScalarSource, find_sources
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.series import ScalarsUnreadable
from mcp_server.threads import CallAbandoned
from tests.support.scalar_files import START_S, points, read, unchanged

TRACKIO = (
    "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,"
    " run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL)"
)

TRACKIO_ROW = (
    "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, '2023-11-14T22:13:20+00:00', ?, ?, ?)"
)


def trackio(path: Path, rows: Sequence[tuple[str, str, int, bytes]], journal: str = "WAL") -> sqlite3.Connection:
    """A database as Trackio 0.43 writes it: metrics are bytes of JSON, what is not finite is text in it."""
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA journal_mode = {journal}")
    database.execute(TRACKIO)
    database.executemany(TRACKIO_ROW, rows)
    database.commit()
    return database


TWO_RUNS = [
    ("a1" * 16, "one", 0, b'{"loss":1.0,"n":{"a":0}}'),
    ("b2" * 16, "two", 5, b'{"loss":9}'),
    ("a1" * 16, "one", 1, b'{"loss":"NaN","step":77}'),
]


def test_each_run_in_a_trackio_database_is_a_source(tmp_path: Path) -> None:
    with closing(trackio(tmp_path / "proj.db", TWO_RUNS)), unchanged(tmp_path):
        sources = find_sources(tmp_path)
        assert sources == [ScalarSource("trackio", tmp_path / "proj.db", name) for name in ("proj/one", "proj/two")]
        run = ScalarReader().read(sources[0])
    assert run.series["loss"].steps.tolist() == [0, 1]
    assert math.isnan(run.series["loss"].values[1])
    assert run.series["loss"].walls.tolist() == [START_S, START_S]
    assert points(run, "n/a") == [(0, 0)]


def test_runs_of_the_same_name_in_a_database_have_different_names(tmp_path: Path) -> None:
    trackio(tmp_path / "p.db", [("a" * 32, "x", 0, b'{"l":1}'), ("b" * 32, "x", 0, b'{"l":2}')]).close()
    sources = find_sources(tmp_path)
    assert [source.name for source in sources] == ["p/x-aaaaaaaa", "p/x-bbbbbbbb"]
    assert [points(ScalarReader().read(source), "l") for source in sources] == [[(0, 1)], [(0, 2)]]
    with pytest.raises(ScalarsUnreadable, match="name one of its runs: p/x-aaaaaaaa, p/x-bbbbbbbb"):
        ScalarReader().read(ScalarSource("trackio", tmp_path / "p.db"))
    with pytest.raises(ScalarsUnreadable, match="it has no run 'p/y', but p/x-aaaaaaaa"):
        ScalarReader().read(ScalarSource("trackio", tmp_path / "p.db", "p/y"))


def test_a_database_that_is_written_is_followed(tmp_path: Path) -> None:
    reader, source = ScalarReader(), ScalarSource("trackio", tmp_path / "p #1?.db", "p #1?/one")
    with closing(trackio(source.path, TWO_RUNS)) as writer:
        assert len(reader.read(source).series["loss"].steps) == 2
        writer.execute(TRACKIO_ROW, ("a1" * 16, "one", 2, b'{"loss":3}'))
        writer.commit()
        with unchanged(tmp_path):
            assert len(reader.read(source).series["loss"].steps) == 3


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
@pytest.mark.parametrize("left", ["all", "no -shm"])
def test_the_files_of_a_dead_writer_are_read_and_not_changed(tmp_path: Path, journal: str, left: str) -> None:
    script = (
        "import os, sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('PRAGMA journal_mode = ' + sys.argv[2]);"
        f"d.execute({TRACKIO!r}); d.execute({TRACKIO_ROW!r}, ('a', 'one', 1, b'{{\"l\":1}}')); d.commit(); os._exit(0)"
    )
    path = tmp_path / "p.db"
    subprocess.run([sys.executable, "-I", "-c", script, path, journal], check=True)
    if left != "all":
        (tmp_path / "p.db-shm").unlink(missing_ok=True)
    with unchanged(tmp_path):
        assert points(read(path), "l") == [(1, 1)]


def test_a_closed_database_in_wal_mode_gets_no_files_next_to_it(tmp_path: Path) -> None:
    trackio(tmp_path / "p.db", TWO_RUNS).close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.db").symlink_to(tmp_path / "p.db")
    with unchanged(tmp_path), unchanged(tmp_path / "other"):
        assert len(find_sources(tmp_path)) == 2
        assert [source.name for source in find_sources(tmp_path / "other")] == ["link/one", "link/two"]


def test_a_locked_database_is_one_source_and_reading_it_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.scalars.formats.sqlite._BUSY_S", 0.01)
    with closing(trackio(tmp_path / "p.db", TWO_RUNS, "DELETE")) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with unchanged(tmp_path):
            assert find_sources(tmp_path) == [ScalarSource("trackio", tmp_path / "p.db")]
            with pytest.raises(ScalarsUnreadable, match="database is locked"):
                ScalarReader().read(ScalarSource("trackio", tmp_path / "p.db", "p/one"))


def test_a_database_that_ends_within_its_header_is_one_source_and_reading_it_says_why(tmp_path: Path) -> None:
    (tmp_path / "p.db").write_bytes(b"SQLite format 3\0")
    assert find_sources(tmp_path) == [ScalarSource("trackio", tmp_path / "p.db")]
    with pytest.raises(ScalarsUnreadable, match="not an SQLite database"):
        ScalarReader().read(ScalarSource("trackio", tmp_path / "p.db"))


def test_a_transaction_that_was_cut_off_is_not_rolled_back_by_a_reader(tmp_path: Path) -> None:
    with closing(trackio(tmp_path / "p.db", TWO_RUNS, "DELETE")) as writer:
        writer.execute("PRAGMA cache_size = 1")  # writes pages before the commit
        writer.executemany(TRACKIO_ROW, [("c", "three", n, b"x" * 1_000) for n in range(100)])
        assert (tmp_path / "p.db-journal").stat().st_size
        died = tmp_path / "died"
        died.mkdir()
        for file in ("p.db", "p.db-journal"):
            (died / file).write_bytes((tmp_path / file).read_bytes())
        writer.rollback()
    with unchanged(died), pytest.raises(ScalarsUnreadable, match="SQLite says"):
        ScalarReader().read(ScalarSource("trackio", died / "p.db", "p/one"))


def test_a_view_that_never_ends_is_not_a_table_of_metrics(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "p.db")) as database:
        endless = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n)"
        columns = "id, 'a' AS run_name, id AS step, 0 AS timestamp, '{}' AS metrics"
        database.execute(f"CREATE VIEW metrics AS {endless} SELECT {columns} FROM n")
    assert find_sources(tmp_path) == []


def mlflow(path: Path) -> None:
    """The tables of MLflow that matter, as its migrations leave them."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE experiments (experiment_id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(256) NOT NULL);"
            "CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL PRIMARY KEY, name VARCHAR(250), start_time BIGINT,"
            " lifecycle_stage VARCHAR(20), experiment_id INTEGER);"
            "CREATE TABLE metrics (key VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,"
            " run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL,"
            " PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));"
            "INSERT INTO experiments VALUES (1, 'mnist');"
            "INSERT INTO runs VALUES ('aa', 'bold-crow-1', 1, 'active', 1), ('bb', NULL, 2, 'active', 1),"
            " ('cc', 'gone', 0, 'deleted', 1);"
            "INSERT INTO metrics VALUES ('val/loss', 0.5, 1700000000500, 'aa', 10, 0), ('x', 1, 1, 'bb', 0, 0),"
            " ('val/loss', 0, 1700000001000, 'aa', 20, 1),"
            " ('val/loss', -1.7976931348623157e308, 1700000002000, 'aa', 30, 0);"
        )


def test_an_mlflow_database_names_its_runs_by_experiment(tmp_path: Path) -> None:
    mlflow(tmp_path / "mlflow.db")
    with unchanged(tmp_path):
        sources = find_sources(tmp_path)
        assert [(source.kind, source.name) for source in sources] == [
            ("mlflow", "mnist/bold-crow-1"),
            ("mlflow", "mnist/bb"),
        ]
        series = ScalarReader().read(sources[0]).series["val/loss"]
    assert series.steps.tolist() == [10, 20, 30]
    assert str(series.values.tolist()) == "[0.5, nan, -inf]"
    assert series.walls.tolist() == [START_S + 0.5, START_S + 1, START_S + 2]


def test_of_an_mlflow_run_with_too_many_points_and_tags_the_newest_points_are_read_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow(tmp_path / "mlflow.db")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.executemany(
            "INSERT INTO metrics VALUES (?, 1, ?, 'aa', ?, 0)",
            [(f"tag{n % 10}", 1700000003000 + n, n) for n in range(100)],
        )
    monkeypatch.setattr("mcp_server.scalars.formats.sqlite._MOST_POINTS", 50)
    monkeypatch.setattr("mcp_server.scalars.formats.sqlite.MOST_TAGS", 4)
    run = ScalarReader().read(ScalarSource("mlflow", tmp_path / "mlflow.db", "mnist/bold-crow-1"))
    assert {tag: series.steps.tolist() for tag, series in run.series.items()} == {
        f"tag{n}": [50 + n, 60 + n, 70 + n, 80 + n, 90 + n] for n in range(4)
    }
    assert run.notes == (
        "The 53 oldest points are left out, the newest 50 are kept.",
        "Only 4 tags are kept, 6 more are left out.",
    )


def test_of_a_trackio_run_with_too_much_text_the_newest_rows_are_read_and_a_huge_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("a1" * 16, "one", step, b'{"loss":%7d}' % step) for step in range(100)]
    huge = ("a1" * 16, "one", 100, b'{"loss":1,"x":"' + b"x" * 2**20 + b'"}')
    with closing(trackio(tmp_path / "p.db", [*rows, huge, ("a1" * 16, "one", 101, b'{"loss":101}')])):
        run = ScalarReader().read(ScalarSource("trackio", tmp_path / "p.db", "p/one"))
    assert run.series["loss"].steps.tolist() == [*range(100), 101]
    assert run.notes == ()
    (tmp_path / "q").mkdir()
    monkeypatch.setattr("mcp_server.scalars.formats.sqlite._MOST_STORE_BYTES", 16 * 25)
    with closing(trackio(tmp_path / "q" / "p.db", rows)):
        run = ScalarReader().read(ScalarSource("trackio", tmp_path / "q" / "p.db", "p/one"))
    assert run.series["loss"].steps.tolist() == [*range(75, 100)]
    assert run.notes == ("The 75 oldest rows are left out: together they exceed 64 MiB.",)


def test_a_query_whose_caller_has_gone_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow(tmp_path / "mlflow.db")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.executemany(
            "INSERT INTO metrics VALUES ('loss', 1, ?, 'aa', 1, 0)", [(1700000003000 + n,) for n in range(20_000)]
        )
    monkeypatch.setattr("mcp_server.scalars.formats.sqlite._STEPS_BETWEEN_LOOKS", 1000)
    looks = []

    def has_gone() -> bool:
        looks.append(1)
        return True

    monkeypatch.setattr("mcp_server.threads.is_abandoned", has_gone)
    monkeypatch.setattr("mcp_server.scalars.formats.sqlite.is_abandoned", has_gone)
    with pytest.raises(CallAbandoned):
        ScalarReader().read(ScalarSource("mlflow", tmp_path / "mlflow.db", "mnist/bold-crow-1"))
    assert len(looks) >= 2  # one interrupted the query


def test_each_run_in_a_store_of_mlflow_is_a_source(tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "0" / ("a" * 32)
    (run / "metrics" / "val").mkdir(parents=True)
    (run / "meta.yaml").touch()
    (run.parent / "meta.yaml").touch()
    (run / "metrics" / "val" / "loss").write_text("1700000000000 0.5 10\n1700000001000 nan 20\n1700000002000 0.2")
    (run / "metrics" / "old").write_text("1700000000000 0.5\n")
    os.mkfifo(run / "metrics" / "pipe")
    assert (
        find_sources(tmp_path)
        == find_sources(tmp_path / "mlruns")
        == find_sources(run.parent)
        == find_sources(run)
        == [ScalarSource("mlflow", run)]
    )
    scalars = read(run)
    assert scalars.series["val/loss"].steps.tolist() == [10, 20]
    assert points(scalars, "old") == [(0, 0.5)]
    assert scalars.notes == (f"{run}/metrics/pipe cannot be read: not a regular file.",)
