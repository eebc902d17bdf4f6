"""What a sequence of openings and closings proves of a file's content: pure decisions over events."""

import itertools

import pytest

from mcp_server.supervisor.outputs.write_sessions import WriteSessions
from mcp_server.system.inotify import CLOSED_READ, CLOSED_WRITE, CREATED, MODIFIED, MOVED_FROM, MOVED_TO, OPENED
from mcp_server.system.inotify import FileEvent as Event

PATH = "/p/results.json"
OPEN, CHANGE, CLOSE, READ = (Event(PATH, kind) for kind in (OPENED, MODIFIED, CLOSED_WRITE, CLOSED_READ))
SAMPLE = None  # here the attempt has the file open


def sessions_after(*events: Event | None) -> WriteSessions:
    sessions = WriteSessions()
    for event in events:
        if event is None:
            sessions.begin_sample()
            sessions.end_sample([PATH])
        else:
            sessions.take(event)
    return sessions


def proves(*events: Event | None, changed_ns: int = 0) -> bool:
    return sessions_after(*events).is_proven(PATH, changed_ns, 5)


def test_a_session_of_one_writer_that_was_seen_proves_what_the_file_holds() -> None:
    assert proves(CHANGE, OPEN, CHANGE, CLOSE) is False, "nobody was seen"
    assert proves(OPEN, SAMPLE, CHANGE, CLOSE)
    assert proves(OPEN, OPEN, READ, SAMPLE, CHANGE, CLOSE), "the other one read"
    assert not proves(OPEN, SAMPLE, CHANGE), "it is open still"
    assert not sessions_after(OPEN, SAMPLE, CHANGE, CLOSE).is_proven(PATH, 0, None), "the directory is not watched"


def test_two_writers_at_once_prove_nothing() -> None:
    assert not proves(CHANGE, OPEN, CHANGE, OPEN, SAMPLE, CHANGE, CLOSE, CHANGE, CLOSE)
    assert not proves(OPEN, SAMPLE, CHANGE, OPEN, CHANGE, CLOSE, CLOSE)


def test_a_later_session_of_nobody_knows_whom_takes_the_proof_away_and_an_own_one_gives_it_back() -> None:
    own, unseen = (OPEN, SAMPLE, CHANGE, CLOSE), (CHANGE, OPEN, CHANGE, CLOSE)
    assert not proves(*own, *unseen)
    assert proves(*own, *unseen, *own)
    assert proves(*own, OPEN, READ), "a reader changes nothing"
    assert not proves(*own, CHANGE), "by a descriptor that was opened before"


def test_whoever_appended_before_leaves_others_in_the_file() -> None:
    sessions = sessions_after(OPEN, CHANGE, CLOSE, OPEN, SAMPLE, CHANGE)
    assert sessions.may_hold_others(PATH, append=True)
    assert not sessions.may_hold_others(PATH, append=False)
    assert sessions.has_strangers(PATH)
    assert not sessions_after(OPEN, SAMPLE, CHANGE, CLOSE).has_strangers(PATH)


def test_a_writer_that_comes_and_goes_while_the_attempt_has_it_open_is_noticed() -> None:
    assert sessions_after(OPEN, SAMPLE, CHANGE, OPEN, CHANGE, CLOSE, SAMPLE).may_hold_others(PATH, append=False)
    assert not proves(SAMPLE, CHANGE, OPEN, CHANGE, CLOSE, SAMPLE, CHANGE, CLOSE, changed_ns=9)


def test_a_file_that_was_open_before_anything_was_watched_counts_if_it_changed_since() -> None:
    assert proves(SAMPLE, CHANGE, CLOSE, changed_ns=9)
    assert not proves(SAMPLE, CLOSE, changed_ns=1)


def test_two_sessions_during_one_sample_are_not_told_apart() -> None:
    sessions = WriteSessions()
    sessions.begin_sample()
    for event in (OPEN, CHANGE, CLOSE, OPEN, CHANGE, CLOSE):
        sessions.take(event)
    sessions.end_sample([PATH])
    assert not sessions.is_proven(PATH, 0, 5)
    sessions.begin_sample()
    for event in (OPEN, CHANGE, CLOSE):
        sessions.take(event)
    sessions.end_sample([PATH])
    assert sessions.is_proven(PATH, 0, 5), "it began and ended while the descriptors were listed"


def test_a_proof_follows_a_file_that_is_moved_and_ends_where_another_comes() -> None:
    sessions = WriteSessions()
    sessions.begin_sample()
    for event in (Event("/p/a.tmp", CREATED), Event("/p/a.tmp", OPENED)):
        sessions.take(event)
    sessions.end_sample(["/p/a.tmp"])
    for event in (
        Event("/p/a.tmp", CLOSED_WRITE),
        Event("/p/a.tmp", MOVED_FROM),
        Event(PATH, MOVED_TO, former="/p/a.tmp"),
    ):
        sessions.take(event)
    assert sessions.is_proven(PATH, 0, 5)
    sessions.take(Event("/q", MOVED_TO, is_directory=True, former="/p"))
    assert sessions.is_proven("/q/results.json", 0, 5)
    sessions.take(Event("/q/results.json", MOVED_TO))
    assert not sessions.is_proven("/q/results.json", 0, 5)


def test_lost_events_end_all_proofs() -> None:
    sessions = sessions_after(OPEN, SAMPLE, CHANGE, CLOSE)
    sessions.forget_all()
    assert not sessions.is_proven(PATH, 0, 5)


def _merge(events: list[Event | None]) -> list[Event | None]:
    """Return the events as the kernel reports them: one that equals the one before is left out."""
    kept: list[Event | None] = []
    for event in events:
        if event is None or not kept or kept[-1] != event:
            kept.append(event)
    return kept


@pytest.mark.parametrize("sampled_after", ["open", "write"])
@pytest.mark.parametrize("truncation", [[CHANGE, OPEN], [OPEN, CHANGE]])  # as kernels differ
def test_no_order_of_two_overwriting_writers_proves_what_the_other_wrote(
    sampled_after: str, truncation: list[Event]
) -> None:
    """Two processes overwrite one file; of the attempt one moment is sampled, of the other none."""
    kinds = {"open": truncation, "write": [CHANGE], "close": [CLOSE]}
    proven = []
    for own_at in itertools.combinations(range(6), 3):
        left, right = (iter(("open", "write", "close")) for _ in range(2))
        events: list[Event | None] = []
        for place in range(6):
            action = next(left if place in own_at else right)
            events += kinds[action]
            if place in own_at and action == sampled_after:
                events.append(SAMPLE)
        if proves(*_merge(events)):
            proven.append(own_at)
    assert proven == [(3, 4, 5)], "only where the attempt's session comes after the other's"
