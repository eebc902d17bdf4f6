"""A text that does not fit loses whole facts, and never joins the beginning of one to the end of another."""

from __future__ import annotations

import pytest

from mcp_server.text.formatting import join_some, shorten_facts, shorten_line

LEASES = "cpu-0: leased by confighang-json-d9aj (root); cpu-1: leased by confignan-json-y2zx (root); cpu-2: in use."


def test_a_text_that_fits_is_left_as_it_is() -> None:
    assert shorten_facts(LEASES, 200) == LEASES


def test_a_holder_stays_with_its_own_slot() -> None:
    assert shorten_facts(LEASES, 72) == "cpu-0: leased by confighang-json-d9aj (root) …"


@pytest.mark.parametrize("chars", range(12, len(LEASES)))
def test_each_part_that_is_left_stands_in_the_text_as_it_is(chars: int) -> None:
    short = shorten_facts(LEASES, chars)
    assert len(short) <= chars
    kept = short.removesuffix("…").rstrip()
    assert short.endswith("…"), "that facts are left out is said"
    assert LEASES.startswith(kept)
    assert not short.endswith(" …") or LEASES[len(kept)] in ";."


def test_sentences_are_facts_and_numbers_are_not_torn() -> None:
    text = "Best so far: 21.79 by num_envs8192. Within the deviation of 2048: 21.35±0.63 (n 2). Next phase: final."
    assert shorten_facts(text, 60) == "Best so far: 21.79 by num_envs8192. …"


def test_a_first_fact_that_does_not_fit_is_cut_at_a_word() -> None:
    assert shorten_facts(LEASES, 32) == "cpu-0: leased by…"
    assert (
        shorten_facts("one sentence that has no end and no second one beside it", 30) == "one sentence that has no end…"
    )


@pytest.mark.parametrize("chars", range(24, 120))
def test_the_mark_takes_less_than_the_text_that_it_stands_for(chars: int) -> None:
    text = "No progress for 20 s after step 89 of 160. It waits. The processes of the run used no processor time."
    assert len(shorten_facts(text, chars)) <= min(chars, len(text))


def test_lines_are_facts() -> None:
    assert shorten_facts("first line\nsecond line, which is longer\nthird", 30) == "first line …"
    assert shorten_facts("first line\n\n\n   second", 17) == "first line second"


def test_a_line_of_output_keeps_its_first_facts_or_both_ends_of_its_first() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert shorten_line(oom, 80) == oom
    assert shorten_line(oom, 66) == "torch.OutOfMemoryError: CUDA out of memory. …"
    assert shorten_line(f"KeyError: {'x' * 50} is missing", 30) == f"KeyError: {'x' * 10}…s missing"
    joined = shorten_line(f"RuntimeError: {'a' * 60} failed. Then b failed.", 60)
    assert joined.endswith("failed. …")
    assert "Then" not in joined
    assert len(joined) <= 60


def test_a_list_says_how_many_it_leaves_out() -> None:
    names = [f"n{number}" for number in range(1_005)]
    assert join_some(names[:3], 3) == "n0, n1, n2"
    assert join_some(names, 2) == "n0, n1 and 1,003 more"
