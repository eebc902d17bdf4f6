"""What output tells, piece by piece, on virtual time."""

import pytest

from mcp_server.diagnosis.output_monitor import Finding, Judge

TRACEBACK = b"""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    {}['missing']
KeyError: 'missing'
"""


def step(number: int, loss: float = 0.5) -> bytes:
    return b"step %d/1000 loss %.4f\n" % (number, loss)


def kinds(found: list[Finding]) -> list[str]:
    return [finding.kind for finding in found]


def test_the_first_step_is_told_once_with_its_line() -> None:
    judge = Judge({}, started_s=100)
    assert judge.feed(b"loading\n", 101) == []
    (found,) = judge.feed(step(1), 134)
    assert (found.kind, found.facts["step"], found.facts["line"]) == ("first_step", 1, "step 1/1000 loss 0.5000")
    assert "34 s" in found.text
    assert judge.feed(step(2), 135) == []


def test_a_first_step_is_overdue_once_and_never_after_it_was_seen() -> None:
    judge = Judge({"first_step_timeout_s": 60}, started_s=100)
    assert judge.due_s == 160
    assert [judge.first_step_overdue(at_s) for at_s in (159.9, 160, 161)] == [False, True, False]
    seen = Judge({}, started_s=100)
    seen.feed(step(1), 110)
    assert not seen.first_step_overdue(100 + 1200)


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_pieces_of_any_size_tell_the_same(size: int) -> None:
    data = b"".join(step(n) for n in range(1, 50)) + TRACEBACK
    judge = Judge({}, started_s=0)
    found = [finding for at in range(0, len(data), size) for finding in judge.feed(data[at : at + size], at / 1000)]
    assert kinds(found) == ["first_step"]
    assert (judge.progress.step, judge.line_feeds) == (49, 53)
    assert judge.suspect is not None
    assert (judge.suspect.line, judge.suspect.number) == ("KeyError: 'missing'", 53)
    assert data[judge.suspect.offset :].startswith(b"KeyError")


def test_of_a_flood_the_newest_step_is_known_and_no_fatal_line_is_missed() -> None:
    noise = b"".join(b"reading shard %d of the corpus\n" % n for n in range(60_000))
    judge = Judge({}, started_s=0)
    assert kinds(judge.feed(noise + step(1), 10)) == ["first_step"]
    judge.feed(TRACEBACK + noise, 10.01)
    assert judge.suspect is not None
    assert judge.suspect.number == 60_001 + 4
    judge.feed(noise + step(2), 10.02)
    assert judge.progress.step == 1, "it was looked at 0.02 s ago"
    judge.glance(10.03)
    assert judge.progress.step == 2


def test_after_a_flood_every_line_is_read_again() -> None:
    judge = Judge({}, started_s=0)
    judge.feed(step(1) * 100_000, 10)
    judge.feed(step(7) + b"reading\n" * 1000, 20)
    assert judge.progress.step == 7


def test_after_the_last_step_silence_is_no_stall_unless_a_limit_is_set() -> None:
    for spec, due_s in (({}, None), ({"stall_timeout_s": 60}, 1000 + 60)):
        judge = Judge({**spec, "first_step_timeout_s": 5}, started_s=0)
        for number in range(996, 1001):
            judge.feed(step(number), number)
        assert judge.stall_due_s == due_s


def test_two_more_steps_clear_a_suspicion() -> None:
    judge = Judge({}, started_s=0)
    judge.feed(step(1), 1)
    judge.feed(TRACEBACK, 2)
    judge.feed(step(2), 3)
    assert judge.suspect is not None, "one line may be flushed after a traceback"
    judge.feed(step(3), 4)
    assert not judge.suspicious(1000, idle=True)


def test_a_suspicion_is_due_when_steps_stop_and_told_once() -> None:
    judge = Judge({}, started_s=0)
    for number in range(1, 8):
        judge.feed(step(number), number * 4)
    judge.feed(TRACEBACK, 30)
    assert judge.due_s == 30 + 5 * 4
    assert not judge.suspicious(49.9, idle=True)
    assert judge.suspicious(50, idle=False)
    judge.told_suspect(confirmed=True)
    assert not judge.suspicious(1000, idle=True)


