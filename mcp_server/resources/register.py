"""MCP resources and prompts: the files of prompts/ and agents/, and the runs.

A file of ``prompts/`` with a ``uri`` in its front matter is a resource, one with ``arguments`` is a prompt. In a
prompt, ``{{name}}`` is replaced by an argument or by another file's text, and ``{{arguments}}`` by a list of all given
arguments. An argument cannot end its own line or its quotes.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.prompts.base import PromptArgument
from mcp.server.mcpserver.resources import FunctionResource
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    Resource,
    ResourceTemplateReference,
)

from mcp_server.errors import RunNotFound, RunwardError, SweepNotFound
from mcp_server.record.state import Run
from mcp_server.resources.documents import Document, read_documents
from mcp_server.threads import run_in_thread
from mcp_server.tools.context import ServerContext
from mcp_server.views.log_excerpt import tail_lines
from mcp_server.views.run_status import status_of
from mcp_server.views.sweep_status import observe_live_cells

_MARKDOWN, _JSON = "text/markdown", "application/json"
_LOG_LINES = 200
_NEWEST_RUNS, _MOST_RECIPES = 10, 50
_MAX_COMPLETIONS = 100  # limit of the protocol
_MOST_CELLS = 200
_OPTIONAL = "Optional. "
_MAX_ARGUMENT_CHARS = 20_000  # the whole prompt is read at once
_SLOT = re.compile(r"\{\{(\w+)\}\}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ResourceServer(MCPServer[ServerContext]):
    """An MCP server with runward's resources, prompts and completions.

    Documents are read at the first request for a resource or a prompt: a server starts without a YAML parser.
    """

    def __init__(self, name: str, context: ServerContext, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._context = context
        self._has_documents = False
        _add_templates(self, context)
        _add_completions(self, context)

    async def list_resources(self) -> Any:
        """List documents and agent files, the project's blueprints, and the newest runs: a person names them with @."""
        from mcp_server.resources.recipes import find_project_blueprints  # noqa: PLC0415 - see below

        self._add_documents()
        recipes = await run_in_thread(find_project_blueprints, Path.cwd())
        runs = await run_in_thread(self._context.store.list_runs)
        listed = [_list_recipe(name, path) for name, path in list(recipes.items())[:_MOST_RECIPES]]
        return [*await super().list_resources(), *listed, *map(_list_run, runs[:_NEWEST_RUNS])]

    async def read_resource(self, *arguments: Any, **more: Any) -> Any:
        """Read a document, a run's status or log, or a sweep: its log, or as JSON the runs with a tag."""
        self._add_documents()
        contents = await super().read_resource(*arguments, **more)
        if arguments and str(arguments[0]).startswith("sweep://") and isinstance(contents, list):
            return [replace(each, mime_type=_JSON) if str(each.content).startswith("{") else each for each in contents]
        return contents

    async def list_prompts(self) -> Any:
        """List prompts with their arguments."""
        self._add_documents()
        return await super().list_prompts()

    async def get_prompt(self, *arguments: Any, **more: Any) -> Any:
        """Render a prompt.

        A wrong request is answered with the reason, which the SDK would only log.
        """
        self._add_documents()
        try:
            return await super().get_prompt(*arguments, **more)
        except ValueError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error

    def _add_documents(self) -> None:
        if self._has_documents:
            return
        self._has_documents = True
        for document in read_documents("prompts").values():
            if uri := document.facts.get("uri"):
                self.add_resource(_make_resource(uri, document))
            if "arguments" in document.tables:
                self.add_prompt(_make_prompt(document, self._context))
        for document in read_documents("agents").values():
            self.add_resource(_make_resource(f"agent://{document.name}", document))


# --- resources


def _make_resource(uri: str, document: Document) -> FunctionResource:
    title = document.facts.get("title", document.name)
    # The description of an agent file is long, because its caller decides by it. A list needs its first line.
    description = document.description.partition("\n")[0]
    return FunctionResource(
        uri=uri, name=document.name, title=title, description=description, mime_type=_MARKDOWN, fn=lambda: document.text
    )


def _list_recipe(name: str, path: Path) -> Resource:
    text = f"A blueprint of this project: launch_run(blueprint={str(path)!r})"
    return Resource(uri=f"blueprint://{quote(name)}", name=name, title=name, description=text, mime_type=_MARKDOWN)


def _list_run(run: Run) -> Resource:
    text = f"{run.state}, of {run.spec.owner}, started {run.spec.created_at}"
    return Resource(uri=f"run://{run.run_id}", name=run.run_id, title=run.spec.name, description=text, mime_type=_JSON)


