"""Each block of `steps.rows` wins on the lines in which its format was seen."""

from __future__ import annotations

from mcp_server.diagnosis.progress.formats import STEP_FORMATS, may_show_progress
from mcp_server.record.scalar_files import rank_step
from mcp_server.text.rows import read_blocks

BLOCKS = list(read_blocks("diagnosis/progress/steps"))
SEEN = [[value for key, value in block if key == "seen"] for block in BLOCKS]


def test_the_first_format_that_matches_a_line_is_the_one_that_was_seen_in_it() -> None:
    assert len(STEP_FORMATS) >= 100
    for step_format, [line] in zip(STEP_FORMATS, SEEN, strict=True):
        assert may_show_progress(line)
        assert next(one for one in STEP_FORMATS if one.needle in line and one.pattern.search(line)) is step_format


def test_no_line_of_the_file_ends_in_a_space() -> None:
    assert [value for block in BLOCKS for key, value in block if key != "seen" and value != value.strip()] == []


def test_a_count_of_the_output_counts_in_files_too() -> None:
    blocks = [dict(block) for block in read_blocks("diagnosis/progress/metrics")]
    words = [word for block in blocks if block.get("sort") in {"step", "epoch"} for word in block["words"].split()]
    in_files = {word for word in words if rank_step(word) is not None}
    # Those of a file may count within an epoch, or number things.
    unsure = {"batch", "batch_idx", "minibatch", "idx", "#", "frame"}
    assert {word for word in words if word.isascii()} - in_files == unsure
