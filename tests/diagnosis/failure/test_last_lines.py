"""A wait repeated at the end of a log is a stall once the log itself counts minutes."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.failure.last_lines import find_repetition
from mcp_server.text.lines import number_lines


def kind_at_end(text: str) -> tuple[int, str] | None:
    repetition = find_repetition(number_lines(text.encode()))
    return (repetition.at, repetition.kind) if repetition else None


def waits(*times: str, whom: str = "rank 3") -> str:
    return "".join(f"still waiting for {whom} ({time})\n" for time in times)


@pytest.mark.parametrize("text", [
    waits("100 s", "200 s", "300 s"),
    waits("1m", "4m", "5m"),
    waits("0.1 hours", "0.2 hours", "0.3 hours"),
    waits("100 s", "100 s", "200 s", "200 s", "300 s"),
    waits("60 s", "120 s", "180 s", "240 s", "360 s") + "Missing ranks:\n" * 10,
])  # fmt: skip
def test_a_wait_that_grows_to_five_minutes_is_a_stall_proved_by_its_first_line(text: str) -> None:
    assert kind_at_end(text) == (0, "stall")


@pytest.mark.parametrize("text", [
    "",
    waits("100 s", "200 s", "299 s"),
    waits("300 s", "600 s"),
    waits("600 s", "600 s", "600 s"),
    waits("100 s", "200 s", "300 s") + "other\n" * 11,
    waits("100 s", "200 s", "300 s", whom="rank 0, which downloads the data"),
    waits("100 s", "200 s", "300 s", whom="coffee"),
    waits("100 s", "900 s", "30 s"),
    waits("300.1 s", "301.1 s", "302.1 s", "303.1 s"),
    "".join(waits(f"{60 * n} s", whom=f"workers, {n}/64 done") for n in range(1, 9)),
    "".join(waits(f"{60 * n} s", whom=f"rank {n}") for n in range(1, 9)),
    waits("100 s", "200 s", "300 s", whom="engine processes to start"),
])  # fmt: skip
def test_other_waits_are_not_a_stall(text: str) -> None:
    assert kind_at_end(text) is None


def test_of_several_waits_the_last_one_counts() -> None:
    assert kind_at_end(waits("700 s", "800 s", "100 s", "200 s", "300 s")) == (2, "stall")


def test_nan_iterations_without_a_loss_are_a_divergence_proved_by_the_last_line() -> None:
    nan = " iteration {} | grad norm: nan | number of nan iterations: {} |\n"
    assert kind_at_end(nan.format(1, 10) * 3) == (2, "divergence")
    assert kind_at_end(nan.format(1, 10) * 2) is None
    assert kind_at_end(nan.format(1, 10) * 3 + nan.format(1, 0)) is None
    assert kind_at_end(nan.format("1 | lm loss: 3.1", 2) * 3) is None
