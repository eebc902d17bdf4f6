"""The addresses of one run or sweep: what is shown of it, and the two changes that a person can make from the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response

from mcp_server.backends.base import backend_of
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.page.board import Board
from mcp_server.page.curves import POINTS, draw_curves, draw_spark, list_tags, read_curves
from mcp_server.page.exchange import NotConfirmed, answer_json, read_form, read_number
from mcp_server.page.run_log import find_in_log, read_log_part
from mcp_server.page.run_view import add_note, describe_details, describe_results
from mcp_server.page.sessions import NotAllowed, Visitor
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.runs.stop.stop_run import describe_dependents, list_dependents, stop_run
from mcp_server.sweeps.conducting import stop_sweep
from mcp_server.threads import run_in_thread, use_threads_for
from mcp_server.tools.support.context import ServerContext

Act = Callable[[Request, Visitor], Awaitable[Response]]
_RESULTS_S = 1.0  # a look through directories that takes longer is left out
_MOST_SPARKS, _SPARKS_S, _SPARKS_AT_ONCE = 60, 3.0, 4
_REASON_CHARS = 500


def list_run_routes(server: ServerContext, board: Board) -> list[tuple[str, Act, str]]:
    """Return addresses, what they do, and by which method."""
    routes = _RunRoutes(server, board)
    return [
        ("/api/runs/{run_id}", routes.describe, "GET"),
        ("/api/runs/{run_id}/log", routes.read_log, "GET"),
        ("/api/runs/{run_id}/scalars", routes.read_scalars, "GET"),
        ("/api/sparks", routes.draw_sparks, "GET"),
        ("/api/runs/{run_id}/kill", routes.stop, "POST"),
        ("/api/sweeps/{run_id}/kill", routes.stop, "POST"),
        ("/api/runs/{run_id}/note", routes.note, "POST"),
        ("/api/sweeps/{run_id}/note", routes.note, "POST"),
    ]


class _RunRoutes:
    def __init__(self, server: ServerContext, board: Board) -> None:
        self._server, self._board = server, board

    async def _find(self, request: Request) -> Run:
        run_id = request.path_params["run_id"]
        return await run_in_thread(self._server.store.observe, run_id)

    async def _ask(self, run: Run, act: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Return what ``act`` reads of a run, in the threads for its directory: a disk may not answer."""
        with use_threads_for(run.spec.cwd):
            return await run_in_thread(act, self._server, run, *arguments, **more)

    # --- what is shown

    async def describe(self, request: Request, visitor: Visitor) -> Response:
        run = await self._find(request)
        row = await self._board.read_row(run.run_id, visitor)
        facts = await self._ask(run, describe_details)
        results: dict[str, Any] = {"later": True}
        with anyio.move_on_after(_RESULTS_S):
            results = await self._ask(run, describe_results, visitor)
        return answer_json({"row": row, **facts, **results})

    async def read_log(self, request: Request, _: Visitor) -> Response:
        run, attempt = await self._find(request), read_number(request, "attempt")
        if (pattern := request.query_params.get("grep")) is not None:
            return answer_json(await self._ask(run, find_in_log, attempt, pattern))
        after, line = read_number(request, "after"), read_number(request, "line")
        return answer_json(await self._ask(run, read_log_part, attempt, after=after, line=line))

    async def read_scalars(self, request: Request, _: Visitor) -> Response:
        run, tags = await self._find(request), request.query_params.getlist("tag")
        low, high = read_number(request, "from"), read_number(request, "to")
        points = read_number(request, "points") or POINTS

        def read(server: ServerContext, run: Run) -> dict[str, Any]:
            reading = read_curves(server, run)
            return draw_curves(run, reading, tags, points, low, high) if tags else list_tags(reading)

        return answer_json(await self._ask(run, read))

    async def draw_sparks(self, request: Request, _: Visitor) -> Response:
        run_ids, tag = request.query_params.getlist("run"), request.query_params.get("tag")
        if len(run_ids) > _MOST_SPARKS:
            raise BadArgument("run", f"at most {_MOST_SPARKS} at once.")
        sparks: dict[str, Any] = dict.fromkeys(run_ids)
        limiter = anyio.CapacityLimiter(_SPARKS_AT_ONCE)

        def draw(server: ServerContext, run: Run) -> dict[str, Any] | None:
            return draw_spark(read_curves(server, run), tag)

        async def add(run_id: str) -> None:
            async with limiter:
                try:
                    run = await run_in_thread(self._server.store.observe, run_id)
                    sparks[run_id] = await self._ask(run, draw)
                except (RunwardError, OSError):
                    return

        with anyio.move_on_after(_SPARKS_S):
            async with anyio.create_task_group() as group:
                for run_id in sparks:
                    group.start_soon(add, run_id)
        return answer_json(sparks)

    # --- what is changed

    async def stop(self, request: Request, visitor: Visitor) -> Response:
        """Stop a run or sweep whose id the person has typed. NotConfirmed: another text."""
        run_id, form = request.path_params["run_id"], await read_form(request)
        run = await run_in_thread(self._server.store.observe_any, run_id)
        visitor.check_control(run)
        if form.get("run_id") != run.run_id:
            state = f"{run.run_id} was left alone, still {run.state}."
            raise NotConfirmed("The text is not its id.", state, f"Type {run.run_id} to stop it.")
        if not visitor.is_person and await run_in_thread(self._server.home.read_kill_policy) == "human":
            state = f"{run.run_id} was left alone, still {run.state}."
            raise NotAllowed("Only a person may stop it.", state, "Open the page by a link: runward dash --as NAME.")
        reason = await self._read_reason(form)
        by = f"{await self._name(visitor)}, on the page"
        text = await self._stop(run, by, reason)
        await self._board.touch(run_id)
        now = await run_in_thread(self._server.store.observe_any, run_id)
        return answer_json({"state": now.state, "text": text})

    async def _stop(self, run: Watched, by: str, reason: str) -> str:
        store, watch = self._server.store, self._server.file_watch
        if isinstance(run, Sweep):
            if run.ended:
                return f"{run.run_id} has ended already: {run.state}."
            stopped = await stop_sweep(
                run, store, watch, self._server.environ, by=by, reason=reason, stopped_by="person"
            )
            count = len(stopped.runs.results)
            return f"{count} runs were stopped. {run.run_id} is {stopped.sweep.state}."
        if run.ended and not await run_in_thread(backend_of(run.spec).find_leftovers, run):
            return f"{run.run_id} has ended already: {run.state}."
        dependents = await run_in_thread(list_dependents, [run], store)
        result = await stop_run(run, store, watch, by=by, reason=reason, stopped_by="person")
        return f"{result.message}{describe_dependents(dependents)}"

    async def note(self, request: Request, visitor: Visitor) -> Response:
        run_id, form = request.path_params["run_id"], await read_form(request)
        run = await run_in_thread(self._server.store.observe_any, run_id)
        visitor.check_control(run)
        directory = await run_in_thread(self._server.store.directory_of, run.run_id)
        note = await run_in_thread(add_note, self._server, directory, form, await self._name(visitor))
        await self._board.touch(run_id)
        return answer_json(note)

    async def _name(self, visitor: Visitor) -> str:
        if visitor.owner is not None:
            return visitor.owner
        return await run_in_thread(self._server.home.owner, self._server.environ)

    async def _read_reason(self, form: Mapping[str, Any]) -> str:
        reason = form.get("reason") or ""
        if not isinstance(reason, str) or len(reason) > _REASON_CHARS:
            raise BadArgument("reason", f"is not a text of at most {_REASON_CHARS} characters.")
        return await run_in_thread(self._server.mask, reason) if reason else ""
