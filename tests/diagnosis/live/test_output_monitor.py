"""Output read piece by piece, on virtual time, becomes events and progress."""

from itertools import pairwise

import pytest

from mcp_server.diagnosis.live.output_monitor import OutputEvent, OutputMonitor

TRACEBACK = b"""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    {}['missing']
KeyError: 'missing'
"""


def step(number: int, loss: float = 0.5) -> bytes:
    return b"step %d/1000 loss %.4f\n" % (number, loss)


def kinds(found: list[OutputEvent]) -> list[str]:
    return [event.kind for event in found]


def test_the_first_step_is_reported_once_with_its_line() -> None:
    monitor = OutputMonitor({}, started_s=100)
    assert monitor.read_output(b"loading\n", 101) == []
    (found,) = monitor.read_output(step(1), 134)
    assert (found.kind, found.facts["step"], found.facts["line"]) == ("first_step", 1, "step 1/1000 loss 0.5000")
    assert "34 s" in found.text
    assert monitor.read_output(step(2), 135) == []


def test_a_first_step_is_overdue_once_and_never_after_it_was_seen() -> None:
    monitor = OutputMonitor({"first_step_timeout_s": 60}, started_s=100)
    assert monitor.next_check_s == 160
    assert [monitor.check_first_step_timeout(at_s) for at_s in (159.9, 160, 161)] == [False, True, False]
    seen = OutputMonitor({}, started_s=100)
    seen.read_output(step(1), 110)
    assert not seen.check_first_step_timeout(100 + 1200)


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_pieces_of_any_size_give_the_same_events(size: int) -> None:
    data = b"".join(step(n) for n in range(1, 50)) + TRACEBACK
    monitor = OutputMonitor({}, started_s=0)
    found = [
        event for at in range(0, len(data), size) for event in monitor.read_output(data[at : at + size], at / 1000)
    ]
    assert kinds(found) == ["first_step"]
    assert (monitor.progress.step, monitor.line_feeds) == (49, 53)
    assert monitor.suspect is not None
    assert (monitor.suspect.line, monitor.suspect.number) == ("KeyError: 'missing'", 53)
    assert data[monitor.suspect.offset :].startswith(b"KeyError")


def test_a_flood_shows_the_newest_step_and_no_fatal_line_is_missed() -> None:
    noise = b"".join(b"reading shard %d of the corpus\n" % n for n in range(60_000))
    monitor = OutputMonitor({}, started_s=0)
    assert kinds(monitor.read_output(noise + step(1), 10)) == ["first_step"]
    monitor.read_output(TRACEBACK + noise, 10.01)
    assert monitor.suspect is not None
    assert monitor.suspect.number == 60_001 + 4
    monitor.read_output(noise + step(2), 10.02)
    assert monitor.progress.step == 1, "the flood was read 0.02 s ago"
    monitor.read_newest_lines(10.03)
    assert monitor.progress.step == 2


def test_after_a_flood_every_line_is_read_again() -> None:
    monitor = OutputMonitor({}, started_s=0)
    monitor.read_output(step(1) * 100_000, 10)
    monitor.read_output(step(7) + b"reading\n" * 1000, 20)
    assert monitor.progress.step == 7


def test_after_the_last_step_silence_is_a_stall_only_with_a_limit() -> None:
    for spec, due_s in (({}, None), ({"stall_timeout_s": 60}, 1000 + 60)):
        monitor = OutputMonitor({**spec, "first_step_timeout_s": 5}, started_s=0)
        for number in range(996, 1001):
            monitor.read_output(step(number), number)
        assert monitor.stall_check_s == due_s


def test_two_more_steps_clear_a_suspect_line() -> None:
    monitor = OutputMonitor({}, started_s=0)
    monitor.read_output(step(1), 1)
    monitor.read_output(TRACEBACK, 2)
    monitor.read_output(step(2), 3)
    assert monitor.suspect is not None, "one line may be flushed after a traceback"
    monitor.read_output(step(3), 4)
    assert not monitor.should_diagnose_suspect(1000, idle=True)


