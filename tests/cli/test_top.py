"""Frames of the live table, by value, and the keys that change it."""

import math
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from mcp_server.cli.top.frame import TopView, describe_screen, draw_frame, draw_trend, press
from mcp_server.cli.top.program import split_keys
from mcp_server.gpus.snapshot import Gpu, GpuProcess
from mcp_server.record.events import RecordEvent
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.text.formatting import format_posix
from mcp_server.views.people_rows import ListedRun
from mcp_server.views.run_status import describe

NOW_S = 1_795_000_000.0


def row(key: str, state: str = "running", since_s: float = 720, **facts: Any) -> ListedRun:
    live, at = state in ("running", "queued"), format_posix(NOW_S - since_s)
    facts = {"owner": "maria", "created_at": at, **({} if live else {"ended_at": at}), **facts}
    return ListedRun(id=key, name=key, state=state, live=live, **facts)


def loss(value: float) -> dict[str, Any]:
    return {"tag": "loss", "value": value}


SWEEP = row("night-ab3d", cells={"total": 6, "running": 3, "finished": 3}, eta_s=7200, best={"value": 25.0})
CELLS = [row(f"night-lr0.{n}-2mx{n}", sweep="night-ab3d", step=n * 100, total=900, metric=loss(n / 10)) for n in (1, 2)]
RUN = row("cfm-7kqz", step=812, total=5000, eta_s=8640, metric=loss(1.93), gpus=[0, 1, 2, 3])
FAILED = row("gen-2mxw", "failed", 7200, kind="oom_gpu", cause="out of GPU memory", line="CUDA out of memory")
GPUS = [
    (
        Gpu(
            0,
            "GPU-1",
            memory_used_mib=41984,
            memory_total_mib=81920,
            utilisation=87,
            processes=(GpuProcess(pid=7, memory_mib=41984),),
        ),
        "run cfm-7kqz",
    ),
    (Gpu(1, "GPU-2", "NVIDIA H100", lost=True), ""),
]
VIEW = TopView(rows=[SWEEP, *CELLS, FAILED, RUN], trends={"cfm-7kqz": [3.0, 2.5, math.nan, 1.0]}, gpus=GPUS)


def draw(view: TopView, width: int, height: int) -> list[str]:
    lines = [line.plain for line in draw_frame(view, width, height, NOW_S)]
    assert len(lines) == height
    assert {cell_len(line) for line in lines} <= {width}
    return [line.rstrip() for line in lines]


def test_a_frame_at_80_by_24() -> None:
    assert [line for line in draw(replace(VIEW, selected="cfm-7kqz"), 80, 24) if line] == [
        "runward: 3 running, 1 failed",
        " 0 █████████░  87% 41/80G run cfm-7kqz   1 ░░░░░░░░░░   ?% LOST",
        "   RUN         STATE    STEP       LEFT   METRIC     GPUS  WHEN        TREND",
        " ▸ night-ab3d  running  3/6 cells  2 h    best 25          for 12 min",
        ">  cfm-7kqz    running  812/5000   2.4 h  loss 1.93  0-3   for 12 min  █▆!▁",
        "   gen-2mxw    failed                     oom_gpu          2 h ago",
        "cfm-7kqz",
        "↑ ↓ j move   Enter open   k stop   / filter   q quit",
    ]


def test_a_frame_at_120_by_40_with_an_open_sweep() -> None:
    view = replace(VIEW, opened=frozenset({"night-ab3d"}), selected="night-lr0.2-2mx2", gpus=())
    assert [line for line in draw(view, 120, 40) if line] == [
        "runward: 3 running, 1 failed",
        "   RUN               STATE    STEP       LEFT   METRIC     GPUS  WHEN        TREND  OWNER  EXIT",
        " ▾ night-ab3d        running  3/6 cells  2 h    best 25          for 12 min         maria",
        " · night-lr0.1-2mx1  running  100/900           loss 0.1         for 12 min         maria",
        ">· night-lr0.2-2mx2  running  200/900           loss 0.2         for 12 min         maria",
        "   cfm-7kqz          running  812/5000   2.4 h  loss 1.93  0-3   for 12 min  █▆!▁   maria",
        "   gen-2mxw          failed                     oom_gpu          2 h ago            maria  oom_gpu",
        "night-lr0.2-2mx2",
        "↑ ↓ j move   Enter open   k stop   / filter   q quit",
    ]


