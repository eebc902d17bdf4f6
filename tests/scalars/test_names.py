"""Each block of `scalars/names.rows` and `record/scalar_names.rows` is true of its own name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.record.scalar_files import TIME_KEYS, find_counter, is_curve, is_epoch, is_split, rank_step
from mcp_server.results.evaluations.evaluation_series import build_series
from mcp_server.results.evaluations.evaluation_text import has_step
from mcp_server.results.evaluations.evaluations import Evaluation
from mcp_server.scalars.tag_names import best_direction, match_tags
from mcp_server.text.rows import read_blocks


def read_row(name: str, value: str | float) -> list[tuple[str, str, int | None]]:
    """Return benchmark, model and episodes of the points of a row in which ``name`` has ``value``."""
    rows = ({name: value, "success_rate": 0.5},)
    series = build_series([Evaluation(Path("/out/eval.json"), rows)])
    return [(one.benchmark, one.model, one.last.episodes) for one in series]


FILES = ("scalars/names", "record/scalar_names")
SORTS: dict[str, Callable[[str], bool]] = {
    "step": lambda name: has_step({name: 5}),
    "scalar_step": lambda name: rank_step(name) is not None and not is_epoch(name),
    "scalar_epoch": is_epoch,
    "count": lambda name: rank_step(f"learner_{name}") is not None,
    "counted": lambda name: rank_step(f"{name}_steps") is not None,
    "clock": lambda name: not is_curve([{"step": 1, name: 1}, {"step": 2, name: 2}]),
    "split": is_split,
    "thing": lambda name: find_counter([name, "y"], [["1", "5"], ["2", "9"], ["3", "7"]]) == "",
    "time": lambda name: name in TIME_KEYS,
    "benchmark": lambda name: read_row(name, "libero") == [("libero", "", None)],
    "model": lambda name: read_row(name, "pi0") == [("", "pi0", None)],
    "value": lambda name: (
        [s.metric for s in build_series([Evaluation(Path("/e.md"), ({"task": "a", name: 0.5},))])] != [name]
    ),
    "episodes": lambda name: read_row(name, 64)[-1] == ("", "", 64),
    "tasks": lambda name: read_row(name, 64)[-1] == ("", "", 64),
    "min": lambda name: best_direction(name) == "min",
    "max": lambda name: best_direction(name) == "max",
    "spread": lambda name: best_direction(name) is None,
}


@pytest.mark.parametrize("block", [dict(block) for file in FILES for block in read_blocks(file)])
def test_a_block_of_names_is_true_of_its_own_name(block: dict[str, str]) -> None:
    if block["sort"].startswith("same_"):
        assert all(match_tags(f"x {word}", [f"x/{block['seen']}"]) for word in block["words"].split())
    else:
        assert SORTS[block["sort"]](block["seen"])
