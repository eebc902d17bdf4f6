"""The hours without a run on a GPU, by value."""

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run, posix
from mcp_server.views.machine_report import _join_spans, _measure_span

AT = "2026-11-20T10:00:00Z"


def test_overlapping_runs_of_one_gpu_count_once() -> None:
    assert _join_spans([(0.0, 10.0), (5.0, 8.0), (8.0, 20.0), (30.0, 31.0)]) == 21.0
    assert _join_spans([]) == 0.0


def test_a_run_counts_from_the_beginning_of_the_week_to_its_end_or_now() -> None:
    begun_s = posix(AT)
    ended = Run(RunSpec(run_id="a"), "finished", started_at="2026-11-20T09:00:00Z", ended_at="2026-11-20T11:00:00Z")
    assert _measure_span(ended, begun_s, begun_s + 7_200) == (begun_s, begun_s + 3_600)
    live = Run(RunSpec(run_id="a"), "running", started_at="2026-11-20T10:30:00Z")
    assert _measure_span(live, begun_s, begun_s + 7_200) == (begun_s + 1_800, begun_s + 7_200)
    lost = Run(RunSpec(run_id="a"), "lost", started_at=AT)
    assert _measure_span(lost, begun_s, begun_s + 60) is None
    before = Run(RunSpec(run_id="a"), "finished", started_at="2026-11-19T09:00:00Z", ended_at="2026-11-19T11:00:00Z")
    assert _measure_span(before, begun_s, begun_s + 60) is None
