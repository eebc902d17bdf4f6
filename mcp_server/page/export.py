"""One HTML file with runs or a sweep as the page shows them: it opens anywhere, without a server."""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from mcp_server.page.exchange import to_json
from mcp_server.page.routes import Page
from mcp_server.page.sessions import Visitor
from mcp_server.record.run_directory import now
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.resources.page_document import write_document
from mcp_server.store.tokens import Tokens
from mcp_server.tools.support.context import ServerContext

_MOST_TAGS = 40  # of a run, each with as many points as the page draws
_MOST_PICTURES, _PICTURE_BYTES = 24, 1 << 20  # of a run, the newest
# What the page asks, from what the file holds: a question about some metrics gets those of all that are kept.
_ANSWERS = """
RUNWARD_EXPORT.answer = (path) => {
  const [base, query] = path.split("?"), asked = new URLSearchParams(query), { answers } = RUNWARD_EXPORT
  if (base.endsWith("/scalars") && asked.has("tag")) {
    const kept = answers[base + "/series"]
    return kept && { ...kept, series: kept.series.filter((one) => asked.getAll("tag").includes(one.tag)) }
  }
  return answers[path] || answers[base]
}
"""


class _Reader(Page):
    """The page's own answers, for this process alone."""

    async def find_visitor(self, request: Request) -> Visitor | None:
        """Return the person who exports."""
        del request
        return Visitor(is_person=True)

    async def ask(self, path: str) -> bytes | None:
        """Return the answer to a question of the page, None where it has none."""
        address, _, query = path.partition("?")
        scope = {"type": "http", "method": "GET", "path": address, "query_string": query.encode()}
        scope |= {"headers": [(b"host", b"localhost")], "scheme": "http", "server": ("localhost", 80), "root_path": ""}
        status, body = 0, b""

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status, body
            status = message.get("status", status)
            body += message.get("body", b"")

        await self(scope, receive, send)
        return body if status == 200 else None  # noqa: PLR2004 - of HTTP


async def export_html(server: ServerContext, names: Iterable[str]) -> str:
    """Return a page of these runs and sweeps, by id or name, as one text of HTML. RunNotFound."""
    reader = _Reader(server, Tokens(server.home))
    found = [server.store.find_any(name) for name in dict.fromkeys(names)]
    answers: dict[str, Any] = {"/me": {"owner": None, "person": False}}
    rows: dict[str, list[Any]] = {"runs": [], "sweeps": []}

    async def keep(path: str) -> Any:
        if (body := await reader.ask(f"/api{path}")) is not None:
            answers[path] = json.loads(body)
        return answers.get(path)

    runs: list[str] = []
    for one in found:
        if isinstance(one, Sweep):
            rows["sweeps"].append(await _keep_sweep(one.run_id, keep))
            runs += [cell.run_id for cell in one.cells if cell.run_id]
        else:
            runs.append(one.run_id)
    for run_id in dict.fromkeys(runs):
        if (facts := await keep(f"/runs/{run_id}")) is not None:
            rows["runs"].append(facts["row"])
            await _keep_run(reader, run_id, answers, keep)
    if 1 < len(rows["runs"]) <= _MOST_TAGS:
        answers["/compare"] = await keep("/compare?" + "&".join(f"run={row['id']}" for row in rows["runs"]))
        first, *others = (row["id"] for row in rows["runs"])
        for other in others:
            await keep(f"/runs/{first}/diff?other={other}")
    sparks = await reader.ask("/api/sparks?" + "&".join(f"run={row['id']}" for row in rows["runs"][:60]))
    answers["/sparks"] = json.loads(sparks or b"{}")
    answers["/runs"] = {"cursor": "", "now": now(), **rows, "total": len(rows["runs"]), "older": False}
    start = {"sweep": rows["sweeps"][0]["id"]} if rows["sweeps"] else {"run": rows["runs"][0]["id"]}
    if not rows["sweeps"] and len(rows["runs"]) > 1:
        start = {"view": "compare", "sel": [row["id"] for row in rows["runs"]]}
    return _write_document({"made_at": now(), "start": start, "answers": answers})


async def _keep_sweep(sweep_id: str, keep: Any) -> Any:
    facts = await keep(f"/sweeps/{sweep_id}")
    for trial in facts.get("trials", ()):
        await keep(f"/sweeps/{sweep_id}/trials/{trial['trial']}")
    return facts["row"]


async def _keep_run(reader: _Reader, run_id: str, answers: dict[str, Any], keep: Any) -> None:
    base = f"/runs/{run_id}"
    for part in ("results", "log", "diff", "gpus"):
        await keep(f"{base}/{part}")
    if f"{base}/log" in answers:
        log = answers[f"{base}/log"]
        answers[f"{base}/log?attempt={log['attempt']}"] = log
    tags = [one["tag"] for one in (await keep(f"{base}/scalars") or {"tags": []})["tags"][:_MOST_TAGS]]
    kept: dict[str, Any] = {"series": []}
    for tag in tags:
        if (body := await reader.ask(f"/api{base}/scalars?points=1500&tag={quote(tag, safe='')}")) is not None:
            answer = json.loads(body)
            kept |= {**answer, "series": [*kept["series"], *answer["series"]]}
    answers[f"{base}/scalars/series"] = kept
    listed = await keep(f"{base}/files")
    for name in ("pictures", "images") if listed else ():
        shown = []
        for one in listed.get(name, [])[:_MOST_PICTURES]:
            body = await reader.ask(one["url"])
            if body is not None and len(body) <= _PICTURE_BYTES:
                kind = "video/mp4" if one.get("kind") == "mp4" else f"image/{one.get('kind') or 'png'}"
                shown.append({**one, "url": f"data:{kind};base64,{base64.b64encode(body).decode()}"})
        listed[name] = shown


def _write_document(facts: Mapping[str, Any]) -> str:
    data = to_json(facts).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return write_document(f"globalThis.RUNWARD_EXPORT = {data}\n{_ANSWERS}")