def test_a_frame_at_40_by_20_keeps_id_state_and_step() -> None:
    assert [line for line in draw(replace(VIEW, selected="gen-2mxw"), 40, 20) if line] == [
        "runward: 3 running, 1 failed",
        " 0 █████████░  87% 41/80G run cfm-7kqz",
        " 1 ░░░░░░░░░░   ?% LOST",
        "   RUN         STATE    STEP",
        " ▸ night-ab3d  running  3/6 cells",
        "   cfm-7kqz    running  812/5000",
        ">  gen-2mxw    failed",
        "gen-2mxw: out of GPU memory: CUDA out of",
        "↑ ↓ j move   Enter open   k stop   / fil",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3, 10, 30, 79, 300])
@pytest.mark.parametrize("height", [1, 2, 4, 7, 60])
@pytest.mark.parametrize("mode", ["table", "run", "filter", "stop"])
def test_every_frame_has_the_size_of_its_terminal_whatever_stands_in_it(width: int, height: int, mode: str) -> None:
    odd = "漢字" * 300 + "e\u0301" * 50 + "🧪" * 9
    facts: dict[str, Any] = {
        "step": 10**90,
        "metric": {"tag": odd, "value": 1.5},
        "owner": odd,
        "sweep": odd,
        "cause": odd,
    }
    rows = [row(f"{'x' * n}{n}", **facts) for n in range(90)]
    many = [(replace(GPUS[0][0], index=n), odd) for n in range(64)]
    texts = {"message": odd, "question": f"{odd} {odd}", "typed": odd, "facts": [odd] * 9, "output": [odd] * 99}
    draw(TopView(rows=rows, gpus=many, mode=mode, behind="run", selected=rows[40].id, **texts), width, height)  # type: ignore[arg-type]


def test_a_table_without_runs_says_so() -> None:
    assert draw(TopView(), 40, 5)[1] == "No runs yet."
    assert draw(replace(VIEW, wanted="nothing"), 60, 8)[3] == "No run has 'nothing'."


def test_live_runs_come_first_and_then_the_newest_ends() -> None:
    ended = [row(f"{age}-ago", "failed", age) for age in (300, 100, 200)]
    view = TopView([*ended, RUN, row("in-line", "queued")])
    assert [each.id for each in view.visible] == ["cfm-7kqz", "in-line", "100-ago", "200-ago", "300-ago"]


def test_the_selected_row_is_always_in_the_frame() -> None:
    rows = [row(f"run-{number:03}") for number in range(100)]
    for number in (0, 5, 50, 99):
        assert any(
            line.startswith(f">  run-{number:03}") for line in draw(TopView(rows, selected=f"run-{number:03}"), 80, 12)
        )


