"""The page in a real browser, with real runs: what a person sees, in how many clicks, and what cannot happen."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.browser import open_page, open_tab, start_browser
from tests.support.fake_nvml import machine
from tests.support.ports import free_port
from tests.support.sandbox import Sandbox
from tests.support.service import serve, tokens
from tests.support.sweeps import TRIALS as EVENTS
from tests.support.sweeps import write_open_sweep

pytestmark = pytest.mark.anyio

TRAIN = """
import sys, time
rate, steps = float(sys.argv[1]), int(sys.argv[2])
for step in range(1, steps + 1):
    print(f"step {step}/{steps} loss {rate / step:.4f}", flush=True)
    time.sleep(0.02)
"""
OUT_OF_MEMORY = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
SHOW = """(seen) => {
    Object.defineProperty(document, "hidden", { value: !seen, configurable: true })
    document.dispatchEvent(new Event("visibilitychange"))
}"""
MARKUP = "<img src=x onerror=\"window.hacked='yes'\"><script>window.hacked='yes'</script>"


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Any]:
    async with start_browser() as started:
        yield started


def write_training(sandbox: Sandbox) -> str:
    (sandbox.path / "train.py").write_text(TRAIN)
    return f"{shlex.quote(sys.executable)} train.py"


async def text_of(page: Any, selector: str) -> str:
    return str(await page.locator(selector).first.inner_text())


@pytest.mark.slow
async def test_one_click_says_why_a_run_failed(sandbox: Sandbox, browser: Any) -> None:
    with serve(sandbox) as service:
        async with service.agent() as agent, open_tab(browser) as tab:
            command = f"echo step 1/9 loss 0.5; echo {shlex.quote(OUT_OF_MEMORY)} >&2; exit 1"
            await agent.end(await agent.launch(command, name="large"))
            page = await open_page(tab, service)
            await page.get_by_role("link", name="large").click()
            why = await text_of(page, ".why.bad")
            assert "out of GPU memory" in why
            assert OUT_OF_MEMORY in why
            await page.locator(".proofline").click()  # the second click, to its place in the log
            assert OUT_OF_MEMORY in await text_of(page, ".wanted")


async def test_the_best_of_a_sweep_is_marked_and_a_note_on_it_stays(sandbox: Sandbox, browser: Any) -> None:
    train = write_training(sandbox)
    with serve(sandbox) as service:
        async with service.agent() as agent, open_tab(browser) as tab:
            common = {"command": train + " {rate} 5", "cwd": str(sandbox.path)}
            sweep = await agent.call(
                "launch_sweep", name="rates", common=common, grid={"rate": [0.5, 0.1]}, metric="loss"
            )
            page = await open_page(tab, service)
            await page.locator(".row", has_text="rates").locator(".c-text", has_text="best").wait_for()
            assert "0.1" in await text_of(page, f'[data-id="{sweep["sweep_id"]}"] .c-text')
            await page.get_by_role("link", name="rates").click()
            assert "0.1" in await text_of(page, "tr.best")
            await page.get_by_role("button", name="Note …").click()
            dialog = page.get_by_role("dialog")
            save = dialog.get_by_role("button", name="Save")
            assert await save.is_disabled(), "nothing is said yet"
            await dialog.get_by_role("button", name="keep").click()
            await dialog.get_by_label("Why").fill(MARKUP)
            await save.click()
            await page.locator(".notes li").wait_for()
            assert MARKUP in await text_of(page, ".notes")
            assert await page.evaluate("window.hacked") is None


@pytest.mark.slow
async def test_a_run_appears_and_moves_without_a_question(sandbox: Sandbox, browser: Any) -> None:
    train = write_training(sandbox)
    with serve(sandbox) as service:
        async with service.agent() as agent, open_tab(browser) as tab:
            page = await open_page(tab, service)
            await page.get_by_text("No runs yet").wait_for()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url.partition("/api")[2].partition("?")[0]))
            run_id = await agent.launch(f"{train} 1 100000", cwd=str(sandbox.path), name="news")
            row = page.locator(f'[data-id="{run_id}"]')
            await row.wait_for()
            first = await row.locator(".c-step").inner_text()
            await page.wait_for_function(
                '([id, first]) => document.querySelector(`[data-id="${id}"] .c-step`).innerText !== first',
                arg=[run_id, first],
            )
            assert "/runs" not in asked, "the list came whole once, and by changes after that"


async def test_a_person_stops_a_run_by_typing_its_id(sandbox: Sandbox, browser: Any) -> None:
    with serve(sandbox) as service:
        async with service.agent() as agent, open_tab(browser) as tab:
            run_id = await agent.launch("echo begun; sleep 600", name="mistake")
            page = await open_page(tab, service, f"/?run={run_id}")
            await page.get_by_role("button", name="Stop …").click()
            dialog = page.get_by_role("dialog")
            stop = dialog.get_by_role("button", name="Stop the run")
            assert await stop.is_disabled()
            await dialog.get_by_label("to stop it").fill("mistake")
            assert await stop.is_disabled(), "its name is not its id"
            await dialog.get_by_label("to stop it").fill(run_id)
            await dialog.get_by_label("Why").fill("wrong data")
            await stop.click()
            await page.locator(".detail .state", has_text="killed").wait_for()
            assert (await agent.end(run_id))["state"] == "killed"
    stop_record = json.loads(sandbox.rundir(run_id).stop.read_text())
    assert stop_record["reason"] == "wrong data"


@pytest.mark.slow
async def test_names_and_output_are_texts_whatever_they_hold(sandbox: Sandbox, browser: Any) -> None:
    with serve(sandbox) as service:
        async with service.agent() as agent, open_tab(browser) as tab:
            command = f"echo {shlex.quote('step 1/9 loss 0.5')}; echo {shlex.quote(MARKUP)} >&2; exit 3"
            run_id = await agent.launch(command, name=MARKUP[:60], tags=["<b>tag</b>"])
            await agent.end(run_id)
            page = await open_page(tab, service)
            for tab_name in ("overview", "log", "curves", "files", "code", "config"):
                await page.goto(f"http://127.0.0.1:{service.port}/?run={run_id}&tab={tab_name}&q=%3Cscript%3E")
                await page.locator(".detail h1").wait_for()
                assert await page.evaluate("window.hacked") is None
                assert await page.locator("main img, main script, main b >> text=tag").count() == 0


async def test_a_page_goes_on_with_a_server_that_was_killed_and_started_again(sandbox: Sandbox, browser: Any) -> None:
    port = free_port()
    async with open_tab(browser) as tab:
        with serve(sandbox, port=port) as service:
            page = await open_page(tab, service)
            await page.get_by_text("No runs yet").wait_for()
            service.process.send_signal(signal.SIGKILL)
            await page.get_by_text("not heard for").wait_for()
        with serve(sandbox, port=port) as service:
            async with service.agent() as agent:
                run_id = await agent.launch("true", name="after")
                await page.locator(f'[data-id="{run_id}"]').wait_for()
            await page.get_by_text("● live").wait_for()


async def test_a_tab_that_nobody_sees_asks_nothing(sandbox: Sandbox, browser: Any) -> None:
    with serve(sandbox) as service:
        async with service.agent() as agent, open_tab(browser) as tab:
            page = await open_page(tab, service)
            await page.get_by_text("● live").wait_for()
            await page.evaluate(SHOW, False)
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            run_id = await agent.launch("true", name="unseen")
            await agent.end(run_id)
            assert asked == []
            await page.evaluate(SHOW, True)
            await page.locator(f'[data-id="{run_id}"]').wait_for()


async def test_the_keyboard_is_enough(sandbox: Sandbox, browser: Any) -> None:
    with serve(sandbox) as service:
        async with service.agent() as agent, open_tab(browser) as tab:
            for name in ("first", "second"):
                await agent.end(await agent.launch("true", name=name))
            page = await open_page(tab, service)
            await page.get_by_role("link", name="second").wait_for()
            await page.keyboard.press("j")
            await page.keyboard.press("j")
            await page.keyboard.press("x")
            await page.keyboard.press("Enter")
            assert await text_of(page, ".detail h1") == "first"
            await page.keyboard.press("Escape")
            await page.keyboard.press("/")
            await page.keyboard.type("secon")
            await page.keyboard.press("Escape")
            assert await page.get_by_role("link", name="first").count() == 0
            await page.keyboard.press("c")
            assert await text_of(page, ".detail h1") == "1 runs"


async def test_who_has_no_link_logs_in_with_a_token_and_stops_its_own_runs_alone(
    sandbox: Sandbox, browser: Any
) -> None:
    adas, bobs = tokens(sandbox).add("ada"), tokens(sandbox).add("bob")
    with serve(sandbox) as service:
        async with service.agent(adas) as ada, service.agent(bobs) as bob, open_tab(browser) as tab:
            hers, his = await ada.launch("sleep 600", name="hers"), await bob.launch("sleep 600", name="his")
            page = await tab.new_page()
            await page.goto(f"http://127.0.0.1:{service.port}/")
            await page.get_by_label("Or a token").fill("runward_" + "x" * 43)
            await page.get_by_role("button", name="Enter").click()
            await page.get_by_role("alert").wait_for()
            await page.get_by_label("Or a token").fill(adas)
            await page.get_by_role("button", name="Enter").click()
            await page.locator(f'[data-id="{hers}"]').wait_for()  # logged in: leaving earlier would break that off
            for run_id, count in ((hers, 1), (his, 0)):
                await page.goto(f"http://127.0.0.1:{service.port}/?run={run_id}")
                await page.get_by_role("button", name="Note …").wait_for()
                assert await page.get_by_role("button", name="Stop …").count() == count
            await ada.kill(hers)
            await bob.kill(his)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nothing_serious_stands_in_the_way_of_a_screen_reader(
    sandbox: Sandbox, browser: Any, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    train = write_training(sandbox)
    with serve(sandbox) as service:
        async with service.agent() as agent, open_tab(browser, color_scheme=scheme, bypass_csp=True) as tab:
            run_id = await agent.launch(f"{train} 1 5; exit 4", cwd=str(sandbox.path), name="short", tags=["night"])
            await agent.end(run_id)
            live = await agent.launch(f"{train} 1 100000", cwd=str(sandbox.path), name="long")
            page = await open_page(tab, service)
            for path in (
                "/",
                f"/?run={run_id}",
                f"/?run={live}&tab=log",
                f"/?run={live}&tab=curves&tags=loss",
                "/?view=machines",
            ):
                await page.goto(f"http://127.0.0.1:{service.port}{path}")
                await page.locator(
                    ".panel canvas" if "curves" in path else ".machines h2" if "machines" in path else ".row a"
                ).first.wait_for()
                found = (await axe.run(page)).response["violations"]
                assert [
                    (one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")
                ] == []


@pytest.mark.slow
async def test_a_spike_and_a_nan_are_seen_in_a_curve_of_a_million_points(sandbox: Sandbox, browser: Any) -> None:
    rows = (
        "{" + f'"step": {step}, "loss": {"NaN" if step == 700_000 else 99.0 if step == 400_000 else 0.5}' + "}\n"
        for step in range(1_000_000)
    )
    script = sandbox.path / "write.py"
    source = sandbox.path / "all.jsonl"
    source.write_text("".join(rows))
    script.write_text(
        "import os\n"
        "os.mkdir('logs')\n"
        "print('step 1/2 loss 0.5', flush=True)\n"
        "with open('logs/metrics.jsonl', 'w') as file:\n"
        "    file.write(open('all.jsonl').read())\n"
    )
    with serve(sandbox) as service:
        async with service.agent() as agent, open_tab(browser) as tab:
            run_id = await agent.launch(
                f"{shlex.quote(sys.executable)} write.py", cwd=str(sandbox.path), tensorboard=str(sandbox.path / "logs")
            )
            await agent.end(run_id)
            page = await open_page(tab, service)
            async with page.expect_response(lambda response: "points=" in response.url) as answer:
                await page.goto(f"http://127.0.0.1:{service.port}/?run={run_id}&tab=curves&tags=loss")
            body = await (await answer.value).body()
            assert len(body) <= 200_000
            (series,) = json.loads(body)["series"]
            assert max(value for value in series["values"] if value is not None) == 99.0
            assert series["nan"] == [700_000]
            await page.locator(".panel canvas").wait_for()
            assert "nan" in await text_of(page, ".panel figcaption")


async def test_one_click_says_what_a_gpu_does(sandbox: Sandbox, browser: Any) -> None:
    sandbox.environ |= machine(sandbox.path).environ
    with serve(sandbox) as service:
        async with service.agent() as agent, open_tab(browser) as tab:
            run_id = await agent.launch("sleep 600", name="holder", gpus=[1])
            page = await open_page(tab, service)
            await page.get_by_role("link", name="Machines").click()
            gpu = page.locator(".gpu", has_text="GPU 1")
            await gpu.get_by_role("link", name="holder").click()
            await page.locator(".detail h1", has_text="holder").wait_for()
            await agent.kill(run_id)


async def test_an_open_sweep_shows_its_kept_trials_and_the_diff_and_reason_of_each(
    sandbox: Sandbox, browser: Any
) -> None:
    directory = write_open_sweep(sandbox.store.home.path, EVENTS)
    directory.trials.mkdir()
    (directory.trials / "t1.diff").write_text("--- a/train.py\n+++ b/train.py\n-momentum = 0.9\n+momentum = 0.95\n")
    told = sandbox.runward("export", directory.sweep_id, "-o", "report.html")
    assert told.returncode == 0, told.stderr
    async with open_tab(browser) as tab:
        page = await tab.new_page()
        await page.goto(f"file://{sandbox.path}/report.html")
        tree = await text_of(page, ".tree")
        assert "t1 momentum .95" in tree
        assert "3 tried on it" in tree
        assert await page.locator(".best-curve circle").count() == 4  # t0, and three that were measured
        await page.locator(".best-curve circle.warn").click()
        assert "too good" in await text_of(page, ".why")
        await page.locator(".tree button").first.click()
        assert "0.14 (n 2) against t0" in await text_of(page, ".why")
        assert "momentum = 0.95" in await text_of(page, ".diff .plus")


async def test_a_sweep_in_one_file_opens_without_a_server(sandbox: Sandbox, browser: Any) -> None:
    train = write_training(sandbox)
    async with sandbox.agent() as agent:
        common = {"command": train + " {rate} 5 #{seed}", "cwd": str(sandbox.path)}
        plan = {"common": common, "grid": {"rate": [0.5, 0.1], "seed": [1, 2]}, "metric": "loss"}
        sweep = await agent.call("launch_sweep", name="<script><b>rates", **plan)
        await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=60)
    told = sandbox.runward("export", sweep["sweep_id"], "-o", "report.html")
    assert told.returncode == 0, told.stderr
    async with open_tab(browser) as tab:
        page = await tab.new_page()
        await page.goto(f"file://{sandbox.path}/report.html")
        assert await text_of(page, ".detail h1") == "<script><b>rates"
        assert "0.1" in await text_of(page, "tr.best")
        await page.get_by_role("link", name="Curves of its cells").click()
        await page.locator(".panel canvas").wait_for()
        assert "rate" in await text_of(page, "table")
        await page.locator("table a").first.click()
        await page.get_by_role("tab", name="Log").click()
        assert "step 5/5" in await text_of(page, ".lines")
