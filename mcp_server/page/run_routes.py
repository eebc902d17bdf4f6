"""The addresses of one run or sweep: what is shown of it, and the two changes that a person can make from the page."""

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response

from mcp_server.backends.base import backend_of
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.page import curves
from mcp_server.page.board import Board
from mcp_server.page.exchange import NotConfirmed, answer_json, read_form, read_number
from mcp_server.page.run_view import describe_details, describe_results, find_in_log, read_log_part
from mcp_server.page.sessions import NotAllowed, Visitor
from mcp_server.record.results.notes import NOTES, read_notes
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.results.far_results import name_there, show_far_files
from mcp_server.results.pictures import Picture, find_event_images, find_pictures
from mcp_server.runs.stop.stop_run import describe_dependents, list_dependents, stop_run
from mcp_server.store.attribution.attribution import describe_uncertain
from mcp_server.sweeps.conducting import stop_sweep
from mcp_server.sweeps.tables.log import keep_note
from mcp_server.sweeps.tables.trial_table import find_trial, read_diff
from mcp_server.text.formatting import counted, format_posix
from mcp_server.text.secret_patterns import mask_source
from mcp_server.threads import run_in_thread, use_threads_for
from mcp_server.tools.support.context import ServerContext
from mcp_server.views.machine_report import Machines, read_usage_curves

