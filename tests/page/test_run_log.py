"""A log on the page: its colours stay, whatever else could act on a terminal or mislead goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.page.run_view import clean_output, find_in_log, read_log_part
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.tools.support.context import ServerContext


@pytest.fixture
def server(tmp_path: Path) -> ServerContext:
    return ServerContext.of({"RUNWARD_HOME": str(tmp_path / "state"), "MY_API_KEY": "hunter2-hunter2-hunter2"})


def make_run(server: ServerContext, log: bytes) -> Run:
    path = server.home.runs / "a" / "attempts" / "1"
    path.mkdir(parents=True)
    (path.parents[1] / "spec.json").write_text("{}")
    (path / "output.log").write_bytes(log)
    return Run(RunSpec(run_id="a"), "running")


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        (b"\x1b[38;2;1;2;3mtrue\x1b[m", "\x1b[38;2;1;2;3mtrue\x1b[m"),
        (b"a\x1b]0;title\x07b", "ab"),
        (b"\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1b[2J\x1b[Hclear", "clear"),
        (b"\x1bPq\x1b\\sixel", "sixel"),
        (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("a\u202eb\u2066c".encode(), "a\\u202eb\\u2066c"),
        (b"\x00\x01\x08 \x9b31m", "\\x00\\x01\\x08 \ufffd31m"),
        (b"10%\r20%\n", "10%\r20%\n"),
        (b"key hunter2-hunter2-hunter2 end", "key ***MY_API_KEY*** end"),
    ],
)
def test_output_keeps_its_colours_and_nothing_else_that_acts(server: ServerContext, output: bytes, shown: str) -> None:
    told = clean_output(output, server)
    assert told == shown or ("hunter2" in output.decode(errors="replace") and "hunter2" not in told)


def test_a_log_is_followed_without_a_gap_or_a_repeat(server: ServerContext) -> None:
    whole = "".join(f"{n} é 漢 \x1b[3{n % 8}m😀\x1b[0m\n" for n in range(40_000)).encode()
    run = make_run(server, whole)
    told, after = "", 0
    while after < len(whole):
        part = read_log_part(server, run, None, after=after)
        assert part["start"] == after
        assert part["end"] > after
        told, after = told + part["text"], part["end"]
    assert told == whole.decode()


def test_the_end_of_a_log_begins_with_a_line_and_its_number(server: ServerContext) -> None:
    run = make_run(server, b"".join(b"line %d\n" % n for n in range(1, 100_001)))
    part = read_log_part(server, run, None)
    first = part["text"].split("\n", 1)[0]
    assert first == f"line {part['first_line']}"
    assert part["end"] == part["size"]


@pytest.mark.parametrize("line", [1, 2, 100, 101, 5_000, 99_999])
def test_the_part_around_a_line_has_it(server: ServerContext, line: int) -> None:
    run = make_run(server, b"".join(b"line %d\n" % n for n in range(1, 100_001)))
    part = read_log_part(server, run, None, line=line)
    assert part["text"].split("\n")[line - part["first_line"]] == f"line {line}"


def test_a_search_finds_lines_and_says_where_it_stopped(server: ServerContext) -> None:
    run = make_run(server, b"".join(b"step %d\n" % n for n in range(1, 1_001)))
    assert find_in_log(server, run, None, r"step 7\d$")["matches"][0] == {"line": 70, "text": "step 70"}
    told = find_in_log(server, run, None, "step")
    assert (len(told["matches"]), told["more"]) == (500, True)
    with pytest.raises(BadArgument):
        find_in_log(server, run, 2, "step")


def test_a_log_that_is_not_there_is_empty(server: ServerContext) -> None:
    run = make_run(server, b"")
    assert read_log_part(server, run, None)["text"] == ""
    (server.home.runs / "a" / "attempts" / "1" / "output.log").unlink()
    assert read_log_part(server, run, None)["size"] == 0
