"""Measures the page in Chromium: how soon runs, a filter, a curve and an event are seen, and what memory stays."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import httpx2

from mcp_server.page.sessions import PageSessions
from mcp_server.record.run_directory import now
from mcp_server.store.state_home import StateHome
from tests.benchmarks.harness import NotMeasured, Sandbox, until
from tests.benchmarks.page import live_runs
from tests.benchmarks.report import Row, Table, measured, median, percentile
from tests.benchmarks.swarm import serve
from tests.support.browser import CHROMIUM, browse

_ENDED, _POINTS, _TYPED, _NEWS = 800, 1_000_000, 8, 60
_FIRST, _LAST = 5, 50  # rounds of one event for each live run: 1,000 and 10,000 events
# Notes when rows were first painted, and when each state that a row shows came into the document.
WATCH = """
window.seen = []
const painted = (then) => requestAnimationFrame(() => setTimeout(then))
new MutationObserver((changes) => {
    if (!window.rowsAt && document.querySelector("[data-id]")) painted(() => (window.rowsAt ??= performance.now()))
    for (const { target } of changes) {
        const row = (target.parentElement || target).closest?.("[data-id]")
        if (row) window.seen.push([row.dataset.id, row.querySelector(".state")?.textContent || "", Date.now()])
    }
}).observe(document, { subtree: true, childList: true, characterData: true })
window.timed = async (act, isDone) => {
    const begun = performance.now()
    act()
    while (!isDone()) await new Promise(requestAnimationFrame)
    await new Promise(painted)
    return performance.now() - begun
}
"""
FILTER = """(text) => timed(() => {
    const input = document.getElementById("search")
    window.before = document.querySelector("[role=table]").ariaRowCount
    Object.assign(input, { value: text }).dispatchEvent(new Event("input", { bubbles: true }))
}, () => document.querySelector("[role=table]").ariaRowCount !== window.before)"""
OPEN = """(id) => timed(() => document.querySelector(`[data-id="${id}"] a`).click(),
    () => document.querySelector(".detail h1")?.textContent === id && document.querySelector(".detail .events li"))"""
OLDER = """(known) => [...document.querySelectorAll("[data-known]")].every(({ dataset }) => dataset.known !== known)"""
ANSWERED = """(part) => performance.getEntriesByType("resource").filter(({ name }) => name.includes(part)).at(-1)"""


async def measure(sandbox: Sandbox) -> Table:
    """Open the page on 800 ended and 200 live runs; without a browser nothing is measured."""
    if CHROMIUM is None or importlib.util.find_spec("playwright") is None:
        return Table("browser", (Row("not measured: no Chromium, or no Playwright", ""),))
    home = StateHome(sandbox.home)
    home.create()
    for number in range(_ENDED):
        _write_ended(home, f"ended-{number:04}")
    curve = _write_curve(home, sandbox.work)
    with live_runs(home) as live:
        async with serve(sandbox) as (url, _), browse() as tab:
            await tab.add_init_script(WATCH)
            page = await tab.new_page()
            await page.goto(f"{url}/open/{PageSessions(home).make_link()}")
            await page.wait_for_function("() => window.rowsAt")
            answer = await page.evaluate(ANSWERED, "/api/runs")
            first_ms = await page.evaluate("window.rowsAt") - answer["responseEnd"]
            older = page.get_by_role("button", name="Load older ones")
            while await older.count():
                known = await older.get_attribute("data-known")
                await older.click()
                await page.wait_for_function(OLDER, arg=known)
            typed = [await page.evaluate(FILTER, f"ended-{'00' * (number % 2)}") for number in range(_TYPED)]
            drawn = await page.locator("[data-id^=ended]").evaluate_all(
                "(rows) => rows.map(({ dataset }) => dataset.id)"
            )
            opened = [await page.evaluate(OPEN, drawn[number]) for number in _spread(len(drawn))]
            await page.goto(f"{url}/")
            news = await _follow(page, home, live)
            first_kib, last_kib = await _wear(page, home, live)
            drawn_ms, wire = await _draw(page, url, curve)
    rows = (
        measured("the newest 500 of 1,000 runs: data → painted", first_ms, "ms", at_most=300),
        measured("a filter typed over 1,000 rows → painted, p50", median(typed[1:]), "ms"),
        measured("a filter typed over 1,000 rows → painted, longest", max(typed[1:]), "ms", at_most=100),
        measured("a run opened → its events painted, p50", median(opened[1:]), "ms", at_most=200),
        measured("event in the record → in the document, p50", median(news), "ms"),
        measured("event in the record → in the document, p99", percentile(news, 99), "ms", at_most=500),
        measured("a curve of 1,000,000 points: data → drawn", drawn_ms, "ms", at_most=500),
        measured("a curve of 1,000,000 points over the wire", wire / 1000, "KB", at_most=200),
        measured("heap after 10,000 events more than after 1,000", (last_kib - first_kib) / 1024, "MiB", at_most=0.5),
    )
    notes = (
        f"One Chromium without a GPU on the same machine. {_ENDED} ended runs, 200 live ones that are records alone; "
        f"N = {len(typed) - 1} filters, {len(opened) - 1} runs opened, {len(news)} events one after the other. "
        "Painted: the frame after the change was made. The heap is that after collection, "
        f"{first_kib / 1024:.1f} MiB after 1,000 events.",
    )
    return Table("The page in a browser", rows, notes)


def _spread(count: int, number: int = 8) -> range:
    return range(0, count, count // number)


def _write_ended(home: StateHome, run_id: str) -> None:
    directory = home.runs / run_id
    (directory / "attempts" / "1").mkdir(parents=True)
    spec = {"run_id": run_id, "name": run_id, "command": "true", "owner": "caller", "layout": 3, "cwd": "/tmp"}
    (directory / "spec.json").write_text(json.dumps({**spec, "created_at": now()}))
    (directory / "attempts" / "1" / "output.log").write_text("step 100/100 loss 0.1\n")
    (directory / "attempts" / "1" / "progress.json").write_text('{"step": 100, "total_steps": 100}')
    facts: list[dict[str, Any]] = [
        {"kind": "started", "attempt": 1},
        {"kind": "ended", "state": "finished", "text": "finished."},
    ]
    lines = [json.dumps({"seq": seq, "at": now(), **one}) for seq, one in enumerate(facts, 1)]
    (directory / "events.jsonl").write_text("\n".join(lines) + "\n")


def _write_curve(home: StateHome, place: Path) -> str:
    _write_ended(home, "curve")
    logs = place / "logs"
    logs.mkdir(parents=True)
    rows = (f'{{"step": {step}, "loss": {99.0 if step == 400_000 else 0.5}}}\n' for step in range(_POINTS))
    (logs / "metrics.jsonl").write_text("".join(rows))
    spec = home.runs / "curve" / "spec.json"
    spec.write_text(json.dumps(json.loads(spec.read_text()) | {"tensorboard": str(logs), "cwd": str(place)}))
    return "curve"


def _write_event(home: StateHome, run_id: str, seq: int) -> str:
    state = "running" if seq % 2 else "stalled"
    event = {"seq": seq, "kind": "resumed" if seq % 2 else "stalled", "at": now(), "text": f"event {seq}"}
    with (home.runs / run_id / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    return state


async def _follow(page: Any, home: StateHome, live: list[str]) -> list[float]:
    """Return how long each of some events took until its row said so, in ms."""
    await page.get_by_text("● live").wait_for()
    while await page.locator("[data-id]").count() <= len(live):  # rows are drawn as far as somebody scrolls
        await page.evaluate("window.scrollTo(0, 1e6)")
        await page.wait_for_timeout(200)
    found = []
    for run_id in live[:_NEWS]:
        written_ms = time.time() * 1000
        state = _write_event(home, run_id, 2)
        seen = f"() => window.seen.find(([id, text]) => id === '{run_id}' && text.includes('{state}'))"
        found.append(await (await page.wait_for_function(seen)).evaluate("([, , at]) => at") - written_ms)
    return found


async def _wear(page: Any, home: StateHome, live: list[str]) -> tuple[float, float]:
    """Return the heap in KiB after collection, after 1,000 events and after 10,000 that the page was told."""
    devtools = await page.context.new_cdp_session(page)
    kib: list[float] = []
    for number in range(1, _LAST + 1):
        states = {_write_event(home, run_id, number + 2) for run_id in live}
        tone = "warn" if "stalled" in states else "good"
        told = f"() => document.querySelectorAll('.state.{tone}').length === {len(live)}"
        await page.wait_for_function(told)
        await page.evaluate("window.seen.length = 0")
        if number in (_FIRST, _LAST):
            await devtools.send("HeapProfiler.collectGarbage")
            kib.append((await devtools.send("Runtime.getHeapUsage"))["usedSize"] / 1024)
    return kib[0], kib[1]


async def _draw(page: Any, url: str, run_id: str) -> tuple[float, float]:
    """Return how long the curve took from its data on, in ms, and the bytes of the data."""
    address = f"{url}/api/runs/{run_id}/scalars?tag=loss&points=1500"
    cookies = {one["name"]: one["value"] for one in await page.context.cookies()}

    def is_read() -> bool:
        return bool(httpx2.get(address, cookies=cookies, timeout=60).json().get("series"))

    if not await until(is_read, within_s=60, every_s=0.5):
        raise NotMeasured("the curve is not read")
    await page.goto(f"{url}/?run={run_id}&tab=curves&tags=loss")
    await page.locator("[data-drawn]").wait_for()
    answer = await page.evaluate(ANSWERED, "tag=loss")
    drawn_ms = float(await page.locator("[data-drawn]").get_attribute("data-drawn"))
    return drawn_ms - answer["responseEnd"], float(answer["encodedBodySize"])
