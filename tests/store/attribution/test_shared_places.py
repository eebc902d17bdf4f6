"""Which runs wrote over each other's files, by value."""

from __future__ import annotations

from typing import Any

from mcp_server.record.claims import Claims
from mcp_server.record.written_files import WrittenFile
from mcp_server.store.attribution.attribution import describe_shared

EVENTS = "events.out.tfevents.1795794522.vm"


def run(run_id: str, *paths: str, begun_s: float = 0.0, ended_s: float = 100.0, **facts: Any) -> Claims:
    written = {path: WrittenFile(path, 1, 10, 5, **facts) for path in paths}
    return Claims(run_id, "/w", begun_s, ended_s, written=written)


def test_runs_that_write_one_file_at_one_time_are_named_with_its_directory() -> None:
    texts = describe_shared([run("a", "/w/out/model.pt", "/w/out/own_a.csv"), run("b", "/w/out/model.pt"), run("c")])
    assert list(texts) == ["/w/out"]
    assert texts["/w/out"].startswith("a and b write the same files in /w/out (model.pt): ")
    three = describe_shared([run(name, "/w/out/model.pt") for name in "abc"])
    assert three["/w/out"].startswith("a, b and 1 more write the same files")


def test_event_files_of_two_runs_in_one_directory_are_one_curve_to_tensorboard() -> None:
    texts = describe_shared([run("a", f"/w/out/{EVENTS}.7.0"), run("b", f"/w/out/{EVENTS}.8.0")])
    assert "a and b write the same files in /w/out (event files)" in texts["/w/out"]
    assert describe_shared([run("a", f"/w/a/{EVENTS}.7.0"), run("b", f"/w/b/{EVENTS}.8.0")]) == {}


def test_runs_of_other_times_and_files_that_are_shared_on_purpose_are_none() -> None:
    later = run("b", "/w/out/model.pt", begun_s=101.0, ended_s=200.0)
    assert describe_shared([run("a", "/w/out/model.pt"), later]) == {}
    for path in (
        "/w/study.db",
        "/w/.cache/a.bin",
        "/w/__pycache__/m.pyc",
        "/w/hf_cache/m.bin",
        "/tmp/ray/log",
        "/w/l.lock",
    ):
        assert describe_shared([run("a", path), run("b", path)]) == {}, path
    both = [run(name, "/w/results.csv", append=True) for name in "ab"]
    assert describe_shared(both) == {}, "a table to which each appends"
    listed = [run(name, "/w/out/model.pt", listed=True) for name in "ab"]
    assert describe_shared(listed) == {}, "nobody saw who wrote it"
