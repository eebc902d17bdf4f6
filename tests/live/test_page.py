"""The page of a real server, asked as a browser asks: who gets in, what it shows, what it changes."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import pytest

from mcp_server.page.sessions import PageSessions
from mcp_server.store.state_home import StateHome
from tests.support import warm_start
from tests.support.ports import free_port
from tests.support.sandbox import Sandbox, until, until_async
from tests.support.service import Service, serve, tokens
from tests.support.sweeps import TRIALS, write_open_sweep

pytestmark = pytest.mark.anyio
OWN = {"x-runward": "page", "content-type": "application/json"}


@dataclass
class Browser:
    """A client with a session's cookie."""

    http: httpx2.AsyncClient
    seen: dict[str, Any] = field(default_factory=dict)

    async def get(self, path: str) -> Any:
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, **form: Any) -> httpx2.Response:
        return await self.http.post(path, json=form, headers=OWN)

    async def events(self, cursor: str | None = None) -> AsyncGenerator[tuple[str, str, dict[str, Any]]]:
        """Yield id, name and data of each event of the stream."""
        address = "/api/events" + (f"?cursor={cursor}" if cursor else "")
        async with self.http.stream("GET", address) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            event: dict[str, str] = {}
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name in ("id", "event", "data"):
                    event[name] = value
                elif not line and event:
                    yield event["id"], event["event"], json.loads(event["data"])
                    event = {}


@contextlib.asynccontextmanager
async def browse(service: Service, code: str | None = None) -> AsyncIterator[Browser]:
    """Open the page by a link, of the person at the machine unless ``code`` is another's."""
    sessions = PageSessions(StateHome(service.sandbox.path / "state"))
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=30) as http:
        opened = await http.get(f"/open/{code or sessions.make_link()}")
        assert (opened.status_code, opened.headers["location"]) == (303, "/")
        yield Browser(http)


