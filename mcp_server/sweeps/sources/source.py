"""The cells that a source such as ``doit:train-*`` or ``hydra:conf/train.yaml`` means."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_server.errors import BadArgument
from mcp_server.sweeps.sources.cell import GpuCount, Scalar, SourceCell, SourceQuery
from mcp_server.sweeps.sources.doit_source import read_doit_source
from mcp_server.sweeps.sources.hydra_source import read_hydra_source
from mcp_server.sweeps.sources.run_name import propose_run_name

__all__ = ["GpuCount", "Scalar", "SourceCell", "propose_run_name", "read_source"]

_READERS = {"doit": read_doit_source, "hydra": read_hydra_source, "verl": read_hydra_source}
_LANGUAGE = "A source is doit:TASK, doit:TASK1,TASK2, doit:train-*, hydra:CONFIG.yaml or verl:CONFIG.yaml."


def read_source(
    source: str,
    *,
    cwd: str | None,
    overrides: Mapping[str, Scalar],
    gpus: GpuCount,
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
    return reader(SourceQuery(kind.strip(), rest.strip(), cwd, overrides, gpus, environ, python))
