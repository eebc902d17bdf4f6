"""300 random moments at which a part of the product dies or pauses, while agents launch, wait, stop and finish runs.

What really happened is in the files that the commands write themselves (``programs/witness.py``); the answers, the
record and the processes are compared with it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from mcp_server.record.state import Run
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system import processes as system_processes
from mcp_server.system.lock_files import is_locked
from tests.benchmarks import processes
from tests.benchmarks.faults.injector import Injector, find_supervisors, injector
from tests.benchmarks.faults.raw_client import RawClient, Refused, ServerGone
from tests.benchmarks.harness import REPOSITORY, NotMeasured, Sandbox, program
from tests.benchmarks.report import Row, Table

LONGEST_S = 400.0
MOMENTS, _MEAN_PAUSE_S, _AGENTS, _RUNS_AT_ONCE, _CLIENTS = 300, 0.15, 3, 3, 2
_SETTLE_S, PATIENCE_S = 2.0, 180.0
_WITH_SLOT, _STOPPED_ANYWAY = 0.3, 0.1
_KINDS = ("plain", "deaf", "fails_once", "stays")
_WEIGHTS = (40, 15, 15, 30)
_ENDS = (0, 0, 1, 3, 42)


@dataclass
class Case:
    """One launch of an agent, what was done to it, and what its callers heard."""

    key: str
    kind: str
    status: int
    truth: Path
    host: str = ""
    run_id: str = ""
    stop_asked: bool = False
    survivors_told: bool = False
    heard: dict[str, tuple[str, int | None, str | None]] = field(default_factory=dict)


@dataclass
class Campaign:
    """The agents' cases, and what did not hold."""

    sandbox: Sandbox
    injector: Injector
    dice: random.Random
    cases: list[Case] = field(default_factory=list)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)
    agents: int = _AGENTS
    runs_at_once: int = _RUNS_AT_ONCE
    hosts: tuple[str, ...] = ("",)  # of the runs; empty is this machine
    pause_s: float = _MEAN_PAUSE_S  # between two strikes
    over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str) -> None:
        """Count something."""
        with self._lock:
            self.count[what] += 1

    def blame(self, rule: str, text: str) -> None:
        """Note what did not hold."""
        with self._lock:
            self.wrong.setdefault(rule, []).append(text)

    def guarded(self, act: Callable[[], None]) -> Callable[[], None]:
        """Return ``act``, of which an error is noted."""

        def call() -> None:
            try:
                act()
            except Exception:
                self.blame("errors of the campaign itself", traceback.format_exc())

        return call


async def measure(sandbox: Sandbox) -> Table:
    """Run the campaign; its seed is ``RUNWARD_BENCH_SEED``, else random and printed."""
    seed = int(os.environ.get("RUNWARD_BENCH_SEED") or random.SystemRandom().randrange(10**6))
    moments = int(os.environ.get("RUNWARD_BENCH_MOMENTS") or MOMENTS)
    print(f"deaths: seed {seed}", file=sys.stderr, flush=True)
    with injector(sandbox, seed) as faults:
        campaign = Campaign(sandbox, faults, random.Random(seed + 1))
        await anyio.to_thread.run_sync(run, campaign, moments)
        return table(campaign, seed)


def run(campaign: Campaign, moments: int, others: Sequence[Callable[[], None]] = ()) -> None:
    """Strike ``moments`` times while agents, and ``others``, work; then wait for all ends and check everything."""
    begun_s = time.monotonic()
    agents = [Agent(campaign, f"agent-{number}") for number in range(campaign.agents)]
    work: list[Callable[[], None]] = []
    work += [partial(_work, campaign, agent, share) for agent in agents for share in range(campaign.runs_at_once)]
    work += [partial(_attach_clients, campaign), partial(_watch, campaign), *others]
    threads = [threading.Thread(target=campaign.guarded(each)) for each in work]
    for thread in threads:
        thread.start()
    time.sleep(_SETTLE_S)
    give_up_s = time.monotonic() + max(PATIENCE_S, moments)
    while sum(campaign.injector.done.values()) < moments and time.monotonic() < give_up_s:
        time.sleep(campaign.injector.dice.expovariate(1 / campaign.pause_s))
        campaign.injector.strike()
        campaign.injector.resume()
    campaign.over = True
    campaign.injector.resume(everything=True)
    for thread in threads:
        thread.join()
    for agent in agents:
        agent.close()
    _check(campaign)
    campaign.count["seconds"] = round(time.monotonic() - begun_s)


