"""preflight: check a machine before a launch."""

from typing import Annotated, Any

from pydantic import Field

from mcp_server.command.shell import parse
from mcp_server.hosts.config import find_mirror
from mcp_server.runs.launch.params_file import name_for_program, read_params_file
from mcp_server.runs.preflight.checks import Preflight, PreflightRequest
from mcp_server.runs.preflight.far_preflight import check_far_host
from mcp_server.runs.preflight.run_preflight import run_preflight
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, server_of
from mcp_server.tools.support.launch_places import list_params_files
from mcp_server.tools.support.schema import READ_ONLY, tool


async def preflight(
    ctx: Call,
    command: Annotated[str | list[str] | None, Field(description="As launch_run's")] = None,
    cwd: Annotated[str | None, Field(description="As launch_run's")] = None,
    python: Annotated[str | None, Field(description="Its interpreter; default: the command's")] = None,
    imports: Annotated[list[str] | None, Field(description="Modules or packages it must have")] = None,
    paths: Annotated[list[str] | None, Field(description="Configs, data, checkpoints")] = None,
    result_dir: Annotated[str | None, Field(description="Where it writes")] = None,
    disk_gb: Annotated[float | None, Field(gt=0, description="To be free there")] = None,
    gpus: Annotated[int | str | list[int | str] | None, Field(description='A count, or "4-7"')] = None,
    require: Annotated[dict[str, float | bool] | None, Field(description="As gpu_check's")] = None,
    ports: Annotated[list[int] | None, Field(description="To be free")] = None,
    ray: Annotated[bool, Field(description="A Ray must answer")] = False,
    secrets: Annotated[list[str] | None, Field(description="Names")] = None,
    blueprint: Annotated[str | None, Field(description="As launch_run's")] = None,
    host: Annotated[str | None, Field(description="As launch_run's")] = None,
    environment: Annotated[str | None, Field(description="As launch_run's")] = None,
    env: Annotated[dict[str, str] | None, Field(description="As launch_run's")] = None,
    params: Annotated[dict[str, Any] | str | None, Field(description="As launch_run's")] = None,
    recovery: Annotated[Any, Field(description="As launch_run's")] = None,
    time_limit_s: Annotated[float | None, Field(description="As launch_run's")] = None,
    queue: Annotated[bool, Field(description="As launch_run's")] = False,
) -> Preflight:
    """Check before launch_run that what a training needs is here; changes nothing, and runs nothing.

    Lists problems, with remedies, what launch_run with these arguments would refuse, what it found (free space,
    sizes, GPUs, Ray), and training processes that run here already.
    """
    arguments = locals()  # the fields of PreflightRequest have the names of these arguments
    server = server_of(ctx)
    own_python = python if python is not None and "/" in python else None
    named = {"cwd": cwd, "blueprint": blueprint, "paths": paths, "result_dir": result_dir, "python": own_python}
    await run_in_thread(server.check_readable, ctx, {**named, "params": list_params_files(params)}, cwd)
    if host is not None and (await run_in_thread(find_mirror, server.home, host)) != "":
        return await check_far_host(PreflightRequest.from_arguments(arguments), server.home, server.environ)
    if isinstance(params, str):
        files, values = await run_in_thread(read_params_file, params, cwd)
        arguments["params"] = name_for_program(values, files, parse(command or "").words)
    return await run_preflight(PreflightRequest.from_arguments(arguments), server.store, server.environ)


TOOL = tool(
    preflight,
    title="Preflight",
    annotations=READ_ONLY,
    search_hint="before you train a model: packages, data, disk space, ports, Ray",
)
