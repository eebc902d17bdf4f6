"""compare_runs: several runs in one table."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from mcp_server.errors import BadArgument
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.results.compare import build_comparison
from mcp_server.results.outcome_answers import Comparison
from mcp_server.results.run_differences import describe_run_differences
from mcp_server.runs.wait.selection import LIVE, TAG, select
from mcp_server.sweeps.tables.comparison import compare_sweeps
from mcp_server.text.formatting import estimate_tokens, shorten_middle
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, ServerContext, server_of
from mcp_server.tools.support.schema import READ_ONLY, tool

_DIFF_TOKENS, _SHORT_LINE = 600, 100


async def compare_runs(
    ctx: Call,
    run_ids: Annotated[list[str] | None, Field(description="Run ids or names")] = None,
    tags: Annotated[list[str] | None, Field(description="All runs that were launched with all of these")] = None,
    sweep: Annotated[
        str | list[str] | None, Field(description="A sweep instead, or several: settings ranked, seeds grouped")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        Field(description="Scalar names or globs, best:TAG, mean10%:TAG, TAG@STEP, first:TAG<X. None: the main ones"),
    ] = None,
    markdown: Annotated[bool, Field(description="A markdown table for people")] = False,
    diff: Annotated[bool, Field(description="All that differs between two runs: code, packages, data too")] = False,
) -> Comparison:
    """Compare runs in one table.

    Shows settings that differ, state, steps, time, metrics (last/best), evaluations, newest checkpoint.
    """
    server = server_of(ctx)
    if sweep is not None:
        if run_ids or tags:
            raise BadArgument("sweep", "stands alone: leave run_ids and tags out.", "Nothing was compared.")
        names = [sweep] if isinstance(sweep, str) else sweep
        return await run_in_thread(_compare_sweeps, server, names, metrics or (), markdown)
    answer = await run_in_thread(_compare_runs, server, run_ids or (), tags or (), metrics or (), markdown)
    if diff:
        lines = await run_in_thread(_find_differences, server, run_ids or ())
        answer = answer.model_copy(update={"diff": lines})
    return answer


def _find_differences(server: ServerContext, run_ids: Sequence[str]) -> list[str]:
    runs = server.store.resolve(run_ids)
    if len(runs) != 2:  # noqa: PLR2004 - a difference
        raise BadArgument("diff", f"is of two runs, and run_ids names {len(runs)}.", "Name two.")
    lines = describe_run_differences(server.store, server.scalars, *runs, environ=server.environ)
    while len(lines) > 1 and estimate_tokens("\n".join(lines)) > _DIFF_TOKENS:
        longest = max(lines, key=len)
        lines = [shorten_middle(line, max(80, len(longest) // 2)) if line is longest else line for line in lines]
        if len(longest) <= _SHORT_LINE:
            return [*lines[: len(lines) // 2], f"{len(lines) - len(lines) // 2} more lines."]
    return lines


def _compare_runs(
    server: ServerContext, words: Sequence[str], tags: Sequence[str], metrics: Sequence[str], as_markdown: bool
) -> Comparison:
    """Compare the runs that ``words`` mean, as wait_run takes them; where all are sweeps, by settings."""
    run_ids: list[str] = []
    for word in words:
        is_group = word == LIVE or word.startswith(TAG)
        run_ids += [run.run_id for run in select(server.store, [word])[1]] if is_group else [word]
    is_named = bool(words) and list(words) == run_ids and not tags
    if is_named and all(isinstance(server.store.find_any(word), Sweep) for word in words):
        return _compare_sweeps(server, run_ids, metrics, as_markdown)
    chosen = {"run_ids": run_ids, "tags": tags, "metrics": metrics}
    return build_comparison(server.store, server.scalars, **chosen, as_markdown=as_markdown)


def _compare_sweeps(
    server: ServerContext, names: Sequence[str], metrics: Sequence[str], as_markdown: bool
) -> Comparison:
    found = {sweep.sweep_id: sweep for sweep in map(server.store.sweeps.find, names)}
    if not found:
        raise BadArgument("sweep", "names no sweep.")
    return compare_sweeps(list(found.values()), server.store, server.scalars, metrics, as_markdown=as_markdown)


TOOL = tool(
    compare_runs,
    title="Compare runs",
    annotations=READ_ONLY,
    search_hint="compare experiments, table of results, ablation, best hyperparameters, evaluation, checkpoints",
)
