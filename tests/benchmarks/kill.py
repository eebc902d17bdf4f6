"""After kill_run: what of the run is left, and who else was hit?"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from tests.benchmarks import processes
from tests.benchmarks.harness import NotMeasured, Sandbox, Server, program, shell, started_facts, until
from tests.benchmarks.report import Row, Table

_GRACE_S = 1
_GONE_WITHIN_S = 1.0  # a killed process takes a moment to be reaped
# Shape of programs/tree.py -> what it is, and how many processes it has.
_SHAPES = {
    "sigterm": ("children that ignore SIGTERM", 4),
    "deaf": ("parent and children that ignore SIGINT, SIGTERM, SIGHUP", 4),
    "setsid": ("children in sessions of their own, deaf", 4),
    "daemon": ("double-forked daemons, deaf", 4),
    "clean": ("children without environment (env -i), deaf", 4),
    "worst": ("double-forked, own sessions, without environment, deaf", 4),
    "tree-3": ("a tree of 15, its leaves ignoring SIGTERM", 15),
}
# With its supervisor dead, these can be told by no environment; those of another session not at all.
_UNFINDABLE = ("worst",)


@dataclass
class Bystander:
    """A stranger that looks like a run's process."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def signalled(self) -> bool:
        """Whether it was sent anything."""
        return self.process.poll() is not None or bool(self.log.read_text())


async def measure(sandbox: Sandbox) -> Table:
    """Kill runs of every shape, by their supervisors and without, and the same trees as people do."""
    sandbox.home.mkdir(mode=0o700)
    (sandbox.home / "config.toml").write_text(f"stop_grace_s = {_GRACE_S}\n")
    sandbox.start_plain_tmux()
    async with sandbox.server() as server:
        run_ids = {
            shape: await server.launch(program("tree", _mark(sandbox, shape, "ours"), shape), name=shape)
            for shape in _SHAPES
        }
        orphaned = {
            shape: await server.launch(program("tree", _mark(sandbox, shape, "lost"), shape), name=shape)
            for shape in _SHAPES
        }
        await _grown(sandbox, "ours")
        await _grown(sandbox, "lost")
        strangers = _bystanders(sandbox, [*run_ids.values(), *orphaned.values()])
        session = f"{run_ids['deaf']}2"
        sandbox.tmux("new-session", "-d", "-s", session, "sleep 100", socket=sandbox.socket)
        for run_id in orphaned.values():
            os.kill(int(started_facts(sandbox.run_dir(run_id))["supervisor_pid"]), signal.SIGKILL)
        told: dict[str, bool] = {}
        async with anyio.create_task_group() as tasks:
            for run_id in [*run_ids.values(), *orphaned.values()]:
                tasks.start_soon(_kill, server, run_id, told)
        ours, lost = await _left(sandbox, "ours"), await _left(sandbox, "lost")
        closed, group = await _plain(sandbox, "session"), await _plain(sandbox, "group")
        hit = [s for s in strangers if s.signalled]
        there = session in sandbox.tmux("list-sessions", "-F", "#{session_name}", socket=sandbox.socket).split()
    for stranger in strangers:
        stranger.process.kill()
        stranger.process.wait()
    rows = [
        Row(
            f"left of {size}: {what}",
            str(ours[shape]),
            f"{closed[shape]} / {group[shape]}",
            bar="0",
            ok=not ours[shape],
        )
        for shape, (what, size) in _SHAPES.items()
    ]
    rows += [
        Row(
            f"supervisor SIGKILLed before; left of {size}: {what}",
            str(lost[shape]),
            bar="" if shape in _UNFINDABLE else "0",
            ok=None if shape in _UNFINDABLE else not lost[shape],
        )
        for shape, (what, size) in _SHAPES.items()
    ]
    silent = sum(left > 0 and not said for left, said in _with(ours, run_ids, told) + _with(lost, orphaned, told))
    rows.append(Row("answers that did not say that something may be left", str(silent), bar="0", ok=not silent))
    rows.append(
        Row(
            f"foreign processes signalled, of {len(strangers)}; foreign session closed",
            f"{len(hit)}; {0 if there else 1}",
            bar="0; 0",
            ok=not hit and there,
        )
    )
    note = "Baseline: `tmux kill-session` / `killpg(SIGKILL)` of the pane's group, on the same trees in plain tmux."
    hits = [f"Signalled: {s.process.args!r}: {s.log.read_text().split() or 'gone'}" for s in hit]
    return Table("Killing", tuple(rows), (note, *hits))


