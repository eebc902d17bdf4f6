"""How a function becomes a tool: its input schema, its errors and its answers."""

import inspect
import json
import os.path
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError

from mcp_server.errors import BadArgument, RunwardError
from mcp_server.store.run_store import RunStore
from mcp_server.text.formatting import shorten_quotes
from mcp_server.text.invisible import escape_unsendable
from mcp_server.threads import run_in_thread, use_threads_of
from mcp_server.tools.support.context import ServerContext, caller, opening_call, server_of

_PACKAGE = str(Path(__file__).parents[2])
_PART_CHARS = 3_000  # of what went wrong, and of what to do: the language of recovery tables has 1,400

# In the place of a problem pydantic names the member of a union, too: ``dict[str,int]``.
_UNION_MEMBER = re.compile(r"(?:str|int|float|bool)$|(?:dict|list|union|nullable|constrained|function|literal)[-\[]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as JSON writes it
_EXPECTED = {
    "dict_type": "an object",
    "list_type": "a list",
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
_GIVEN: dict[type[Any], str] = {list: "a list", dict: "an object"}
_PLAIN: dict[type[Any], str] = {str: "text", int: "a number", float: "a number", bool: "true or false"}

RUNS_APP = "ui://runward/runs"
READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_FILES, _DIRECTORIES = ("path", "blueprint", "params"), ("cwd", "logdir", "result_dir", "tensorboard")
_LOOKS_AT_FILES_OF_RUNS = frozenset({"read_tb", "compare_runs", "finish_blueprint"})
_MOST_CHARS = 500


class RunwardTool(Tool):
    """A tool that refuses unknown arguments, answers an error with its message alone, and writes compact JSON."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Call the function. The message of a RunwardError reaches the model, with what it quotes shortened."""
        name = caller(context)
        if (refusal := _find_uncarriable(arguments)) is not None:
            raise ToolError(refusal)
        server = server_of(context)
        try:
            with (
                opening_call(context, changes=not (self.annotations and self.annotations.read_only_hint)),
                use_threads_of(name, find_directories(self.name, arguments, server.store)),
            ):
                result = await super().run(arguments, context, convert_result)
        except ToolError as error:
            if (parts := _find_message(self.name, error)) is None:
                if error.__cause__ is None:
                    raise
                raise UnexpectedToolError(_describe_fault(self.name, error.__cause__)) from error.__cause__
            with use_threads_of(name):
                # A secret is known by its whole value, so what is quoted is cut behind the masks.
                masked = [await _mask(part, server) for part in parts]
                raise ToolError(" ".join(shorten_quotes(part, _PART_CHARS) for part in masked if part)) from error
        await server.note_told(await server.find_conversation(context))
        return _compact(result) if isinstance(result, CallToolResult) else result

    def make_result(self, answer: Any) -> CallToolResult:
        """Return the result of a call that the function answers with ``answer``."""
        return _compact(cast("CallToolResult", self.fn_metadata.convert_result(answer)))


def _find_uncarriable(arguments: Mapping[str, Any]) -> str | None:
    """Return why a call is refused whose text no file, process or answer could carry, or None."""
    for name, value in arguments.items():
        text = json.dumps(value, ensure_ascii=False, default=str)
        if not text.isascii() and (found := _LONE_SURROGATE.search(text)):
            return str(BadArgument(name, f"holds text that is not Unicode ({escape_unsendable(found[0])})."))
        if "\\u0000" in text and _NUL.search(text):  # a megabyte in 1 ms, not in 100
            return str(BadArgument(name, "holds a NUL character."))
    return None


async def _mask(message: str, server: ServerContext) -> str:
    """Return what a model may read of an error: an argument that it quotes may hold a secret."""
    try:
        return await run_in_thread(server.mask, message)
    except (RuntimeError, MemoryError):  # no thread is left
        return message


def _find_message(tool_name: str, error: ToolError) -> tuple[str, str] | None:
    """Return what the model reads of an error: what went wrong, then the rest. None where it has no own message."""
    cause = error.__cause__
    while isinstance(cause, ExceptionGroup) and len(cause.exceptions) == 1:
        cause = cause.exceptions[0]
    if isinstance(cause, RunwardError):
        return cause.cause, " ".join(filter(None, (cause.state, cause.remedy)))
    if isinstance(cause, ValidationError):
        return _validation_message(tool_name, cause)
    if isinstance(cause, OSError):  # a full disk, a name that is too long
        why = cause.strerror or type(cause).__name__
        return f"{tool_name} was cut off: {why}.", "Runs go on; list_runs names them."
    if isinstance(cause, ImportError):  # modules are imported at their first use
        return (
            f"{tool_name} was cut off: runward's own environment has changed or is gone ({cause}).",
            "Runs go on. A person should start this server anew, from an installation that is whole.",
        )
    if (shortage := _name_shortage(cause)) is not None:
        return f"{tool_name} was cut off: {shortage}.", "Call again in a moment."
    return None


def _describe_fault(tool_name: str, cause: BaseException) -> str:
    """Return what a model reads of an error that nobody foresaw: its place. Its text may quote anything."""
    frames = traceback.extract_tb(cause.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(f"{_PACKAGE}/")]
    place = f" in {own[-1].filename[len(_PACKAGE) + 1 :]}:{own[-1].lineno}" if own else ""
    return (
        f"{tool_name} met a fault of runward itself: {type(cause).__name__}{place}. What it had done before stands, "
        "and runs and sweeps go on: list_runs names them. A person finds the trace in the server's error output."
    )


def _compact(result: CallToolResult) -> CallToolResult:
    if result.structured_content is None:
        return result
    text = json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))
    pictures = [block for block in result.content if block.type == "image"]
    return result.model_copy(update={"content": [TextContent(type="text", text=text), *pictures]})