def patience(campaign: Campaign | None = None, longest_s: float = PATIENCE_S) -> Iterator[None]:
    """Yield for each try, for so long; the time runs from the end of the campaign on where one is given."""
    give_up_s = time.monotonic() + longest_s
    while time.monotonic() < give_up_s:
        yield
        if campaign is not None and not campaign.over:
            give_up_s = time.monotonic() + longest_s


class Agent:
    """A client whose server may die at any moment: then it starts another one, and its threads ask again."""

    def __init__(self, campaign: Campaign, name: str) -> None:
        self.campaign, self.name = campaign, name
        self._client: RawClient | None = None
        self._lock = threading.Lock()

    def call(self, tool: str, **arguments: Any) -> dict[str, Any] | None:
        """Return the answer; None where the server died or refused."""
        campaign, client = self.campaign, None
        try:
            client = self._connected()
            return client.call(tool, **arguments)
        except ServerGone as error:
            campaign.note("calls cut off")
            if "no answer" in str(error) and not campaign.injector.is_paused(client.pid if client else 0):
                campaign.blame("calls without an answer", f"{self.name} {tool} {arguments}: {error}")
            with self._lock:
                if self._client is client and client is not None:
                    self._client = None
                    client.close()
        except Refused as error:
            campaign.note(f"refused: {tool}")
            campaign.injector.journal.append(f"{time.monotonic():.3f} {self.name} {tool} refused: {str(error)[:300]}")
            time.sleep(0.1)
        return None

    def close(self) -> None:
        """End the server."""
        if self._client is not None:
            self._client.close()

    def _connected(self) -> RawClient:
        with self._lock:
            if self._client is None:
                sandbox = self.campaign.sandbox
                argv = [sys.executable, "-m", "mcp_server", "serve"]
                self._client = RawClient(argv, sandbox.environment(), REPOSITORY, sandbox.root / "server.log")
                self.campaign.injector.server_pids.add(self._client.pid)
                self.campaign.note("servers")
            return self._client


def _work(campaign: Campaign, agent: Agent, share: int) -> None:
    serial = 0
    while not campaign.over:
        serial += 1
        _one_case(campaign, agent, f"{agent.name}-{share}-{serial}")


def _one_case(campaign: Campaign, agent: Agent, key: str) -> None:
    dice = campaign.dice
    kind = dice.choices(_KINDS, _WEIGHTS)[0]
    host = dice.choice(campaign.hosts) if len(campaign.hosts) > 1 else campaign.hosts[0]
    place = campaign.sandbox.work / host  # a host's slots are its own
    place.mkdir(exist_ok=True)
    case = Case(key, kind, dice.choice(_ENDS), place / f"{key}.truth", host)
    campaign.cases.append(case)
    argv = program("witness", case.truth, kind, case.status, round(dice.uniform(0.2, 2.5), 2))
    more: dict[str, Any] = {"gpus": "cpu", "queue": True} if dice.random() < _WITH_SLOT else {}
    more |= {"host": host, "cwd": str(place)} if host else {}
    if kind == "fails_once":
        more["recovery"] = {"oom_gpu": {"do": "retry", "times": 1, "wait_s": 0.1}}
    for _ in patience(campaign):
        if answer := agent.call("launch_run", command=argv, name=key, idempotency_key=key, **more):
            case.run_id = str(answer["run_id"])
            break
    else:
        campaign.blame("launches that never succeeded", key)
        return
    if kind == "stays" or dice.random() < _STOPPED_ANYWAY:
        time.sleep(dice.uniform(0, 1.5))
        _stop(campaign, agent, case)
    hear_end(campaign, agent, case, "own")


def _stop(campaign: Campaign, agent: Agent, case: Case) -> None:
    for _ in patience():
        asked = agent.call("kill_run", run_id=case.run_id)
        case.stop_asked = True
        if asked is not None and asked["status"] == "confirmation_required":
            token = asked["confirm_token"]
            asked = agent.call("kill_run", run_id=case.run_id, confirm_token=token, reason="campaign")
        if asked is None or asked["status"] == "confirmation_required":
            continue
        if asked["status"] == "killed" and not asked.get("survivors"):
            campaign.note("stops confirmed")
            if left := processes_of(case):
                campaign.blame("survivors of a stop that told none", f"{case.run_id} {left}: {asked.get('message')}")
        return
    campaign.blame("stops that never succeeded", case.run_id)


