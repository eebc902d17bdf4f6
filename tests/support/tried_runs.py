"""A lab's month: 200 ended runs of three projects with known settings, ends, figures and notes."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mcp_server.record.run_directory import write_json

NOW = datetime(2026, 11, 27, 9, 30, tzinfo=UTC)
LINES = {
    "oom_gpu": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "nccl_error": "NCCL watchdog timeout on rank 3",
    "divergence": "loss is NaN at step 900",
    "disk_full": "OSError: [Errno 28] No space left on device",
    "python_error": "KeyError: 'obs'",
}
WHY = (
    *(None, None, "larger batches may help the critic", "check whether dropout hurts"),
    *("reproduce the baseline of the paper", "warmup fixes the spike"),
)
VERDICTS = (
    None,
    None,
    None,
    ("discard", "unstable after warmup"),
    ("keep", "best so far"),
    ("inconclusive", "too noisy"),
)

Facts = dict[str, Any]


def try_runs(home: Path, count: int = 200, seed: int = 3) -> list[Facts]:
    """Write the records of ``count`` runs below a state directory, and return what is true of each."""
    chance = random.Random(seed)
    runs = [_choose(chance, number) for number in range(count)]
    for run in runs:
        _write(home, run)
    return runs


def _choose(chance: random.Random, number: int) -> Facts:
    project = chance.choice(["cube", "walker", "llama"])
    is_llm = project == "llama"
    algo = "sft" if is_llm else chance.choice(["ppo", "sac", "dreamer"])
    state = chance.choices(["finished", "failed", "killed", "timed_out"], [6, 3, 1, 1])[0]
    verdict = chance.choice(VERDICTS)
    return {
        "id": f"{algo}-{project}-{number:04}",
        "name": f"{algo}-{project}",
        "project": project,
        "algo": algo,
        "lr": chance.choice(["1e-4", "3e-4", "1e-3", "3e-3", "0.01"]),
        "envs": None if is_llm else chance.choice([512, 1024, 4096, 8192]),
        "bs": chance.choice([16, 32, 64, 256]),
        "seed": chance.randrange(5),
        "opt": chance.choice(["adam", "adamw", "muon"]),
        "state": state,
        "kind": chance.choice(list(LINES)) if state == "failed" else None,
        "created": NOW - timedelta(hours=chance.uniform(0.5, 24 * 40)),
        "took_s": chance.uniform(600, 36_000),
        "owner": chance.choice(["ada", "bob", "eve"]),
        "tags": chance.sample(["night", "ablation", "baseline", "paper"], chance.randrange(3)),
        "why": chance.choice(WHY),
        "verdict": verdict[0] if verdict else None,
        "note": verdict[1] if verdict else None,
        "reward": None if is_llm else round(chance.uniform(5, 500), 2),
        "loss": round(chance.uniform(0.05, 3), 3) if is_llm else None,
        "steps": chance.choice([100, 1000, 5000]),
        "host": chance.choice(["gpu01", "gpu02"]),
        "env": {"NCCL_P2P_DISABLE": "1"} if chance.random() < 0.2 else {},
        "sweep": f"{project}-lr-ab3d" if chance.random() < 0.2 else None,
    }


def _command(run: Facts) -> str:
    if run["project"] == "llama":
        return (
            f"torchrun --nproc-per-node 4 finetune.py --model meta-llama/Llama-3-8B --learning_rate {run['lr']}"
            f" --per_device_train_batch_size {run['bs']} --optim {run['opt']} --seed {run['seed']}"
        )
    return (
        f"python train_{run['algo']}.py --task {run['project']} --lr {run['lr']} --num-envs {run['envs']}"
        f" --optimizer {run['opt']} agent.batch_size={run['bs']} --seed {run['seed']}"
    )


def _time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write(home: Path, run: Facts) -> None:
    directory, work = home / "runs" / run["id"], home / "work" / run["id"]
    attempt = directory / "attempts/1"
    attempt.mkdir(parents=True)
    work.mkdir(parents=True)
    spec = {"layout": 3, "created_at": _time(run["created"]), "cwd": f"/lab/{run['project']}", "command": _command(run)}
    spec |= {name: run[name] for name in ("name", "owner", "tags", "why", "host", "env", "sweep")}
    write_json(directory / "spec.json", {**spec, "cell": f"c{run['id'][-4:]}" if run["sweep"] else None})
    begun, ended = _time(run["created"]), _time(run["created"] + timedelta(seconds=run["took_s"]))
    end = {"state": run["state"], "exit_code": 0 if run["state"] == "finished" else 1, "elapsed_s": run["took_s"]}
    failure = {"failure": {"kind": run["kind"], "line": LINES[run["kind"]]}} if run["kind"] else {}
    events: list[Facts] = [
        {"seq": 1, "at": begun, "kind": "started", "text": "The command runs.", "attempt": 1},
        {"seq": 2, "at": begun, "kind": "first_step", "text": "First training step seen."},
        {"seq": 3, "at": ended, "kind": "ended", "text": f"{run['state']}.", "attempt": 1, **end, **failure},
    ]
    (directory / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    tag, value = ("Train/mean_reward", run["reward"]) if run["loss"] is None else ("eval/loss", run["loss"])
    metrics = {tag: value} | ({"train/loss": round(value * 0.9, 3)} if run["loss"] else {})
    write_json(attempt / "progress.json", {"step": run["steps"], "metrics": metrics})
    shares = [at / 5 if run["loss"] is None else 2 - at / 5 for at in range(6)]
    rows = [[run["steps"] * at // 5, *(each * shares[at] for each in metrics.values())] for at in range(6)]
    lines = [",".join(["step", *metrics]), *(",".join(map(str, row)) for row in rows)]
    (work / "metrics.csv").write_text("\n".join(lines) + "\n")
    write_json(directory / "attribution.json", {"tensorboard": [str(work)]})
    if run["verdict"]:
        note = {"at": ended, "by": run["owner"], "verdict": run["verdict"], "text": run["note"]}
        (directory / "notes.jsonl").write_text(json.dumps(note) + "\n")
