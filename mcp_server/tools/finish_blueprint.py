"""finish_blueprint: writes the results document and the flag of an ended run."""

from typing import Annotated, Literal

from mcp.types import ToolAnnotations
from pydantic import Field

from mcp_server.results.finish import write_results
from mcp_server.results.outcome_answers import Finished
from mcp_server.sweeps.tables.log import keep_note
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, server_of
from mcp_server.tools.support.schema import tool

_REASON_CHARS = 300
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


async def finish_blueprint(
    ctx: Call,
    run_id: Annotated[str, Field(description="The ended run")],
    summary: Annotated[
        str | None, Field(description="Your conclusions, markdown; what you tried, what came out")
    ] = None,
    verdict: Annotated[
        Literal["keep", "discard", "inconclusive"] | None, Field(description="With the summary's first line as reason")
    ] = None,
    result_dir: Annotated[
        str | None, Field(description="Absolute; default: the blueprint's, else in the run's record")
    ] = None,
    tensorboard: Annotated[str | None, Field(description="This run's event files, if wrong or left out")] = None,
    results: Annotated[
        list[str] | None, Field(description="This run's evaluations and checkpoints: files or directories")
    ] = None,
) -> Finished:
    """Write results.md of an ended run (metrics, evaluations, failure, configuration, code), then finish.flag.

    Call it after the end, also after failure. A second call updates both.
    """
    server = server_of(ctx)

    def write() -> Finished:
        server.check_readable(ctx, {"result_dir": result_dir, "tensorboard": tensorboard, "results": results})
        run = server.store.find(run_id)
        server.check_owner(ctx, run, force=True)  # without a token, write_results() checks the owner
        finished = write_results(
            run,
            server.store,
            server.scalars,
            summary=summary,
            verdict=verdict,
            result_dir=result_dir,
            tensorboard=tensorboard,
            results=results or (),
            caller=server.actor(ctx),
            environ=server.environ,
        )
        if verdict is not None:
            reason = (summary or "").strip().partition("\n")[0][:_REASON_CHARS]
            keep_note(server.store, run, verdict, reason, f"{server.actor(ctx)}, by finish_blueprint", server.environ)
        return finished

    return await run_in_thread(write)


TOOL = tool(
    finish_blueprint,
    title="Write a run's results",
    annotations=_WRITES,
    search_hint="write experiment results, results.md, report, summary",
)
