"""No value of a secret reaches a file or an answer: through a real server, a real run, and every way out of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_server.system import processes
from mcp_server.text.log_text import clean_lines
from tests.support.sandbox import Agent, Sandbox, until_async
from tests.support.secret_spellings import INVISIBLE, SPELLINGS

pytestmark = pytest.mark.anyio

KEY = "hf_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE"
OTHER = "w1Zz4Yy7Xx0Ww3Vv6Uu9Tt2Ss5Rr8Qq1"  # known to the server, and not asked for
PEM = "-----BEGIN KEY-----\nQm9iIGlzIG5vdCBhIHNlY3JldCBidXQ\nVGhpcyBpcyBhIHNlY29uZCBsaW5lIDI\n-----END KEY-----"

PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tests.support.secret_spellings import INVISIBLE, SPELLINGS
key, pem = os.environ["HF_TOKEN"], os.environ["DEPLOY_KEY"]
out = sys.stdout.buffer
for name, spell in SPELLINGS.items():
    out.write(f"spelling {name}: {spell(key)} .\\n".encode())
for name, between in INVISIBLE.items():
    out.write(f"invisible {name}: ".encode() + between.join(key).encode() + b" .\\x1b\\\\\\n")
out.write(pem.encode() + b"\\n" + pem.replace("\\n", "\\\\n").encode() + b"\\n")
out.write(pem.replace("\\n", "\\r\\n    ").encode() + b"\\n" + pem.replace("\\n", " ").encode() + b"\\n")
out.write(b"step 1 loss 0.5\\nstep 2 loss 0.4\\n")
out.flush()
raise RuntimeError(f"the hub refused {key} and {key[:16]} and " + "\\a".join(key))
"""


def leaks(text: str) -> list[str]:
    """Return the values that can be read in ``text``, whatever its case and what is invisible in it."""
    visible = " ".join(line.text for line in clean_lines(text.encode(errors="replace")))
    values = [KEY, KEY[:16], KEY[-16:], OTHER, *[line for line in PEM.split("\n") if "-" not in line]]
    return [value for value in values for form in (text, visible) if value.lower() in form.lower()]


def read_files(*directories: Path) -> dict[str, str]:
    """Return the texts of all files below the directories, by path."""
    files = [path for directory in directories for path in directory.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes().decode(errors="replace") for path in files}