def test_a_suspect_line_is_diagnosed_when_steps_stop_and_only_once() -> None:
    monitor = OutputMonitor({}, started_s=0)
    for number in range(1, 8):
        monitor.read_output(step(number), number * 4)
    monitor.read_output(TRACEBACK, 30)
    assert monitor.next_check_s == 30 + 5 * 4
    assert not monitor.should_diagnose_suspect(49.9, idle=True)
    assert monitor.should_diagnose_suspect(50, idle=False)
    monitor.note_suspect_diagnosed(0, confirmed=True)
    assert not monitor.should_diagnose_suspect(1000, idle=True)


def test_after_the_first_steps_a_minute_of_silence_is_not_a_sign_of_an_error() -> None:
    monitor = OutputMonitor({}, started_s=0)
    monitor.read_output(step(1), 1)
    monitor.read_output(TRACEBACK, 3)
    assert not monitor.should_diagnose_suspect(62, idle=True)
    assert not monitor.should_diagnose_suspect(63, idle=False), "the next step may take long"
    assert monitor.should_diagnose_suspect(123, idle=True)


def test_before_the_first_step_output_and_cpu_time_postpone_the_diagnosis() -> None:
    monitor = OutputMonitor({}, started_s=0)
    monitor.read_output(TRACEBACK, 2)
    monitor.read_output(b"falling back to the slow tokenizer\n", 8)
    assert not monitor.should_diagnose_suspect(12, idle=True), "there was output since"
    assert not monitor.should_diagnose_suspect(18, idle=False), "it computes"
    assert not monitor.should_diagnose_suspect(20, idle=True)
    assert monitor.should_diagnose_suspect(28, idle=True)


def test_only_the_end_of_a_long_unfinished_line_is_kept() -> None:
    monitor = OutputMonitor({}, started_s=0)
    for _ in range(100):
        monitor.read_output(b"x" * 65536, 1)
    monitor.read_output(b"\n" + step(1), 2)
    assert monitor.progress.step == 1
    assert monitor.line_feeds == 2


def test_a_bar_is_read_at_every_carriage_return() -> None:
    monitor = OutputMonitor({}, started_s=0)
    bar = b"\rTraining:  5%%|5    | %d/100 [00:05<01:35,  1.00it/s, loss=0.5]"
    for n in range(1, 6):
        monitor.read_output(bar % n, n)
    monitor.read_output(b"\r", 6)
    assert (monitor.progress.step, monitor.progress.total_steps) == (5, 100)


def test_the_newest_update_of_a_bar_is_read_when_nothing_follows() -> None:
    monitor = OutputMonitor({}, started_s=0)
    bar = b"\rTraining:  5%%|5    | %d/100 [00:05<01:35,  1.00it/s, loss=0.5]"
    assert monitor.read_output(bar % 1, 10) == []
    waits = [monitor.has_unread_line]
    assert monitor.read_unfinished_line(10.1) == [], "it may be incomplete"
    assert kinds(monitor.read_unfinished_line(10.3)) == ["first_step"]
    assert [*waits, monitor.has_unread_line] == [True, False]
    monitor.read_output(bar % 2, 20)
    assert monitor.progress.step == 1
    monitor.read_unfinished_line(21)
    assert (monitor.progress.step, monitor.progress.advances) == (2, 2)


def test_the_last_update_of_a_bar_is_read_at_the_end() -> None:
    monitor = OutputMonitor({}, started_s=0)
    bar = b"\rTraining:  5%%|5    | %d/100 [00:05<01:35,  1.00it/s, loss=0.%d]"
    monitor.read_output(bar % (1, 9) + bar % (2, 8), 10)
    assert kinds(monitor.read_end(10)) == []
    assert (monitor.progress.step, monitor.progress.metrics, monitor.last_line.strip()[-9:]) == (
        2,
        {"loss": 0.8},
        "loss=0.8]",
    )
    assert monitor.read_end(11) == []