def hear_end(campaign: Campaign, agent: Agent, case: Case, who: str) -> None:
    for _ in patience(longest_s=2 * PATIENCE_S):
        answer = agent.call("wait_run", run_ids=case.run_id, until="end", timeout_s=10)
        if answer is not None and answer["reason"] == "ended":
            found = answer["runs"][0]
            case.heard[who] = (found["state"], found.get("exit_code"), found.get("signal"))
            if found["state"] == "lost":
                _check_lost(campaign, case)
            return
    campaign.blame("ends that a caller never heard", f"{case.run_id} {who}")


def _check_lost(campaign: Campaign, case: Case) -> None:
    """A run may be called lost only when its supervisor is dead."""
    living = [p for p in find_supervisors(campaign.sandbox) if case.run_id in _run_of(p.pid)]
    if living and is_locked(campaign.sandbox.run_dir(case.run_id) / "supervisor.lock"):
        campaign.blame("runs called lost whose supervisor lived", case.run_id)


def _run_of(pid: int) -> str:
    words = system_processes.command_words(pid)
    return words[1][::2] if len(words) > 1 else ""


def processes_of(case: Case) -> list[int]:
    """Return the living processes of a case's command."""
    return processes.with_argument(str(case.truth))


def _watch(campaign: Campaign) -> None:
    """List all runs now and then by servers of its own: what is called lost must not live."""
    watcher = Agent(campaign, "watcher")
    while not campaign.over:
        answer = watcher.call("list_runs", limit=50)
        cases = {case.run_id: case for case in list(campaign.cases)}
        for found in (answer or {}).get("runs", []):
            campaign.note("states listed")
            if found["state"] == "lost" and found["run_id"] in cases:
                _check_lost(campaign, cases[found["run_id"]])
        time.sleep(0.5)
    watcher.close()


