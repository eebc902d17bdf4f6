"""Each block of `scalars/names.rows` is true of its own name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.results.evaluations.evaluation_series import build_series
from mcp_server.results.evaluations.evaluation_text import has_step
from mcp_server.results.evaluations.evaluations import Evaluation
from mcp_server.results.metrics import best_direction
from mcp_server.scalars.formats.row_series import STEP_KEYS, TIME_KEYS
from mcp_server.text.rows import read_blocks


def read_row(name: str, value: str | float) -> list[tuple[str, str, int | None]]:
    """Return benchmark, model and episodes of the points of a row in which ``name`` has ``value``."""
    rows = ({name: value, "success_rate": 0.5},)
    series = build_series([Evaluation(Path("/out/eval.json"), rows)])
    return [(one.benchmark, one.model, one.last.episodes) for one in series]


SORTS: dict[str, Callable[[str], bool]] = {
    "step": lambda name: has_step({name: 5}),
    "scalar_step": lambda name: name in STEP_KEYS and STEP_KEYS[-1] == "epoch",
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


@pytest.mark.parametrize("block", [dict(block) for block in read_blocks("scalars/names")])
def test_a_block_of_names_is_true_of_its_own_name(block: dict[str, str]) -> None:
    assert SORTS[block["sort"]](block["seen"])