def _add_templates(server: MCPServer[ServerContext], context: ServerContext) -> None:
    @server.resource(
        "agent://{name}", title="Agent", description="How an agent of this name works", mime_type=_MARKDOWN
    )
    def read_agent(name: str) -> str:
        return _find_document(read_documents("agents"), name, "agent").text

    @server.resource(
        "guide://{name}", title="Guide", description="How to do one thing with runward", mime_type=_MARKDOWN
    )
    def read_guide(name: str) -> str:
        return _find_document(_guides_by_name(), name, "guide").text

    @server.resource(
        "blueprint://{name}",
        title="Blueprint",
        description="A blueprint of this project (blueprints/NAME.md) or of a former run",
        mime_type=_MARKDOWN,
    )
    def read_blueprint(name: str) -> str:
        from mcp_server.resources.recipes import read_recipe  # noqa: PLC0415 - a server starts without blueprints

        return _answer(lambda: read_recipe(context.store, Path.cwd(), name, context.environ))

    @server.resource("run://{run_id}", title="Run", description="The RunStatus of a run", mime_type=_JSON)
    def read_run(run_id: str) -> str:
        return _answer(lambda: status_of(context.store, context.store.find(run_id)).model_dump_json())

    @server.resource("run://{run_id}/log", title="Log of a run", description="Newest part of its output, at most 8 KB")
    def read_run_log(run_id: str) -> str:
        def read_tail() -> str:
            run = context.store.find(run_id)
            path = context.store.fetch_log(run)
            return tail_lines(path, _LOG_LINES, label=f"run {run.run_id}").text

        return _answer(read_tail)

    @server.resource(
        "sweep://{name}",
        title="Sweep",
        description="The log of a sweep, by id or name (its newest); else the runs with this tag, by state",
        mime_type=_MARKDOWN,
    )
    def read_sweep(name: str) -> str:
        return _answer(lambda: _read_sweep(context, name))


def _read_sweep(context: ServerContext, name: str) -> str:
    """Return the log of the sweep with this id or name, as it is now; else the runs with this tag.

    Raises:
        ResourceNotFoundError: there is neither; names similar sweeps and tags.
    """
    from mcp_server.store.cell_notes import read_notes  # noqa: PLC0415 - a server starts without sweeps
    from mcp_server.sweeps.log import SweepLog  # noqa: PLC0415 - as above

    try:
        sweep = context.store.sweeps.find(name)
    except SweepNotFound:
        return _describe_tagged(context, name)
    directory = context.store.sweeps.files_of(sweep)
    return SweepLog(directory).render(sweep, observe_live_cells(sweep, context.store), read_notes(directory))


def _describe_tagged(context: ServerContext, tag: str) -> str:
    """Return the runs with the tag, newest first, and their number by state, as JSON.

    Raises:
        ResourceNotFoundError: no run has this tag; names similar sweeps and tags.
    """
    runs = [run for run in context.store.list_runs() if tag in run.spec.tags]
    if not runs:
        near = difflib.get_close_matches(tag, _list_sweep_names(context), n=3, cutoff=0.6)
        hint = f"Did you mean {', '.join(near)}?" if near else "guide://sweep explains how to run a sweep."
        raise ResourceNotFoundError(f"Sweep not found: no sweep and no tag is named {tag[:80]!r}. {hint}")
    statuses = [status_of(context.store, run, listed=True).model_dump(mode="json") for run in runs[:_MOST_CELLS]]
    states = Counter(run.state for run in runs)
    return json.dumps({"sweep": tag, "total": len(runs), "states": states, "runs": statuses}, ensure_ascii=False)


def _list_tags(context: ServerContext) -> list[str]:
    """Return the tags of all runs, those of the newest run first."""
    return list(dict.fromkeys(tag for run in context.store.list_runs() for tag in run.spec.tags))


def _list_sweep_names(context: ServerContext) -> list[str]:
    """Return the ids and names of all sweeps, newest first, then all tags."""
    sweeps = context.store.sweeps.list_sweeps()
    names = [*(sweep.sweep_id for sweep in sweeps), *(sweep.spec.name for sweep in sweeps), *_list_tags(context)]
    return list(dict.fromkeys(names))


def _list_blueprints(context: ServerContext) -> Iterable[str]:
    from mcp_server.resources.recipes import find_blueprints  # noqa: PLC0415 - see above

    return find_blueprints(context.store, Path.cwd())


def _guides_by_name() -> dict[str, Document]:
    scheme = "guide://"
    return {
        uri.removeprefix(scheme): document
        for document in read_documents("prompts").values()
        if (uri := document.facts.get("uri", "")).startswith(scheme)
    }


