"""Runs whose metrics are in files alone: first step, step, metrics and conditions are read from these files.

The programs write as public ones do: cleanrl's event files, Lightning's CSVLogger, wandb's and MLflow's stores.
"""

import sys
from pathlib import Path

import pytest

from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

LOOP = """
import os, sys, time, json, csv, struct, zlib
print("begins", flush=True)
{begin}
step = 0
while not os.path.exists("stop"):
    step += 10
    loss = 5 / step
    {write}
    print("SPS: 1000", flush=True)
    time.sleep(0.05)
"""
EVENTS = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
import tempfile
writer = EventFileWriter({directory})
"""
ADD = """value = Summary.Value(tag="losses/loss", simple_value=loss)
    writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
    writer.flush()"""
WANDB = r"""
def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128); n >>= 7
    return bytes([*out, n])
def field(n, data): return varint(n << 3 | 2) + varint(len(data)) + data
os.makedirs("wandb/run-1-abc")
log = open("wandb/run-1-abc/run-abc.wandb", "wb", buffering=0)
log.write(b":W&B\xe1\xbe\x00")
"""
WANDB_ADD = """items = {"_step": step, "losses/loss": loss}
    record = field(2, b"".join(field(1, field(2, k.encode()) + field(16, str(v).encode())) for k, v in items.items()))
    if log.tell() % 32768 + 7 + len(record) <= 32768:
        log.write(struct.pack("<IHB", zlib.crc32(record, zlib.crc32(b"\\x01")), len(record), 1) + record)"""
MLFLOW = """
os.makedirs("mlruns/0/abc/metrics/losses")
open("mlruns/0/abc/meta.yaml", "w").close()
"""
PROGRAMS = {
    "event files as cleanrl writes them": (EVENTS.format(directory='"runs/CartPole__ppo__1"'), ADD),
    "event files among everybody's temporary files": (EVENTS.format(directory="tempfile.mkdtemp()"), ADD),
    "a table, opened for each row": (
        'os.makedirs("logs/train/runs/1/csv", exist_ok=True)\n'
        'with open("logs/train/runs/1/csv/metrics.csv", "w") as f: f.write("epoch,step,losses/loss\\n")',
        'with open("logs/train/runs/1/csv/metrics.csv", "a") as f: f.write(f"0,{step},{loss}\\n")',
    ),
    "a table that is written anew": (
        'rows = []; os.makedirs("lightning_logs/version_0")',
        'rows.append({"step": step, "losses/loss": loss})\n'
        '    with open("lightning_logs/version_0/metrics.csv", "w") as f:\n'
        "        w = csv.DictWriter(f, rows[0].keys()); w.writeheader(); w.writerows(rows)",
    ),
    "lines of JSON": (
        'f = open("train_log.jsonl", "w")',
        'f.write(json.dumps({"step": step, "losses/loss": loss}) + "\\n"); f.flush()',
    ),
    "a log of wandb": (WANDB, WANDB_ADD),
    "the state of HF's Trainer, written anew": (
        'os.makedirs("out"); rows = []',
        'rows += [{"step": at, "losses/loss": 5 / at} for at in (step, step + 5)]\n'
        '    with open("out/new", "w") as f: json.dump({"global_step": step, "log_history": rows}, f, indent=2)\n'
        '    os.replace("out/new", "out/trainer_state.json")',
    ),
    "MLflow's database": (
        "import sqlite3\n"
        'db = sqlite3.connect("mlflow.db")\n'
        'db.execute("CREATE TABLE runs (run_uuid)"); db.execute("CREATE TABLE experiments (experiment_id)")\n'
        'db.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")',
        'row = ("losses/loss", loss, int(time.time() * 1000), "r", step, 0)\n'
        '    db.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", row); db.commit()',
    ),
    "Trackio's database, whose newest rows are beside it": (
        "import sqlite3, datetime\n"
        'db = sqlite3.connect("demo.db"); db.execute("PRAGMA journal_mode = wal")\n'
        'db.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp, run_name, step, metrics)")',
        'row = (None, datetime.datetime.now().isoformat(), "r", step, json.dumps({"losses/loss": loss}))\n'
        '    db.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", row); db.commit()',
    ),
    "files of MLflow": (
        MLFLOW,
        'open("mlruns/0/abc/metrics/losses/loss", "a").write(f"{int(time.time() * 1000)} {loss} {step}\\n")',
    ),
}


def write_program(directory: Path, begin: str, write: str) -> list[str]:
    directory.mkdir(exist_ok=True)
    (directory / "train.py").write_text(LOOP.format(begin=begin, write=write))
    return [sys.executable, "train.py"]


@pytest.mark.parametrize("case", PROGRAMS)
async def test_a_run_that_writes_only_files_has_its_step_and_metrics_from_them(sandbox: Sandbox, case: str) -> None:
    work = sandbox.path / "work"
    command = write_program(work, *PROGRAMS[case])
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command, cwd=str(work))
        answer = await agent.call("wait_run", run_ids=run_id, until="first_step", timeout_s=60)
        assert answer["reason"] == "first_step", answer
        (event,) = answer["runs"][0]["events"]
        assert "step 10, in " in event["text"]
        answer = await agent.call("wait_run", run_ids=run_id, until="step >= 100", timeout_s=60)
        assert answer["reason"] == "condition_met", answer
        answer = await agent.call("wait_run", run_ids=run_id, until="losses/loss < 0.04", timeout_s=60)
        assert answer["reason"] == "condition_met", answer
        (work / "stop").touch()
        status = await agent.end(run_id)
        assert status["metrics"]["losses/loss"] == pytest.approx(5 / status["step"], rel=0.01)
        assert status["read_from"]
        assert status["step"] >= 130


async def test_a_file_without_a_step_is_named_as_looked_at(sandbox: Sandbox) -> None:
    work = sandbox.path / "work"
    command = write_program(work, EVENTS.format(directory='"runs/a"'), "pass")
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command, cwd=str(work), first_step_timeout_s=3)
        await until_async(lambda: "looked_at" in sandbox.run(run_id).progress, "a look at the file")
        answer = await agent.call("wait_run", run_ids=run_id, timeout_s=0)
        assert answer["runs"][0]["looked_at"].endswith("0: nothing written yet")
        await until_async(lambda: len(sandbox.run(run_id).events) > 1, "the missing first step")
        event = sandbox.run(run_id).events[1]
        assert event["kind"] == "first_step_timeout"
        assert "looked at its output, and runs/a/events.out.tfevents" in event["text"]
        (work / "stop").touch()
        await agent.end(run_id)


# argv: a file, a seed, how: it stays open, or is opened for each row; whether the rows are printed; the last step.
BESIDE = """
import os, random, sys, time
path, seed, mode, prints, last = sys.argv[2:]
chance = random.Random(seed)
os.makedirs(os.path.dirname(path), exist_ok=True)
held = open(path, "w") if mode == "held" else None
print("step,loss,iou", file=held or open(path, "a"), flush=True)
step = 0
while not (os.path.exists(f"stop-{seed}") and step >= int(last)):
    if step < int(last):
        step += 1
        loss, iou = chance.random(), chance.random()
        print(f"{step},{loss:.5f},{iou:.5f}", file=held or open(path, "a"), flush=True)
        if prints == "prints":
            print(f"batch {step} of {last} recon {loss:.4f} iou {iou:.4f}", flush=True)
    time.sleep(0.03)
