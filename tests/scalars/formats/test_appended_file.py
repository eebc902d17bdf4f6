"""Appended rows of a file are read, and a rewritten file is read from its start."""

import random
from pathlib import Path

import pytest

from mcp_server.scalars.formats.detect import ScalarSource, find_sources
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.series import ScalarsUnreadable
from tests.support.scalar_files import csv_file, points


def test_a_partial_last_line_waits_for_its_newline(tmp_path: Path) -> None:
    path, reader = csv_file(tmp_path, '{"step": 1, "loss": 1}\n{"step": 2, "lo', "a.jsonl"), ScalarReader()
    (source,) = find_sources(path)
    assert points(reader.read(source), "loss") == [(1, 1)]
    with path.open("a") as file:
        file.write('ss": 2}\n')
    assert points(reader.read(source), "loss") == [(1, 1), (2, 2)]


def test_a_file_read_as_it_grows_has_the_series_of_the_whole_file(tmp_path: Path) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        rows = [f"{n * 10},{chance.random()},{chance.choice(['', '0.5', 'nan', 'a'])}" for n in range(200)]
        rows[100:100] = rows[70:90] if chance.random() < 0.5 else []
        ending = chance.choice(["\n", "\r\n"])
        whole = ending.join(["step,loss,acc", *rows, ""]).encode()
        path, reader, at = tmp_path / f"{seed}.csv", ScalarReader(), 0
        source = ScalarSource("csv", path)
        while at < len(whole):
            with path.open("ab") as file:
                more = chance.choice([1, 7, 100, 3000])
                file.write(whole[at : at + more])
            at += more
            run = reader.read(source)
        expected = ScalarReader().read(source)
        for tag in ("loss", "acc"):
            assert str(points(run, tag)) == str(points(expected, tag)), seed
            assert run.series[tag].restarts == expected.series[tag].restarts


@pytest.mark.parametrize(
    "new", ["step,loss\n5,9\n", "step,acc,loss\n1,,1\n2,,2\n3,0.5,3\n", "step,loss\n7,7\n8,8\n9,9\n9,9\n"]
)
@pytest.mark.parametrize("way", ["in place", "replaced", "removed first"])
def test_a_rewritten_file_is_read_from_its_start(tmp_path: Path, new: str, way: str) -> None:
    path, reader = csv_file(tmp_path, "step,loss\n1,1\n2,2\n3,3\n"), ScalarReader()
    (source,) = find_sources(path)
    reader.read(source)
    if way == "removed first":
        path.unlink()
        with pytest.raises(ScalarsUnreadable, match="No such file"):
            reader.read(source)
    target = path if way == "in place" else tmp_path / "new"
    target.write_text(new)
    target.replace(path)
    run, fresh = reader.read(source), ScalarReader().read(source)
    assert {tag: points(run, tag) for tag in run.series} == {tag: points(fresh, tag) for tag in fresh.series}
    assert points(run, "loss")[-1][1] in {9, 3}


def test_an_unchanged_file_gives_the_same_series_again(tmp_path: Path) -> None:
    source, reader = ScalarSource("csv", csv_file(tmp_path, "step,loss\n1,1\n")), ScalarReader()
    first = reader.read(source)
    assert reader.read(source).series["loss"] is first.series["loss"]
    with pytest.raises(ValueError, match="read-only"):
        first.series["loss"].values[0] = 2
