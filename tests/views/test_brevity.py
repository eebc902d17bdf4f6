"""Heartbeats and answers about many runs have few tokens, and leave out no news."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcp_server.record.events import RecordEvent as EventRecord
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.text.formatting import estimate_tokens
from mcp_server.views.brevity import fit, line_of, row_of, shorten_heartbeat
from mcp_server.views.run_status import Event, Failure, RunStatus

LONG, SHORT = "qwen2-7b-sft-lr2e-4-7kqz", "cfm-7kqz"
RUNNING: dict[str, Any] = {"state": "running", "elapsed_s": 812.4, "step": 240, "total_steps": 720, "step_s": 1.412}
RUNNING |= {"eta_s": 678.0, "metrics": {"loss": 1.934}, "last_output_s": 0.4}


def tokens(answer: Any) -> int:
    openai = pytest.importorskip("rs_bpe").openai
    return int(openai.o200k_base().count(json.dumps(answer, ensure_ascii=False, separators=(",", ":"))))


def heartbeat(**facts: Any) -> dict[str, Any]:
    status, next_timeout_s = shorten_heartbeat(RunStatus(**facts), 960)
    answer: dict[str, Any] = {"reason": "heartbeat", "runs": [status.model_dump()]}
    return answer if next_timeout_s is None else {**answer, "next_timeout_s": next_timeout_s}


@pytest.mark.parametrize("run_id", [LONG, SHORT, "eval-cfm-20k-spatial-b3xq", "ppo-humanoid-seed3-w9fd"])
@pytest.mark.parametrize("facts", [RUNNING, {"state": "running", "elapsed_s": 9.1, "last_output_s": 3.3}])
def test_a_heartbeat_has_45_tokens(run_id: str, facts: dict[str, Any]) -> None:
    answer = heartbeat(run_id=run_id, **facts)
    assert tokens(answer) <= 45, answer
    assert answer["runs"][0].items() >= {"run_id": run_id, "state": "running"}.items()
    assert answer["runs"][0].get("step") == facts.get("step")


def test_a_heartbeat_has_what_fits_beside_the_id_the_most_useful_first() -> None:
    beat, base = heartbeat(run_id=SHORT, **RUNNING), {"state": "running", "step": 240, "eta_s": 678}
    assert beat["runs"][0].items() >= {"run_id": SHORT, **base}.items()
    assert beat["next_timeout_s"] == 960
    long = heartbeat(run_id=LONG, **RUNNING)
    assert long["runs"] == [{"run_id": LONG, **base}]
    assert "next_timeout_s" not in long, "the run and how far it is come first"


def test_a_queued_job_keeps_its_id_and_reason_in_every_answer() -> None:
    facts = {"state": "queued", "job_id": "4711_3", "pending_reason": "Resources"}
    assert heartbeat(run_id=LONG, **facts)["runs"][0].items() >= facts.items()
    assert row_of(RunStatus.model_validate({"run_id": LONG, **facts})).model_dump().items() >= facts.items()


def test_a_run_without_a_step_shows_its_newest_line() -> None:
    facts = {"state": "running", "last_output_s": 3.3, "tail": ["step"], "elapsed_s": 12.0}
    assert heartbeat(run_id=SHORT, **facts)["runs"][0]["tail"] == ["step"]


@pytest.mark.parametrize(
    "news",
    [
        {"failure": Failure(kind="oom_gpu", line="CUDA out of memory", action="stop")},
        {"events": [Event(seq=3, at="2026-11-21T15:30:00Z", kind="retrying", text="Trying again.")]},
        {"params_changed": ["num_envs 64 -> 32"]},
    ],
)
def test_a_heartbeat_shortens_no_news(news: dict[str, Any]) -> None:
    status = RunStatus(run_id=LONG, **RUNNING, **news)
    assert shorten_heartbeat(status, 30) == (status, 30)


def test_why_a_state_is_in_doubt_is_always_said() -> None:
    status = RunStatus(run_id=LONG, **RUNNING, reason="Its host does not answer: this is the last known state.")
    assert shorten_heartbeat(status, 30)[0].reason == status.reason


def test_a_row_is_the_run_its_state_and_how_it_ended() -> None:
    failed = RunStatus(
        run_id=SHORT, state="failed", name="cfm", exit_code=1, ended_at="2026-11-21T15:30:00Z",
        failure=Failure(kind="oom_gpu", line="CUDA out of memory"), step=7,
    )  # fmt: skip
    assert row_of(failed).model_dump() == {
        "run_id": SHORT,
        "state": "failed",
        "failure": {"kind": "oom_gpu"},
        "exit_code": 1,
    }
    assert row_of(RunStatus(run_id=SHORT, **RUNNING)).model_dump() == {"run_id": SHORT, "state": "running", "step": 240}
    other = RunStatus(run_id=SHORT, state="failed", exit_code=3, owner="bob")
    assert row_of(other).model_dump() == {"run_id": SHORT, "state": "failed", "owner": "bob", "exit_code": 3}


def test_a_short_row_and_a_line_name_an_exception_behind_an_exit_code_of_0() -> None:
    printed = EventRecord(seq=2, kind="exception_printed", text="An exception was printed at line 7.")
    run = Run(RunSpec(run_id=SHORT), "finished", (printed,), exit_code=0)
    assert line_of(run) == f"{SHORT} finished, printed an exception"
    row = row_of(RunStatus(run_id=SHORT, state="finished", note="printed an exception"))
    assert row.note == "printed an exception"


def test_an_ended_run_is_one_line_of_text() -> None:
    spec = RunSpec(run_id=SHORT)
    failed = Run(spec, "failed", exit_code=1, started_at="2026-11-21T15:30:00Z", failure={"kind": "oom_gpu"})
    assert line_of(Run(spec, "finished", exit_code=0, started_at="2026-11-21T15:30:00Z", measured_s=4000.0)) == (
        f"{SHORT} finished, 1.111 h"
    )
    assert line_of(Run(spec, "lost")) == f"{SHORT} lost"
    assert line_of(failed).startswith(f"{SHORT} failed oom_gpu, exit 1")


def test_a_row_and_a_line_of_an_ended_run_say_how_its_earlier_attempts_ended() -> None:
    retried = EventRecord(seq=2, kind="retrying", attempt=1, failure={"kind": "stall"})
    assert line_of(Run(RunSpec(run_id=SHORT), "finished", (retried,), attempt=2)) == (
        f"{SHORT} finished (before: attempt 1 stall)"
    )
    row = row_of(RunStatus(run_id=SHORT, state="finished", attempt=2, earlier="attempt 1 stall"))
    assert row.model_dump() == {"run_id": SHORT, "state": "finished", "attempt": 2, "earlier": "attempt 1 stall"}


def test_as_many_are_answered_as_fit_and_never_none() -> None:
    lines = [f"cell-{number:02}-ab3d finished" for number in range(100)]
    assert 0 < fit(lines, 200) < 100
    assert fit(lines, 10_000) == 100
    assert fit(["a very long line indeed"] * 3, 1, least=1) == 1
    assert fit([], 10, least=1) == 0


def test_the_estimate_is_near_the_tokens_of_answers() -> None:
    rows = [{"run_id": f"cell-{number:02}-k{number}xq", "state": "finished"} for number in range(60)]
    for answer in (rows, heartbeat(run_id=LONG, **RUNNING), RunStatus(run_id=SHORT, **RUNNING).model_dump()):
        text = json.dumps(answer, separators=(",", ":"))
        assert 0.95 <= estimate_tokens(text) / tokens(answer) <= 1.35
