"""The length of a training as its command, or a setting that it prints before the first step, plans it. Pure."""

from __future__ import annotations

import shlex

from mcp_server.diagnosis.progress.formats import CounterRank
from mcp_server.diagnosis.progress.named_values import MAX_COUNT
from mcp_server.diagnosis.progress.step_counters import OVERSHOOT, StepReading, parse_count
from mcp_server.record.scalar_files import is_epoch
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/progress/patterns", "planned_totals")

_WORDS = ("ter", "poch", "step", "update", "trial", "frame", "round", "generation", "kimg")  # of all settings
# What the counter of a format counts, where the settings of its programs have their own names for it.
_UNITS = {
    "stylegan": "images",
    "sample_factory": "frames",
    "stable_baselines3": "frames",
    "cleanrl": "frames",
    "optuna": "trials",
}


class PlannedTotals:
    """Totals by unit: epochs, steps, frames, trials. A setting of the command is valid, whatever is printed.

    A command that has several totals of one unit runs several trainings: that unit has no total.
    """

    def __init__(self, command: str = "") -> None:
        try:
            words = "\n".join(shlex.split(command))
        except ValueError:  # an open quote
            words = command
        self._given: dict[str, set[int]] = {}
        for unit, number in _find_settings(words):
            self._given.setdefault(unit, set()).add(number)
        self._printed: dict[str, int] = {}

    def read_line(self, line: str) -> None:
        """Take the settings that ``line`` prints: the last one is valid."""
        if any(word in line for word in _WORDS):
            self._printed.update(_find_settings(line))

    def total(self, unit: str) -> int | None:
        """Return the planned number of a unit."""
        given = self._given.get(unit)
        if given:
            return next(iter(given)) if len(given) == 1 else None
        return self._printed.get(unit)

    def complete(self, reading: StepReading) -> StepReading:
        """Return ``reading`` with the planned total, where it has none that its step does not exceed by far."""
        if reading.step is not None and reading.total is None and reading.rank is not CounterRank.SECONDARY:
            total = self._total_of_steps(reading)
            is_right = total is not None and reading.step <= total * OVERSHOOT
            return reading._replace(total=total, is_planned=True) if is_right else reading
        if reading.epoch is not None and reading.n is None and reading.epochs is None:
            total = self.total("epochs")
            is_right = total is not None and reading.epoch <= total
            return reading._replace(epochs=total, is_planned=True) if is_right else reading
        return reading

    def find_total(self, step: int, axis: str) -> int | None:
        """Return the planned total of what a file counts, by its name for that; None where it may be another count.

        Without a name, as in event files, it is the only total that the step has not passed. wandb's own ``_step``
        counts the calls that log.
        """
        if axis == "_step":
            return None
        units = ["epochs", "steps", "frames"]
        if axis:
            units = [_find_unit(CounterRank.EPOCH if is_epoch(axis) else CounterRank.STEP, axis.lower())]
        open_totals = {unit: total for unit in units if (total := self.total(unit)) is not None and step <= total}
        unit = next(iter(open_totals)) if len(open_totals) == 1 else None
        return None if unit is None or (unit == "epochs" and not axis) else open_totals[unit]

    def _total_of_steps(self, reading: StepReading) -> int | None:
        epochs = self.total("epochs")
        if reading.per is not None and epochs is not None:
            return epochs * reading.per
        return self.total(_find_unit(reading.rank, reading.key))


def _find_unit(rank: CounterRank, key: str) -> str:
    is_of_frames = "timestep" in key or "frame" in key or "env" in key
    unit = "epochs" if rank is CounterRank.EPOCH else "frames" if is_of_frames else "steps"
    return _UNITS.get(key, unit)


def _find_settings(text: str) -> list[tuple[str, int]]:
    found = []
    for match in _RX.setting.finditer(text):
        number = parse_count(match["number"].rstrip(".,"))
        if number and number < MAX_COUNT:
            found.append((next(name for name, text in match.groupdict().items() if text).rpartition("_")[2], number))
    return found
