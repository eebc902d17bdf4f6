"""Eight runs beside each other in one directory, and the figures in answers about each that another run wrote."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "programs" / "neighbour.py"
HABITS_PROGRAM = PROGRAM.with_name("habits.py")
HABITS = ("rsl_rl", "sb3", "keras", "keras", "transformers", "lightning", "hydra", "outlives")
KINDS = ("events", "events", "child", "table", "halved", "broken", "idle", "lines")
STEPLESS = ("broken", "idle")
HALF, STEPS = 10, 20
_FIGURE = re.compile(r"(?<![\w.])(?:model_step_)?([1-8])(\d\d)(?:\.0+)?(?![\w]|\.\d*[1-9])")
_HALVE = {"oom_gpu": {"do": "retry", "wait_s": 0, "change": {"num_envs": "halve"}}}

Call = Callable[..., Awaitable[dict[str, Any]]]


@dataclass
class Neighbours:
    """The runs in ``directory``, by number from 1. ``foreign``: what was said of a run that was another's."""

    directory: Path
    call: Call
    run_ids: dict[int, str] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    own: int = 0  # figures that were the run's own
    kinds: tuple[str, ...] = KINDS
    answered: set[tuple[int, str]] = field(default_factory=set)  # run and answer with a figure of its own

    async def launch(self, result_dir: Path | None = None) -> None:
        """Launch all of them at once."""
        for number, kind in enumerate(KINDS, 1):
            command = [sys.executable, str(PROGRAM), str(number), "events" if kind == "halved" else kind]
            more: dict[str, Any] = {}
            if kind == "halved":
                more = {"params": {"num_envs": 2048}, "recovery": _HALVE}
            if kind == "lines":
                command += ["--output_dir", f"out_{number}"]
            run = await self.call(
                "launch_run", command=command, cwd=str(self.directory), name=f"n{number}", tags=["beside"], **more
            )
            self.run_ids[number] = run["run_id"]

    async def launch_habits(self) -> None:
        """Launch runs with the file habits of frameworks instead."""
        self.kinds = HABITS
        for number, habit in enumerate(HABITS, 1):
            command = [sys.executable, str(HABITS_PROGRAM), str(number), habit]
            run = await self.call("launch_run", command=command, cwd=str(self.directory), name=f"h{number}")
            self.run_ids[number] = run["run_id"]

    def are_ready(self) -> bool:
        """Return whether all that get so far are half done."""
        return all((self.directory / f"ready_{n}").exists() for n, kind in enumerate(self.kinds, 1) if kind != "broken")

    def go(self) -> None:
        """Let them run to their ends."""
        (self.directory / "go").touch()

    def look(self, number: int, what: str, text: str) -> None:
        """Count the figures in a text about a run."""
        for match in _FIGURE.finditer(text.replace(str(self.directory), "").replace(str(self.directory.parent), "")):
            if int(match[1]) == number and self.kinds[number - 1] not in STEPLESS:
                self.own += 1
                self.answered.add((number, what.partition(",")[0]))
            else:
                self.foreign.append(f"{what} of {number} ({self.kinds[number - 1]}): {match[0]} in {text[:300]!r}")

    async def ask(self, try_call: Callable[..., Awaitable[str]]) -> None:
        """Ask everything that there is about each run. ``try_call`` returns an answer or a refusal as text."""
        for number, run_id in self.run_ids.items():
            answer = await try_call("read_tb", run_id=run_id, tags=["*"], points=5)
            for tag, values in (json.loads(answer)["values"] if answer.startswith("{") else {}).items():
                figures = [values.get(name) for name in ("first", "last", "min", "max", "mean")]
                figures += [value for _, value in values.get("points") or ()]
                self.look(number, f"read_tb, {tag},", " ".join(map(str, figures)))
            for condition in (f"reward > {100 * number + 60}", f"reward < {100 * number}"):
                waited = await try_call("wait_run", run_ids=run_id, until=condition, timeout_s=0)
                if "condition_met" in waited:
                    self.foreign.append(f"wait_run of {number}, {condition}: {waited[:300]}")
        table = await self.call("compare_runs", run_ids=list(self.run_ids.values()))
        columns = table["columns"].split("|")
        for (number, _), row in zip(self.run_ids.items(), table["rows"], strict=True):
            cells = dict(zip(columns, row.split("|"), strict=True))
            for name, cell in cells.items():
                if "reward" in name or name.startswith("eval") or name == "checkpoint":
                    self.look(number, f"compare_runs, {name},", cell)
        for name, value in (table.get("same") or {}).items():
            if "reward" in name or name.startswith("eval") or name == "checkpoint":
                self.foreign.append(f"compare_runs says that all have {name} {value}")

    async def finish(self, results: Path) -> None:
        """Write all results documents, and look at the parts about metrics, evaluations and checkpoints."""
        for number, run_id in self.run_ids.items():
            answer = await self.call("finish_blueprint", run_id=run_id, result_dir=str(results / str(number)))
            text = Path(answer["results_path"]).read_text()
            for part in ("Metrics", "Evaluations", "Checkpoints"):
                section = text.partition(f"## {part}\n")[2].partition("\n## ")[0]
                self.look(number, f"results.md, {part},", section)
