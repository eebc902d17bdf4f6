"""finish_blueprint and compare_runs: what a run leaves behind, and several side by side."""

from functools import partial
from typing import Annotated, Any

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import Field

from mcp_server.results.answers import Comparison, Finished
from mcp_server.tools.context import LOOKS, ToolContext, tool

_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


def tools(box: ToolContext) -> list[Tool]:
    """Return the tools for results."""

    async def finish_blueprint(
        ctx: Context[Any, Any],
        run_id: str,
        summary: Annotated[
            str | None, Field(description="Your conclusions, markdown; what you tried, what came out")
        ] = None,
        result_dir: Annotated[str | None, Field(description="Absolute; default: the blueprint's")] = None,
    ) -> Finished:
        """Write results.md of an ended run (metrics, evaluations, failure, configuration, code), then finish.flag.

        Call it after the end, also after failure. Again: brings both up to date.
        """

        def write() -> Finished:
            from mcp_server.results.finish import finish  # noqa: PLC0415 - as answers.py says

            run = box.store.observe(run_id)
            box.check_owner(ctx, run, force=True)  # of those without a token finish() speaks itself
            return finish(
                run,
                box.store,
                box.scalars,
                summary=summary,
                result_dir=result_dir,
                caller=box.actor(ctx),
                environ=box.environ,
            )

        return await anyio.to_thread.run_sync(write)

    async def compare_runs(
        run_ids: list[str] | None = None,
        tags: Annotated[list[str] | None, Field(description="All runs that were launched with all of these")] = None,
        metrics: Annotated[list[str] | None, Field(description="Scalar names or globs. None: the telling ones")] = None,
        markdown: Annotated[bool, Field(description="A markdown table for people")] = False,
    ) -> Comparison:
        """Compare runs in one table.

        Tells settings that differ, state, steps, time, metrics (last/best), evaluations, newest checkpoint.
        """
        from mcp_server.results.compare import compare  # noqa: PLC0415 - as answers.py says

        return await anyio.to_thread.run_sync(
            partial(
                compare,
                box.store,
                box.scalars,
                run_ids=run_ids or (),
                tags=tags or (),
                metrics=metrics or (),
                as_markdown=markdown,
            )
        )

    return [
        tool(finish_blueprint, title="Write a run's results", annotations=_WRITES),
        tool(compare_runs, title="Compare runs", annotations=LOOKS),
    ]
