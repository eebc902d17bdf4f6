"""Ways in which public programs print and write their progress, rebuilt small: as data, run through the tools."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from tests.benchmarks.harness import Sandbox, Server
from tests.benchmarks.report import Row
from tests.live.test_file_steps import PROGRAMS, write_program
from tests.support.logs import DATA

_LOGS = DATA / "framework_logs"
_LABELS: dict[str, dict[str, Any]] = json.loads((_LOGS / "labels.json").read_text())
# Bars, tables, dictionaries, words: a habit each.
_PRINTED = (
    *("audiocraft", "cleanrl_ppo", "coqui_tts", "mmengine_whole", "gaussian_splatting", "hf_eval_first"),
    *("keras_fit_evaluate", "kohya", "lightgbm", "lightning_hydra", "llm_c", "megatron_core", "rsl_rl"),
    *("sample_factory", "sb3_zoo", "slime", "timm_whole", "torchrl", "trl_grpo_whole", "ultralytics_whole", "yolox"),
)
_PRINT = (
    "import sys, time\nfor line in open(sys.argv[1], newline=''): print(line, end='', flush=True); time.sleep(0.01)"
)
_WAIT_S, _AT_ONCE = 90.0, 2
_Try = Callable[[Server, str], Awaitable[str]]


async def measure_rebuilt(sandbox: Sandbox) -> tuple[list[Row], list[str]]:
    """Return the rows of programs that print and of those that write, and a note for each that is misread."""

    async def try_print(server: Server, name: str) -> str:
        label = _LABELS[name]
        lengths = " ".join(
            re.findall(r"(?<!\S)(?:--?[\w-]+[ =]|[\w.]+=)\d+\b", label.get("command", ""))
        ).split()  # no path: none is there
        words = [sys.executable, "-c", _PRINT, str(_LOGS / f"{name}.log"), *lengths]
        run_id = await server.launch(words, name="printer")
        status = (await server.wait(run_id, timeout_s=_WAIT_S, until="end")).data["runs"][0]
        found = status.get("step"), status.get("total_steps")
        expected = label["step"], label["total"]
        wrong = {metric for metric, value in label["metrics"].items() if not _is_near(status, metric, value)}
        return f"step {found}, metrics {wrong or 'right'}" if found != expected or wrong else ""

    async def try_write(server: Server, name: str) -> str:
        work = sandbox.work / f"writer-{list(PROGRAMS).index(name)}"
        run_id = await server.launch(write_program(work, *PROGRAMS[name]), cwd=str(work), name="writer")
        first = await server.wait(run_id, timeout_s=_WAIT_S, until="first_step")
        await server.wait(run_id, timeout_s=_WAIT_S, until="step >= 50")
        (work / "stop").touch()
        status = (await server.wait(run_id, timeout_s=_WAIT_S, until="end")).data["runs"][0]
        is_right = first.data["reason"] == "first_step" and (status.get("step") or 0) >= 50
        return "" if is_right and "losses/loss" in status.get("metrics", {}) else f"step {status.get('step')}"

    rows, notes = [], list[str]()
    for what, names, attempt in (
        ("printed: step, total and headline", _PRINTED, try_print),
        ("written to files alone: first step, step, metric", tuple(PROGRAMS), try_write),
    ):
        wrong = await _try_all(sandbox, names, attempt)
        right = len(names) - len(wrong)
        rows.append(Row(what, f"{right} of {len(names)}", bar="all", ok=not wrong))
        notes += [f"{name}: {fault}" for name, fault in wrong.items()]
    return rows, notes


async def _try_all(sandbox: Sandbox, names: tuple[str, ...], attempt: _Try) -> dict[str, str]:
    wrong: dict[str, str] = {}
    limit = anyio.CapacityLimiter(_AT_ONCE)

    async def try_one(server: Server, name: str) -> None:
        async with limit:
            if fault := await attempt(server, name):
                wrong[name] = fault

    async with sandbox.server() as server, anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(try_one, server, name)
    return wrong


def _is_near(status: dict[str, Any], metric: str, value: float) -> bool:
    found = status.get("metrics", {}).get(metric)
    return isinstance(found, float | int) and abs(found - value) <= 1e-3 * abs(value)