print("over")
"""


async def test_runs_that_share_a_directory_have_their_own_rows_or_none(sandbox: Sandbox) -> None:
    """Descriptors settle whose a file is, then the rows that the output shows as well; else it is said to be open."""
    work = sandbox.path / "work"
    work.mkdir()
    (work / "train.py").write_text(BESIDE)
    cases = {  # by seed, which is the name
        "held": ("out/held.csv", "held", "silent", 30),
        "shown": ("out/both.csv", "instants", "prints", 50),
        "hidden": ("out/both.csv", "instants", "silent", 90),
        "apart": ("apart/m.csv", "instants", "silent", 70),
    }
    async with sandbox.agent_in_process() as agent:
        run_ids = {}
        for name, (path, mode, prints, last) in cases.items():
            words = [f"--output_dir={Path(path).parent}", path, name, mode, prints, str(last)]
            run_ids[name] = await agent.launch([sys.executable, "train.py", *words], name=name, cwd=str(work))
        seen = [run_ids[name] for name in ("held", "shown", "apart")]
        await until_async(lambda: all("step" in sandbox.run(run_id).progress for run_id in seen), "their steps")
        await until_async(lambda: "left_out" in sandbox.run(run_ids["hidden"]).progress, "the doubt")
        for name in ("held", "apart", "shown", "hidden"):
            (work / f"stop-{name}").touch()
            status = await agent.end(run_ids[name])
            if name == "hidden":
                assert status.keys().isdisjoint({"step", "metrics"}), status
                assert "and whose rows these are is unknown" in status["note"]
            else:
                rows = (work / cases[name][0]).read_text().splitlines()
                own = [row.split(",") for row in rows if row.startswith(f"{cases[name][3]},")]
                assert status["step"] == cases[name][3], status
                assert status["metrics"]["loss"] in [pytest.approx(float(row[1]), abs=1e-4) for row in own]
                assert "round" not in status


async def test_the_files_of_another_run_in_the_same_directory_are_nobodys_step(sandbox: Sandbox) -> None:
    work = sandbox.path / "work"
    command = write_program(work, *PROGRAMS["a table, opened for each row"])
    (work / "wait.py").write_text(LOOP.format(begin="", write="pass"))
    async with sandbox.agent_in_process() as agent:
        other = await agent.launch([sys.executable, "wait.py"], cwd=str(work))
        writer = await agent.launch([*command, "--log_dir", "logs/train"], cwd=str(work))
        await until_async(lambda: sandbox.run(writer).made_a_step, "the step of the one that writes")
        (work / "stop").touch()
        assert "step" in await agent.end(writer)
        assert "step" not in await agent.end(other)
