"""preflight: check a machine before a launch."""

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from mcp_server.command.shell import parse
from mcp_server.hosts.config import find_mirror
from mcp_server.runs.launch.params_file import name_for_program, read_params_file
from mcp_server.runs.preflight.checks import Preflight, PreflightRequest
from mcp_server.runs.preflight.run_preflight import check_far_host, run_preflight
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, server_of
from mcp_server.tools.support.launch_approval import list_params_files
from mcp_server.tools.support.schema import READ_ONLY, list_arguments, takes, tool

_NAMES = (
    *("command", "cwd", "python", "imports", "paths", "result_dir", "disk_gb", "gpus", "require", "ports", "ray"),
    *("secrets", "blueprint", "host", "environment", "env", "params", "recovery", "time_limit_s", "queue"),
)
_FORMS = {
    "disk_gb": Annotated[float | None, Field(gt=0, description="To be free there")],
    "gpus": Annotated[int | str | list[int | str] | None, Field(description='A count, or "4-7"')],
    "require": Annotated[dict[str, float | bool] | None, Field(description="As gpu_check's")],
    "secrets": Annotated[list[str] | None, Field(description="Names")],
    "params": dict[str, Any] | str | None,
    "recovery": Annotated[
        str | dict[str, Any] | None, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
    ],
}


@takes(list_arguments(PreflightRequest, _FORMS, _NAMES, "As launch_run's"))
async def preflight(ctx: Call, **arguments: Any) -> Preflight:
    """Check before launch_run that what a training needs is here; changes nothing, and runs nothing.

    Lists problems, with remedies, what launch_run with these arguments would refuse, what it found (free space,
    sizes, GPUs, Ray), and training processes that run here already.
    """
    server, params, cwd, host = server_of(ctx), arguments["params"], arguments["cwd"], arguments["host"]
    python = arguments["python"]
    own_python = python if python is not None and "/" in python else None
    named = {name: arguments[name] for name in ("cwd", "blueprint", "paths", "result_dir")} | {"python": own_python}
    await run_in_thread(server.check_readable, ctx, {**named, "params": list_params_files(params)}, cwd)
    if host is not None and (await run_in_thread(find_mirror, server.home, host)) != "":
        return await check_far_host(PreflightRequest.from_arguments(arguments), server.home, server.environ)
    if isinstance(params, str):
        files, values = await run_in_thread(read_params_file, params, cwd)
        arguments["params"] = name_for_program(values, files, parse(arguments["command"] or "").words)
    return await run_preflight(PreflightRequest.from_arguments(arguments), server.store, server.environ)


TOOL = tool(
    preflight,
    title="Preflight",
    annotations=READ_ONLY,
    search_hint="before you train a model: packages, data, disk space, ports, Ray",
)
