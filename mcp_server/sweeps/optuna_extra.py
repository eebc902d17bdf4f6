"""Optuna, which proposes the cells of a search and halves a sweep: an optional dependency."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from mcp_server.errors import BadArgument

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.study import Study

INSTALL = "pip install 'optuna>=5'"


def check_optuna(argument: str, alternative: str) -> None:
    """Refuse an argument that needs Optuna where it is not installed.

    Raises:
        BadArgument: names the command that installs it.
    """
    if find_spec("optuna") is None:
        raise BadArgument(argument, "needs Optuna, which is not installed.", f"A person can {INSTALL}. {alternative}")


def load_optuna() -> Any:
    """Return the package ``optuna``."""
    import optuna  # noqa: PLC0415 - an extra, which takes 1,000 ms

    return optuna


def make_study(goal: str, *, pruner: BasePruner | None = None, sampler: BaseSampler | None = None) -> Study:
    """Return an empty study in memory. Without a sampler it proposes at random."""
    optuna = load_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction: Literal["maximize", "minimize"] = "maximize" if goal == "max" else "minimize"
    study: Study = optuna.create_study(
        direction=direction, pruner=pruner, sampler=sampler or optuna.samplers.RandomSampler()
    )
    return study
