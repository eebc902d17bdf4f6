"""A reader whose caller has gone stops at once, and the next caller reads everything."""

import contextvars
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server import threads
from mcp_server.scalars.formats.detect import ScalarSource
from mcp_server.scalars.reading import ScalarReader
from mcp_server.threads import CallAbandoned
from mcp_server.views.log_excerpt import grep_lines, slice_lines
from tests.support.event_records import header
from tests.support.event_records import points as records
from tests.support.scalar_files import csv_file


def abandoned(act: Callable[[], object]) -> None:
    """Call ``act`` as in a thread whose caller has gone."""

    def call() -> None:
        has_gone = threading.Event()
        has_gone.set()
        threads._abandoned.set(has_gone)
        act()

    contextvars.copy_context().run(call)


def test_a_table_is_read_whole_by_the_next_caller(tmp_path: Path) -> None:
    source, reader = ScalarSource("csv", csv_file(tmp_path, "step,loss\n1,1\n2,2\n")), ScalarReader()
    with pytest.raises(CallAbandoned):
        abandoned(lambda: reader.read(source))
    assert len(reader.read(source).series["loss"].values) == 2
    with source.path.open("a") as file:
        file.write("3,3\n")
    with pytest.raises(CallAbandoned):
        abandoned(lambda: reader.read(source))
    assert len(reader.read(source).series["loss"].values) == 3


def test_event_files_are_read_whole_by_the_next_caller(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1700000000.host.1.0"
    path.write_bytes(header() + records(range(50)))
    reader = ScalarReader()
    with pytest.raises(CallAbandoned):
        abandoned(lambda: reader.read(tmp_path))
    assert len(reader.read(tmp_path).series["loss"].values) == 50


def test_a_search_of_a_log_ends(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("loss 1\n" * 100)
    with pytest.raises(CallAbandoned):
        abandoned(lambda: grep_lines(log, "loss", label="a"))
    with pytest.raises(CallAbandoned):
        abandoned(lambda: slice_lines(log, 5, label="a"))