def test_a_sparkline_has_the_newest_at_its_end_and_marks_what_is_no_number() -> None:
    assert draw_trend([]) == ""
    assert draw_trend([1.0]) == "▁"
    assert draw_trend([2.0, 2.0]) == "▁▁"
    assert draw_trend([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert draw_trend(list(range(800)), 4) == "▁▃▆█"
    assert draw_trend([*[1.0] * 9, math.nan, *[2.0] * 10], 2) == "!▁", "one NaN shows"
    assert draw_trend([math.inf, 1e308, -1e308, math.nan]) == "!█▁!"


def test_keys_are_told_apart_however_they_arrive() -> None:
    assert split_keys("jk\x1b[A\x1bOB\r\x7f\x1b[5~/é") == (
        ["j", "k", "up", "down", "enter", "rubout", "page up", "/", "é"],
        "",
    )
    assert split_keys("q\x1b[") == (["q"], "\x1b[")
    assert split_keys("\x1b") == ([], "\x1b"), "the escape key, or the beginning of another"
    assert split_keys("\x1b[99;5u") == (["\x1b[99;5u"], ""), "no key that is used"


def typed(view: TopView, *keys: str) -> tuple[TopView, list[str]]:
    actions = []
    for key in keys:
        view, action = press(view, key)
        actions += [action] if action else []
    return view, actions


def test_a_sweep_is_one_row_that_enter_opens_and_closes() -> None:
    view, actions = typed(VIEW, "enter")
    assert [each.id for each in view.visible][:3] == ["night-ab3d", "night-lr0.1-2mx1", "night-lr0.2-2mx2"]
    view, _ = typed(view, "j", "down", "up")
    assert (view.selected, actions) == ("night-lr0.1-2mx1", ["open"])
    view, _ = typed(view, "home", "enter")
    assert [each.id for each in view.visible] == ["night-ab3d", "cfm-7kqz", "gen-2mxw"]


def test_a_filter_takes_all_letters_and_finds_the_sweep_of_a_cell() -> None:
    view, actions = typed(VIEW, "/", *"lr0.2jqk", "rubout", "rubout", "rubout", "enter")
    assert (view.wanted, view.mode, actions) == ("lr0.2", "table", [])
    assert [each.id for each in view.visible] == ["night-ab3d"]
    view, _ = typed(view, "enter")
    assert [each.id for each in view.visible] == ["night-ab3d", "night-lr0.2-2mx2"]
    assert typed(view, "escape")[0].wanted == ""
    assert [each.id for each in replace(VIEW, wanted="OOM out").visible] == ["gen-2mxw"]


@pytest.mark.parametrize(
    ("keys", "action"),
    [
        ([*"gen-2mxw", "enter"], "stop"),
        ([*"gen-2mx", "enter"], "refuse"),
        (["enter"], "refuse"),
        ([*"gen-2mxw", "escape"], "refuse"),
        ([*"cfm-7kqz", "enter"], "refuse"),
    ],
)
def test_a_stop_needs_the_id_of_the_run_that_was_asked_about(keys: list[str], action: str) -> None:
    asked = replace(VIEW, selected="gen-2mxw", mode="stop", question="gen-2mxw?")
    view, actions = typed(asked, *keys)
    assert (actions, view.mode, view.question) == ([action], "table", "")


def test_keys_without_a_run_do_nothing() -> None:
    for key in ("k", "enter", "j", "up", "end", "x", "\x1b[99u", ""):
        assert press(TopView(), key) == (TopView(), "")
    assert press(TopView(), "q") == (TopView(), "quit")


def test_the_screen_of_a_run_says_how_it_goes_where_and_why_it_failed() -> None:
    events: tuple[RecordEvent, ...] = (
        {"seq": 1, "at": "2026-11-21T15:30:45.123Z", "kind": "stalled", "text": "Silent for 20 min."},
    )
    spec = RunSpec(run_id="cfm-7kqz", owner="maria")
    live = Run(spec, "running", events=events, gpus=("GPU-1",), gpu_indices=(3,), progress={"step": 8})
    status = describe(live, now_s=NOW_S)
    assert describe_screen(live, status, NOW_S) == [
        "cfm-7kqz  running  step 8",
        "owner maria; GPU 3",
        "15:30:45 stalled: Silent for 20 min.",
    ]
    failed = replace(live, state="failed", failure={"kind": "oom_gpu", "line": "CUDA", "advice": "Halve the batch."})
    told = describe_screen(failed, describe(failed, now_s=NOW_S), NOW_S)
    assert told[2:4] == ["oom_gpu: CUDA", "Halve the batch."]
