"""The cells that a source such as ``doit:train-*`` or ``hydra:conf/train.yaml`` stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_server.errors import BadArgument

Scalar = str | int | float | bool | None
_LANGUAGE = "A source is doit:TASK, doit:TASK1,TASK2, doit:train-*, hydra:CONFIG.yaml or verl:CONFIG.yaml."


@dataclass(frozen=True)
class SourceCell:
    """One cell of a source.

    ``name`` is a short label, unique in the source and usable in the name of a run. ``launch`` holds arguments of
    launch_run by name, ``param_style`` among them; without ``command`` the program is the caller's to name. ``params``
    are the parameters that the source itself sets, with the caller's overrides applied: they belong into launch_run's
    ``params``, where those of the cell follow and win. ``notes`` are what a person should know.
    """

    name: str
    launch: Mapping[str, Any]
    params: Mapping[str, Scalar]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceQuery:
    """What a source is read with: ``rest`` follows its kind and the colon; the others are those of ``read_source``."""

    rest: str
    cwd: str | None
    overrides: Mapping[str, Scalar]
    gpus: int | None
    environ: Mapping[str, str]
    python: str | None


_READERS: Mapping[str, Callable[[SourceQuery], list[SourceCell]]] = {}


def read_source(
    source: str,
    *,
    cwd: str | None,
    overrides: Mapping[str, Scalar],
    gpus: int | None,
    environ: Mapping[str, str],
    python: str | None = None,
) -> list[SourceCell]:
    """Return the cells of ``source`` in its own order, at least one.

    Blocks: ``doit:`` runs the project's dodo.py in a process of its own, for at most 45 s. ``cwd`` is the project's
    directory, ``overrides`` win over settings of the source, ``gpus`` is the count of GPUs of each cell, ``environ``
    the environment of the runs, ``python`` the project's interpreter, by default the one that ``environ`` finds.

    Raises:
        BadArgument: the source cannot be read as one; names what exists.
    """
    kind, colon, rest = source.partition(":")
    reader = _READERS.get(kind.strip()) if colon else None
    if reader is None:
        raise BadArgument("source", f"is not of a known kind: {source[:80]!r}.", _LANGUAGE)
    return reader(SourceQuery(rest.strip(), cwd, overrides, gpus, environ, python))
