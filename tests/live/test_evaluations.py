"""Evaluations, printed curves and tracker links of real runs, as agents see them."""

import sys
from pathlib import Path

import pytest

from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.anyio

# As AgentJet and VERL do it: a validation before training, dicts and blocks in files, metrics on the console alone.
TRAINING = """
import os, sys
name, last = sys.argv[1], float(sys.argv[2])
print("wandb: Tracking run with wandb version 0.17.0")
print("wandb: \\x1b[1m🚀 View run at \\x1b[34mhttps://wandb.ai/team/cfm/runs/ab12cd34\\x1b[0m")
os.makedirs("reports", exist_ok=True)

def validate(step, reward):
    metrics = {"global_steps": step, "pass_n": 4, "total_tasks": 57, "mean_reward": reward, "std_reward": 0.4}
    with open(f"reports/{name}.md", "a") as file:
        file.write(f"## Step {step}\\n" + "".join(f"- {key}: {value}\\n" for key, value in metrics.items()))
        file.write(f"- task_pass_rate@1: {100 * reward:.2f}%\\n")
    return metrics

print("Initial validation metrics:", validate(0, 0.31))
for step in range(1, 31):
    print(f"step:{step} - critic/score/mean:{step / 30:.3f} - actor/kl_loss:0.001", flush=True)
    if step == 20:
        validate(step, 0.55)
validate(30, last)
"""


async def test_a_run_that_only_prints_has_curves_evaluations_and_its_tracker(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        runs = []
        for name, last in (("one", "0.51"), ("two", "0.61")):
            cwd = sandbox.path / name
            cwd.mkdir()
            (cwd / "train.py").write_text(TRAINING)
            runs.append(
                str(await agent.launch([sys.executable, "train.py", name, last], name=name, cwd=str(cwd), tags=["aj"]))
            )
        for run_id in runs:
            await agent.end(run_id)
        answer = await agent.call("wait_run", run_ids=[runs[0]], timeout_s=0)
        assert answer["runs"][0]["tracker"] == {"url": "https://wandb.ai/team/cfm/runs/ab12cd34", "run_id": "ab12cd34"}

        curves = await agent.call("read_tb", run_id=runs[0], tags="critic/score/mean")
        values = curves["values"]["critic/score/mean"]
        assert (values["last"], values["last_step"], values["count"], values["trend"]) == (1, 30, 30, "up")
        assert curves["notes"][0].startswith("Numbers that the run printed")

        found = await agent.call("compare_runs", run_ids=runs, metrics=["mean_reward", "task_pass_rate@1", "success"])
        columns = found["columns"].split("|")
        first, second = (dict(zip(columns, row.split("|"), strict=True)) for row in found["rows"])
        assert first["eval mean_reward"] == "0.51±0.026@30/0.55±0.026@20"
        assert second["eval mean_reward"] == "0.61±0.026@30"
        assert first["eval task_pass_rate@1"] == "51±3.3%@30/55±3.3%@20"
        assert any(note.startswith("No metric 'success'") for note in found["notes"])

        out = sandbox.path / "out"
        await agent.call("finish_blueprint", run_id=runs[0], result_dir=str(out))
        text = Path(out / "results.md").read_text()
        assert "- Tracker: https://wandb.ai/team/cfm/runs/ab12cd34 (run ab12cd34)" in text
        rows = [line for line in text.splitlines() if line.startswith(("| 0 |", "| 20 |", "| 30 |"))]
        assert [row.split(" |")[0] for row in rows] == ["| 0", "| 20", "| 30"]
        assert "0.31 ± 0.026" in rows[0]
        assert "**0.55 ± 0.026**" in rows[1]
        assert "51.00% ± 3.3%" in rows[2] or "51.0% ± 3.3%" in rows[2] or "51% ± 3.3%" in rows[2]


EVALUATION = """
import sys
model, suite = (word.partition("=")[2] for word in sys.argv[1:])
value = {"a": 0.5, "b": 0.6}[model.split("/")[-2]] + (0.1 if suite == "goal" else 0)
for episode in range(10):
    print("episode", episode, "success", episode % 2)
print({"eval/success_once": value, "eval/return": 1.0, **({"eval/num_trajectories": 400} if suite == "goal" else {})})
"""


@pytest.mark.slow
async def test_evaluations_of_two_models_on_two_benchmarks_are_a_table_of_both(sandbox: Sandbox) -> None:
    (sandbox.path / "eval.py").write_text(EVALUATION)
    async with sandbox.agent_in_process() as agent:
        for model in ("a", "b"):
            (sandbox.path / "ckpt" / model / "actor").mkdir(parents=True)
            for suite in ("spatial", "goal"):
                run_id = await agent.launch(
                    f"{sys.executable} eval.py {{params}}",
                    params={"model_path": f"{sandbox.path}/ckpt/{model}/actor", "task_suite": suite},
                    param_style="k=v",
                    first_step_pattern="(?i)episode|success",
                    tags=["eval"],
                    cwd=str(sandbox.path),
                )
                await agent.end(run_id)
        found = await agent.call("compare_runs", tags=["eval"], metrics=["success_rate"])
        assert any("Near: " in note and "eval/success_once" in note for note in found["notes"])
        found = await agent.call("compare_runs", tags=["eval"])
        (table,) = (one for one in found["benchmarks"] if one["metric"] == "eval/success_once")
        assert table["columns"].split("|")[-2:] == ["goal", "spatial"]
        cells = {row.split("|")[0]: row.split("|")[-2:] for row in table["rows"]}
        assert cells == {"a": ["0.6±0.024 n=400", "0.5"], "b": ["0.7±0.023 n=400", "0.6"]}


async def test_a_cell_shows_the_metric_that_ranks_it_and_equal_cells_are_told_as_equal(sandbox: Sandbox) -> None:
    (sandbox.path / "judge.py").write_text('print("judge says: 31 of 50 images match, CLIP-sim 0.3119")\n')
    common = {"command": [sys.executable, "judge.py"], "cwd": str(sandbox.path)}
    async with sandbox.agent_in_process() as agent:
        sweep = await agent.call("launch_sweep", name="judge", common=common, grid={"beam": [1, 4]}, metric="CLIP-sim")
        ended = await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=60)
        best = ended["sweep"]["best"]
        assert (best["cell"], best["value"], best["runner_up"]) == ("beam1", 0.3119, "beam4 0.3119")
        answer = await agent.call("wait_run", run_ids=best["run_id"], timeout_s=0)
        assert answer["runs"][0]["metrics"] == {"CLIP-sim": 0.3119}
