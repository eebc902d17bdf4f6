"""Pictures of the page for README, of real runs in a sandbox: ``make screenshots`` writes them anew."""

from __future__ import annotations

import secrets
import shlex
import sys
import tempfile
from pathlib import Path

import anyio

from tests.support.browser import browse, open_page
from tests.support.sandbox import Sandbox, until_async
from tests.support.service import serve

PLACE = Path(__file__).parents[2] / ".github" / "pictures"
WIDTH, HEIGHT = 1280, 640
TRAIN = """
import argparse, json, math, random, time
parser = argparse.ArgumentParser()
for name, value in (("lr", 1e-3), ("num_envs", 1024), ("seed", 1), ("steps", 300), ("pause", 0.01)):
    parser.add_argument(f"--{name}", type=type(value), default=value)
args = parser.parse_args()
random.seed(args.seed)
level = 24 - 3 * abs(math.log10(args.lr / 2e-3))
for step in range(1, args.steps + 1):
    reward = level * (1 - math.exp(-5 * step / 300)) + random.gauss(0, 0.7)
    loss = 2 * math.exp(-4 * step / 300) + random.random() / 9
    print(f"step {step}/{args.steps} mean_reward {reward:.3f} value_loss {loss:.4f} fps 52099", flush=True)
    if args.num_envs > 8000 and step == 74:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.62 GiB (GPU 0; 79.11 GiB total capacity)")
    time.sleep(args.pause)
"""


async def draw(sandbox: Sandbox) -> None:
    """Start a handful of trainings and write the three pictures."""
    (sandbox.path / "train.py").write_text(TRAIN)
    train, where = f"{shlex.quote(sys.executable)} train.py", {"cwd": str(sandbox.path)}
    context = {"viewport": {"width": WIDTH, "height": HEIGHT}, "device_scale_factor": 1.5, "color_scheme": "light"}
    with serve(sandbox) as service:
        async with service.agent() as agent, browse(**context) as tab:
            ends = [
                await agent.launch(f"{train} --num_envs 16384", name="walk-16k-envs", tags=["night"], **where),
                await agent.launch(f"{train} --lr 3e-4 --steps 240", name="walk-baseline", **where),
            ]
            sweep = await agent.call(
                "launch_sweep",
                name="walk-lr",
                common={"command": train, **where},
                grid={"lr": [1e-4, 1e-3, 1e-2], "seed": [1, 2]},
                metric="mean_reward",
                max_parallel=3,
            )
            for run_id in ends:
                await agent.end(run_id)
            await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=120)
            live = [
                await agent.launch(
                    f"{train} --steps 90000 --seed {seed} --pause 0.05", name=name, tags=["cube"], **where
                )
                for seed, name in enumerate(("cube-ppo", "cube-ppo-long-horizon", "cube-distill"))
            ]
            await until_async(lambda: all("step 60/" in sandbox.log(run_id) for run_id in live), "some steps")
            page = await open_page(tab, service)
            await page.locator(".spark").nth(4).wait_for()
            await page.screenshot(path=PLACE / "runs.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": 350})
            await page.goto(f"http://127.0.0.1:{service.port}/?run={ends[0]}")
            await page.locator(".why.bad").wait_for()
            await page.screenshot(path=PLACE / "failed.png")
            await page.goto(f"http://127.0.0.1:{service.port}/?sweep={sweep['sweep_id']}")
            await page.get_by_role("link", name="Curves of its cells").click()
            await page.get_by_label("Smoothing").fill("0.8")
            await page.locator(".panel canvas").wait_for()
            await page.screenshot(path=PLACE / "curves.png")


def main() -> None:
    PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        sandbox = Sandbox(Path(directory), f"pictures-{secrets.token_hex(3)}", {"RUNWARD_OWNER": "ada"})
        try:
            anyio.run(draw, sandbox)
        finally:
            sandbox.close()


if __name__ == "__main__":
    main()
