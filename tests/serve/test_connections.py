"""Which connection gives way to which."""

from __future__ import annotations

import contextlib
import resource
import socket
from dataclasses import dataclass

import pytest

from mcp_server.serve.connections import ConnectionLimits, Connections, Listener, raise_descriptor_limit

LIMITS = ConnectionLimits(total=8, unproven=4, per_token=2)


@dataclass(eq=False)
class Peer:
    """A connection from ``peer`` that remembers whether it was closed."""

    peer: str
    is_idle: bool = True
    closed: bool = False

    def abort(self) -> None:
        self.closed = True


def join(connections: Connections, *peers: str) -> list[Peer]:
    joined = [Peer(peer) for peer in peers]
    for connection in joined:
        connections.add(connection)
    return joined


def test_the_oldest_connection_of_the_address_with_most_of_them_gives_way() -> None:
    connections = Connections(LIMITS)
    joined = join(connections, "b", "a", "a", "b", "a")
    assert [connections.evict_unproven() for _ in range(6)] == [True] * 5 + [False]
    assert [connection.closed for connection in joined] == [True] * 5
    assert connections.refused == 5
    again = Connections(LIMITS)
    first, *_ = joined = join(again, "b", "a", "a")
    assert again.evict_unproven()
    assert [connection.closed for connection in joined] == [False, True, False]
    assert not first.closed


def test_a_connection_that_has_shown_a_token_never_gives_way_to_one_that_has_not() -> None:
    connections = Connections(LIMITS)
    alice, silent = join(connections, "a", "a")
    assert connections.prove(alice, "alice")
    assert connections.is_proven(alice)
    assert connections.evict_unproven()
    assert not connections.evict_unproven()
    assert (alice.closed, silent.closed) == (False, True)


def test_of_one_token_the_longest_idle_connection_gives_way_and_none_that_is_answered() -> None:
    connections = Connections(LIMITS)
    first, second, third, fourth = join(connections, *"aaaa")
    assert connections.prove(first, "alice")
    assert connections.prove(second, "alice")
    connections.touch(first)
    assert connections.prove(third, "alice")
    assert [c.closed for c in (first, second, third)] == [False, True, False]
    first.is_idle = third.is_idle = False
    assert not connections.prove(fourth, "alice")
    assert connections.prove(fourth, "bob"), "another token has places of its own"
    connections.discard(first)
    (fifth,) = join(connections, "a")
    assert connections.prove(fifth, "alice")


def test_where_all_places_are_taken_the_token_with_most_of_them_gives_one() -> None:
    connections = Connections(ConnectionLimits(total=5, unproven=2, per_token=2))
    joined = join(connections, *"aaaa")
    for connection, holder in zip(joined, ("alice", "alice", "bob", "carol"), strict=True):
        assert connections.prove(connection, holder)
    assert [connection.closed for connection in joined] == [True, False, False, False]


@pytest.mark.parametrize("descriptors", [8, 64, 256, 1024, 65536])
def test_limits_leave_descriptors_to_all_other_work(descriptors: int) -> None:
    limits = ConnectionLimits.within(descriptors)
    assert limits.total <= descriptors * 3 // 4
    assert 0 < limits.unproven < limits.total
    assert 0 < limits.per_token <= limits.total - limits.unproven


def test_the_usual_limit_of_1024_leaves_512_places_to_tokens() -> None:
    assert ConnectionLimits.within(1024) == ConnectionLimits(total=768, unproven=256, per_token=256)


def test_a_listener_accepts_no_more_sockets_than_there_is_room_for_and_counts_closed_ones_no_more() -> None:
    with Listener(socket.AF_INET, socket.SOCK_STREAM) as listener, contextlib.ExitStack() as stack:
        listener.connections = connections = Connections(LIMITS)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        for _ in range(6):
            stack.enter_context(socket.create_connection(listener.getsockname(), timeout=5))
        accepted = [listener.accept()[0] for _ in range(4)]
        (oldest, *_) = join(connections, *"aaaa")
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert oldest.closed
        with pytest.raises(BlockingIOError):
            listener.accept()  # until the socket of the closed connection is closed as well
        connections.discard(oldest)
        accepted.pop(0).close()
        accepted.append(listener.accept()[0])
        for each in accepted:
            each.close()


def test_the_limit_of_open_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        top = raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == top == min(hard, 65536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
