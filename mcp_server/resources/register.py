"""What agents read beside the tools: the files of prompts/ and agents/ and the runs, as MCP resources and prompts.

A file of ``prompts/`` with a ``uri`` in its front matter is a resource, one with ``arguments`` is a prompt. In a prompt
``{{name}}`` stands for an argument or for another file's text, and ``{{arguments}}`` for all that were given. What is
given stays an argument: it can end neither its line nor its quotes.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable
from functools import partial

import anyio.to_thread
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
    ResourceTemplateReference,
)

from mcp_server.errors import RunNotFound, RunwardError
from mcp_server.resources import documents as library
from mcp_server.resources.documents import Document
from mcp_server.tools.context import ServerContext
from mcp_server.views.log_excerpt import tail_lines
from mcp_server.views.run_status import status_of

_MARKDOWN, _JSON = "text/markdown", "application/json"
_LOG_LINES = 200
_MOST_VALUES = 100  # of a completion, says the protocol
_OPTIONAL = "Optional. "
_LONGEST_ARGUMENT = 20_000  # a prompt is read as a whole
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def register(server: MCPServer[ServerContext], context: ServerContext) -> None:
    """Give ``server`` its resources, its prompts, and its one completion handler."""
    for document in library.documents("prompts").values():
        if uri := document.facts.get("uri"):
            server.add_resource(_file(uri, document))
        if "arguments" in document.tables:
            server.add_prompt(_prompt(document, context))
    for document in library.documents("agents").values():
        server.add_resource(_file(f"agent://{document.name}", document))
    _templates(server, context)
    _completions(server, context)


# --- resources


def _file(uri: str, document: Document) -> FunctionResource:
    title = document.facts.get("title", document.name)
    # An agent's description is an essay for its caller; a list has room for its first sentence.
    description = document.description.partition("\n")[0]
    return FunctionResource(
        uri=uri, name=document.name, title=title, description=description, mime_type=_MARKDOWN, fn=lambda: document.text
    )


def _templates(server: MCPServer[ServerContext], context: ServerContext) -> None:
    @server.resource(
        "agent://{name}", title="Agent", description="How an agent of this name works", mime_type=_MARKDOWN
    )
    def agent(name: str) -> str:
        return _named(library.documents("agents"), name, "agent").text

    @server.resource("guide://{name}", title="Guide", description="How something is done here", mime_type=_MARKDOWN)
    def guide(name: str) -> str:
        return _named(_guides(), name, "guide").text

    @server.resource("run://{run_id}", title="Run", description="How a run fares: its RunStatus", mime_type=_JSON)
    def run(run_id: str) -> str:
        return _told(lambda: status_of(context.store, context.store.observe(run_id)).model_dump_json())

    @server.resource("run://{run_id}/log", title="Log of a run", description="Newest part of its output, at most 8 KB")
    def log(run_id: str) -> str:
        def newest() -> str:
            path = context.store.rundir(run_id).log(context.store.observe(run_id).attempt)
            return tail_lines(path, _LOG_LINES, label=f"run {run_id}").text

        return _told(newest)

    @server.resource("sweep://{name}", title="Sweep", description="Plan and results of a sweep", mime_type=_JSON)
    def sweep(name: str) -> str:
        raise ResourceNotFoundError(
            f"Sweep not found: {name[:80]!r}. The runs of a sweep carry its name: call list_runs(name=...) for them. "
            "guide://sweep tells how one is run."
        )


def _guides() -> dict[str, Document]:
    found = library.documents("prompts").values()
    return {uri.removeprefix("guide://"): d for d in found if (uri := d.facts.get("uri", "")).startswith("guide://")}


def _named(documents: dict[str, Document], name: str, noun: str) -> Document:
    """Return the document of this name.

    Raises:
        ResourceNotFoundError: there is none; names those that come near, else all.
    """
    if (document := documents.get(name)) is not None:
        return document
    near = ", ".join(difflib.get_close_matches(name, documents, n=2, cutoff=0.6) or sorted(documents))
    raise ResourceNotFoundError(f"{noun.capitalize()} not found: {name[:80]!r}. There is {near or 'none here'}.")


def _told(answer: Callable[[], str]) -> str:
    """Return the answer; what runward refuses reaches the reader word for word.

    Raises:
        ResourceNotFoundError: there is no such run.
        ResourceError: it could not be read.
    """
    try:
        return answer()
    except RunNotFound as error:
        raise ResourceNotFoundError(str(error)) from error
    except (RunwardError, OSError) as error:
        raise ResourceError(str(error)) from error


# --- prompts


def _prompt(document: Document, context: ServerContext) -> Prompt:
    asked = document.tables["arguments"]
    arguments = [
        PromptArgument(name=name, description=text, required=not text.startswith(_OPTIONAL))
        for name, text in asked.items()
    ]
    return Prompt(
        name=document.name,
        title=document.facts.get("title"),
        description=document.description,
        arguments=arguments,
        fn=partial(_render, document, context),
        context_kwarg=None,
    )


def _render(document: Document, context: ServerContext, /, **given: str) -> str:
    """Return a prompt's text with what was given in its places.

    Raises:
        MCPError: an argument does not exist, says nothing or too much, or names a run that does not exist.
    """
    asked = document.tables["arguments"]
    if unknown := given.keys() - asked.keys():
        raise MCPError(INVALID_PARAMS, f"{document.name} has no argument {', '.join(sorted(unknown))[:200]}.")
    for name, text in asked.items():
        if not text.startswith(_OPTIONAL) and not given[name].strip():
            raise MCPError(INVALID_PARAMS, f"{document.name} needs {name}: {text}.")
        if len(given.get(name, "")) > _LONGEST_ARGUMENT:
            raise MCPError(INVALID_PARAMS, f"{name} is longer than {_LONGEST_ARGUMENT:,} characters: name a file.")
    if run_id := given.get("run_id"):
        try:
            context.store.rundir(run_id)
        except RunNotFound as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
    listed = "\n".join(_item(name, value) for name, value in given.items() if value.strip())

    # One pass, so that what a value holds is never taken for a place.
    def fill(place: re.Match[str]) -> str:
        word = place[1]
        if word == "arguments":
            return listed
        return _in_line(given[word]) if word in given else library.documents("prompts")[word].text.strip()

    return _PLACE.sub(fill, document.text)


def _item(name: str, value: str) -> str:
    """Return an argument as an item of a list; several lines are quoted."""
    lines = [_CONTROL.sub("", line) for line in value.strip().splitlines()]
    return f"- {name}: {lines[0]}" if len(lines) == 1 else "\n".join([f"- {name}:", *(f"  > {line}" for line in lines)])


def _in_line(value: str) -> str:
    """Return an argument as it may stand between double quotes in a line of code, escaped as JSON is."""
    return json.dumps(value.strip(), ensure_ascii=False)[1:-1].replace("`", "\\u0060")


# --- completion


def _completions(server: MCPServer[ServerContext], context: ServerContext) -> None:
    def run_ids() -> list[str]:
        return [run.run_id for run in context.store.runs()]

    def nothing() -> list[str]:
        return []

    # By what is completed: a template's variable, or an argument of any prompt.
    known: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
        ("agent://{name}", "name"): lambda: library.documents("agents"),
        ("guide://{name}", "name"): _guides,
        ("run://{run_id}", "run_id"): run_ids,
        ("run://{run_id}/log", "run_id"): run_ids,
        ("prompt", "run_id"): run_ids,
    }

    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator]  # the SDK's decorator has no types
    async def complete(
        reference: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        _: CompletionContext | None,
    ) -> Completion:
        place = reference.uri if isinstance(reference, ResourceTemplateReference) else "prompt"
        values = await anyio.to_thread.run_sync(known.get((place, argument.name), nothing))
        found = [value for value in values if argument.value in value]
        return Completion(values=found[:_MOST_VALUES], total=len(found), has_more=len(found) > _MOST_VALUES)
