"""read_tb: what a training's scalars say."""

import base64
import json
from typing import Annotated

import anyio.to_thread
from mcp.types import CallToolResult, ImageContent, TextContent
from pydantic import Field

from mcp_server.errors import BadArgument
from mcp_server.scalars.plot import NotDrawn, picture
from mcp_server.tools.context import Call, server_of
from mcp_server.tools.schema import READ_ONLY, tool
from mcp_server.views.scalar_report import ReportWithPanels, ScalarQuery, ScalarReport, build_report


async def read_tb(
    ctx: Call,
    logdir: Annotated[
        str | None, Field(description="Absolute path of logs, a file, or many runs (…/latest: the newest)")
    ] = None,
    run_id: Annotated[str | None, Field(description="A launched run, or latest (default)")] = None,
    tags: Annotated[
        str | list[str] | None, Field(description="Names or globs. Up to 4 are told in full. None: overview")
    ] = None,
    points: Annotated[
        int | None, Field(ge=0, le=1000, description="Points per tag, extremes kept. Default 20 when told in full")
    ] = None,
    since_step: int | None = None,
    smooth: Annotated[float, Field(ge=0, lt=1, description="EMA weight")] = 0.6,
    compare: Annotated[list[str] | None, Field(description="run_ids or paths, side by side")] = None,
    plot: Annotated[bool, Field(description="Add a PNG")] = False,
) -> Annotated[CallToolResult, ScalarReport]:
    """Read training curves: TensorBoard event files, CSV, JSON lines, wandb, MLflow, Trackio.

    Use it instead of parsing logs. A line is: tag, last value, slope per 1,000 steps over the last tenth
    (~ flat), min, max (@step), shape over all steps (0 low to 9 high, x NaN/Inf, . none).
    """
    server = server_of(ctx)
    if logdir is not None and run_id is not None:
        raise BadArgument("run_id", "give either it or logdir; to see both use compare.")
    if logdir is not None and "/" not in logdir and not logdir.startswith("~") and logdir != "latest":
        raise BadArgument("logdir", f"is not absolute: {logdir!r}; a run goes into run_id.")
    query = ScalarQuery(
        target=logdir or run_id,
        tags=(tags,) if isinstance(tags, str) else tuple(tags or ()),
        points=points,
        since_step=since_step,
        smooth=smooth,
        compare=tuple(compare or ()),
        plot=plot,
    )
    found = await anyio.to_thread.run_sync(build_report, query, server.scalars, server.store)
    return await _result(found)


TOOL = tool(read_tb, title="Read training curves", annotations=READ_ONLY)


async def _result(found: ReportWithPanels) -> CallToolResult:
    """Return the answer, with its picture where one was query for; that none came is a note in it."""
    answer, images = found.answer, []
    if found.panels:
        try:
            png = await anyio.to_thread.run_sync(picture, found.panels)
            images.append(ImageContent(type="image", data=base64.b64encode(png).decode(), mime_type="image/png"))
        except NotDrawn as error:
            answer = answer.model_copy(update={"notes": [*(answer.notes or ()), f"No picture: {error}."]})
    facts = answer.model_dump(mode="json")
    return CallToolResult(
        content=[TextContent(type="text", text=json.dumps(facts, ensure_ascii=False)), *images],
        structured_content=facts,
    )
