"""What an answer on scalars looks at, where a run has more than anyone reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
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


def test_runs_side_by_side_are_summarised_only_for_tags_that_an_answer_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.views.scalar_report._MOST_SIDE_BY_SIDE", 3)
    for name in ("a", "b"):
        records = (scalar_record(1, 1.0, n, f"tag{n}") for n in range(8))
        write(tmp_path / name / "events.out.tfevents.1.h.1.0", header(), *records)
    home = StateHome(tmp_path / "state")
    query = ScalarQuery(compare=(str(tmp_path / "a"), str(tmp_path / "b")))
    report = build_report(query, Scalars(home), RunStore(home))
    assert [line.split()[0] for line in report.answer.tags or ()] == ["tag0", "tag1", "tag2"]
    assert report.answer.next_step == "5 more tags had no room: name fewer in tags."


def test_an_overview_of_many_tags_computes_no_trend_that_it_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = (scalar_record(1, float(n), n, f"tag{n:02}") for n in range(60))
    write(tmp_path / "tb" / "events.out.tfevents.1.h.1.0", header(), *records)
    home = StateHome(tmp_path / "state")
    scalars, store, path = Scalars(home), RunStore(home), str(tmp_path / "tb")
    with_points = build_report(ScalarQuery(path, points=2), scalars, store).answer
    assert with_points.values is not None
    assert len(with_points.values) == 20
    assert all(figures.min == figures.last for figures in with_points.values.values())
    whole = build_report(ScalarQuery(path), scalars, store, in_full=True)
    monkeypatch.setattr("mcp_server.scalars.summary._summarise_finite", None)
    answers = (whole.answer, build_report(ScalarQuery(path), Scalars(home), store).answer)
    overview, without_trends = (one.model_copy(update={"age_s": None}) for one in answers)  # a second may pass between
    assert without_trends == overview


def test_questions_among_the_tags_are_answered_and_runs_stand_at_the_last_step_that_all_have(tmp_path: Path) -> None:
    for name, count in (("a", 8), ("b", 6)):
        records = (scalar_record(n * 10, 1.0, 1.0 / n, "train/loss") for n in range(1, count + 1))
        write(tmp_path / name / "events.out.tfevents.1.h.1.0", header(), *records)
    home = StateHome(tmp_path / "state")
    scalars, store, path = Scalars(home), RunStore(home), str(tmp_path / "a")
    asked = ("loss@40", "first:loss<0.3", "mean2:loss")
    answer = build_report(ScalarQuery(path, asked), scalars, store).answer
    assert answer.answers == [
        "train/loss at step 40: 0.25",
        "train/loss < 0.3: first at step 40, 0.25",
        "train/loss mean2: 0.1339 (2 points to step 80), before 0.1833 (-0.049)",
    ]
    assert (answer.values, answer.tags, answer.notes) == (None, None, None)
    answer = build_report(ScalarQuery(path, ("loss", "best:loss")), scalars, store).answer
    assert answer.answers == ["train/loss best: 0.125 (step 80)"]
    assert list(answer.values or ()) == ["train/loss"]
    answer = build_report(ScalarQuery(compare=(path, str(tmp_path / "b"))), scalars, store).answer
    assert answer.answers == ["train/loss at step 60: a 0.1667, b 0.1667"]
    with pytest.raises(BadArgument, match="train/loss"):
        build_report(ScalarQuery(path, ("los@40",)), scalars, store)
