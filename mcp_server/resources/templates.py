"""The resources with a name in their URI: agents, guides, blueprints (of the project, of runs), runs and sweeps."""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError

from mcp_server.blueprints.apply import read_blueprint_text
from mcp_server.errors import RunNotFound, RunwardError, SweepNotFound
from mcp_server.hosts.environment import list_known_secrets
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_spec import read_cell_notes
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.resources.documents import JSON, MARKDOWN, Document, read_documents
from mcp_server.resources.page_document import write_runs_app
from mcp_server.results.code_differences import read_code_diff
from mcp_server.results.figures import Figure, measure
from mcp_server.results.ran_status import describe_ran
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.tables.log import SweepLog
from mcp_server.sweeps.tables.trial_table import describe_trial
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.tools.support.context import ServerContext
from mcp_server.tools.support.schema import RUNS_APP
from mcp_server.views.log_excerpt import MAX_BYTES, tail_lines
from mcp_server.views.program_output import FRAME_BYTES, frame_output
from mcp_server.views.run_status import status_of
from mcp_server.views.sweep_status import observe_live_cells

_LOG_LINES = 200
_MOST_CELLS = 200
_DIRECTORY = "blueprints"
_DOCUMENTS = frozenset({"guide", "template"})  # runward's own
_MOST_NAMED = 20


def add_templates(server: MCPServer[ServerContext], context: ServerContext) -> None:
    """Add what a URI with a name in it reads: agents, guides, blueprints, runs and sweeps; and the MCP App."""

    @server.resource(
        RUNS_APP,
        title="Runs",
        description="The page of runs, for clients that show MCP Apps",
        mime_type="text/html;profile=mcp-app",
        meta={"ui": {"prefersBorder": True}},
    )
    def read_runs_app() -> str:
        return write_runs_app()

    @server.resource("agent://{name}", title="Agent", description="How an agent of this name works", mime_type=MARKDOWN)
    def read_agent(name: str) -> str:
        return _find_document(read_documents("agents"), name, "agent").text

    @server.resource(
        "guide://{name}", title="Guide", description="How to do one thing with runward", mime_type=MARKDOWN
    )
    def read_guide(name: str) -> str:
        return _find_document(read_guides(), name, "guide").text

    @server.resource(
        "blueprint://{name}",
        title="Blueprint",
        description="A blueprint of this project (blueprints/NAME.md) or of a former run",
        mime_type=MARKDOWN,
    )
    def read_blueprint(name: str) -> str:
        return _answer(lambda: read_recipe(context.store, Path.cwd(), name, context.environ))

    @server.resource(
        "run://{run_id}",
        title="Run",
        description="A run: its RunStatus, command as it ran, settings, params by attempt, code, where its results are",
        mime_type=JSON,
    )
    def read_run(run_id: str) -> str:
        store = context.store
        return _answer(lambda: describe_ran(store, context.scalars, store.find(run_id)).model_dump_json())

    @server.resource("run://{run_id}/log", title="Log of a run", description="Newest part of its output, at most 8 KB")
    def read_run_log(run_id: str) -> str:
        def read_tail() -> str:
            run = context.store.find(run_id)
            path = context.store.fetch_log(run)
            old = context.store.explain_old_log(run)
            excerpt = tail_lines(path, _LOG_LINES, MAX_BYTES - FRAME_BYTES, label=f"run {run.run_id}")
            framed = frame_output(excerpt.header, excerpt.body, context.environ, context.store.home.secrets)
            return (f"[{old}]\n" if old else "") + framed

        return _answer(read_tail)

    _add_diff(server, context)
    _add_sweep_templates(server, context)


def _add_sweep_templates(server: MCPServer[ServerContext], context: ServerContext) -> None:
    @server.resource(
        "sweep://{name}",
        title="Sweep",
        description="The log of a sweep, by id or name (its newest); else the runs with this tag, by state",
        mime_type=MARKDOWN,
    )
    def read_sweep(name: str) -> str:
        return _answer(lambda: _read_sweep(context, name))

    @server.resource(
        "sweep://{name}/{trial}",
        title="Trial",
        description="A trial of an open sweep (sweep://ar/t3): its text, verdict and why, and its diff",
        mime_type=MARKDOWN,
    )
    def read_trial(name: str, trial: str) -> str:
        def read() -> str:
            sweep = context.store.sweeps.find(name)
            return describe_trial(sweep, context.store.sweeps.files_of(sweep), trial)

        return _answer(read)


def _add_diff(server: MCPServer[ServerContext], context: ServerContext) -> None:
    description = "How the code of the first became that of the other: what compare_runs(diff=true) names"

    @server.resource("run://{run_id}/diff/{other}", title="Diff of two runs", description=description)
    def read_diff(run_id: str, other: str) -> str:
        def read() -> str:
            newer, former = context.store.find(other), context.store.find(run_id)
            text, note = read_code_diff(context.store, context.environ, newer, former)
            return "\n".join(filter(None, (note, text))) or "No difference that was kept."

        return _answer(read)