def _find_document(documents: dict[str, Document], name: str, noun: str) -> Document:
    """Return the document of this name.

    Raises:
        ResourceNotFoundError: there is no such document; names similar ones, else all.
    """
    if (document := documents.get(name)) is not None:
        return document
    names = difflib.get_close_matches(name, documents, n=2, cutoff=0.6) or sorted(documents)
    available = ", ".join(names) or "none"
    raise ResourceNotFoundError(f"{noun.capitalize()} not found: {name[:80]!r}. Available: {available}.")


def _answer(read: Callable[[], str]) -> str:
    """Return what ``read`` returns.

    The message of a refusal reaches the client unchanged.

    Raises:
        ResourceNotFoundError: there is no such run.
        ResourceError: the run could not be read.
    """
    try:
        return read()
    except RunNotFound as error:
        raise ResourceNotFoundError(str(error)) from error
    except (RunwardError, OSError) as error:
        raise ResourceError(str(error)) from error


# --- prompts


def _make_prompt(document: Document, context: ServerContext) -> Prompt:
    arguments = [
        PromptArgument(name=name, description=text, required=not text.startswith(_OPTIONAL))
        for name, text in document.tables["arguments"].items()
    ]
    return Prompt(
        name=document.name,
        title=document.facts.get("title"),
        description=document.description,
        arguments=arguments,
        fn=partial(_render_prompt, document, context),
        context_kwarg=None,
    )


def _render_prompt(document: Document, context: ServerContext, /, **values: str) -> str:
    """Return a prompt's text with its slots filled.

    Raises:
        MCPError: an argument does not exist, is empty or too long, or names a run that does not exist.
    """
    parameters = document.tables["arguments"]
    if unknown := values.keys() - parameters.keys():
        raise MCPError(INVALID_PARAMS, f"{document.name} has no argument {', '.join(sorted(unknown))[:200]}.")
    for name, text in parameters.items():
        if not text.startswith(_OPTIONAL) and not values[name].strip():
            raise MCPError(INVALID_PARAMS, f"{document.name} needs {name}: {text}.")
        if len(values.get(name, "")) > _MAX_ARGUMENT_CHARS:
            raise MCPError(INVALID_PARAMS, f"{name} is longer than {_MAX_ARGUMENT_CHARS:,} characters: name a file.")
    if run_id := values.get("run_id"):
        try:
            context.store.find(run_id)
        except RunNotFound as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
    return fill_slots(document, values)


def fill_slots(document: Document, values: Mapping[str, str]) -> str:
    """Return the text of a prompt with the values of its arguments, and the documents that it includes."""
    arguments = "\n".join(_list_item(name, value) for name, value in values.items() if value.strip())

    # A single pass, so that a slot inside of an argument stays text.
    def fill_slot(slot: re.Match[str]) -> str:
        word = slot[1]
        if word == "arguments":
            return arguments
        return _escape_inline(values[word]) if word in values else read_documents("prompts")[word].text.strip()

    return _SLOT.sub(fill_slot, document.text)


def _list_item(name: str, value: str) -> str:
    """Return an argument as an item of a list.

    Several lines become a block quote.
    """
    lines = [_CONTROL.sub("", line) for line in value.strip().splitlines()]
    return f"- {name}: {lines[0]}" if len(lines) == 1 else "\n".join([f"- {name}:", *(f"  > {line}" for line in lines)])


def _escape_inline(value: str) -> str:
    """Return an argument escaped as in JSON, for use between double quotes in a line of code."""
    return json.dumps(value.strip(), ensure_ascii=False)[1:-1].replace("`", "\\u0060")


# --- completion


def _add_completions(server: MCPServer[ServerContext], context: ServerContext) -> None:
    def list_run_ids() -> list[str]:
        return [run.run_id for run in context.store.list_runs()]

    def list_nothing() -> list[str]:
        return []

    # Keys: the URI of a template, or "prompt" for any prompt, and the name of a variable or argument.
    sources: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
        ("agent://{name}", "name"): lambda: read_documents("agents"),
        ("blueprint://{name}", "name"): partial(_list_blueprints, context),
        ("guide://{name}", "name"): _guides_by_name,
        ("run://{run_id}", "run_id"): list_run_ids,
        ("run://{run_id}/log", "run_id"): list_run_ids,
        ("prompt", "run_id"): list_run_ids,
        ("sweep://{name}", "name"): partial(_list_sweep_names, context),
    }

    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator]  # the SDK's decorator has no types
    async def complete(
        reference: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        _: CompletionContext | None,
    ) -> Completion:
        template = reference.uri if isinstance(reference, ResourceTemplateReference) else "prompt"
        candidates = await run_in_thread(sources.get((template, argument.name), list_nothing))
        values = [value for value in candidates if argument.value in value]
        return Completion(values=values[:_MAX_COMPLETIONS], total=len(values), has_more=len(values) > _MAX_COMPLETIONS)
