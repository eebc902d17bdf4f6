"""Blueprints with the truth about each, as a careful person reads them, and how the tools' answers compare with it.

``tests/data/blueprints_*/truth.json`` names for each document the values that must be read, or ``refused``
where nobody can tell, with the ``cause`` that must be named. Its paths are below ``/srv/lab``.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import yaml

from tests.support.sandbox import Agent, Sandbox, text_of

LAB = "/srv/lab"
DATA = Path(__file__).parent.parent / "data"
# A set is a directory of documents with their truth.json, or one file of both.
ROUNDS = DATA / "blueprints_rounds"
SETS = sorted([path.parent.name for path in DATA.glob("*/truth.json")] + [path.stem for path in ROUNDS.glob("*.yaml")])
FILES = """
nav/train.py nav/eval.py nav/play.py nav/run.sh nav/scripts/train.sh nav/configs/ppo.yaml nav/configs/ppo_v2.yaml
ajet/ajet/__init__.py ajet/ajet/train.py ajet/train.py ajet/launch.sh ajet/configs/grpo.yaml ajet/configs/agent.yaml
my code/train.py|my code/final run.yaml|my code/configs/base.yaml
conda/etc/profile.d/conda.sh data/train.parquet data/test.parquet models/rm-1b/config.json models/qwen-7b/config.json
"""
PROGRAMS = """activate python python3 torchrun accelerate deepspeed tensorboard vllm ray uv poetry conda nvidia-smi srun
mpirun pip xvfb-run""".split()  # noqa: SIM905 - names of files
ENVIRONMENTS = ("nav/.venv", "ajet/.venv", "my code/venv", "envs/torch24")
# Truth's names and the answer's.
FIELDS = {
    "cwd": "codebase_dir",
    "python": "venv_exe",
    "yaml": "yaml_path",
    "result_dir": "result_dir",
    "time_limit_s": "time_limit_s",
    "first_step_s": "first_step_timeout_s",
    "params": "params",
    "seeds": "seeds",
    "tensorboard": "tensorboard",
    "recovery": "recovery",
}
# What a document that does not state it must have; None: absent from the answer.
DEFAULTS = {"time_limit_s": 86400, "yaml": None, "params": None, "seeds": None, "tensorboard": None, "recovery": None}


@dataclass
class Verdict:
    """How a document was read: ``right``, ``refused`` (though it can be read) or ``wrong``."""

    name: str
    verdict: str
    details: list[str] = field(default_factory=list)


def build_world(root: Path) -> Path:
    """Make the files that the documents name; returns the directory that stands for ``/srv/lab``."""
    lab = root / "lab"
    for line in FILES.strip().splitlines():
        for name in line.split("|") if "|" in line else line.split():
            file = lab / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("")
    for home in ENVIRONMENTS:
        for program in PROGRAMS:
            file = lab / home / "bin" / program
            file.parent.mkdir(parents=True, exist_ok=True)
            if program.startswith("python"):
                file.symlink_to(sys.executable)
            else:
                file.write_text("#!/bin/sh\n")
                file.chmod(0o755)
    (lab / "results").mkdir()
    return lab


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def one_line(command: str) -> str:
    joined = re.sub(r"\\\n\s*", " ", command.strip())
    return "\n".join(re.sub(r"[ \t]+", " ", line).strip() for line in joined.splitlines())


async def judge(agent: Agent, file: Path, truth: dict[str, Any]) -> Verdict:
    """Compare the answers of check_blueprint and of a dry launch with the truth."""
    lab = str(file.parent.parent)

    async def ask(tool: str, **arguments: Any) -> tuple[dict[str, Any], str]:
        answer = await agent.client.call_tool(tool, arguments, read_timeout_seconds=90)
        text = text_of(answer).replace(lab, LAB)
        return {} if answer.is_error else json.loads(json.dumps(answer.structured_content).replace(lab, LAB)), text

    check, text = await ask("check_blueprint", path=str(file))
    dry, why = await ask("launch_run", blueprint=str(file), dry_run=True)
    problems = [f"{p.get('line')}: {p['text']}" for p in check.get("problems", [])] or [text]
    refused = not check.get("ok") or not dry
    if not refused:
        problems = []
    elif check.get("ok"):
        problems = [f"launch_run: {why}"]
    if "refused" in truth and not (truth.get("either") and not refused):
        if not refused:
            return Verdict(file.name, "wrong", [f"read, though {truth['refused']}: {check}"])
        if truth.get("cause") and not any(truth["cause"] in p for p in problems):
            return Verdict(file.name, "refused", [f"without the cause {truth['cause']}", *problems])
        if "with" in truth:
            dry, why = await ask(
                "launch_run",
                blueprint=str(file),
                dry_run=True,
                **json.loads(json.dumps(truth["with"]).replace(LAB, lab)),
            )
            missing = [s for s in truth["script"] if s not in one_line(dry.get("dry_run_script", why))]
            if missing:
                return Verdict(file.name, "refused", [f"also with {truth['with']}: {why}"])
        return Verdict(file.name, "right")
    if refused:
        return Verdict(file.name, "right" if truth.get("either") else "refused", problems)
    faults = find_faults(check, dry["dry_run_script"], truth)
    return Verdict(file.name, "wrong" if faults else "right", faults)


def find_faults(check: dict[str, Any], script: str, truth: dict[str, Any]) -> list[str]:
    faults = []
    for ours, theirs in FIELDS.items():
        if ours not in truth and ours not in DEFAULTS:
            continue
        expected, got = truth.get(ours, DEFAULTS.get(ours)), check.get(theirs)
        expected, got = (v.rstrip("/") if isinstance(v, str) else v for v in (expected, got))
        if expected != got:
            faults.append(f"{theirs} is {got!r}, not {expected!r}")
    purpose = check.get("purpose", "")
    if "purpose" in truth and words(purpose) != words(truth["purpose"]):
        faults.append(f"purpose is {purpose!r}")
    if truth.get("purpose_has", "") not in purpose:
        faults.append(f"purpose is {purpose!r}")
    command = one_line(check["launch_command"])
    if "command" in truth and command != one_line(truth["command"]):
        faults.append(f"command is {command!r}")
    faults += [
        f"command lacks {part!r}: {command!r}" for part in truth.get("command_has", []) if one_line(part) not in command
    ]
    faults += [f"script lacks {part!r}: {script!r}" for part in truth.get("script", []) if part not in one_line(script)]
    faults += [f"notes lack {part!r}" for part in truth.get("notes", []) if part not in check.get("notes", "")]
    return faults


def read_set(name: str) -> dict[str, tuple[bytes, dict[str, Any]]]:
    """Return the documents of a set by their file's name, each with its truth."""
    if (truths := DATA / name / "truth.json").exists():
        return {
            file: ((truths.parent / file).read_bytes(), truth) for file, truth in json.loads(truths.read_text()).items()
        }
    entries = yaml.load((ROUNDS / f"{name}.yaml").read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {f"{each['name']}.md": (each["text"].encode(), each["truth"]) for each in entries}


async def judge_set(name: str, agent: Agent, lab: Path) -> list[Verdict]:
    """Write the documents of a set below ``lab`` and judge each."""
    directory = lab / name
    directory.mkdir()
    verdicts = []
    for document, (text, truth) in read_set(name).items():
        file = directory / document
        file.write_bytes(text.replace(LAB.encode(), str(lab).encode()))
        verdicts.append(await judge(agent, file, truth))
    return verdicts


async def measure(*names: str) -> None:
    """Print a line for each document that is not read right, and the score, through a server over stdio."""
    with tempfile.TemporaryDirectory() as root:
        lab = build_world(Path(root))
        sandbox = Sandbox(Path(root), "blueprints")
        try:
            async with sandbox.agent(cold=True, PATH=f"{lab}/envs/torch24/bin:{sandbox.environ['PATH']}") as agent:
                for name in names or SETS:
                    verdicts = await judge_set(name, agent, lab)
                    for v in verdicts:
                        if v.verdict != "right":
                            print(f"{v.verdict:8} {v.name}: " + "\n    ".join(v.details))
                    count = {w: sum(v.verdict == w for v in verdicts) for w in ("right", "refused", "wrong")}
                    print(name, count)
        finally:
            sandbox.close()


if __name__ == "__main__":
    anyio.run(measure, *sys.argv[1:])