def _name_shortage(cause: BaseException | None) -> str | None:
    """Return what the server has run out of, as Python's errors say it; None for any other error."""
    if isinstance(cause, MemoryError):
        return "no memory is left for the server"
    if isinstance(cause, RuntimeError) and "start new thread" in str(cause):
        return "no thread can be started (too many processes, or no memory)"
    return None


def tool(
    function: Callable[..., Any],
    *,
    title: str,
    annotations: ToolAnnotations,
    structured: bool | None = None,
    search_hint: str = "",
    always_loaded: bool = False,
    drawn: bool = False,
) -> RunwardTool:
    """Return the tool that calls ``function``. Its docstring is the description that the model reads.

    Claude Code shows a model the names of tools alone, and loads a schema when a search finds the tool.
    ``search_hint``: further words to find it by, which no request holds. ``always_loaded``: it loads the schema
    at once, where the server is ready before the first request.
    ``drawn``: clients that show MCP Apps draw its answer, for their person.
    """
    meta: dict[str, Any] = {"anthropic/alwaysLoad": True} if always_loaded else {}
    meta |= {"anthropic/searchHint": search_hint}
    meta |= {"ui": {"resourceUri": RUNS_APP}} if drawn else {}
    registered = cast(
        "RunwardTool",
        RunwardTool.from_function(
            function,
            title=title,
            annotations=annotations.model_copy(update={"title": title}),  # where clients of older protocols look
            structured_output=structured,
            meta=meta,
        ),
    )
    registered.description = " ".join(registered.description.split())
    model = registered.fn_metadata.arg_model
    model.model_config = {**model.model_config, "extra": "forbid", "coerce_numbers_to_str": True}
    model.model_rebuild(force=True)
    registered.parameters = _shorten_schema(model.model_json_schema(by_alias=True))
    return registered


