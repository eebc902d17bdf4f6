"""One of eight runs in one directory, with the file habits of a framework. Its figures are as those of `neighbour`.

argv: number, habit. It waits for the file `go` in the middle. All append to `results.csv`, overwrite `results.json` and
`checkpoints/best.pt`, and let `latest` point to their own directory.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HALF, STEPS = 10, 20
Write = Callable[[int, int], None]


def main() -> None:
    """Train."""
    number, habit = int(sys.argv[1]), sys.argv[2]
    if habit == "outlives":  # the last of three generations, in a session of its own
        if len(sys.argv) == 3:
            inner = [sys.executable, __file__, str(number), habit, "inner"]
            sys.exit(subprocess.run(["sh", "-c", '"$@"; exit $?', "sh", *inner], check=False).returncode)
        subprocess.Popen(
            [sys.executable, "-c", f"import time; time.sleep(0.3); open('late_{number}.json', 'w').write('{{}}')"],
            start_new_session=True,
        )
    directory, write = HABITS[habit](number)
    for step in range(1, STEPS + 1):
        value = 100 * number + step
        write(step, value)
        print(f"step {step}/{STEPS} reward {value}", flush=True)
        if step in (HALF, STEPS):
            save(number, step, value, directory)
        if step == HALF:
            Path(f"ready_{number}").touch()
            while not Path("go").exists():
                time.sleep(0.02)
        time.sleep(0.01)


def save(number: int, step: int, value: int, directory: Path) -> None:
    """Save a checkpoint of its own, and what all of them write."""
    staged, final = directory / f"tmp-checkpoint-{step}", directory / f"checkpoint-{step}"
    staged.mkdir(parents=True)
    (staged / f"model_step_{value}.pt").write_bytes(os.urandom(1_000_000) * 5)
    (staged / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": step, "eval_success": value}]}))
    staged.rename(final)
    Path("checkpoints").mkdir(exist_ok=True)
    Path("checkpoints/best.pt").write_bytes(str(value).encode())
    Path("results.json").write_text(json.dumps({"success": value}))
    (directory / "eval_results.json").write_text(json.dumps({"success": value}))
    with Path("results.csv").open("a") as table:
        table.write(f"{step},{value}\n")
    with contextlib.suppress(OSError):
        Path(f"latest_{number}.tmp").symlink_to(directory)
        Path(f"latest_{number}.tmp").replace("latest")


def next_version(parent: str, prefix: str) -> Path:
    """Return the next free directory, as several frameworks choose it."""
    for version in range(100):
        with contextlib.suppress(FileExistsError):
            path = Path(parent) / f"{prefix}{version}"
            path.mkdir(parents=True)
            return path
    raise FileExistsError(parent)


def events_writer(directory: Path, name: str | None = None) -> Write:
    """Return what writes event files; ``name``: without the number of a process."""
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - slow, and not for all habits
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

    writer = EventFileWriter(str(directory))
    if name is not None:
        path = next(directory.glob(f"*.{os.getpid()}.*"))
        path.rename(directory / name)

    def add(step: int, value: int) -> None:
        summary = Summary(value=[Summary.Value(tag="reward", simple_value=value)])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        writer.flush()

    return add


def table_writer(path: Path) -> Write:
    """Return what writes rows into a table that stays open."""
    file = path.open("w", newline="")
    rows = csv.writer(file)
    rows.writerow(["step", "reward"])

    def add(step: int, value: int) -> None:
        rows.writerow([step, value])
        file.flush()

    return add


def rewriter(path: Path) -> Write:
    """Return what writes a whole table anew for each row."""
    rows: list[str] = ["step,reward"]

    def add(step: int, value: int) -> None:
        rows.append(f"{step},{value}")
        path.write_text("\n".join(rows) + "\n")

    return add


def appender(path: Path) -> Write:
    """Return what opens a file for each line."""

    def add(step: int, value: int) -> None:
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "reward": value}) + "\n")

    return add


def rsl_rl(number: int) -> tuple[Path, Write]:
    """A dated directory below the experiment's."""
    directory = Path(f"logs/rsl_rl/cartpole/2026-11-22_10-00-0{number}")
    return directory, events_writer(directory)


def sb3(number: int) -> tuple[Path, Write]:
    """The next number; the table stays open."""
    directory = next_version("sb3", "PPO_")
    return directory, table_writer(directory / "progress.csv")


def keras(number: int) -> tuple[Path, Write]:
    """One directory of events for all, and a name of its own for the rest."""
    return Path(f"keras_{number}"), events_writer(Path("logs/train"))


def transformers(number: int) -> tuple[Path, Write]:
    """Events in a dated directory that several processes share, without the number of a process."""
    name = f"events.out.tfevents.{int(time.time())}.{number}"
    return Path("output"), events_writer(Path("output/runs/Nov22_10-00-00_host"), name)


def lightning(number: int) -> tuple[Path, Write]:
    """The next version; the table is written anew for each row."""
    directory = next_version("lightning_logs", "version_")
    return directory, rewriter(directory / "metrics.csv")


def hydra(number: int) -> tuple[Path, Write]:
    """A directory by date and time; a file that is opened for each line."""
    directory = Path(f"outputs/2026-11-22/10-00-0{number}")
    directory.mkdir(parents=True)
    return directory, appender(directory / "metrics.jsonl")


HABITS: dict[str, Callable[[int], tuple[Path, Write]]] = {
    "rsl_rl": rsl_rl,
    "sb3": sb3,
    "keras": keras,
    "transformers": transformers,
    "lightning": lightning,
    "hydra": hydra,
    "outlives": lambda number: (Path(f"runs/{number}"), events_writer(Path(f"runs/{number}"))),
}

if __name__ == "__main__":
    main()