Act = Callable[[Request, Visitor], Awaitable[Response]]
_MOST_SPARKS, _SPARKS_S, _SPARKS_AT_ONCE = 60, 3.0, 4
_REASON_CHARS = 500
_KEEP_S, _MOST_KEPT = 10.0, 20  # lists of pictures
_LARGEST_PART, _LARGEST_WHOLE = 8 << 20, 32 << 20
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})")
_PICTURE_TYPES = {**{kind: f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp")}, "mp4": "video/mp4"}


def list_run_routes(server: ServerContext, board: Board) -> list[tuple[str, Act, str]]:
    """Return addresses, what they do, and by which method."""
    routes = _RunRoutes(server, board)
    return [
        ("/api/runs/{run_id}", routes.describe, "GET"),
        ("/api/runs/{run_id}/results", routes.describe_results, "GET"),
        ("/api/runs/{run_id}/log", routes.read_log, "GET"),
        ("/api/runs/{run_id}/scalars", routes.read_scalars, "GET"),
        ("/api/runs/{run_id}/files", routes.list_files, "GET"),
        ("/api/runs/{run_id}/file/{key}", routes.send_picture, "GET"),
        ("/api/runs/{run_id}/gpus", routes.read_usage, "GET"),
        ("/api/runs/{run_id}/diff", routes.show_diff, "GET"),
        ("/api/sparks", routes.draw_sparks, "GET"),
        ("/api/compare", routes.compare, "GET"),
        ("/api/sweeps/{run_id}", routes.describe_sweep, "GET"),
        ("/api/sweeps/{run_id}/trials/{trial}", routes.show_trial, "GET"),
        ("/api/gpus", routes.describe_machines, "GET"),
        ("/api/runs/{run_id}/kill", routes.stop, "POST"),
        ("/api/sweeps/{run_id}/kill", routes.stop, "POST"),
        ("/api/runs/{run_id}/note", routes.note, "POST"),
        ("/api/sweeps/{run_id}/note", routes.note, "POST"),
    ]


class _RunRoutes:
    def __init__(self, server: ServerContext, board: Board) -> None:
        self._server, self._board, self._machines = server, board, Machines(server.store, server.environ)
        self._asking = anyio.Lock()  # the GPUs: several pages share one answer
        self._pictures: dict[str, tuple[float, list[Picture], str | None]] = {}

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
        return answer_json({"row": row, **await self._ask(run, describe_details)})

    async def describe_results(self, request: Request, visitor: Visitor) -> Response:
        return answer_json(await self._ask(await self._find(request), describe_results, visitor))

    async def read_log(self, request: Request, _: Visitor) -> Response:
        run, attempt = await self._find(request), read_number(request, "attempt")
        if (pattern := request.query_params.get("grep")) is not None:
            return answer_json(await self._ask(run, find_in_log, attempt, pattern))
        after, line = read_number(request, "after"), read_number(request, "line")
        return answer_json(await self._ask(run, read_log_part, attempt, after=after, line=line))

    async def read_scalars(self, request: Request, _: Visitor) -> Response:
        run, tags = await self._find(request), request.query_params.getlist("tag")
        low, high = read_number(request, "from"), read_number(request, "to")
        points = read_number(request, "points") or curves.POINTS

        def read(server: ServerContext, run: Run) -> dict[str, Any]:
            reading = curves.read_curves(server, run)
            return curves.draw_curves(run, reading, tags, points, low, high) if tags else curves.list_tags(run, reading)

        return answer_json(await self._ask(run, read))

    async def draw_sparks(self, request: Request, _: Visitor) -> Response:
        run_ids, tag = request.query_params.getlist("run"), request.query_params.get("tag")
        if len(run_ids) > _MOST_SPARKS:
            raise BadArgument("run", f"at most {_MOST_SPARKS} at once.")
        sparks: dict[str, Any] = dict.fromkeys(run_ids)
        limiter = anyio.CapacityLimiter(_SPARKS_AT_ONCE)

        def draw(server: ServerContext, run: Run) -> dict[str, Any] | None:
            return curves.draw_spark(run, curves.read_curves(server, run), tag)

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

    async def list_files(self, request: Request, visitor: Visitor) -> Response:
        run = await self._find(request)
        visitor.check_files(run.spec.owner)
        found, left_out = await self._ask(run, self._find_pictures)
        base = f"/api/runs/{run.run_id}/file/"
        shown = [
            {"name": one.tag or one.path.name, "url": base + one.key, "kind": one.kind, "size": one.size_bytes}
            | {"at": format_posix(one.changed_s), "step": one.step, "tag": one.tag or None}
            for one in found
        ]
        return answer_json(
            {"pictures": [one for one in shown if not one["tag"]], "images": [one for one in shown if one["tag"]]}
            | ({"note": left_out} if left_out else {})
        )

    async def send_picture(self, request: Request, visitor: Visitor) -> Response:
        run = await self._find(request)
        visitor.check_files(run.spec.owner)
        key = request.path_params["key"]
        pictures, _ = await self._ask(run, self._find_pictures, _KEEP_S)
        found = next((one for one in pictures if one.key == key), None)
        if found is None:
            return answer_json({"error": {"cause": "No such picture of this run.", "state": "", "remedy": ""}}, 404)
        start, end, status = _read_range(request.headers.get("range"), found.size_bytes)
        if end - start > _LARGEST_WHOLE:
            raise BadArgument("range", "is needed for a file as large as this one.")
        try:
            data = await self._ask(run, lambda *_: found.read(start, end - start))
        except OSError:
            self._pictures.pop(run.run_id, None)
            return answer_json({"error": {"cause": "It was replaced.", "state": "", "remedy": "Look again."}}, 404)
        headers = {"content-type": _PICTURE_TYPES[found.kind], "accept-ranges": "bytes"}
        headers |= {"content-disposition": "inline"}
        if status == HTTPStatus.PARTIAL_CONTENT:
            headers["content-range"] = f"bytes {start}-{start + len(data) - 1}/{found.size_bytes}"
        return Response(data, status, headers)

    def _find_pictures(self, server: ServerContext, run: Run, keep_s: float = 0.0) -> tuple[list[Picture], str | None]:
        """Return the pictures of a run, and which are left out because they may be another's."""
        at_s, known, left_out = self._pictures.get(run.run_id, (-_KEEP_S, [], None))
        if time.monotonic() - at_s < keep_s:
            return known, left_out
        here, own = run, server.scalars.attribution.of(run)
        if run.spec.mirror:
            here, _ = show_far_files(run, own, pictures=True)
        found = [*find_pictures(here, own), *find_event_images(server.scalars.locate(run).locations)]
        while len(self._pictures) >= _MOST_KEPT:
            self._pictures.pop(next(iter(self._pictures)))
        left_out = describe_uncertain([str(name_there(path, run)) for path in own.uncertain])
        self._pictures[run.run_id] = time.monotonic(), found, left_out
        return found, left_out

    async def read_usage(self, request: Request, _: Visitor) -> Response:
        return answer_json(
            await self._ask(await self._find(request), lambda server, run: read_usage_curves(server.store, run))
        )

    async def show_diff(self, request: Request, visitor: Visitor) -> Response:
        run, name = await self._find(request), request.query_params.get("other")
        other = None if name is None else await run_in_thread(self._server.store.observe, name)
        for one in (run, *([other] if other is not None else [])):
            visitor.check_files(one.spec.owner)
        return answer_json(await self._ask(run, curves.show_code, other))

    async def compare(self, request: Request, _: Visitor) -> Response:
        run_ids = list(dict.fromkeys(request.query_params.getlist("run")))
        curves.check_count(run_ids)
        runs = [await run_in_thread(self._server.store.observe, run_id) for run_id in run_ids]
        with use_threads_for(runs[0].spec.cwd):
            return answer_json(await run_in_thread(curves.compare, self._server, runs))

    async def describe_sweep(self, request: Request, visitor: Visitor) -> Response:
        sweep = await run_in_thread(self._server.store.sweeps.observe, request.path_params["run_id"])
        row = await self._board.read_row(sweep.sweep_id, visitor)
        table = await run_in_thread(curves.describe_sweep_table, self._server.store, sweep)
        notes = await run_in_thread(lambda: read_notes(self._server.store.directory_of(sweep.sweep_id) / NOTES))
        return answer_json({"row": row, **table, "notes": notes})

    async def show_trial(self, request: Request, visitor: Visitor) -> Response:
        """Return the change that a trial of an open sweep makes."""
        sweep = await run_in_thread(self._server.store.sweeps.observe, request.path_params["run_id"])
        visitor.check_files(sweep.spec.owner)
        trial = find_trial(sweep, request.path_params["trial"])
        text = await run_in_thread(read_diff, self._server.store.sweeps.files_of(sweep), trial)
        return answer_json({"text": mask_source(text)})

    async def describe_machines(self, _: Request, __: Visitor) -> Response:
        async with self._asking:
            return answer_json(await run_in_thread(self._machines.describe))

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
            return f"Stopped: {counted(len(stopped.runs.results), 'run')}. {run.run_id} is {stopped.sweep.state}."
        if run.ended and not await run_in_thread(backend_of(run.spec).find_leftovers, run):
            return f"{run.run_id} has ended already: {run.state}."
        dependents = await run_in_thread(list_dependents, [run], store)
        result = await stop_run(run, store, watch, by=by, reason=reason, stopped_by="person")
        return f"{result.message}{describe_dependents(dependents)}"

    async def note(self, request: Request, visitor: Visitor) -> Response:
        run_id, form = request.path_params["run_id"], await read_form(request)
        run = await run_in_thread(self._server.store.observe_any, run_id)
        visitor.check_control(run)
        by, trial = await self._name(visitor), str(form.get("trial") or "")
        if visitor.is_person or not trial:  # a proposer with a token is nobody else here
            by = f"{by}, on the page"
        store, environ, said = self._server.store, self._server.environ, (form.get("verdict"), form.get("text", ""))
        note = await run_in_thread(lambda: keep_note(store, run, *said, by, environ, trial))
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


def _read_range(header: str | None, size: int) -> tuple[int, int, int]:
    """Return the bytes to send, from and up to, and the status; a part is at most 8 MiB long."""
    match = _RANGE.fullmatch(header or "")
    if match is None or int(match[1]) >= size:
        return 0, size, HTTPStatus.OK
    start, last = int(match[1]), int(match[2] or size - 1)
    return start, min(last + 1, size, start + _LARGEST_PART), HTTPStatus.PARTIAL_CONTENT