def test_after_the_first_steps_a_silence_of_a_minute_is_no_sign_of_an_error() -> None:
    judge = Judge({}, started_s=0)
    judge.feed(step(1), 1)
    judge.feed(TRACEBACK, 3)
    assert not judge.suspicious(62, idle=True)
    assert not judge.suspicious(63, idle=False), "the next step may take its time"
    assert judge.suspicious(123, idle=True)


def test_before_the_first_step_output_and_computing_put_a_suspicion_off() -> None:
    judge = Judge({}, started_s=0)
    judge.feed(TRACEBACK, 2)
    judge.feed(b"falling back to the slow tokenizer\n", 8)
    assert not judge.suspicious(12, idle=True), "it printed since"
    assert not judge.suspicious(18, idle=False), "it computes"
    assert not judge.suspicious(20, idle=True)
    assert judge.suspicious(28, idle=True)


def test_a_long_line_without_an_end_is_not_kept_whole() -> None:
    judge = Judge({}, started_s=0)
    for _ in range(100):
        judge.feed(b"x" * 65536, 1)
    judge.feed(b"\n" + step(1), 2)
    assert judge.progress.step == 1
    assert judge.line_feeds == 2


def test_a_bar_is_read_at_every_carriage_return() -> None:
    judge = Judge({}, started_s=0)
    bar = b"\rTraining:  5%%|5    | %d/100 [00:05<01:35,  1.00it/s, loss=0.5]"
    for n in range(1, 6):
        judge.feed(bar % n, n)
    judge.feed(b"\r", 6)
    assert (judge.progress.step, judge.progress.total_steps) == (5, 100)


def test_the_newest_update_of_a_bar_is_read_when_nothing_follows() -> None:
    judge = Judge({}, started_s=0)
    bar = b"\rTraining:  5%%|5    | %d/100 [00:05<01:35,  1.00it/s, loss=0.5]"
    assert judge.feed(bar % 1, 10) == []
    waits = [judge.unsettled]
    assert judge.settle(10.1) == [], "it may not be whole yet"
    assert kinds(judge.settle(10.3)) == ["first_step"]
    assert [*waits, judge.unsettled] == [True, False]
    judge.feed(bar % 2, 20)
    assert judge.progress.step == 1
    judge.settle(21)
    assert (judge.progress.step, judge.progress.advances) == (2, 2)


def test_what_json_cannot_say_is_told_as_text() -> None:
    judge = Judge({}, started_s=0)
    judge.feed(step(1) + b"step 2/1000 loss nan\n", 1)
    assert judge.snapshot()["metrics"]["loss"] == "nan"


@pytest.mark.parametrize(
    ("line", "checkpoint"),
    [
        (b"Saving model checkpoint to out/checkpoint-500\n", "out/checkpoint-500"),
        (b"saved ckpt_000010\n", "ckpt_000010"),
        (b"Wrote runs/a/ckpt/step_300\n", "runs/a/ckpt/step_300"),
        (b"loading checkpoint-500\n", None),
    ],
)
def test_a_checkpoint_is_known_by_its_name(line: bytes, checkpoint: str | None) -> None:
    judge = Judge({}, started_s=0)
    judge.feed(line, 1)
    assert judge.checkpoint == checkpoint


def test_what_was_told_is_taken_back_when_the_run_goes_on_and_may_be_told_again() -> None:
    judge = Judge({}, started_s=0)
    for number in range(1, 9):
        judge.feed(step(number), number * 4)
    for round_s in (40, 400):
        judge.feed(TRACEBACK, round_s)
        assert judge.suspicious(round_s + 100, idle=True)
        judge.told_suspect(confirmed=True)
        assert not judge.suspicious(round_s + 200, idle=True)
        found = [f for n in range(1, 5) for f in judge.feed(step(round_s + n), round_s + 200 + n)]
        assert kinds(found) == ["resumed"]


def test_numbers_that_are_sound_again_are_told_too() -> None:
    judge = Judge({}, started_s=0)
    found = []
    for n in range(1, 200):
        found += judge.feed(step(n, float("nan") if 20 <= n < 60 else 0.5), n)
    assert kinds(found) == ["first_step", "error_seen", "resumed"]
