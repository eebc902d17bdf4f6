"""Advice about a cell names the next call of its sweep."""

from __future__ import annotations

from mcp_server.diagnosis.advice.blocks import NextStep, Scene, compose
from mcp_server.diagnosis.advice.next_action import propose_next_step
from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.views.run_status import advise_on_cell

_SCENE = Scene("data_error", "")


def advise(step: NextStep | None) -> str | None:
    assert step is not None
    return advise_on_cell({"advice": step.advice, "correction": step.correction}, "night-ab3d")


def test_a_correction_is_followed_by_the_call_that_starts_failed_cells_again() -> None:
    restart = (
        "After a correction, once the sweep has ended, "
        'launch_sweep(name="night-ab3d", resume="continue") starts failed cells again.'
    )
    missing = compose("A file is missing: correct {0}", ["the path"], _SCENE, then="launch_run again")
    assert missing is not None
    assert missing.advice == "A file is missing: correct the path, then launch_run again."
    assert advise(missing) == f"A file is missing: correct the path. {restart}"
    port = compose("The port is taken: {launch_run|launch the cell} again with another.", [], _SCENE)
    assert advise(port) == f"The port is taken: launch the cell again with another. {restart}"
    assert advise(compose("Set a smaller batch.", [], _SCENE)) == "Set a smaller batch."


def test_no_advice_about_a_cell_names_launch_run() -> None:
    assert not [kind for kind in KINDS if "launch_run" in str(advise(propose_next_step(Scene(kind, ""))))]
