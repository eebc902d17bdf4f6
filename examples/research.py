"""Improve a small project by an open sweep: changes are proposed, measured in pairs, kept only if that proves them."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
from agent import connect

PROJECT = Path(__file__).with_name("research")
RATE = "LEARNING_RATE = 0.01\n"
IDEAS = (  # what a file says and what it becomes: better, worse, protected, and the second one again
    ("a learning rate of .02", "train.py", RATE, "LEARNING_RATE = 0.02\n"),
    ("a learning rate of .004", "train.py", RATE, "LEARNING_RATE = 0.004\n"),
    ("more steps", "prepare.py", "8, 60, 0.3", "8, 600, 0.3"),
    ("a learning rate of 4e-3", "train.py", RATE, "LEARNING_RATE = 0.004\n"),
)


def copy_project() -> Path:
    """Return a copy of the project as a repository of its own, with one commit."""
    project = Path(tempfile.mkdtemp(prefix="runward-example-")) / "research"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(project), "-c", "user.name=example", "-c", "user.email=example@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "The base"]):
        subprocess.run([*git, *words], check=True)
    return project


async def main() -> None:
    project = copy_project()
    python = sys.executable
    plan = {
        "name": project.parent.name,
        "common": {"command": f"{python} train.py --seed {{seed}}", "cwd": str(project), "time_limit_s": 60},
        "metric": "val_loss",
        "goal": "min",
        "max_parallel": 2,
        "search": {
            "strategy": "open",
            "budget": 2,
            "protect": ["prepare.py", "evaluate.py"],
            "measure": f"{python} evaluate.py",
        },
    }
    async with connect() as call:
        await call("launch_sweep", **plan, dry_run=True)  # show it to a person first
        sweep = (await call("launch_sweep", **plan))["sweep_id"]
        for text, name, old, new in IDEAS:
            source = (project / name).read_text()
            (project / name).write_text(source.replace(old, new))  # as an agent edits
            await call("propose", sweep=sweep, text=text, worktree=str(project))
            (project / name).write_text(source)  # the proposal is the state at the call
        await call("wait_run", run_ids=sweep, until="end", timeout_s=280)
        await call("compare_runs", sweep=sweep)
    print(
        f"{project}/results.tsv has the table; git -C {project} log runward/{plan['name']} the changes that were kept."
    )


anyio.run(main)
