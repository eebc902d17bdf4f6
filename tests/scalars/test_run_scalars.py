"""The scalars of several locations become one reading; unreadable locations are errors."""

from pathlib import Path

import pytest

from mcp_server.scalars.run_scalars import NoScalars, Scalars
from mcp_server.store.state_home import StateHome
from tests.support.scalar_runs import write


def test_several_directories_are_one_run_with_prefixes(tmp_path: Path) -> None:
    for name in ("train", "eval"):
        write(tmp_path / name, 2, {"loss": float})
    reading = Scalars(StateHome(tmp_path / "state")).read([tmp_path / "train", tmp_path / "eval"], "x")
    assert list(reading.series) == ["train/loss", "eval/loss"]


def test_the_error_of_unreadable_scalars_states_the_cause(tmp_path: Path) -> None:
    with pytest.raises(NoScalars, match=r"^No scalars of x can be read: [^.]*\. Pass another"):
        Scalars(StateHome(tmp_path / "state")).read([tmp_path / "none"], "x")