def test_a_first_step_without_a_line_end_is_an_event_at_the_end() -> None:
    monitor = OutputMonitor({}, started_s=0)
    monitor.read_output(b"step 1/1000 loss 0.5", 1)
    assert kinds(monitor.read_end(1)) == ["first_step"]


def test_numbers_that_json_lacks_are_text() -> None:
    monitor = OutputMonitor({}, started_s=0)
    monitor.read_output(step(1) + b"step 2/1000 loss nan\n", 1)
    assert monitor.progress_facts()["metrics"]["loss"] == "nan"


@pytest.mark.parametrize(
    ("line", "checkpoint"),
    [
        (b"Saving model checkpoint to out/checkpoint-500\n", "out/checkpoint-500"),
        (b"saved ckpt_000010\n", "ckpt_000010"),
        (b"Wrote runs/a/ckpt/step_300\n", "runs/a/ckpt/step_300"),
        (b"loading checkpoint-500\n", None),
    ],
)
def test_a_checkpoint_is_recognised_by_its_name(line: bytes, checkpoint: str | None) -> None:
    monitor = OutputMonitor({}, started_s=0)
    monitor.read_output(line, 1)
    assert monitor.checkpoint == checkpoint


def test_a_reported_error_is_withdrawn_when_the_run_continues_and_may_be_reported_again() -> None:
    monitor = OutputMonitor({}, started_s=0)
    for number in range(1, 9):
        monitor.read_output(step(number), number * 4)
    for round_s in (40, 400):
        monitor.read_output(TRACEBACK, round_s)
        assert monitor.should_diagnose_suspect(round_s + 100, idle=True)
        monitor.note_suspect_diagnosed(round_s + 100, confirmed=True)
        assert not monitor.should_diagnose_suspect(round_s + 200, idle=True)
        found = [f for n in range(1, 5) for f in monitor.read_output(step(round_s + n), round_s + 200 + n)]
        assert kinds(found) == ["resumed"]


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_a_hang_is_noticed_in_any_round_like_in_the_first(rounds: int) -> None:
    monitor, at_s = OutputMonitor({}, started_s=0), 0.0
    for number in range(1, rounds + 1):
        at_s += 400  # loads
        for n in range(1, 13 if number < rounds else 9):
            at_s += 60 if n == 2 else 4  # compiles
            due_s = monitor.stall_check_s
            assert due_s is None or due_s > at_s
            monitor.read_output(b"epoch %d/12 loss 0.%d\n" % (n, n), at_s)
    facts = {name: monitor.progress_facts().get(name) for name in ("round", "step", "total_steps", "eta_s")}
    assert facts == {"round": rounds if rounds > 1 else None, "step": 8, "total_steps": 12, "eta_s": 16}
    assert monitor.stall_check_s == at_s + 300
    assert monitor.stall_detector.detect_stall(at_s + 300, cpu_idle=True)


def test_a_hang_at_the_second_step_of_a_round_is_noticed_within_half_an_hour() -> None:
    monitor = OutputMonitor({}, started_s=0)
    for n in (*range(1, 13), 1, 2):
        monitor.read_output(step(n).replace(b"1000", b"12"), monitor.output_s + 4)
    assert monitor.stall_check_s == monitor.output_s + 1_800


def test_losses_of_one_round_are_not_compared_with_those_of_another() -> None:
    monitor, found = OutputMonitor({}, started_s=0), []
    for number, scale in enumerate((1.0, 500.0, 0.001, 40.0)):
        for n in range(1, 61):
            text = b"step %d/60 loss %.4f\n" % (n, scale * (2 - n / 60))
            found += monitor.read_output(text, number * 100.0 + n)
    assert kinds(found) == ["first_step"]


def test_a_recovery_from_divergence_is_reported() -> None:
    monitor = OutputMonitor({}, started_s=0)
    found = []
    for n in range(1, 200):
        found += monitor.read_output(step(n, float("nan") if 20 <= n < 60 else 0.5), n)
    assert kinds(found) == ["first_step", "error_seen", "resumed"]


