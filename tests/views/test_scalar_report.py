"""What an answer on scalars looks at, where a run has more than anyone reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.views.scalar_report import ScalarQuery, build_report
from tests.support.event_records import header, scalar_record, write


def test_tags_beyond_the_limit_are_counted_and_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_server.views.scalar_report._MOST_SUMMARISED", 30)
    write(
        tmp_path / "tb" / "events.out.tfevents.1.h.1.0",
        header(),
        *(scalar_record(1, 1.0, n, f"tag{n:03}") for n in range(100)),
    )
    home = StateHome(tmp_path / "state")
    scalars, store = Scalars(home), RunStore(home)

    def ask(*tags: str) -> tuple[int, list[str] | None, int | None]:
        report = build_report(ScalarQuery(str(tmp_path / "tb"), tags), scalars, store)
        assert report.summaries is not None
        [summaries] = report.summaries.values()
        return len(summaries), report.answer.notes, report.answer.total

    said = "Only the first 30 tags are looked at, 70 more are not: name them in tags, globs allowed."
    assert ask() == (30, [said], 100)
    assert ask("tag099") == (1, None, None)
    assert ask("tag0[6-9]*") == (30, ["Only the first 30 tags are looked at, 10 more are not: narrow the globs."], 40)
