"""read_tb: the scalars of training runs."""

import base64
import re
import secrets
from datetime import UTC, datetime
from typing import Annotated

from mcp.types import CallToolResult, ImageContent
from pydantic import Field

from mcp_server.errors import BadArgument, StateUnusable
from mcp_server.scalars.curve_answers import ScalarReport
from mcp_server.scalars.picture import NotDrawn, draw_picture
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import write_atomic
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, server_of
from mcp_server.tools.support.schema import READ_ONLY, tool
from mcp_server.views.scalar_report import DrawableReport, ScalarQuery, build_report

_PICTURES, _PICTURE = 50, re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}\.png")


async def read_tb(
    ctx: Call,
    logdir: Annotated[
        str | None, Field(description="Absolute path of logs, a file, or many runs (…/latest: the newest)")
    ] = None,
    run_id: Annotated[str | None, Field(description="A launched run, or latest (default)")] = None,
    tags: Annotated[
        str | list[str] | None,
        Field(description="Names (up to 4 in full), globs, loss@300, mean10%:loss, first:loss<0.3"),
    ] = None,
    points: Annotated[
        int | None, Field(ge=0, le=1000, description="Points per tag, extremes kept. Default 20 in full")
    ] = None,
    since_step: Annotated[int | None, Field(description="Points from this step on")] = None,
    smooth: Annotated[float, Field(ge=0, lt=1, description="EMA weight")] = 0.6,
    compare: Annotated[list[str] | None, Field(description="run_ids or paths")] = None,
    plot: Annotated[bool, Field(description="Add a PNG")] = False,
) -> Annotated[CallToolResult, ScalarReport]:
    """Read training curves: TensorBoard event files, CSV, JSON, wandb, MLflow, Trackio.

    Instead of parsing logs. A line is: tag, last value, slope over the last tenth, or 10 points
    (~ flat, ? unsure), min, max (@step), shape over all steps (0 low to 9 high, x NaN/Inf, . none).
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

    def read() -> DrawableReport:
        paths = [word for word in query.compare if "/" in word or word.startswith("~")]
        server.check_readable(ctx, {"logdir": None if logdir == "latest" else logdir, "compare": paths})
        return build_report(query, server.scalars, server.store)

    return await _result(await run_in_thread(read), server.home)


TOOL = tool(
    read_tb,
    title="Read training curves",
    annotations=READ_ONLY,
    search_hint="loss plot, learning curve, metrics, reward, tensorboard, training loss, wandb, scalars, chart",
)


def _save_picture(home: StateHome, png: bytes) -> str | None:
    """Keep a picture in the state directory, as one of the newest 50, and return its path; None where that fails."""
    directory = home.path / "pictures"
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}.png"
    try:
        home.create()
        directory.mkdir(mode=0o700, exist_ok=True)
        write_atomic(directory / name, png)
        own = (path for path in directory.iterdir() if _PICTURE.fullmatch(path.name))  # others may have some there
        for old in sorted(own)[:-_PICTURES]:
            old.unlink(missing_ok=True)
    except (StateUnusable, OSError):
        return None
    return str(directory / name)


async def _result(report: DrawableReport, home: StateHome) -> CallToolResult:
    """Return the answer and the requested picture. Where drawing failed, a note in the answer says why."""
    answer, images = report.answer, []
    if report.panels:
        try:
            png = await run_in_thread(draw_picture, report.panels)
            images.append(ImageContent(type="image", data=base64.b64encode(png).decode(), mime_type="image/png"))
            # Some clients show a model no picture beside a structured answer.
            answer = answer.model_copy(update={"picture": await run_in_thread(_save_picture, home, png)})
        except NotDrawn as error:
            answer = answer.model_copy(update={"notes": [*(answer.notes or ()), str(error)]})
    return CallToolResult(content=[*images], structured_content=answer.model_dump(mode="json"))
