"""The rows of all pages: a row that one page asked for is no news to the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from mcp_server.page.board import Board
from mcp_server.page.sessions import Visitor
from mcp_server.record.results.notes import NOTES
from mcp_server.tools.support.context import ServerContext

pytestmark = pytest.mark.anyio


def write_ended(home: Path, run_id: str, created_at: str) -> None:
    directory = home / "runs" / run_id
    (directory / "attempts" / "1").mkdir(parents=True)
    spec = {"run_id": run_id, "name": run_id, "command": "true", "layout": 3, "cwd": "/", "created_at": created_at}
    (directory / "spec.json").write_text(json.dumps(spec))
    events = [{"seq": 1, "kind": "started", "attempt": 1}, {"seq": 2, "kind": "ended", "state": "finished"}]
    lines = (json.dumps({"at": created_at, "text": "", **event}) for event in events)
    (directory / "events.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    for number in (1, 2, 3):
        write_ended(tmp_path, f"run-{number}", f"2026-01-0{number}T00:00:00Z")
    server = ServerContext.of({"RUNWARD_HOME": str(tmp_path)})
    yield Board(server)
    server.file_watch.close()


async def list_ids(board: Board, limit: int, before: str | None = None) -> tuple[list[str], bool]:
    told = json.loads(await board.list_rows(Visitor(), limit, before))
    return [row["id"] for row in told["runs"]], told["older"]


async def test_older_rows_go_to_the_page_that_asks_and_to_no_other(board: Board) -> None:
    assert await list_ids(board, 2) == (["run-3", "run-2"], True)
    cursor = board.version
    assert await list_ids(board, 2, "run-2") == (["run-1"], False)
    assert board.changes_since(cursor, Visitor()) == (cursor, None)


async def test_a_run_that_one_page_finds_first_is_news_to_the_others(board: Board, tmp_path: Path) -> None:
    await list_ids(board, 2)
    cursor = board.version
    write_ended(tmp_path, "run-4", "2026-01-04T00:00:00Z")
    assert await list_ids(board, 2) == (["run-4", "run-3"], True)
    _, told = board.changes_since(cursor, Visitor())
    assert told is not None
    assert [row["id"] for row in json.loads(told)["runs"]] == ["run-4"]


async def test_an_old_row_is_news_once_it_changes(board: Board, tmp_path: Path) -> None:
    await list_ids(board, 1)
    cursor = board.version
    assert (await board.read_row("run-1", Visitor()))["id"] == "run-1"
    assert board.version == cursor
    note = {"at": "2026-01-05T00:00:00Z", "by": "ada", "text": "", "verdict": "keep"}
    (tmp_path / "runs" / "run-1" / NOTES).write_text(json.dumps(note) + "\n")
    await board.touch("run-1")
    _, told = board.changes_since(cursor, Visitor())
    assert told is not None
    assert [row["verdict"] for row in json.loads(told)["runs"]] == ["keep"]


async def test_a_directory_that_does_not_exist_yet_is_not_watched(board: Board, tmp_path: Path) -> None:
    """A watch of it would have all others polled: 200 live runs were read three times a second."""
    parents = [tmp_path / "runs", tmp_path / "sweeps"]
    assert board._look(None, parents, set()) == {tmp_path / "runs"}
    (tmp_path / "sweeps").mkdir()
    assert board._look(None, parents, {tmp_path / "runs"}) == set(parents)


async def test_news_of_a_run_come_while_a_page_is_open(board: Board, tmp_path: Path) -> None:
    await list_ids(board, 3)
    with board.open_page():
        cursor = board.version
        write_ended(tmp_path, "run-4", "2026-01-04T00:00:00Z")
        with anyio.fail_after(60):
            version, told = board.changes_since(cursor, Visitor())
            while "run-4" not in (told or ""):
                await board.next_change(version)
                version, told = board.changes_since(cursor, Visitor())
