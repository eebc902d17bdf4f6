"""One of eight runs in one directory. All its figures are its number times 100, plus the step: nothing else has them.

argv: number, kind. It waits for the file `go` in the middle. Kinds: `events` (TensorBoard), `child` (a child writes
the events), `table` (JSON lines in a file that stays open), `lines` (in one that is opened for each), `idle` and
`broken` (make no step; the second dies at once). `--num_envs` above 1024 runs out of memory after five steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

HALF, STEPS = 10, 20


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("kind")
    parser.add_argument("--num_envs", type=int, default=1)
    parser.add_argument("--output_dir", default="evals")
    arguments = parser.parse_args()
    number, kind = arguments.number, arguments.kind
    if kind == "broken":
        raise ValueError("unknown option")
    if kind == "idle":
        print("waiting", flush=True)
        reach(number)
        raise ValueError("nothing to train on")
    if kind == "child":
        sys.exit(subprocess.run([sys.executable, __file__, str(number), "events"], check=False).returncode)
    write = writer_of(number, kind)
    for step in range(1, STEPS + 1):
        value = 100 * number + step
        write(step, value)
        print(f"step {step}/{STEPS} reward {value}", flush=True)
        if step == 5 and arguments.num_envs > 1024:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if step in (HALF, STEPS):
            save(number, value, Path(arguments.output_dir))
        if step == HALF:
            reach(number)


def reach(number: int) -> None:
    """Say that half is done, and wait for the other half."""
    Path(f"ready_{number}").touch()
    while not Path("go").exists():
        time.sleep(0.02)


def writer_of(number: int, kind: str):  # type: ignore[no-untyped-def]
    """Return what writes one point."""
    if kind == "table":
        table = Path(f"metrics_{number}.jsonl").open("w")  # noqa: SIM115 - it stays open, as trainers leave it

        def add_row(step: int, value: int) -> None:
            table.write(json.dumps({"step": step, "reward": value}) + "\n")
            table.flush()

        return add_row
    if kind == "lines":

        def add_line(step: int, value: int) -> None:
            with Path(f"log_{number}.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "reward": value}) + "\n")

        return add_line
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - slow, and not for all kinds
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

    writer = EventFileWriter("runs/Nov22_10-00-00_host")  # as several processes that start in one second choose it

    def add_event(step: int, value: int) -> None:
        summary = Summary(value=[Summary.Value(tag="reward", simple_value=value)])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        writer.flush()

    return add_event


def save(number: int, value: int, evals: Path) -> None:
    """Save a checkpoint and evaluations: beside those of the others, and one that all overwrite."""
    Path("checkpoints").mkdir(exist_ok=True)
    evals.mkdir(exist_ok=True, parents=True)
    Path(f"checkpoints/model_step_{value}.pt").write_bytes(b"w" * 5)
    result = json.dumps({"success": value})
    for path in (evals / f"eval_{number}.json", Path("eval_results.json")):
        path.write_text(result)


if __name__ == "__main__":
    main()
