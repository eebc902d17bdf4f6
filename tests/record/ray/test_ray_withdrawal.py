"""Jobs that are taken back from a head at the same time."""

import threading
from collections.abc import Collection

import pytest

from mcp_server.record.ray import ray_head
from mcp_server.record.ray.ray_head import RayHead, Withdrawals
from tests.support.sandbox import until


def test_what_is_asked_for_during_a_withdrawal_is_one_withdrawal_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()
    withdrawn: list[list[str]] = []

    def withdraw(_: RayHead, job_ids: Collection[str]) -> bool:
        withdrawn.append(sorted(job_ids))
        begun.set()
        return may_end.wait(30)

    monkeypatch.setattr(ray_head, "withdraw", withdraw)
    monkeypatch.setattr(ray_head, "_GATHER_S", 0.0)
    withdrawals = Withdrawals(RayHead("http://127.0.0.1:1"))
    threads = [threading.Thread(target=withdrawals.withdraw, args=(name,)) for name in "abcde"]
    threads[0].start()
    assert begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    until(lambda: len(withdrawals._waiting) == 4, "the others")
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert withdrawn == [["a"], ["b", "c", "d", "e"]]