def _mark(sandbox: Sandbox, shape: str, who: str) -> str:
    # With the sandbox's token in it: without environment nothing else tells whose a process is.
    return f"{sandbox.token}-{who}-{shape}"


async def _grown(sandbox: Sandbox, who: str) -> None:
    """Wait until every tree has all its processes."""
    for shape, (_, size) in _SHAPES.items():
        if not await until(partial(_has, _mark(sandbox, shape, who), size)):
            raise NotMeasured(f"{shape} has {_count(_mark(sandbox, shape, who))} processes, not {size}")


def _has(mark: str, size: int) -> bool:
    return _count(mark) == size


def _count(mark: str) -> int:
    return len(processes.with_argument(mark))


async def _left(sandbox: Sandbox, who: str) -> dict[str, int]:
    """Return how many processes of each tree are there a moment later."""
    await until(lambda: not any(_count(_mark(sandbox, shape, who)) for shape in _SHAPES), within_s=_GONE_WITHIN_S)
    return {shape: _count(_mark(sandbox, shape, who)) for shape in _SHAPES}


async def _kill(server: Server, run_id: str, told: dict[str, bool]) -> None:
    """Kill a run; add to ``told`` whether the answer says that something may be left."""
    asked = await server.call("kill_run", run_id=run_id)
    if asked.data["status"] != "confirmation_required":
        raise NotMeasured(f"kill_run did not ask: {asked.text}")
    token = asked.data["confirm_token"]
    done = await server.call("kill_run", run_id=run_id, confirm_token=token, reason="benchmark")
    told[run_id] = bool(done.data.get("survivors")) or "could not be found" in done.data["message"]


def _with(left: Mapping[str, int], run_ids: Mapping[str, str], told: Mapping[str, bool]) -> list[tuple[int, bool]]:
    """Pair what is left of each tree with whether its answer said so."""
    return [(left[shape], told[run_id]) for shape, run_id in run_ids.items()]


def _bystanders(sandbox: Sandbox, run_ids: list[str]) -> list[Bystander]:
    """Start processes that careless hands would hit: same words, same names, ids that begin alike."""
    one = run_ids[0]
    looks: list[tuple[list[str], dict[str, str]]] = [
        (["tree.py", _mark(sandbox, "deaf", "ours") + "2", "deaf"], {}),
        ([one, str(sandbox.run_dir(one))], {}),
        ([f"runward-{one}"], {"RUNWARD_RUN_ID": f"{one}2"}),
        ([], {"RUNWARD_RUN_ID": one[:-1], "RUNWARD_RUN_DIR": str(sandbox.run_dir(one))}),
        ([], {"NOTE": f"RUNWARD_RUN_ID={one}"}),
        ([str(sandbox.home), "mcp_server/supervisor", f"{sandbox.run_dir(one)}2"], {}),
    ]
    found = []
    for number, (words, env) in enumerate(looks):
        log = sandbox.work / f"bystander-{number}"
        argv = program("bystander", log, *words)
        found.append(Bystander(subprocess.Popen(argv, env={**sandbox.environment(), **env}), log))
    return found


async def _plain(sandbox: Sandbox, how: str) -> dict[str, int]:
    """Return what is left of the same trees in plain tmux."""
    for shape in _SHAPES:
        sandbox.tmux(
            "new-session", "-d", "-s", f"{how}-{shape}", shell(program("tree", _mark(sandbox, shape, how), shape))
        )
    await _grown(sandbox, how)
    for shape in _SHAPES:
        target = f"={how}-{shape}:"
        pid = int(sandbox.tmux("display-message", "-p", "-t", target, "#{pane_pid}"))
        if how == "group":
            os.killpg(pid, signal.SIGKILL)
        else:
            sandbox.tmux("kill-session", "-t", target)
    return await _left(sandbox, how)