def feed_nan_and_sound_numbers_in_turns(monitor: OutputMonitor, until_s: int) -> list[tuple[int, OutputEvent]]:
    """Ten steps a second, half of them NaN, ten at a time."""
    found = []
    for n in range(1, until_s * 10):
        loss = float("nan") if n // 10 % 2 else 0.5
        found += [(n // 10, event) for event in monitor.read_output(b"step %d loss %.4f\n" % (n, loss), n / 10)]
    return found


@pytest.mark.slow
def test_metrics_that_flip_wake_an_agent_three_times_and_then_once_in_ten_minutes() -> None:
    found = feed_nan_and_sound_numbers_in_turns(OutputMonitor({}, started_s=0), 2000)
    diverged = [at_s for at_s, event in found if event.kind == "error_seen"]
    assert len([at_s for at_s in diverged if at_s < 38]) == 3
    assert [later - earlier >= 600 for earlier, later in pairwise(diverged[2:])] == [True] * 3
    assert kinds([event for _, event in found]) == ["first_step", *(["error_seen", "resumed"] * 6)]
    texts = [event.text for _, event in found if event.kind == "error_seen"]
    assert ["from now on it is reported once in 600 s" in text for text in texts] == [False, False, *([True] * 4)]


def test_a_divergence_that_lasts_is_reported_when_the_ten_minutes_are_over() -> None:
    monitor = OutputMonitor({}, started_s=0)
    feed_nan_and_sound_numbers_in_turns(monitor, 60)
    assert monitor.read_output(step(700, float("nan")) * 1, 100) == []
    found = [f for n in range(701, 720) for f in monitor.read_output(step(n, float("nan")), 600 + n)]
    assert kinds(found) == ["error_seen"]


def test_errors_that_steps_follow_in_turns_wake_an_agent_three_times_and_then_once_in_ten_minutes() -> None:
    monitor, reports = OutputMonitor({}, started_s=0), []
    at_s = 0
    for n in range(1, 2000):
        at_s += 1
        monitor.read_output(step(n), at_s)
        if n % 10 == 0 and n >= 20:
            monitor.read_output(TRACEBACK, at_s)
            for _ in range(60):
                at_s += 1
                if monitor.should_diagnose_suspect(at_s, idle=True):
                    reports.append((at_s, monitor.note_suspect_diagnosed(at_s, confirmed=True)))
    assert len([at_s for at_s, _ in reports if at_s < 400]) == 3
    assert all(later[0] - earlier[0] >= 600 for earlier, later in pairwise(reports[2:]))
    assert len(reports) > 10
    assert ["once in 600 s" in remark for _, remark in reports[:4]] == [False, False, True, True]


def test_an_exception_after_which_another_round_began_is_remembered_and_a_caught_one_is_not() -> None:
    first = b"".join(step(n) for n in range(1, 20))
    for text, line in ((first + TRACEBACK + first, 23), (first + TRACEBACK + step(20) + step(21) + step(22), None)):
        monitor = OutputMonitor({}, started_s=0)
        for n, one in enumerate(text.splitlines(keepends=True)):
            monitor.read_output(one, n)
        assert (monitor.passed_over and monitor.passed_over.number) == line


def test_a_reward_that_stays_nan_is_reported_once_and_its_end_too() -> None:
    monitor = OutputMonitor({}, started_s=0)

    def read(numbers: range, reward: str) -> list[OutputEvent]:
        lines = (b"step %d/1000 loss 0.5 reward: %s\n" % (n, reward.encode()) for n in numbers)
        return [event for n, line in enumerate(lines) for event in monitor.read_output(line, numbers[n])]

    assert kinds(read(range(1, 6), "1.5")) == ["first_step"]
    (found,) = read(range(6, 366), "nan")
    assert found.kind == "error_seen"
    assert "reward has been nan in 20 readings in a row, since step 6. By itself it proves no divergence" in found.text
    assert "reward: nan" in found.facts["divergence"].line
    assert monitor.progress_facts()["nan_since"] == {"reward": 6}
    assert kinds(read(range(366, 368), "0.5")) == ["resumed"]
    assert "nan_since" not in monitor.progress_facts()
