"""MCP resources and prompts: the files of prompts/ and agents/, and the runs; prompts as skills (``SKILL.md``).

A file of ``prompts/`` with a ``uri`` in its front matter is a resource, one with ``arguments`` is a prompt. In a
prompt, ``{{name}}`` is replaced by an argument or by another file's text, and ``{{arguments}}`` by a list of all given
arguments. An argument cannot end its own line or its quotes.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from mcp.server import MCPServer
from mcp.server.extension import Extension
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

from mcp_server.errors import RunNotFound
from mcp_server.record.state import Run
from mcp_server.resources.documents import JSON, MARKDOWN, Document, read_documents
from mcp_server.text.formatting import printable
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import ServerContext

_NEWEST_RUNS, _MOST_RECIPES = 10, 50
_MAX_COMPLETIONS = 100  # limit of the protocol
_OPTIONAL = "Optional. "
_MAX_ARGUMENT_CHARS = 20_000  # the whole prompt is read at once
_SLOT = re.compile(r"\{\{(\w+)\}\}")


class Apps(Extension):
    """MCP Apps, whose resource is added with the others."""

    identifier = "io.modelcontextprotocol/ui"


class ResourceServer(MCPServer[ServerContext]):
    """An MCP server with resources, prompts and completions, added at first use: it starts without a YAML parser."""

    def __init__(self, name: str, context: ServerContext, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._context = context
        self._has_documents = False
        _add_completions(self, context)

    async def list_resources(self) -> Any:
        """List documents and agent files, the project's blueprints, and the newest runs: a person names them with @."""
        self._add_documents()
        recipes = await run_in_thread(_load_templates().find_project_blueprints, Path.cwd())
        runs = await run_in_thread(self._context.store.list_runs)
        listed = [_list_recipe(name, path) for name, path in list(recipes.items())[:_MOST_RECIPES]]
        return [*await super().list_resources(), *listed, *map(_list_run, runs[:_NEWEST_RUNS])]

    async def list_resource_templates(self) -> Any:
        """List the resources with a name in their URI."""
        self._add_documents()
        return await super().list_resource_templates()

    async def read_resource(self, *arguments: Any, **more: Any) -> Any:
        """Read a document, a run's status or log, or a sweep: its log, or as JSON the runs with a tag."""
        self._add_documents()
        contents = await super().read_resource(*arguments, **more)
        if arguments and str(arguments[0]).startswith("sweep://") and isinstance(contents, list):
            return [replace(each, mime_type=JSON) if str(each.content).startswith("{") else each for each in contents]
        return contents

    async def list_prompts(self) -> Any:
        """List prompts with their arguments."""
        self._add_documents()
        return await super().list_prompts()

    async def get_prompt(self, *arguments: Any, **more: Any) -> Any:
        """Render a prompt, and refuse a wrong request with the reason, which the SDK would only log."""
        self._add_documents()
        try:
            return await super().get_prompt(*arguments, **more)
        except ValueError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error

    def _add_documents(self) -> None:
        if self._has_documents:
            return
        self._has_documents = True
        _load_templates().add_templates(self, self._context)
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
        uri=uri, name=document.name, title=title, description=description, mime_type=MARKDOWN, fn=lambda: document.text
    )


def _list_recipe(name: str, path: Path) -> Resource:
    text = f"A blueprint of this project: launch_run(blueprint={str(path)!r})"
    return Resource(uri=f"blueprint://{quote(name)}", name=name, title=name, description=text, mime_type=MARKDOWN)


def _list_run(run: Run) -> Resource:
    text = f"{run.state}, of {run.spec.owner}, started {run.spec.created_at}"
    return Resource(uri=f"run://{run.run_id}", name=run.run_id, title=run.spec.name, description=text, mime_type=JSON)


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
    """Return a prompt's text with its slots filled. MCPError: an argument is missing, unknown or too long."""
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
        if word not in values:
            return read_documents("prompts")[word].text.strip()
        # For use between double quotes in a line of code.
        return json.dumps(values[word].strip(), ensure_ascii=False)[1:-1].replace("`", "\\u0060")

    return _SLOT.sub(fill_slot, document.text)


def _list_item(name: str, value: str) -> str:
    """Return an argument as an item of a list, several lines as a block quote."""
    lines = [printable(line, "", keep="\t\xa0\u3000") for line in value.strip().splitlines()]
    return f"- {name}: {lines[0]}" if len(lines) == 1 else "\n".join([f"- {name}:", *(f"  > {line}" for line in lines)])


# --- completion


def _load_templates() -> ModuleType:
    from mcp_server.resources import templates  # noqa: PLC0415 - 23 ms of a server's start

    return templates


def _add_completions(server: MCPServer[ServerContext], context: ServerContext) -> None:
    def list_run_ids() -> list[str]:
        return context.store.list_ids()

    def list_nothing() -> list[str]:
        return []

    # Keys: the URI of a template, or "prompt" for any prompt, and the name of a variable or argument.
    sources: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
        ("agent://{name}", "name"): lambda: read_documents("agents"),
        ("blueprint://{name}", "name"): lambda: _load_templates().list_blueprints(context),
        ("guide://{name}", "name"): lambda: _load_templates().read_guides(),
        ("run://{run_id}", "run_id"): list_run_ids,
        ("run://{run_id}/log", "run_id"): list_run_ids,
        ("run://{run_id}/diff/{other}", "run_id"): list_run_ids,
        ("run://{run_id}/diff/{other}", "other"): list_run_ids,
        ("prompt", "run_id"): list_run_ids,
        ("sweep://{name}", "name"): lambda: _load_templates().list_sweep_names(context),
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


def render_skills() -> dict[str, str]:
    """Return the text of each skill by its name."""
    skills = {}
    for document in read_documents("prompts").values():
        if "arguments" not in document.tables:
            continue
        name = f"runward-{document.name.replace('_', '-')}"
        arguments = document.tables["arguments"]
        slots = {argument: argument.upper() for argument in arguments}
        answers = [f"{slots[argument]} is what your user wrote: {text}." for argument, text in arguments.items()]
        front = f"---\nname: {name}\ndescription: {json.dumps(document.description)}\n---\n"
        body = fill_slots(document, slots).strip()
        skills[name] = front + "\n".join([*answers, "", body]) + "\n"
    return skills
