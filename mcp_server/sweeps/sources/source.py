"""The cells that a source such as ``doit:train-*`` or ``hydra:conf/train.yaml`` means."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.hosts.path_checks import suggest_names
from mcp_server.record.script import slug
from mcp_server.sweeps.sources.cell import GpuCount, Scalar, SourceCell, SourceQuery
from mcp_server.sweeps.sources.doit_process import DoitProject, load_project
from mcp_server.sweeps.sources.doit_tasks import Choice, build_launch, choose_tasks, list_patterns
from mcp_server.sweeps.sources.hydra_source import read_hydra_source
from mcp_server.sweeps.sources.run_name import propose_run_name


def read_doit_source(query: SourceQuery) -> list[SourceCell]:
    """Return a cell for each task that the source means, in the order it means them. Executes dodo.py.

    Raises:
        BadArgument: there is no such task, it is not a command, or dodo.py cannot be loaded.
    """
    if query.cwd is None:
        raise BadArgument("cwd", "is not given: it is the directory of the project's dodo.py.")
    cwd = Path(query.cwd).expanduser()
    if not cwd.is_absolute() or not cwd.is_dir():
        raise BadArgument("cwd", f"is not an absolute path of a directory: {query.cwd[:200]!r}.", suggest_names(cwd))
    options = {
        n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in query.overrides.items() if v is not None
    }
    patterns = list_patterns(query.words)
    project = load_project(cwd, query.python, query.environ, patterns, options)
    return list(_build_cells(query, project, choose_tasks(project.tasks, query.words, query.gpus, query.cwd)))


def _build_cells(query: SourceQuery, project: DoitProject, choices: list[Choice]) -> Iterator[SourceCell]:
    names: set[str] = set()
    note = f"dodo.py was executed by {project.python} to read its tasks."
    for choice in choices:
        launch = build_launch(choice.task, project.tasks, project.cwd, query.overrides, query.gpus)
        name = slug(choice.task.name)
        while name in names:  # a:b and a-b
            name = f"{name}-2"
        names.add(name)
        yield SourceCell(name, launch.arguments, launch.params, (*choice.notes, *launch.notes, note))


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
