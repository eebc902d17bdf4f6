"""The page about runs on another host, over a real sshd: rows, log, curves, pictures, its GPUs, and a stop."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import anyio
import pytest

from tests.live.test_far_runs import TRAINING
from tests.live.test_page import browse
from tests.support.sandbox import PATIENCE_S, Sandbox
from tests.support.service import serve
from tests.support.sshd import NAME, FarHost, needs_sshd

pytestmark = [pytest.mark.anyio, needs_sshd]
PICTURE = """
import base64
with open("tb/step_20.png", "wb") as file:
    file.write(base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="))
print("step 20/40 loss 0.05", flush=True)
"""


async def test_a_person_sees_and_stops_a_run_on_another_host(sandbox: Sandbox, far_host: FarHost) -> None:
    before, after = TRAINING.split("while not")
    (sandbox.path / "train.py").write_text(f"{before}{PICTURE}while not{after}")
    with serve(sandbox) as service:
        async with service.agent() as agent, browse(service) as browser:
            run_id = await agent.launch(
                f"{shlex.quote(sys.executable)} train.py",
                cwd=str(sandbox.path),
                host=NAME,
                tensorboard=str(sandbox.path / "tb"),
            )

            async def read(path: str, key: str) -> Any:
                with anyio.fail_after(PATIENCE_S):
                    while not (found := (await browser.get(f"/api/runs/{run_id}{path}")).get(key)):  # noqa: ASYNC110 - as a page does
                        await anyio.sleep(0.1)
                return found

            (row,) = (await browser.get("/api/runs"))["runs"]
            assert (row["id"], row["host"], row["live"]) == (run_id, NAME, True)
            assert row["heard_s"] < PATIENCE_S
            assert [one["tag"] for one in await read("/scalars", "tags")] == ["loss"]
            with anyio.fail_after(PATIENCE_S):
                while (await read("/scalars?tag=loss", "series"))[0]["values"][0] != 1.0:  # noqa: ASYNC110 - the file comes
                    await anyio.sleep(0.1)
            (series,) = await read("/scalars?tag=loss", "series")
            assert (series["steps"][-1], series["values"][0]) == (20, 1.0)
            (picture,) = await read("/files", "pictures")
            assert (picture["name"], picture["step"]) == ("step_20.png", 20)
            assert (await browser.http.get(picture["url"])).headers["content-type"] == "image/png"
            assert "step 20/40" in await read("/log", "text")
            hosts = {host["name"]: host for host in (await browser.get("/api/gpus"))["hosts"]}
            assert hosts[NAME]["heard_s"] < PATIENCE_S
            done = await browser.post(f"/api/runs/{run_id}/kill", run_id=run_id, reason="enough")
            assert (done.status_code, done.json()["state"]) == (200, "killed"), done.text
            row = (await browser.get(f"/api/runs/{run_id}"))["row"]
            assert row["cause"].endswith(", on the page: enough")
