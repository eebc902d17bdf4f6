"""Whatever befalls the file of the memory, the next answer is whole, and no record is touched."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mcp_server.record.state import Run
from mcp_server.results.memory.index import Memory
from mcp_server.results.memory.question import read_question
from mcp_server.results.memory.searcher import Searcher, list_kinds
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_index import RunIndex
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system import processes
from tests.support.tried_runs import NOW, Facts, try_runs

QUESTION = "cube finished"
SEARCH = """
import sys
from pathlib import Path
from tests.results.memory.test_index_faults import ask
print("begun", flush=True)
print(len(ask(Path(sys.argv[1]))))
"""


def ask(home: Path, store: RunStore | None = None) -> set[str]:
    """Return the ids that a server finds, a new one without ``store``."""
    store = store or RunStore(StateHome(home))
    searcher = Searcher(store, Scalars(store.home, store), "/lab")
    found = searcher.find(lambda names: read_question(QUESTION, NOW, list_kinds(), names), 1000)
    assert found.total == len(found.lines)
    return {line.partition(" ")[0] for line in found.lines if not line.startswith("sweep ")}


def expect(runs: list[Facts]) -> set[str]:
    return {run["id"] for run in runs if run["project"] == "cube" and run["state"] == "finished"}


def digest(home: Path) -> str:
    sha = hashlib.sha256()
    for path in sorted(path for path in (home / "runs").rglob("*") if path.is_file()):
        sha.update(str(path).encode() + path.read_bytes())
    return sha.hexdigest()


@pytest.fixture
def lab(tmp_path: Path) -> tuple[Path, list[Facts]]:
    runs = try_runs(tmp_path, 60)
    for run in runs:  # no sweep of several cells is told as one line
        path = tmp_path / "runs" / run["id"] / "spec.json"
        path.write_text(path.read_text().replace('"sweep": "', '"former_sweep": "'))
    return tmp_path, runs


def search_apart(home: Path) -> subprocess.Popen[str]:
    searching = subprocess.Popen(
        [sys.executable, "-c", SEARCH, str(home)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    assert searching.stdout is not None
    assert searching.stdout.readline() == "begun\n"
    return searching


@pytest.mark.slow
def test_servers_killed_while_they_write_the_memory_leave_no_wrong_answer(lab: tuple[Path, list[Facts]]) -> None:
    home, runs = lab
    before, chance = digest(home), random.Random(7)
    for _ in range(3):
        searching = search_apart(home)
        time.sleep(chance.uniform(0.0, 0.15))  # the moment of the kill
        os.kill(searching.pid, signal.SIGKILL)
        searching.communicate()
    assert ask(home) == expect(runs)
    assert digest(home) == before


@pytest.mark.slow
def test_servers_that_write_the_memory_at_once_both_answer_rightly(lab: tuple[Path, list[Facts]]) -> None:
    home, runs = lab
    other = search_apart(home)
    answers: list[set[str]] = []
    asking = [threading.Thread(target=lambda: answers.append(ask(home))) for _ in range(2)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert answers == [expect(runs)] * 2
    assert other.communicate()[0] == f"{len(expect(runs))}\n"


def test_a_server_that_has_read_all_reads_again_what_was_forgotten_and_what_came(lab: tuple[Path, list[Facts]]) -> None:
    home, runs = lab
    server, other = RunStore(StateHome(home)), RunStore(StateHome(home))
    expected = expect(runs)
    assert ask(home, server) == expected
    lost = sorted(expected)[:3]
    for forgetful in (other, server):
        forgetful.ask(lambda index: Memory.of(index).forget(lost, 0))
        assert ask(home, server) == expected
    for number, first in enumerate((server, other)):
        shutil.copytree(home / "runs" / lost[0], home / "runs" / f"later-{number}")
        first.count_states()  # writes the row
        expected |= {f"later-{number}"}
        assert ask(home, server) == expected


def test_an_index_that_is_made_for_a_question_reads_each_record_once(
    lab: tuple[Path, list[Facts]], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, runs = lab
    observe, observed = RunStore.observe, []

    def note(store: RunStore, run_id: str) -> Run:
        observed.append(run_id)
        return observe(store, run_id)

    monkeypatch.setattr(RunStore, "observe", note)
    assert ask(home) == expect(runs)
    assert sorted(observed) == sorted(run["id"] for run in runs)


@pytest.mark.parametrize("pages", [22, 40])
def test_a_full_disk_while_the_memory_is_written_changes_no_answer(
    lab: tuple[Path, list[Facts]], monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    home, runs = lab
    opened, whole = RunIndex.__init__, []

    def fill(index: RunIndex, path: Path | None) -> None:
        opened(index, path)
        if path is not None:
            whole.append(index.execute(f"PRAGMA main.max_page_count = {pages}"))

    with monkeypatch.context() as patch:
        patch.setattr(RunIndex, "__init__", fill)
        assert ask(home) == expect(runs)
    assert whole
    assert ask(home) == expect(runs)


def remember_together(home: Path) -> list[str]:
    """Have several processes read all runs, and return the ids of those that the memory still lacks."""
    store = RunStore(StateHome(home))
    Searcher(store, Scalars(store.home, store), "/lab").remember_all(10)
    return store.ask(lambda index: Memory.of(index).list_unknown())


def test_several_processes_make_the_memory_that_one_makes(
    lab: tuple[Path, list[Facts]], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, runs = lab
    before, observed = digest(home), list[str]()
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "observe", lambda _, run_id: observed.append(run_id))
        assert remember_together(home) == []
    assert observed == [], "the server itself reads no record"
    assert ask(home) == expect(runs)
    assert digest(home) == before


@pytest.mark.slow
def test_what_a_killed_process_has_left_is_read_by_the_server(
    lab: tuple[Path, list[Facts]], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, runs = lab
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    unknown: list[list[str]] = []
    making = threading.Thread(target=lambda: unknown.append(remember_together(home)))
    making.start()
    killed = 0
    while making.is_alive() and killed < 1:
        for process in processes.descendants(os.getpid()):
            killed += processes.send_signal(process, signal.SIGKILL)
    making.join()
    assert (killed > 0, unknown) == (True, [[]])
    assert ask(home) == expect(runs)