async def test_a_link_opens_the_page_which_shows_the_runs_as_they_are(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        failed = await agent.launch("echo step 3/10 loss 0.5; echo 'RuntimeError: CUDA out of memory.'; exit 1")
        await agent.end(failed)
        live = await agent.launch("echo step 1/4 loss 0.25; sleep 600", name="live", tags=["paper"])
        await until_async(lambda: sandbox.run(live).progress.get("step") == 1, "the first step")
    with serve(sandbox) as service:
        async with browse(service) as browser:
            me = await browser.get("/api/me")
            assert (me["owner"], me["person"], me["control"]) == (None, True, True)
            told = await browser.get("/api/runs")
            rows = {row["id"]: row for row in told["runs"]}
            assert [row["id"] for row in told["runs"]] == [live, failed]
            assert (told["total"], told["older"], told["sweeps"]) == (2, False, [])
            assert (rows[live]["state"], rows[live]["live"], rows[live]["progress"]) == ("running", True, 0.25)
            assert (rows[live]["metric"], rows[live]["tags"]) == ({"tag": "loss", "value": 0.25}, ["paper"])
            assert (rows[failed]["cause"], rows[failed]["kind"]) == ("out of GPU memory", "oom_gpu")
            assert rows[failed]["line"] == "RuntimeError: CUDA out of memory."
            assert all(row["mine"] for row in told["runs"])


async def test_a_stream_tells_what_changes_and_goes_on_from_where_a_page_was(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        async with sandbox.agent() as agent, browse(service) as browser:
            cursor = (await browser.get("/api/runs"))["cursor"]
            states: list[str] = []
            ids: list[str] = []
            async with contextlib.aclosing(browser.events(cursor)) as events:
                run_id = await agent.launch("until test -e go; do sleep 0.05; done", cwd=str(sandbox.path))
                async for event_id, name, data in events:
                    assert name == "runs"
                    states += [row["state"] for row in data["runs"] if row["id"] == run_id]
                    ids.append(event_id)
                    if states[-1:] == ["running"]:
                        (sandbox.path / "go").touch()
                    if states[-1:] == ["finished"]:
                        break
            assert "running" in states
            async with contextlib.aclosing(browser.events(ids[0])) as events:
                _, name, data = await anext(events)
                assert (name, [row["state"] for row in data["runs"]]) == ("runs", ["finished"])


@pytest.mark.slow
async def test_a_page_of_a_former_server_fetches_all_again_and_keeps_its_session(sandbox: Sandbox) -> None:
    with serve(sandbox, cold=True) as service:
        async with browse(service) as browser:
            cursor = (await browser.get("/api/runs"))["cursor"]
            service.stop(signal.SIGKILL)
            with serve(sandbox, port=service.port):
                async with contextlib.aclosing(browser.events(cursor)) as events:
                    assert (await anext(events))[1] == "reset"
                assert (await browser.get("/api/me"))["person"]


async def test_a_directory_that_is_removed_is_gone_from_the_page(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        run_id = (await agent.call("launch_run", command="true", wait_s=20))["run_id"]
    with serve(sandbox) as service:
        async with browse(service) as browser:
            cursor = (await browser.get("/api/runs"))["cursor"]
            async with contextlib.aclosing(browser.events(cursor)) as events:
                sandbox.rundir(run_id).path.rename(sandbox.path / "removed")
                assert (await anext(events))[2]["gone"] == [run_id]


async def test_a_stream_ends_with_its_server_at_once(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        async with browse(service) as browser:
            cursor = (await browser.get("/api/runs"))["cursor"]

            async def listen() -> None:
                with contextlib.suppress(httpx2.HTTPError):
                    async for _ in browser.events(cursor):
                        pass

            async with anyio.create_task_group() as group:
                group.start_soon(listen)
                while (await browser.get("/api/me"))["pages"] < 1:  # noqa: ASYNC110 - the server says it when asked
                    await anyio.sleep(0.05)
                await anyio.to_thread.run_sync(service.stop)
            assert service.process.returncode == 0


# --- one run


async def test_a_run_shows_how_it_was_started_what_happened_and_its_log_and_curves(sandbox: Sandbox) -> None:
    async with sandbox.agent(MY_TOKEN="hunter2hunter2") as agent:
        run_id = await agent.launch(
            "for i in 10 20 30; do echo step $i/30 loss 0.$i; done; : {params}; exit 3",
            cwd=str(sandbox.path),
            params={"lr": 0.1},
            env={"MODE": "fast"},
            secrets=["MY_TOKEN"],
        )
        await agent.end(run_id)
    with serve(sandbox) as service:
        async with browse(service) as browser:
            told = await browser.get(f"/api/runs/{run_id}")
            assert (told["row"]["state"], told["row"]["cause"]) == ("failed", "exit code 3")
            assert (told["params"], told["env"]) == ({"lr": 0.1}, {"MODE": "fast", "MY_TOKEN": "•••"})
            assert [event["kind"] for event in told["events"]] == ["started", "first_step", "ended"]
            assert (told["attempts"][0]["exit_code"], told["attempts"][0]["n"]) == (3, 1)
            assert told["agent"]["log"] == f'read_log(run_id="{run_id}")'
            log = await browser.get(f"/api/runs/{run_id}/log")
            assert log["text"].startswith("step 10/30 loss 0.10\n")
            tags = await browser.get(f"/api/runs/{run_id}/scalars")
            assert [(tag["tag"], tag["points"], tag["last"]) for tag in tags["tags"]] == [("loss", 3, 0.3)]
            drawn = await browser.get(f"/api/runs/{run_id}/scalars?tag=loss")
            assert drawn["series"][0]["steps"] == [10, 20, 30]
            sparks = await browser.get(f"/api/sparks?run={run_id}&run=none")
            assert (sparks[run_id]["values"], sparks["none"]) == ([0.1, 0.2, 0.3], None)


PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
MP4 = b"\0\0\0\x20ftypisom" + bytes(range(256))


async def test_the_pictures_of_a_run_are_shown_by_their_content_and_no_others(sandbox: Sandbox) -> None:
    place, outside = sandbox.path / "work", sandbox.path / "outside"
    place.mkdir()
    outside.mkdir()
    (outside / "secret.png").write_bytes(PNG)
    for name, data in (("policy_300.png", PNG), ("clip.mp4", MP4), ("evil.png", b"<html><script>alert(1)</script>")):
        (outside / name).write_bytes(data)
    async with sandbox.agent() as agent:
        command = (
            f"cp {outside}/policy_300.png {outside}/clip.mp4 {outside}/evil.png . && ln -s {outside}/secret.png l.png"
        )
        run_id = (await agent.call("launch_run", command=command, cwd=str(place), wait_s=20))["run_id"]
    with serve(sandbox) as service:
        async with browse(service) as browser:
            found = await browser.get(f"/api/runs/{run_id}/files")
            shown = {one["name"]: one for one in found["pictures"]}
            assert {name: (one["kind"], one["step"]) for name, one in shown.items()} == {
                "policy_300.png": ("png", 300),
                "clip.mp4": ("mp4", None),
            }
            png = await browser.http.get(shown["policy_300.png"]["url"])
            assert (png.content, png.headers["content-type"]) == (PNG, "image/png")
            assert png.headers["x-content-type-options"] == "nosniff"
            part = await browser.http.get(shown["clip.mp4"]["url"], headers={"range": "bytes=4-7"})
            assert (part.status_code, part.content) == (206, b"ftyp")
            assert part.headers["content-range"] == f"bytes 4-7/{len(MP4)}"
            assert (await browser.http.get(f"/api/runs/{run_id}/file/{'0' * 24}")).status_code == 404
            (place / "policy_300.png").unlink()
            (place / "policy_300.png").symlink_to(outside / "secret.png")
            assert (await browser.http.get(shown["policy_300.png"]["url"])).status_code == 404


async def test_runs_are_compared_by_their_settings_and_their_code(sandbox: Sandbox) -> None:
    code = sandbox.path / "code"
    code.mkdir()

    def git(*words: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *own, *words], cwd=code, check=True, capture_output=True)

    (code / "train.py").write_text("import sys\nprint('step 1/1 loss', sys.argv[2])\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    run_ids = []
    async with sandbox.agent() as agent:
        for rate in ("0.1", "0.2"):
            command = f"{sys.executable} train.py --lr {rate}; sleep 1"
            run_ids.append((await agent.call("launch_run", command=command, cwd=str(code), wait_s=60))["run_id"])
            (code / "train.py").write_text("import sys\nprint('step 1/1 loss', sys.argv[2])  # changed\n")
    with serve(sandbox) as service:
        async with browse(service) as browser:
            told = await browser.get(f"/api/compare?run={run_ids[0]}&run={run_ids[1]}")
            assert told["settings"]["lr"] == dict(zip(run_ids, ("0.1", "0.2"), strict=True))
            assert told["metrics"]["loss"] == dict(zip(run_ids, (0.1, 0.2), strict=True))
            own = await browser.get(f"/api/runs/{run_ids[1]}/diff")
            assert (own["files"], "+print" in own["text"]) == (["train.py"], True)
            assert (await browser.get(f"/api/runs/{run_ids[0]}/diff"))["text"] == ""
            between = await browser.get(f"/api/runs/{run_ids[1]}/diff?other={run_ids[0]}")
            assert between["files"] == ["train.py"]
            assert (await browser.http.get("/api/compare")).status_code == 400


async def test_a_sweep_is_a_table_of_its_settings_and_machines_are_listed(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        common = {"command": "echo step 1/1 loss $LR; test $LR != 0.3", "cwd": str(sandbox.path)}
        cells = [{"launch": {"env": {"LR": rate}}} for rate in ("0.1", "0.2", "0.3")]
        plan = {"name": "night", "common": common, "cells": cells, "metric": "loss", "goal": "min"}
        sweep_id = (await agent.call("launch_sweep", **plan))["sweep_id"]
        await until_async(lambda: sandbox.store.sweeps.observe(sweep_id).ended, "the end of the sweep")
    with serve(sandbox) as service:
        async with browse(service) as browser:
            told = await browser.get(f"/api/sweeps/{sweep_id}")
            rows = told["table"]["rows"]
            assert [(row["settings"]["$LR"], row["best"]) for row in rows] == [
                ("0.1", True),
                ("0.2", False),
                ("0.3", False),
            ]
            assert (rows[0]["mean"], rows[0]["n"], len(rows[0]["run_ids"])) == (0.1, 1, 1)
            assert [len(run_ids) for run_ids in told["failed"].values()] == [1]
            assert told["row"]["cells"]["failed"] == 1
            assert told["row"]["ended_at"] == sandbox.store.sweeps.observe(sweep_id).events[-1]["at"]
            machines = await browser.get("/api/gpus")
            assert [(host["name"], host["here"]) for host in machines["hosts"]] == [("this machine", True)]


# --- what a person changes


async def test_a_run_is_stopped_by_its_typed_id_alone_and_says_who_did_it(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        run_id = await agent.launch("echo begun; sleep 600")
    with serve(sandbox) as service:
        async with browse(service) as browser:
            for typed in ("", run_id[:-1], f"{run_id} ", run_id.upper(), None, [run_id], True):
                refused = await browser.post(f"/api/runs/{run_id}/kill", run_id=typed)
                assert refused.status_code == 409, typed
                assert f"Type {run_id}" in refused.json()["error"]["remedy"]
            assert sandbox.run(run_id).state == "running"
            assert (await browser.http.get(f"/api/runs/{run_id}/kill")).status_code == 405
            done = await browser.post(f"/api/runs/{run_id}/kill", run_id=run_id, reason="lr too high")
            assert (done.status_code, done.json()["state"]) == (200, "killed"), done.text
            row = (await browser.get(f"/api/runs/{run_id}"))["row"]
            assert row["cause"].startswith("stopped by ")
            assert row["cause"].endswith(", on the page: lr too high")
            again = await browser.post(f"/api/runs/{run_id}/kill", run_id=run_id)
            assert "has ended already" in again.json()["text"]
    stop = json.loads(sandbox.rundir(run_id).stop.read_text())
    assert stop["stopped_by"] == "person"


async def test_a_person_may_stop_where_only_people_may_and_a_token_may_not(sandbox: Sandbox) -> None:
    known = tokens(sandbox)
    adas = known.add("ada")
    known.add("bob")
    with serve(sandbox) as service:
        async with service.agent(adas) as ada:
            run_ids = [await ada.launch("echo begun; sleep 600") for _ in range(2)]
        (sandbox.path / "state" / "config.toml").write_text('kill_policy = "human"\n')
        sessions = PageSessions(StateHome(sandbox.path / "state"))
        async with browse(service, sessions.make_link("bob")) as bob:
            refused = await bob.post(f"/api/runs/{run_ids[0]}/kill", run_id=run_ids[0])
            assert (refused.status_code, "belongs to 'ada'" in refused.text) == (403, True)
            assert not (await bob.get("/api/runs"))["runs"][0]["mine"]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=30) as http:
            bearer = {**OWN, "authorization": f"Bearer {adas}"}
            form = {"run_id": run_ids[0]}
            assert (await http.post(f"/api/runs/{run_ids[0]}/kill", json=form, headers=bearer)).status_code == 403
            assert (await http.post("/api/session", json={"token": adas}, headers=OWN)).status_code == 200
            refused = await http.post(f"/api/runs/{run_ids[0]}/kill", json=form, headers=OWN)
            assert (refused.status_code, "Only a person" in refused.text) == (403, True)
        assert [sandbox.run(run_id).state for run_id in run_ids] == ["running"] * 2
        async with browse(service, sessions.make_link("ada")) as ada_herself:
            done = await ada_herself.post(f"/api/runs/{run_ids[0]}/kill", run_id=run_ids[0])
            assert done.json()["state"] == "killed"
        async with browse(service) as person:
            assert (await person.post(f"/api/runs/{run_ids[1]}/kill", run_id=run_ids[1])).json()["state"] == "killed"


async def test_a_sweep_is_stopped_with_its_runs(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        common = {"command": "sleep 600", "cwd": str(sandbox.path)}
        cells = [{"launch": {"env": {"N": "1"}}}, {"launch": {"env": {"N": "2"}}}]
        plan = {"name": "night", "common": common, "cells": cells}
        sweep_id = (await agent.call("launch_sweep", **plan))["sweep_id"]
    with serve(sandbox) as service:
        async with browse(service) as browser:
            rows = (await browser.get("/api/runs"))["sweeps"]
            assert [(row["id"], row["live"], row["cells"]["total"]) for row in rows] == [(sweep_id, True, 2)]
            assert (await browser.post(f"/api/sweeps/{sweep_id}/kill", run_id="night")).status_code == 409
            done = await browser.post(f"/api/sweeps/{sweep_id}/kill", run_id=sweep_id)
            assert (done.status_code, done.json()["state"]) == (200, "killed"), done.text


async def test_notes_are_kept_with_who_wrote_them(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        run_id = (await agent.call("launch_run", command="true", wait_s=20))["run_id"]
        assert (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["reason"] == "ended"
    with serve(sandbox) as service:
        async with browse(service) as browser:
            for form in ({}, {"text": " "}, {"text": "x" * 5_000}, {"text": 1}, {"text": "a", "verdict": "best"}):
                assert (await browser.post(f"/api/runs/{run_id}/note", **form)).status_code == 400, form
            assert not (sandbox.rundir(run_id).path / "notes.jsonl").exists()
            kept = await browser.post(
                f"/api/runs/{run_id}/note", text="<b>good</b> AKIAIOSFODNN7EXAMPLE", verdict="keep"
            )
            assert kept.status_code == 200
            (note,) = (await browser.get(f"/api/runs/{run_id}"))["notes"]
            assert (note["verdict"], note["by"]) == ("keep", f"{sandbox.store.home.owner({})}, on the page")
            assert note["text"].startswith("<b>good</b>")
            (told,) = [one for one in (await browser.get(f"/api/runs/{run_id}"))["events"] if one["kind"] == "note"]
            assert told["text"].startswith("keep: <b>good</b>")
            assert told["text"].endswith(", on the page)")
            row = (await browser.get("/api/runs"))["runs"][0]
            assert (row["verdict"], row["notes"]) == ("keep", 1)
    assert (sandbox.rundir(run_id).path / "notes.jsonl").stat().st_mode & 0o777 == 0o600
    assert sandbox.runward("note", run_id, "inconclusive", "one", "seed").returncode == 0
    async with sandbox.agent() as agent:  # who asks again hears of it; a list has the newest
        (run,) = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"]
        assert [event["text"].partition(" (")[0] for event in run["events"]][-1] == "inconclusive: one seed"
        (run,) = (await agent.call("list_runs"))["runs"]
        assert run["note"].endswith(", on a terminal)")


async def test_a_trial_that_is_too_good_is_judged_by_a_person_and_not_by_its_proposer(sandbox: Sandbox) -> None:
    token = tokens(sandbox).add("agent-b")
    directory = write_open_sweep(sandbox.store.home.path, TRIALS, owner="agent-b")
    note, said = f"/api/sweeps/{directory.sweep_id}/note", {"trial": "t3", "verdict": "keep", "text": "read its diff"}
    with serve(sandbox) as service:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=30) as http:
            assert (await http.post("/api/session", json={"token": token}, headers=OWN)).status_code == 200
            refused = await http.post(note, json=said, headers=OWN)
            assert (refused.status_code, "a person or another owner" in refused.text) == (400, True)
        async with browse(service) as person:
            for form in ({**said, "trial": "t9"}, {**said, "verdict": "best"}):
                assert (await person.post(note, **form)).status_code == 400
            assert not directory.notes.exists()
            assert (await person.post(note, **said)).status_code == 200
    (kept,) = map(json.loads, directory.notes.read_text().splitlines())
    assert (kept["cell"], kept["note"]) == ("t3", "keep: read its diff")
    assert kept["by"].endswith(", on the page")


# --- who gets in


async def test_without_a_session_there_is_no_data(sandbox: Sandbox) -> None:
    token = tokens(sandbox).add("ada")
    with serve(sandbox) as service:
        base = f"http://127.0.0.1:{service.port}"
        async with httpx2.AsyncClient(base_url=base) as http:
            for path in ("/api/me", "/api/runs", "/api/events"):
                assert (await http.get(path)).status_code == 401, path
            page = await http.get("/")
            assert page.status_code == 200
            assert "default-src 'self'" in page.headers["content-security-policy"]
            shown = await http.get("/api/me", headers={"authorization": f"Bearer {token}"})
            assert (shown.json()["owner"], shown.json()["control"]) == ("ada", False)
            assert (await http.post("/api/session", json={"token": "runward_x"}, headers=OWN)).status_code == 401
            logged_in = await http.post("/api/session", json={"token": token}, headers=OWN)
            assert logged_in.status_code == 200
            cookie = logged_in.headers["set-cookie"]
            assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
            assert (await http.get("/api/me")).json()["control"]
            tokens(sandbox).remove("ada")
            assert (await http.get("/api/me")).status_code == 401


async def test_an_open_server_shows_and_lets_nobody_act(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{service.port}") as http:
            me = (await http.get("/api/me")).json()
            assert (me["owner"], me["person"], me["control"]) == (None, False, False)


# --- runward dash


@contextlib.contextmanager
def dash(sandbox: Sandbox, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [*warm_start.command(), "dash", "--no-browser", *words]
    with (sandbox.path / "dash.log").open("w") as log:
        process = subprocess.Popen(command, env=sandbox.environ, stderr=log, text=True)
    try:
        told = until(lambda: re.search(r"http://\S+", (sandbox.path / "dash.log").read_text()), "a link")
        yield process, told[0]
    finally:
        process.kill()
        process.wait()


def test_dash_gives_a_link_of_the_server_that_runs(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        told = sandbox.runward("dash", "--no-browser")
        assert told.returncode == 0, told.stderr
        link = told.stdout.split()[0]
        assert link.startswith(f"http://127.0.0.1:{service.port}/open/")
        assert [httpx2.get(link).status_code for _ in range(2)] == [303, 404]


async def test_dash_serves_the_page_alone_to_who_has_its_link_until_ctrl_c(sandbox: Sandbox) -> None:
    port = free_port()
    with dash(sandbox, "--port", str(port)) as (process, link):
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/api/runs")).status_code == 401
            assert (await http.post("/mcp", json={})).status_code == 404
            assert (await http.get(link)).status_code == 303
            assert (await http.get("/api/runs")).json()["runs"] == []
        again = await anyio.to_thread.run_sync(sandbox.runward, "dash", "--no-browser")
        assert f":{port}/open/" in again.stdout
        process.send_signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(process.wait) == 0
    assert "runs go on" in (sandbox.path / "dash.log").read_text()


@pytest.mark.slow
def test_a_server_over_stdio_does_not_load_the_page() -> None:
    code = (
        "import sys, mcp_server.serve.app as app; app.load_package();"
        "print(sum(n.startswith('mcp_server.tools.') for n in sys.modules),"
        "[n for n in sys.modules if n.startswith(('mcp_server.page.', 'mcp_server.serve.http'))])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, of_page = told.stdout.split(maxsplit=1)
    assert int(loaded) > 10
    assert of_page.strip() == "[]"


async def test_a_launch_names_the_page_of_its_run_where_a_server_shows_it(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        before = await agent.call("launch_run", command="true", name="unseen")
        assert before["next_step"] == "Call wait_run."
        with serve(sandbox) as service:
            shown = await agent.call("launch_run", command="true", name="seen")
            assert f"http://127.0.0.1:{service.port}/?run={shown['run_id']}" in shown["next_step"]
        after = await agent.call("launch_run", command="true", name="unseen-again")
        assert after["next_step"] == "Call wait_run.", "a server that was killed shows nothing"