async def call_all(agent: Agent, run_id: str, out: Path) -> list[str]:
    """Return the whole answers of all tools that show something of a run."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_log", {"run_id": run_id, "max_bytes": 60_000}),
        ("read_log", {"run_id": run_id, "grep": "spelling|invisible"}),
        ("capture_pane", {"run_id": run_id}),
        ("list_runs", {}),
        ("wait_run", {"run_ids": run_id, "until": "end"}),
        ("finish_blueprint", {"run_id": run_id, "result_dir": str(out), "summary": f"It printed {KEY} and {OTHER}."}),
    ]
    answers = []
    for tool, arguments in calls:
        result = await agent.client.call_tool(tool, arguments, read_timeout_seconds=90)
        answers.append(f"{tool}: {result.is_error} {result.structured_content}\n" + str(result.content))
        answers += [block.text for block in result.content if block.type == "text"]
    return answers


async def test_no_file_and_no_answer_holds_the_value_of_a_secret(sandbox: Sandbox) -> None:
    work, out = sandbox.path / "work", sandbox.path / "out"
    work.mkdir()
    (work / "leak.py").write_text(PROGRAM)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", KEY]):
        subprocess.run(["git", *words], cwd=work, check=True, capture_output=True)
    (work / "leak.py").write_text(f"# {KEY} {OTHER}\n{PROGRAM}")  # in the diff
    root = str(Path(__file__).parents[2])
    async with sandbox.agent(HF_TOKEN=KEY, DEPLOY_KEY=PEM, OTHER_API_KEY=OTHER) as agent:
        run_id = await agent.launch(
            [sys.executable, "leak.py", root], cwd=str(work), secrets=["HF_TOKEN", "DEPLOY_KEY"]
        )
        ended = await agent.end(run_id)
        answers = [json.dumps(ended), *(await call_all(agent, run_id, out))]

    log = sandbox.log(run_id)
    assert log.count("spelling") == len(SPELLINGS)
    assert log.count("invisible") == len(INVISIBLE)
    assert "step 2 loss 0.4" in log
    # Those in several lines begin with a part of a key, or an offset.
    unmasked = {line.split(":")[0] for line in log.splitlines() if "spelling " in line and "[secret:" not in line}
    assert unmasked <= {"spelling thirds, a line each", "spelling a character a line"}
    assert ended["failure"]["kind"]
    assert (out / "results.md").is_file()
    assert (out / "experiment_log.md").is_file()
    assert {"answers": leaks("\n".join(answers))} == {"answers": []}
    files = read_files(sandbox.path / "state", out)
    assert len(files) > 8
    assert {path: found for path, text in files.items() if (found := leaks(text))} == {}


GIVEN: dict[str, Any] = {
    "command": f"python train.py note={OTHER}",
    "env": {"NOTE": f"x{OTHER}"},
    "tags": [OTHER],
    "name": OTHER,
    "tensorboard": f"/tmp/{OTHER}",
    "params": {"note": OTHER},
    "resume_args": ["--note", OTHER],
    "idempotency_key": OTHER,
    "owner": OTHER,
}


async def test_the_value_of_a_secret_that_the_server_knows_is_refused_in_every_argument(sandbox: Sandbox) -> None:
    state = sandbox.path / "state"
    state.mkdir(mode=0o700)
    (state / "secrets.env").write_text(f"DB_PASSWORD={OTHER[::2]}\n")
    (state / "secrets.env").chmod(0o600)
    async with sandbox.agent(OTHER_API_KEY=OTHER) as agent:
        for argument, value in GIVEN.items():
            refusal = await agent.refusal("launch_run", **{"command": "python train.py", argument: value})
            assert refusal.startswith(f"{argument}: holds the value of a secret, OTHER_API_KEY"), refusal
            assert not leaks(refusal)
        encoded = OTHER.encode().hex()
        assert "OTHER_API_KEY" in await agent.refusal("launch_run", command=f"python a.py {encoded}")
        assert "DB_PASSWORD" in await agent.refusal("launch_run", command=f"python a.py {OTHER[::2]}")
        assert not list(state.glob("runs/*"))
        sweep = {"name": "night", "common": {"command": "sleep 300"}, "cells": [{}]}
        for more in ({"metric": OTHER}, {"phases": [{"name": OTHER, "cells": [{}]}], "cells": None}):
            assert "OTHER_API_KEY" in await agent.refusal("launch_sweep", **{**sweep, **more})
        for quoted in ({"host": OTHER}, {"env": {OTHER: "1"}}, {"require": {OTHER: 1}}):
            refusal = await agent.refusal("launch_run", **{"command": "true", **quoted})
            assert not leaks(refusal), refusal
        assert not list(state.glob("sweeps/*"))
        await agent.call("launch_sweep", **sweep)
        assert "OTHER_API_KEY" in await agent.refusal("launch_sweep", name="night", notes={"cell": OTHER})
        assert (await agent.kill("night", reason=f"leaks {OTHER}"))["status"] == "killed"
        await agent.kill(await agent.launch("sleep 300"), reason=f"leaks {OTHER}")
    files = read_files(state)
    files.pop(str(state / "secrets.env"))
    assert {path: found for path, text in files.items() if (found := leaks(text))} == {}


@pytest.mark.slow
async def test_only_the_command_may_leave_a_core_dump(sandbox: Sandbox) -> None:
    """The server's memory is closed, the supervisor and the guard have a limit, and the command has its launcher's."""
    (sandbox.path / "core.sh").write_text("grep core /proc/self/limits\ngrep core /proc/$PPID/limits\nexec sleep 600\n")
    async with sandbox.agent(cold=True) as agent:
        run_id = await agent.launch(["bash", str(sandbox.path / "core.sh")], cwd=str(sandbox.path))
        run = await until_async(lambda: sandbox.log(run_id).count("core") > 1 and sandbox.run(run_id), "the output")
        guard, supervisor = run.at_start["guard_pid"], run.at_start["supervisor_pid"]
        limits = {pid: core_limits(pid) for pid in ("self", guard, supervisor, run.at_start["pid"])}
        server = next(
            p.pid for p in processes.list_processes() if p.parent == os.getpid() and "mcp_server" in p.command
        )
        assert b"VmSize" in Path(f"/proc/{server}/status").read_bytes(), "others still see it"
        await agent.kill(run_id)
    assert limits[guard][0] == limits[supervisor][0] == ("0" if limits["self"][1] == "0" else "1")
    assert limits[guard][1] == limits["self"][1]
    assert limits[run.at_start["pid"]] == limits["self"]


def core_limits(pid: object) -> list[str]:
    """Return the soft and the hard limit of core dumps of a process."""
    text = Path(f"/proc/{pid}/limits").read_text()
    line = next(line for line in text.splitlines() if line.startswith("Max core file size"))
    return line.split()[4:6]
