"""Metric conditions of a wait: every new point is checked once, from one wait of a caller to the next."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.events import RecordEvent
from mcp_server.record.state import Liveness
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import fold_sweep
from mcp_server.runs.wait.cursors import MetricPosition
from mcp_server.runs.wait.metric_wait import MetPoint, MetricCheck, MetricWait, check_possible
from mcp_server.runs.wait.waiting import decide, find_reason, make_outcome
from mcp_server.scalars.condition import parse_condition
from mcp_server.scalars.from_log import LogMetrics, LogPoints
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.state_home import StateHome
from tests.support.event_records import append, header, points
from tests.support.scalar_runs import BEGUN_S, Writer, csv, events, live, write
from tests.support.sweeps import cell_events

pytestmark = pytest.mark.anyio
STEPPED: RecordEvent = {"seq": 1, "kind": "first_step"}


def first_check(tmp_path: Path, condition: str) -> MetricCheck:
    return MetricCheck(Scalars(StateHome(tmp_path / "state")), parse_condition(condition), MetricPosition())


def test_a_point_between_two_checks_meets_the_condition(tmp_path: Path) -> None:
    csv(tmp_path, "step,train/reward", "1,50", "2,3")
    check = first_check(tmp_path, "reward >= 20")
    run = live(tmp_path)
    assert check.check(run) is None, "points before the first check are not new"
    csv(tmp_path, "3,20.5", "4,1")
    assert check.check(run) == "train/reward = 20.5 at step 3"
    assert check.check(run) is None


def test_the_newest_point_meets_the_condition_at_the_first_check(tmp_path: Path) -> None:
    csv(tmp_path, "step,reward", "1,3", "2,50")
    check = first_check(tmp_path, "reward >= 20")
    assert check.check(live(tmp_path)) == "reward = 50 at step 2"


def test_every_point_of_a_tag_that_appeared_after_the_first_check_is_checked(tmp_path: Path) -> None:
    check = first_check(tmp_path, "reward >= 20")
    run = live(tmp_path)
    assert check.check(run) is None
    csv(tmp_path, "step,reward", "1,50", "2,3")
    assert check.check(run) == "reward = 50 at step 1"


def test_a_nan_meets_its_condition_however_old_it_is(tmp_path: Path) -> None:
    csv(tmp_path, "step,loss", "1,nan", "2,3")
    check = first_check(tmp_path, "loss is nan")
    assert check.check(live(tmp_path)) == "loss = nan at step 1"


def test_a_point_that_another_reader_has_read_is_not_missed(tmp_path: Path) -> None:
    csv(tmp_path, "step,loss", "1,3")
    scalars, run = Scalars(StateHome(tmp_path / "state")), live(tmp_path)
    check = MetricCheck(scalars, parse_condition("loss < 1"), MetricPosition())
    assert check.check(run) is None
    csv(tmp_path, "2,0.5", "3,2")
    scalars.read(scalars.locate(run).locations, "cfm-7kqz")
    assert check.check(run) == "loss = 0.5 at step 2"


def test_the_points_after_a_restart_are_checked(tmp_path: Path) -> None:
    scalars, run = Scalars(StateHome(tmp_path / "state")), live(tmp_path)
    writer = Writer(tmp_path / "tb")
    for step in range(10):
        writer.log(step, loss=3.0)
    check = MetricCheck(scalars, parse_condition("loss < 1"), MetricPosition())
    assert check.check(run) is None
    writer.log(4, loss=0.5)
    for step in range(5, 12):
        writer.log(step, loss=2.0)
    writer.close()
    assert check.check(run) == "loss = 0.5 at step 4"


def test_a_late_point_is_checked_too(tmp_path: Path) -> None:
    scalars, run = Scalars(StateHome(tmp_path / "state")), live(tmp_path)
    file = events(tmp_path / "tb", time.time(), os.getpid())
    file.write_bytes(header() + points(range(10, 20), wall=BEGUN_S + 1))
    check = MetricCheck(scalars, parse_condition("loss < 9"), MetricPosition())
    assert check.check(run) is None
    append(file, points([15], wall=BEGUN_S + 30, plus=-10))
    assert check.check(run) == "loss = 5 at step 15"
    append(file, points([20], wall=BEGUN_S + 31))
    assert check.check(run) is None, "it is checked once"


def test_after_two_restarts_the_points_of_the_first_are_checked_too(tmp_path: Path) -> None:
    scalars, run = Scalars(StateHome(tmp_path / "state")), live(tmp_path)
    writer = Writer(tmp_path / "tb")
    for step in range(10):
        writer.log(step, loss=3.0)
    check = MetricCheck(scalars, parse_condition("loss < 1"), MetricPosition())
    assert check.check(run) is None
    for step, loss in ((4, 0.5), (5, 2.0), (6, 2.0), (7, 2.0), (6, 3.0), (7, 3.0)):
        writer.log(step, loss=loss)
    writer.close()
    assert check.check(run) == "loss = 0.5 at step 4"


def test_a_chosen_tag_stays_when_another_directory_has_one_of_that_name(tmp_path: Path) -> None:
    scalars, run = Scalars(StateHome(tmp_path / "state")), live(tmp_path)
    write(tmp_path / "train", 3, {"loss": lambda _: 3.0})
    check = MetricCheck(scalars, parse_condition("loss < 1"), MetricPosition())
    assert check.check(run) is None
    write(tmp_path / "eval", 3, {"loss": lambda _: 0.5})
    scalars = Scalars(StateHome(tmp_path / "state"))  # has not seen that there was one directory
    check = MetricCheck(scalars, parse_condition("loss < 1"), check.position)
    assert check.check(run) is None
    write(tmp_path / "train", 5, {"loss": lambda step: 0.25 if step == 4 else 3.0})
    assert check.check(run) == "loss = 0.25 at step 4"


def test_the_next_wait_checks_the_points_since_the_last_one_and_the_newest_point_again(tmp_path: Path) -> None:
    csv(tmp_path, "step,loss", "1,3")
    scalars, condition, run = Scalars(StateHome(tmp_path / "state")), parse_condition("loss < 1"), live(tmp_path)
    check = MetricCheck(scalars, condition, MetricPosition())
    assert check.check(run) is None
    csv(tmp_path, "2,0.5", "3,2")
    check = MetricCheck(scalars, condition, check.position)
    assert check.check(run) == "loss = 0.5 at step 2"
    check = MetricCheck(scalars, condition, check.position)
    assert check.check(run) is None, "each point is new once"
    csv(tmp_path, "4,0.1")
    before = check.position
    assert check.check(run) == "loss = 0.1 at step 4"
    for position in (before, check.position):
        assert MetricCheck(scalars, condition, position).check(run) == "loss = 0.1 at step 4"


async def test_a_missing_tag_is_named_with_similar_ones(tmp_path: Path) -> None:
    scalars, run = Scalars(StateHome(tmp_path / "state")), live(tmp_path)
    wait = MetricWait(scalars, parse_condition("lss < 1"), ["cfm-7kqz"], {})
    assert await wait.check([run]) is None
    assert wait.describe_unmet([], ended=False) == f"No 'lss' so far. No scalars seen: looked below {tmp_path}."
    csv(tmp_path, "step,loss,reward", "1,3,4")
    assert await wait.check([run]) is None
    assert wait.describe_unmet([], ended=False) == "No 'lss' so far. Present: loss, reward."
    assert wait.describe_unmet([], ended=True) == "No 'lss' in it. Present: loss, reward."
    wait = MetricWait(scalars, parse_condition("loss < 1"), ["cfm-7kqz"], {})
    assert await wait.check([run]) is None
    assert wait.describe_unmet([], ended=False) == "Not met: loss = 3 at step 1."


async def test_a_wait_continues_at_its_callers_positions_and_another_caller_starts_at_the_newest_point(
    tmp_path: Path,
) -> None:
    csv(tmp_path, "step,loss", "1,3")
    scalars, run, condition = Scalars(StateHome(tmp_path / "state")), live(tmp_path), parse_condition("loss < 1")

    def wait_from(positions: Mapping[str, MetricPosition]) -> MetricWait:
        return MetricWait(scalars, condition, ["cfm-7kqz"], positions)

    first = wait_from({})
    assert await first.check([run]) is None
    positions = first.positions
    csv(tmp_path, "2,0.5", "3,2")
    assert await wait_from({}).check([run]) is None
    assert await wait_from(positions).check([run]) == "loss = 0.5 at step 2", "its positions were not kept"
    second = wait_from(positions)
    assert await second.check([run]) == "loss = 0.5 at step 2"
    assert await wait_from(second.positions).check([run]) is None


async def test_of_several_runs_the_one_that_meets_the_condition_is_named(tmp_path: Path) -> None:
    csv(tmp_path, "step,loss", "1,0.5")
    other = replace(live(tmp_path / "other"), spec=replace(live(tmp_path / "other").spec, run_id="gen-2mxw"))
    wait = MetricWait(Scalars(StateHome(tmp_path / "state")), parse_condition("loss < 1"), ["gen-2mxw", "cfm-7kqz"], {})
    assert await wait.check([other, live(tmp_path)]) == "cfm-7kqz: loss = 0.5 at step 1"


def test_a_run_without_scalars_is_checked_by_the_metrics_that_it_prints(tmp_path: Path) -> None:
    check = first_check(tmp_path, "loss < 1")
    assert check.check(replace(live(tmp_path), progress={"step": 7, "metrics": {"loss": 2.0}})) is None
    run = replace(live(tmp_path), progress={"step": 9, "metrics": {"loss": "0.5", "mode": "fast"}})
    assert check.check(run) == "loss = 0.5 at step 9"


PRINTED = [(1, 0.1), (2, 0.4), (3, 0.2)]


def test_a_run_that_only_prints_is_checked_by_its_own_names_too(tmp_path: Path) -> None:
    scalars, condition = Scalars(StateHome(tmp_path / "state")), parse_condition("critic/score/mean >= 0.4")
    shown: dict[str, LogPoints] = {"critic/score/mean": [*PRINTED[:1]]}
    check = MetricCheck(scalars, condition, MetricPosition(), lambda _: LogMetrics({}, printed=shown))
    assert check.check(live(tmp_path)) is None
    shown["critic/score/mean"] = [*PRINTED]  # two more since
    ended = replace(live(tmp_path), state="finished")
    assert check.check(ended) == "critic/score/mean = 0.4 at step 2"
    assert check.newest == "critic/score/mean = 0.2 at step 3"


def check_printed(tmp_path: Path, until: str, log: LogMetrics, **progress: Any) -> MetricCheck:
    check = MetricCheck(Scalars(StateHome(tmp_path / "state")), parse_condition(until), MetricPosition(), lambda _: log)
    check.check(replace(live(tmp_path), progress=progress))
    return check


async def test_the_word_by_which_a_program_counts_its_steps_means_them(tmp_path: Path) -> None:
    log = LogMetrics({}, counts={"iteration": [(4, 4.0), (5, 5.0)]}, step=5)
    assert check_printed(tmp_path, "iteration >= 5", log).met == MetPoint("cfm-7kqz", "iteration", 5.0, 5, 5.0)
    run = replace(live(tmp_path), progress={"step": 5, "total_steps": 14})
    scalars, condition = Scalars(StateHome(tmp_path / "state")), parse_condition("iteration >= 40")
    wait = MetricWait(scalars, condition, ["cfm-7kqz"], {}, lambda _: log)
    assert await wait.check([run]) is None
    assert wait.describe_unmet([run], ended=False) == "It is never met: total_steps of cfm-7kqz: 14."


async def test_a_share_of_unknown_steps_is_no_printed_number(tmp_path: Path) -> None:
    wait = MetricWait(
        Scalars(StateHome(tmp_path / "state")),
        parse_condition("progress > 0.25"),
        ["cfm-7kqz"],
        {},
        lambda _: LogMetrics({}, printed={"progress": [(None, 30.0)]}),
    )
    run = replace(live(tmp_path), progress={"step": 5})
    assert await wait.check([run]) is None
    assert wait.describe_unmet([run], ended=False) == "progress is not known so far, as its total of steps is not."
    fold = replace(run, progress={"step": 5, "total_steps": 6, "round": 2})
    told = "progress is not known so far: it trains several times, and its counts are of one."
    assert wait.describe_unmet([fold], ended=False) == told


async def test_a_share_that_is_printed_in_per_cent_is_compared_in_per_cent_and_any_other_is_told_to_be_one(
    tmp_path: Path,
) -> None:
    csv(tmp_path, "step,rollout/success", "2048,0.1", "4096,0.48")
    log = LogMetrics({}, percents=frozenset({"success"}))
    met = check_printed(tmp_path, "success >= 30", log, step=2, read_from="output; tb/events has step 4096")
    assert met.newest == "rollout/success = 0.48 (48 %) at step 4096, as its files count"
    assert met.met == MetPoint("cfm-7kqz", "rollout/success", 0.48, 4096, 0.48)
    assert check_printed(tmp_path, "success >= 0.3", log, step=2).met == MetPoint(
        "cfm-7kqz", "rollout/success", 0.48, 4096, 0.48
    )
    assert check_printed(tmp_path, "success >= 30", LogMetrics({}), step=2).met is None
    scalars, run = Scalars(StateHome(tmp_path / "state")), replace(live(tmp_path), progress={"step": 4096})
    wait = MetricWait(scalars, parse_condition("success >= 30"), ["cfm-7kqz"], {}, lambda _: LogMetrics({}))
    assert await wait.check([run]) is None
    assert wait.tell_unknown([run]), "at once"
    said = "Not met: rollout/success = 0.48 at step 4096. All its values are from 0 to 1."
    assert wait.describe_unmet([run], ended=False) == said
    assert not wait.tell_unknown([run]), "once"


@pytest.mark.parametrize(
    ("until", "progress", "met"),
    [
        ("step >= 300", {"step": 299, "total_steps": 600}, None),
        ("step >= 300", {"step": 305, "total_steps": 600}, "step = 305"),
        ("Step == 300", {"step": 305}, "step = 305"),
        ("50%", {"step": 299, "total_steps": 600}, None),
        ("50%", {"step": 300, "total_steps": 600}, "progress = 0.5 at step 300"),
        ("progress >= 50%", {"step": 300, "total_steps": 600}, "progress = 0.5 at step 300"),
        ("progress > 0.4", {"step": 300, "total_steps": 600}, "progress = 0.5 at step 300"),
        ("fps >= 1000", {"step": 3, "metrics": {"fps": 1200}}, "fps = 1200 at step 3"),
        ("epoch >= 2", {"step": 30, "metrics": {"epoch": 2.5}}, "epoch = 2.5 at step 30"),
        ("eta_s < 60", {"step": 3, "eta_s": 30.0}, "eta_s = 30 at step 3"),
        ("eta_s < 60", {"step": 3, "eta_s": 30.0, "round": 2}, None),  # how many trainings follow is not known
        ("50%", {"step": 5, "total_steps": 6, "round": 2}, None),
        ("attempt >= 2", {"step": 3}, None),
    ],
)
def test_the_words_of_a_runs_status_are_conditions(
    tmp_path: Path, until: str, progress: dict[str, Any], met: str | None
) -> None:
    run = replace(live(tmp_path), progress=progress, events=(STEPPED,))
    assert first_check(tmp_path, until).check(run) == met


def test_a_time_since_the_start_is_a_condition(tmp_path: Path) -> None:
    run = replace(live(tmp_path), started_at="2026-11-21T15:30:00.000Z", measured_s=700.0)
    assert first_check(tmp_path, "elapsed_s > 600").check(run) == "elapsed_s = 700"
    assert first_check(tmp_path, "elapsed_s > 800").check(run) is None


@pytest.mark.parametrize(
    ("failed", "until", "met"),
    [
        (2, "50%", None),
        (3, "50%", "3 of 6 cells have ended"),
        (5, "progress >= 50%", "5 of 6 cells have ended"),
        (6, "50%", None),
        (6, "100%", None),
        (3, "progress < 0.6", "3 of 6 cells have ended"),
    ],
)
async def test_a_share_of_a_sweep_is_that_of_its_ended_cells_and_its_end_is_no_condition(
    tmp_path: Path, failed: int, until: str, met: str | None
) -> None:
    cells = tuple(Cell(f"c{number}", "1") for number in range(6))
    facts = [event for cell in cells[:failed] for event in cell_events(cell.name, None, {"kind": "exit_code"})]
    events = [cast(RecordEvent, {"seq": n, **each}) for n, each in enumerate([{"kind": "conducting"}, *facts], 1)]
    spec = SweepSpec("night-ab3d", "night", cells=cells)
    sweep = fold_sweep(spec, events, Liveness.ALIVE)
    assert first_check(tmp_path, until).check(sweep) == met
    wait = MetricWait(Scalars(StateHome(tmp_path / "state")), parse_condition(until), ["night-ab3d"], {})
    assert await wait.check([sweep]) == met
    over = wait.settle(make_outcome(None, [sweep], {}, 3.0, until="condition", scheduled=True))
    is_last = failed == len(cells)
    assert (over.reason, over.met) == (("condition_met", "6 of 6 cells have ended") if is_last else ("heartbeat", None))
    assert decide([sweep], {}, "condition") is None, "a failed cell keeps no share from being reached"
    ended = cast(RecordEvent, {"seq": len(events) + 1, "kind": "ended", "state": "failed"})
    sweep = fold_sweep(spec, [*events, ended], Liveness.ALIVE)
    assert await find_reason([sweep], {}, "condition", wait.check) == ("ended", None)
    assert wait.settle(make_outcome("ended", [sweep], {}, 3.0, until="condition", scheduled=True)).reason == "ended"


def test_what_no_run_can_meet_is_refused(tmp_path: Path) -> None:
    for text in ("150%", "progress >= 1.5", "progress > 100%"):
        with pytest.raises(BadArgument, match="never met"):
            parse_condition(text)
    run = replace(live(tmp_path), progress={"step": 3, "total_steps": 500})
    with pytest.raises(BadArgument, match=r"total_steps of cfm-7kqz: 500"):
        check_possible(parse_condition("step >= 1000"), [run])
    limited = replace(run, spec=replace(run.spec, time_limit_s=60.0))
    with pytest.raises(BadArgument, match=r"time_limit_s of cfm-7kqz: 60"):
        check_possible(parse_condition("elapsed_s > 600"), [limited])
    for possible in ("step >= 500", "step < 1000", "elapsed_s > 600", "reward >= 1000"):
        check_possible(parse_condition(possible), [run])
    check_possible(parse_condition("step >= 1000"), [replace(run, state="finished"), replace(run, progress={})])


async def test_a_step_that_a_live_run_shows_anyway_is_told_at_its_end_alone(tmp_path: Path) -> None:
    wait = MetricWait(Scalars(StateHome(tmp_path / "state")), parse_condition("step >= 9"), ["cfm-7kqz"], {})
    assert await wait.check([replace(live(tmp_path), progress={"step": 7}, events=(STEPPED,))]) is None
    assert wait.describe_unmet([], ended=False) is None
    assert wait.describe_unmet([], ended=True) == "Not met: step = 7."


async def test_a_share_of_steps_without_a_total_is_said_to_be_unknown(tmp_path: Path) -> None:
    wait = MetricWait(Scalars(StateHome(tmp_path / "state")), parse_condition("50%"), ["cfm-7kqz"], {})
    assert await wait.check([replace(live(tmp_path), progress={"step": 7}, events=(STEPPED,))]) is None
    assert wait.describe_unmet([], ended=False) == "progress is not known so far, as its total of steps is not."


async def test_a_run_that_ends_first_says_what_its_metric_was(tmp_path: Path) -> None:
    csv(tmp_path, "step,reward", "1,3", "2,4")
    wait = MetricWait(Scalars(StateHome(tmp_path / "state")), parse_condition("reward >= 20"), ["cfm-7kqz"], {})
    assert await wait.check([live(tmp_path)]) is None
    assert wait.describe_unmet([], ended=False) == "Not met: reward = 4 at step 2."
    assert wait.describe_unmet([], ended=True) == "Not met: reward = 4 at step 2."


def test_an_ambiguous_condition_names_the_candidates(tmp_path: Path) -> None:
    csv(tmp_path, "step,first/psnr,second/psnr", "1,2,3")
    with pytest.raises(BadArgument, match="first/psnr, second/psnr"):
        first_check(tmp_path, "psnr < 1").check(live(tmp_path))


def test_the_loss_is_that_of_the_training_also_beside_and_before_an_evaluation(tmp_path: Path) -> None:
    csv(tmp_path, "step,train/loss,eval/loss", "1,2,0.5")
    assert first_check(tmp_path, "loss < 1").check(live(tmp_path)) is None
    assert first_check(tmp_path, "loss < 3").check(live(tmp_path)) == "train/loss = 2 at step 1"
    csv(tmp_path, "step,eval/loss", "1,0.5")
    assert first_check(tmp_path, "loss < 1").check(live(tmp_path)) is None
    assert first_check(tmp_path, "eval_loss < 1").check(live(tmp_path)) == "eval/loss = 0.5 at step 1"


async def test_a_misspelt_name_is_said_at_once_and_once(tmp_path: Path) -> None:
    csv(tmp_path, "step,train/loss,val/acc", "1,2,0.5")
    scalars, run = Scalars(StateHome(tmp_path / "state")), replace(live(tmp_path), progress={"step": 1})

    async def is_told(text: str, positions: Mapping[str, MetricPosition] = {}) -> MetricWait | None:
        wait = MetricWait(scalars, parse_condition(text), [run.run_id], positions)
        assert await wait.check([run]) is None
        return wait if wait.tell_unknown([run]) else None

    assert run.made_a_step
    wait = await is_told("vall/acc > 0.9")
    assert wait is not None
    assert wait.describe_unmet([run], ended=False) == (
        "No 'vall/acc' so far. Present: val/acc, train/loss. If one of them is meant, name it; the same call waits, "
        "should it come."
    )
    assert await is_told("vall/acc > 0.9", wait.positions) is None, "the caller knows"
    assert await is_told("kl_divergence > 3") is not None
    for later in ("test/f1 > 0.9", "ep_rew_mean > 3", "val/acc > 0.9", "step > 30"):
        assert await is_told(later) is None