def _attach_clients(campaign: Campaign) -> None:
    """Keep two tmux clients attached to some run, as people do; nobody reads what they show."""
    sandbox = campaign.sandbox
    clients: list[tuple[subprocess.Popen[bytes], int]] = []
    while not campaign.over:
        for client, master in [each for each in clients if each[0].poll() is not None]:
            clients.remove((client, master))
            os.close(master)
        live = [case for case in list(campaign.cases) if case.run_id and not case.heard and not case.host]
        if len(clients) < _CLIENTS and live:
            master, slave = os.openpty()
            argv = ["tmux", "-L", sandbox.socket, "attach", "-t", f"={random.choice(live).run_id}"]
            env = {**sandbox.environment(), "TERM": "xterm"}
            client = subprocess.Popen(argv, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
            clients.append((client, master))
            campaign.injector.client_pids.add(client.pid)
            os.close(slave)
        time.sleep(0.5)
    for client, master in clients:
        client.kill()
        client.wait()
        os.close(master)


# --- the end


def _check(campaign: Campaign) -> None:
    """Compare what every caller heard, the record, the processes and the leases with the commands' own words."""
    launched = [case for case in campaign.cases if case.run_id]
    neighbour = Agent(campaign, "neighbour")
    for case in launched:
        hear_end(campaign, neighbour, case, "neighbour")
    neighbour.close()
    store = RunStore(StateHome(campaign.sandbox.home))
    for case in launched:
        check_case(campaign, case, store.observe(case.run_id))
    ids = {case.run_id for case in launched}
    for found in store.list_runs():
        if found.run_id not in ids and found.started_at is not None and found.spec.sweep is None:
            campaign.blame("effects beside the one of their key", f"{found.run_id} {found.spec.name}")
    for lease in (campaign.sandbox.root / "leases").glob("cpu-*"):
        if is_locked(lease):
            campaign.blame("leases held without a run", lease.name)


@dataclass(frozen=True)
class Truth:
    """What the command wrote: how often each attempt started, and the last end or signal that it noted."""

    lines: list[list[str]]

    @classmethod
    def of(cls, case: Case) -> Truth:
        """Read the file of a case; a command that never began left none."""
        text = case.truth.read_text() if case.truth.exists() else ""
        return cls([line.split() for line in text.splitlines()])

    @property
    def starts(self) -> Counter[str]:
        """How often each attempt started."""
        return Counter(line[0] for line in self.lines if line[1] == "start")

    @property
    def end(self) -> list[str] | None:
        """The last ``exit N`` or ``signal NAME``."""
        return next((line[1:] for line in reversed(self.lines) if line[1] in ("exit", "signal")), None)


def check_case(campaign: Campaign, case: Case, found: Run) -> None:
    """Compare one run's record, and what callers heard of it, with its command's own words."""
    truth = Truth.of(case)
    summary = f"{case.run_id} {case.kind} {found.state} {found.exit_code} {found.signal}: {truth.lines} {found.reason}"
    campaign.count[found.state] += 1
    if any(count > 1 for count in truth.starts.values()) or (len(truth.starts) > 1 and case.kind != "fails_once"):
        campaign.blame("effects beside the one of their key", summary)
    if any(line[1] == "overlap" for line in truth.lines) and not campaign.injector.done["supervisor killed"]:
        campaign.blame("slots with two runs", summary)
    deaths = {pid for pid, _ in campaign.injector.killed}
    if found.state == "lost" and found.at_start.get("supervisor_pid", -1) not in {*deaths, -1}:
        campaign.blame("runs called lost whose supervisor nobody killed", summary)
    # The injector takes a command for a helper once its guard is dead.
    is_struck = found.signal == "SIGKILL" and any(line[1] == "start" and int(line[2]) in deaths for line in truth.lines)
    if not is_end_right(case, found, truth) and not is_struck:
        told = [f"{event['kind']}: {event['text']}" for event in found.events[-6:]]
        campaign.blame("wrong ends", f"{summary} {told} {found.stopped_by}")
    for who, (state, exit_code, name) in case.heard.items():
        if (state, exit_code, name) != (found.state, found.exit_code, found.signal) and state != "lost":
            campaign.blame("callers that heard another end", f"{who} {state} {exit_code} {name}: {summary}")
    if found.state != "lost" and (left := processes_of(case)):
        campaign.blame("processes left of ended runs", f"{left} {summary}")


def is_end_right(case: Case, found: Run, truth: Truth) -> bool:
    """Return whether the end that is told agrees with the command's own words."""
    never_began = not truth.starts
    if found.state == "lost":
        return never_began or "never started" not in (found.reason or "")
    if found.state == "killed":
        return case.stop_asked or never_began
    if found.state not in ("finished", "failed"):
        return False
    if found.events and found.events[-1]["kind"] == "refused":
        return never_began
    if found.exit_code is not None:
        return truth.end == ["exit", str(found.exit_code)]
    # A guard's death hangs up; bash may die of it before the command begins.
    never_began = str(found.attempt) not in truth.starts
    return found.signal is not None and (never_began or truth.end == ["signal", found.signal])


# A machine that is busy with other work may break one of the others.
TRUTHS = (
    "runs called lost whose supervisor lived",
    "runs called lost whose supervisor nobody killed",
    "wrong ends",
    "callers that heard another end",
    "survivors of a stop that told none",
    "processes left of ended runs",
    "effects beside the one of their key",
    "leases held without a run",
    "slots with two runs",
    "errors of the campaign itself",
)
_RULES = (
    *TRUTHS,
    "ends that a caller never heard",
    "launches that never succeeded",
    "stops that never succeeded",
    "calls without an answer",
)


def table(campaign: Campaign, seed: int, more_rules: Sequence[str] = ()) -> Table:
    """Return the figures of a campaign."""
    done, count = campaign.injector.done, campaign.count
    if not done:
        raise NotMeasured("nothing was struck")
    size = len(campaign.cases)
    rows = [
        Row(rule, str(len(campaign.wrong.get(rule, []))), bar="0", ok=not campaign.wrong.get(rule))
        for rule in (*_RULES, *more_rules)
    ]
    states = ", ".join(f"{count[state]} {state}" for state in ("finished", "failed", "killed", "lost"))
    notes = [
        f"Seed {seed}, {count['seconds']} s. {sum(done.values())} faults: "
        + ", ".join(f"{number} {what}" for what, number in sorted(done.items())),
        f"{size} launches with a key by {campaign.agents * campaign.runs_at_once} callers, "
        f"{count['servers']} servers: {states}; {count['cells']} cells, {count['cells given up']} given up; "
        f"{count['stops confirmed']} stops confirmed; {count['states listed']} states listed.",
        "; ".join(f"{what}: {number}" for what, number in sorted(count.items()) if ":" in what),
        *(f"{rule}: {text}" for rule, texts in campaign.wrong.items() for text in texts[:10]),
    ]
    if not campaign.injector.freezer.works:
        notes.append("Supervisors and guards were not paused: no cgroup could be made.")
    if log := os.environ.get("RUNWARD_BENCH_JOURNAL"):
        Path(log).write_text("\n".join(campaign.injector.journal))
    sites = " here and on another host" if len(campaign.hosts) > 1 else ""
    return Table(
        f"{sum(done.values())} deaths and pauses at random moments{sites}", tuple(rows), tuple(filter(None, notes))
    )
