"""find_runs: what was tried before, by words and conditions over all runs."""

import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mcp_server.answer import Answer
from mcp_server.errors import BadArgument
from mcp_server.results.memory.conditions import Question
from mcp_server.results.memory.question import read_question
from mcp_server.results.memory.searcher import Searcher, list_kinds
from mcp_server.results.memory.vocabulary import Names
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, ServerContext, identity, server_of
from mcp_server.tools.support.schema import READ_ONLY, tool

_TOKENS = 360  # of the lines
_LONGEST = 1000  # characters of a query


class FoundRuns(Answer):
    """Runs for which all parts of the query hold, the best or newest first: state, launch, figures | why it was found.

    ``total`` counts all that match. ``ranked``: the metric by which they stand. ``notes`` say what limits the answer.
    """

    runs: list[str]
    total: int
    ranked: str | None = None
    notes: list[str] | None = None


async def find_runs(
    ctx: Call,
    query: Annotated[
        str,
        Field(
            description="Words and conditions that all hold: lr>1e-3 num_envs=4096 cube, best:Train/mean_reward, "
            "failed:oom_gpu, since:7d or last night, project:., tag:, commit:, why:"
        ),
    ],
    limit: Annotated[int, Field(ge=1, le=100, description="At most so many")] = 10,
) -> FoundRuns:
    """Search all former runs by settings, command, outcome, metric and time: what was tried, and which was best."""
    if not query.strip() or len(query) > _LONGEST:
        raise BadArgument("query", f"has between 1 and {_LONGEST} characters.")
    name = identity(ctx)

    def read(names: Names) -> Question:
        question = read_question(query, datetime.now().astimezone(), list_kinds(), names)
        return question.of_owner(name) if name is not None else question

    return await run_in_thread(_find, server_of(ctx), read, limit)


def _find(server: ServerContext, read: Callable[[Names], Question], limit: int) -> FoundRuns:
    try:
        found = Searcher(server.store, server.scalars, str(Path.cwd())).find(read, limit, _TOKENS * max(1, limit / 10))
    except sqlite3.Error as error:
        raise BadArgument("query", f"the index of runs cannot be read now ({error}).", "Call again.") from error
    return FoundRuns(
        runs=list(found.lines), total=found.total, ranked=found.ranked or None, notes=list(found.notes) or None
    )


TOOL = tool(
    find_runs,
    title="Find former runs",
    annotations=READ_ONLY,
    search_hint="search experiments, history, what was tried before, best run ever, hyperparameters, lab notebook",
)
