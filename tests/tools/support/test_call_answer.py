"""What follows from an answer that was sent, and from one that was lost."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcp_server.tools.support.context import Delivery

pytestmark = pytest.mark.anyio


def test_what_an_answer_says_is_noted_once_it_was_sent_and_never_if_it_was_lost() -> None:
    for end, noted in (("finish", [1, 2]), ("lose", [])):
        delivery, notes = Delivery(), list[int]()
        delivery.when_sent(lambda: notes.append(1))  # noqa: B023 - called in this turn
        assert notes == []
        getattr(delivery, end)()
        delivery.finish()
        delivery.lose()
        delivery.when_sent(lambda: notes.append(2))  # noqa: B023
        assert notes == noted


async def test_what_works_for_a_client_that_has_gone_is_cancelled() -> None:
    delivery = Delivery()
    for lose_first in (False, True):
        with anyio.CancelScope() as scope, delivery.cancel_when_lost(scope):
            if not lose_first:
                delivery.lose()
            await anyio.sleep_forever()
        assert scope.cancelled_caught


def test_a_request_has_one_delivery_and_stdio_none() -> None:
    scope: dict[str, Any] = {}
    assert Delivery.of(scope) is None
    assert Delivery.attach(scope) is Delivery.attach(scope) is Delivery.of(scope)
    assert Delivery.of(None) is None
