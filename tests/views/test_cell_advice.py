"""Advice about a cell names the next call of its sweep."""

from __future__ import annotations

from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.views.cell_advice import advise_on_cell, correction


def test_a_correction_is_followed_by_the_call_that_starts_failed_cells_again() -> None:
    advice = "A file is missing: correct the path, then launch_run again."
    assert correction(advice) == "A file is missing: correct the path."
    assert advise_on_cell(advice, "night-ab3d") == (
        "A file is missing: correct the path. After a correction, once the sweep has ended, "
        'launch_sweep(name="night-ab3d", resume="continue") starts failed cells again.'
    )
    assert advise_on_cell("The port is taken: launch_run again with another.", "s") == (
        "The port is taken: launch the cell again with another."
    )
    assert correction("Change something before launch_run.") == "Change something before another launch."
    assert not [kind for kind, policy in KINDS.items() if "launch_run" in advise_on_cell(policy.advice, "s")]