def _read_sweep(context: ServerContext, name: str) -> str:
    try:
        sweep = context.store.sweeps.find(name)
    except SweepNotFound:
        return _describe_tagged(context, name)
    directory = context.store.sweeps.files_of(sweep)
    log, cells = SweepLog(directory, partial(_measure, context, sweep)), observe_live_cells(sweep, context.store)
    return log.render(sweep, cells, read_cell_notes(directory))


def _measure(context: ServerContext, sweep: Sweep, run: Run) -> Figure:
    return measure(run, context.store, context.scalars, sweep.spec.metric, sweep.spec.goal, sweep.spec.ranking)


def _describe_tagged(context: ServerContext, tag: str) -> str:
    """Return the runs with the tag, newest first, and their number by state, as JSON; or name similar tags."""
    states = context.store.count_states(RunQuery(tags=[tag]))
    if not states:
        near = difflib.get_close_matches(tag, list_sweep_names(context), n=3, cutoff=0.6)
        hint = f"Did you mean {', '.join(near)}?" if near else "guide://sweep explains how to run a sweep."
        raise ResourceNotFoundError(f"Sweep not found: no sweep and no tag is named {tag[:80]!r}. {hint}")
    runs = context.store.list_runs(RunQuery(tags=[tag]), _MOST_CELLS)
    statuses = [status_of(context.store, run, listed=True).model_dump(mode="json") for run in runs]
    facts = {"sweep": tag, "total": sum(states.values()), "states": states, "runs": statuses}
    return json.dumps(facts, ensure_ascii=False)


def list_sweep_names(context: ServerContext) -> list[str]:
    """Return the ids and names of all sweeps, newest first, then all tags."""
    sweeps = context.store.sweeps.list_sweeps()
    names = [*(sweep.sweep_id for sweep in sweeps), *(sweep.spec.name for sweep in sweeps), *context.store.list_tags()]
    return list(dict.fromkeys(names))


def list_blueprints(context: ServerContext) -> Iterable[str]:
    """Return the names of the project's blueprints and of those of former runs."""
    return find_blueprints(context.store, Path.cwd())


def read_guides() -> dict[str, Document]:
    """Return the guides by name."""
    scheme = "guide://"
    return {
        uri.removeprefix(scheme): document
        for document in read_documents("prompts").values()
        if (uri := document.facts.get("uri", "")).startswith(scheme)
    }


def _find_document(documents: dict[str, Document], name: str, noun: str) -> Document:
    if (document := documents.get(name)) is not None:
        return document
    names = difflib.get_close_matches(name, documents, n=2, cutoff=0.6) or sorted(documents)
    available = ", ".join(names) or "none"
    raise ResourceNotFoundError(f"{noun.capitalize()} not found: {name[:80]!r}. Available: {available}.")


def _answer(read: Callable[[], str]) -> str:
    """Return what ``read`` returns, and its refusal, unchanged, as an error of the SDK."""
    try:
        return read()
    except RunNotFound as error:
        raise ResourceNotFoundError(str(error)) from error
    except (RunwardError, OSError) as error:
        raise ResourceError(str(error)) from error


def find_project_blueprints(directory: Path) -> dict[str, Path]:
    """Return the blueprints below ``directory`` by the name of their file."""
    files: list[Path] = []
    with suppress(OSError):
        files = sorted((directory / _DIRECTORY).glob("*.md"))
    return {file.stem: file for file in files if file.stem not in _DOCUMENTS}


def find_blueprints(store: RunStore, directory: Path) -> dict[str, Path]:
    """Return blueprints by the name of their file: those below ``directory`` first, then those of the newest runs."""
    paths = find_project_blueprints(directory)
    for blueprint in store.list_blueprints():
        if (path := Path(blueprint)).is_file():
            paths.setdefault(path.stem, path)
    return {name: path for name, path in paths.items() if name not in _DOCUMENTS}


def read_recipe(store: RunStore, directory: Path, name: str, environ: Mapping[str, str]) -> str:
    """Return a blueprint with secrets masked, below a line with its launch. ResourceNotFoundError, or unreadable."""
    paths = find_blueprints(store, directory)
    if name not in paths:
        near = difflib.get_close_matches(name, paths, n=3, cutoff=0.5)
        names = ", ".join(near or list(paths)[:_MOST_NAMED]) or f"none; write {directory / _DIRECTORY}/NAME.md"
        raise ResourceNotFoundError(f"Blueprint not found: {name[:80]!r}. There are: {names}.")
    path, text = read_blueprint_text(str(paths[name]))
    text = f"<!-- launch_run(blueprint={str(path)!r}) -->\n\n{text}"
    return mask_secrets(text, list_known_secrets(environ, store.home.secrets))
