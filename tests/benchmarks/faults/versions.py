"""Two versions of servers and supervisors on one state directory, while the older one's installation is replaced.

The older version is a commit of this repository: ``RUNWARD_BENCH_OLDER``, else the first whose supervisors run from a
copy of their own.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import anyio.to_thread

from tests.benchmarks.faults.raw_client import RawClient, Refused
from tests.benchmarks.harness import REPOSITORY, NotMeasured, Sandbox
from tests.benchmarks.report import Row, Table

_COPY = "mcp_server/backends/supervisor_copy.py"
_SHIPPED = ("mcp_server", "prompts", "agents")
_BLUEPRINT = """## [exp_purpose]
Fail while the installation is replaced

## [exp_codebase_dir]
{code}

## [exp_venv_exe]
{python}

## [exp_launch_command]
bash fail.sh

## [exp_result_dir]
{results}
"""
_FAILS = """
echo started >> $1.starts
for i in 1 2 3; do echo step $i; done
until test -e go; do sleep 0.05; done
echo 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB'
exit 1
"""
_RETRY = {"oom_gpu": {"do": "retry", "times": 1, "wait_s": 0}}


async def measure(sandbox: Sandbox) -> Table:
    """Run both versions on one state directory, and compare what each says of the other's runs."""
    return await anyio.to_thread.run_sync(_measure, sandbox)


def _install(commit: str, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    done = subprocess.run(["git", "archive", commit, *_SHIPPED], cwd=REPOSITORY, capture_output=True, check=False)
    if done.returncode:
        raise NotMeasured(f"no commit {commit} here: {done.stderr.decode()[:200]}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(path, filter="data")


def _older_commit() -> str:
    if named := os.environ.get("RUNWARD_BENCH_OLDER"):
        return named
    added = ["git", "log", "--format=%H", "--diff-filter=A", "--", _COPY]
    found = subprocess.run(added, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout.split()
    if not found:
        raise NotMeasured("no history of this repository")
    return found[-1]


def _measure(sandbox: Sandbox) -> Table:
    commit, site = _older_commit(), sandbox.root / "site"
    _install(commit, site)
    python = {**sandbox.environment(), "PYTHONSAFEPATH": "1", "PYTHONPATH": str(site)}
    argv = [sys.executable, "-m", "mcp_server", "serve"]
    older = RawClient(argv, python, sandbox.work, sandbox.root / "server.log")
    newer = RawClient(argv, {**python, "PYTHONPATH": str(REPOSITORY)}, sandbox.work, sandbox.root / "server.log")
    clients = {"older": older, "newer": newer}
    try:
        runs = {who: _launch(sandbox, client, who) for who, client in clients.items()}
        _install("HEAD", site)  # replaced under the older server and its supervisors
        late = str(older.call("launch_run", command="exit 6")["run_id"])
        listed = {
            who: {run["run_id"]: run["state"] for run in client.call("list_runs", limit=50)["runs"]}
            for who, client in clients.items()
        }
        shutil.rmtree(site)  # and removed
        for who in clients:
            (sandbox.work / who / "go").touch()
        # Each run's end is heard from the server of the other version, and a stop goes through it.
        ends = {who: _ends(other, runs[who]) for who, other in (("older", newer), ("newer", older))}
        stops = {who: _stop(other, runs[who]["stays"]) for who, other in (("older", newer), ("newer", older))}
        late_end = newer.call("wait_run", run_ids=late, until="end", timeout_s=30)["runs"][0]
    finally:
        older.close()
        newer.close()
    rows = [_row_of_version(sandbox, who, runs[who], ends[who], stops[who]) for who in clients]
    same = {
        run: state for run, state in listed["older"].items() if listed["newer"].get(run, state) != state and run != late
    }
    rows.append(Row("states that the two servers list differently", str(len(same)), bar="0", ok=not same))
    code = late_end.get("exit_code")
    rows.append(Row("a launch by the older server after the replacement", f"exit {code}", bar="exit 6", ok=code == 6))
    return Table(
        f"Two versions on one state directory: {commit[:7]} and this",
        tuple(rows),
        ("Both versions launch; the installation of the older one is replaced, then removed, under way.",),
    )


def _launch(sandbox: Sandbox, client: RawClient, who: str) -> dict[str, str]:
    code = sandbox.work / who
    code.mkdir()
    (code / "fail.sh").write_text(_FAILS)
    document = sandbox.work / f"{who}.md"
    results = sandbox.work / f"{who}-results"
    document.write_text(_BLUEPRINT.format(code=code, python=sys.executable, results=results))
    there: dict[str, Any] = {"cwd": str(code)}
    runs = {
        "blueprint": client.call("launch_run", blueprint=str(document), recovery=_RETRY),
        "fails": client.call("launch_run", command="bash fail.sh fails", **there),
        "retries": client.call("launch_run", command="bash fail.sh retries", recovery=_RETRY, **there),
        "ends": client.call("launch_run", command="until test -e go; do sleep 0.05; done; exit 4", **there),
        "stays": client.call("launch_run", command="sleep 600", **there),
    }
    return {what: str(answer["run_id"]) for what, answer in runs.items()}


def _ends(client: RawClient, runs: dict[str, str]) -> dict[str, dict[str, Any]]:
    ending = {what: run for what, run in runs.items() if what != "stays"}
    client.call("wait_run", run_ids=list(ending.values()), until="end", timeout_s=40, answer_s=60)
    return {
        what: client.call("wait_run", run_ids=run, until="end", timeout_s=10)["runs"][0] for what, run in ending.items()
    }


def _stop(client: RawClient, run_id: str) -> bool:
    try:
        token = client.call("kill_run", run_id=run_id)["confirm_token"]
        done = client.call("kill_run", run_id=run_id, confirm_token=token)
    except Refused as error:
        print(f"versions: {error}", file=sys.stderr)
        return False
    return bool(done["status"] == "killed" and not done.get("survivors"))


def _row_of_version(
    sandbox: Sandbox, who: str, runs: dict[str, str], ends: dict[str, dict[str, Any]], stopped: bool
) -> Row:
    failing = ("blueprint", "fails", "retries")
    kinds = sum(ends[what].get("failure", {}).get("kind") == "oom_gpu" for what in failing)
    attempts = sum(ends[what].get("attempt", 1) == 2 for what in ("blueprint", "retries"))
    codes = sum(ends[what].get("exit_code") == (4 if what == "ends" else 1) for what in ends)
    until_s = time.monotonic() + 5
    # The flag of a failed run waits for a repair.
    results = sandbox.work / f"{who}-results" / "results.md"
    while not results.exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    ended = sum('"kind": "ended"' in (sandbox.run_dir(runs[what]) / "events.jsonl").read_text() for what in ends)
    ok = (kinds, attempts, codes, results.exists(), ended, stopped) == (3, 2, 4, True, 4, True)
    return Row(
        f"runs of the {who} version, through a server of the other",
        f"{codes} of 4 exact ends, {ended} of 4 recorded, {kinds} of 3 kinds, {attempts} of 2 retries, "
        f"{'' if results.exists() else 'no '}results, a stop {'complete' if stopped else 'incomplete'}",
        bar="all",
        ok=ok,
    )