def list_arguments(
    request: type, forms: Mapping[str, Any], names: Iterable[str] = (), inherited: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each argument that the fields of ``request`` declare, or of ``names``.

    ``forms``: what schemas say more than the types of fields. ``inherited``: describes fields of its base class.
    """
    declared = {each.metadata.get("name", each.name): each for each in fields(request) if each.metadata}
    hints, arguments = get_type_hints(request), {}
    for name in names or declared:
        one = declared[name]
        default = None if one.default in (MISSING, "") else one.default
        kind = forms.get(name, hints[one.name] if default is not None else hints[one.name] | None)
        if not any(getattr(each, "description", None) for each in getattr(kind, "__metadata__", ())):
            text = one.metadata["text"] if one.name in request.__annotations__ else inherited
            kind = Annotated[kind, Field(description=text)]
        arguments[name] = kind, default
    return arguments


def takes(arguments: Mapping[str, tuple[Any, Any]]) -> Callable[[Callable[..., Any]], Any]:
    """Let the schema of a function with ``**arguments`` have these, by type and default."""

    def sign(function: Any) -> Any:
        signature, only = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        *own, _ = signature.parameters.values()
        listed = arguments.items()
        named = [inspect.Parameter(name, only, annotation=kind, default=each) for name, (kind, each) in listed]
        function.__signature__ = signature.replace(parameters=[*own, *named])
        function.__annotations__ = {each.name: each.annotation for each in (*own, *named)}
        function.__annotations__["return"] = signature.return_annotation
        return function

    return sign


def _validation_message(name: str, error: ValidationError) -> tuple[str, str]:
    by_argument: dict[str, dict[str, list[Any]]] = {}
    for problem in error.errors():
        argument, *rest = (str(part) for part in problem["loc"])
        place = ".".join([argument, *(part for part in rest if not _UNION_MEMBER.match(part))])
        by_argument.setdefault(argument, {}).setdefault(place, []).append(problem)
    # Of a value that is of the right type but for one of its parts, only the part is named.
    worst = [max(places.items(), key=lambda item: item[0].count(".")) for places in by_argument.values()]
    text = "; ".join(_describe_problems(place, problems) for place, problems in worst[:5])
    return f"{name} was not called: {text}.", "Nothing was changed; correct that and call it again."


def _describe_problems(place: str, problems: Sequence[Any]) -> str:
    """Return in one clause what is wrong at ``place``, of which pydantic has one problem for each type of a union."""
    first = problems[0]
    if first["type"] == "extra_forbidden":
        return f"{place}: there is no such argument"
    expected = list(dict.fromkeys(_EXPECTED.get(problem["type"], "") for problem in problems))
    words = [problem["ctx"]["expected"] for problem in problems if problem["type"] == "literal_error"]
    if len(problems) > 1 and words:  # each type of a union has words of its own
        return f"{place} takes {' or '.join([*words, *filter(None, expected)])}"
    if not all(expected):
        return f"{place}: {first['msg']}"
    kind = type(first["input"])
    given = _GIVEN.get(kind) or _PLAIN.get(kind, "nothing")  # not the value, which may be a key
    as_text = "; write it as text" if given in _GIVEN.values() and "." in place and "text" in expected else ""
    return f"{place} takes {' or '.join(expected)}, not {given}{as_text}"


def _shorten_schema(schema: Any) -> Any:
    """Return ``schema`` without titles, null and false as default, null as alternative, integers beside numbers."""
    if isinstance(schema, list):
        return [_shorten_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    slim = {
        name: {key: _shorten_schema(value) for key, value in part.items()}
        if name == "properties"
        else _shorten_schema(part)
        for name, part in schema.items()
        if name != "title"
        and not (name == "default" and (part is None or part is False))
        and not (name == "additionalProperties" and part is True)
    }
    options = slim.get("anyOf")
    if isinstance(options, list) and {"type": "number"} in options and {"type": "integer"} in options:
        options = slim["anyOf"] = [option for option in options if option != {"type": "integer"}]
    if isinstance(options, list) and {"type": "null"} in options:
        rest = [option for option in options if option != {"type": "null"}]
        del slim["anyOf"]
        slim = {**rest[0], **slim} if len(rest) == 1 else {"anyOf": rest, **slim}
    return slim


def find_directories(tool_name: str, arguments: Mapping[str, Any], store: RunStore) -> str:
    """Return the directories that a call looks at, as one text; empty where it looks at records of runs alone."""
    return " and ".join(sorted(set(_list_directories(tool_name, arguments, store))))[:_MOST_CHARS]


def _list_directories(tool_name: str, arguments: Mapping[str, Any], store: RunStore) -> Iterator[str]:
    common = arguments.get("common")
    places = {**common, **arguments} if isinstance(common, Mapping) else arguments
    for argument in (*_DIRECTORIES, *_FILES):
        if isinstance(path := places.get(argument), str) and path:
            yield os.path.normpath(Path(path).parent if argument in _FILES else path)
    if tool_name in _LOOKS_AT_FILES_OF_RUNS:
        for argument in ("run_id", "run_ids", "compare"):
            words = arguments.get(argument)
            for word in words if isinstance(words, list) else [words]:  # as sent: of any type
                if isinstance(word, str) and word:
                    yield store.find_known_directory(word) or word
