"""preflight: whether what a training needs is here."""

from typing import Annotated

from pydantic import Field

from mcp_server.runs.preflight.answers import Preflight
from mcp_server.tools.context import Call, server_of
from mcp_server.tools.schema import READ_ONLY, tool


async def preflight(
    ctx: Call,
    command: str | None = None,
    cwd: str | None = None,
    python: str | None = None,
    imports: Annotated[list[str] | None, Field(description="Modules it must import")] = None,
    paths: Annotated[list[str] | None, Field(description="Configs, data, checkpoints")] = None,
    result_dir: str | None = None,
    disk_gb: Annotated[float | None, Field(gt=0, description="To be free there")] = None,
    gpus: Annotated[int | str | None, Field(description='A count, or "4-7"')] = None,
    require: Annotated[dict[str, float | bool] | None, Field(description="As gpu_check's")] = None,
    ports: Annotated[list[int] | None, Field(description="To be free")] = None,
    ray: Annotated[bool, Field(description="RAY_ADDRESS must answer")] = False,
    secrets: Annotated[list[str] | None, Field(description="Names")] = None,
    blueprint: str | None = None,
    host: str | None = None,
    environment: str | None = None,
) -> Preflight:
    """Check before launch_run that what a training needs is here; changes nothing.

    Tells only what is wrong, with remedies, and who trains here already.
    """
    server = server_of(ctx)
    from mcp_server.runs.preflight.checks import Wish  # noqa: PLC0415 - as answers.py says
    from mcp_server.runs.preflight.preflight import preflight  # noqa: PLC0415

    wish = Wish(
        python=python,
        imports=imports or [],
        paths=paths or [],
        command=command,
        cwd=cwd,
        result_dir=result_dir,
        gpus=gpus,
        require=require,
        ports=ports or [],
        disk_gb=disk_gb,
        ray=ray,
        secrets=secrets or [],
        host=host,
        environment=environment,
    )
    return await preflight(wish, server.store, server.environ, blueprint)


TOOL = tool(preflight, title="Preflight", annotations=READ_ONLY)
