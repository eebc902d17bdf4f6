"""The question to a source, and its answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class SourceCell:
    """One cell of a source.

    ``name`` is a short label, unique in the source and usable in the name of a run. ``launch`` holds arguments of
    launch_run by name, ``param_style`` among them; without ``command`` the program is the caller's to name. ``params``
    are the settings of the source, with the caller's overrides applied: they belong into launch_run's ``params``, where
    those of a cell replace them by name. ``notes`` are what a person should know before the launch.
    """

    name: str
    launch: Mapping[str, Any]
    params: Mapping[str, Scalar]
    notes: tuple[str, ...] = ()


GpuCount: TypeAlias = int | Literal["all"] | None  # of each cell; None: not said


@dataclass(frozen=True)
class SourceQuery:
    """A source to read: ``kind`` and ``rest`` are what is before and after the colon.

    The other fields are the arguments of ``source.read_source``.
    """

    kind: str
    rest: str
    cwd: str | None
    overrides: Mapping[str, Scalar]
    gpus: GpuCount
    environ: Mapping[str, str]
    python: str | None

    @property
    def words(self) -> list[str]:
        """The names or patterns in ``rest``, which commas separate."""
        return [word for word in map(str.strip, self.rest.split(",")) if word]
