"""What was tried is found: by settings, outcome, words, metric and time, in ended runs and in live ones."""

from __future__ import annotations

import fcntl
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcp_server.results.memory.index import Memory, Remembered
from mcp_server.results.memory.question import read_question
from mcp_server.results.memory.searcher import Found, Searcher, list_kinds
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_index import Row, RunIndex
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.tables.log import keep_note
from tests.store.test_catalogue import add_run, file_of
from tests.support.sweeps import TRIALS, write_open_sweep

NOW = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)


def add(home: Path, number: int, state: str | None = "finished", reward: float | None = None, **spec: Any) -> str:
    facts = {"cwd": "/lab/cube", "command": f"python train.py --lr {number}e-4 --env.num-envs {64 * number}", **spec}
    run_id = add_run(home, number, state, **facts)
    if reward is not None:
        attempt = home / "runs" / run_id / "attempts" / "1"
        (attempt / "output.log").write_text("".join(f"step {n}/9 reward {reward * n / 9:.3f}\n" for n in range(1, 10)))
        (attempt / "progress.json").write_text(json.dumps({"step": 9, "metrics": {"reward": reward}}))
    return run_id


@pytest.fixture
def home(tmp_path: Path) -> Path:
    add(tmp_path, 1, "finished", 10.0, tags=["night"])
    add(tmp_path, 2, "finished", 30.0, owner="bob")
    add(tmp_path, 3, "failed", 90.0, cwd="/lab/walker")
    add(tmp_path, 4, "killed", None, cwd="/lab/cube-two", command="python evaluate.py --suite libero_spatial")
    add(tmp_path, 5, None, 20.0, name="still")
    return tmp_path


def find(home: Path, text: str, most: int = 10, project: str = "/lab/cube") -> Found:
    store = RunStore(StateHome(home))
    searcher = Searcher(store, Scalars(store.home, store), project)
    return searcher.find(lambda names: read_question(text, NOW, list_kinds(), names), most)


def ids(home: Path, text: str) -> list[str]:
    return [line.partition(" ")[0] for line in find(home, text).lines]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("lr=0.0002", [2]),
        ("lr=2e-4", [2]),
        ("lr=1e-4 vs lr=2e-4", [2, 1]),
        ("lr 1e-4 vs 3e-4", [3, 1]),
        ("lr != 1e-4 -failed", [5, 2]),
        ("suite=goal or suite=libero_spatial", [4]),
        ("not owner:ada", [2]),
        ("lr>1e-5 -tag:night state:finished", [2]),
        ("lr > 1e-4 num_envs <= 192", [3, 2]),
        ("env.num_envs=64", [1]),
        ("suite=libero_spatial", [4]),
        ("suite != goal", [4]),
        ("state:failed", [3]),
        ("libero", [4]),
        ("tag:night", [1]),
        ("owner:bob", [2]),
        ("project:.", [5, 2, 1]),
        ("project:cube-two", [4]),
        ("in this project with lr above 1e-4", [5, 2]),
        ("lr 2e-4", [2]),
        ("best reward", [2, 1]),
        ("lowest reward in this project", [1, 2]),
        ("best reward state:failed", [3]),
        ("reward > 15", [5, 3, 2]),
        ("step=9 owner:ada", [5, 3, 1]),
        ("since:2026-11-22", []),
        ("lr=1", []),
    ],
)
def test_runs_are_found_by_what_they_were_and_did(home: Path, text: str, numbers: list[int]) -> None:
    assert ids(home, text) == [f"cfm-{number:04}" for number in numbers]


def test_a_hit_says_why_it_was_found(home: Path) -> None:
    found = find(home, "best reward with num_envs <= 128")
    assert found.lines[0] == "cfm-0002 finished 21 Nov 10:00Z reward=30@9 | env.num_envs=128; lr=2e-4"
    assert (found.total, found.ranked) == (2, "last reward, maximum first")
    assert find(home, "libero").lines == ["cfm-0004 killed 21 Nov 10:00Z | evaluate.py --suite libero_spatial"]


def test_a_question_without_an_answer_says_which_part_excludes_all(home: Path) -> None:
    assert find(home, "lr=2e-4 tag:night").notes == [
        "No run matches all parts; there are 1 without lr=2e-4, 1 without tag:night."
    ]


def test_where_only_words_are_asked_none_is_left_out(home: Path) -> None:
    found = find(home, "diffusion walker")
    assert (found.lines, found.notes) == ([], ["No run matches all parts; there are 1 without diffusion."])
    assert find(home, "diffusion walker state:failed").notes == ["No run says 'diffusion': left out."]


def test_a_word_is_found_in_its_other_forms(home: Path) -> None:
    add(home, 6, why="the critic overfits")
    assert ids(home, "overfitting") == ids(home, "overfitted critics") == ["cfm-0006"]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("num_env = 64", "No run that matches the rest has a setting or metric 'num_env'. Near: num_envs."),
        ("optimiser = adam", "No run has a setting 'optimiser'."),
        ("best:rewards/mean", "None of the 2 runs that match has a metric 'rewards/mean'. Near: reward."),
        ("best tag:none", "No run matches all parts; there are 5 without tag:none."),
    ],
)
def test_a_name_that_no_run_has_is_said_with_those_near(home: Path, text: str, note: str) -> None:
    found = find(home, text)
    assert (list(found.lines), found.total, found.notes[-1]) == ([], 0, note)


def test_the_memory_is_made_again_from_the_records(home: Path) -> None:
    before = find(home, "best reward").lines
    for path in (home / "index").iterdir():
        path.unlink()
    assert find(home, "best reward").lines == before
    file_of(home).write_bytes(b"no database" * 900)
    assert find(home, "best reward").lines == before


def test_a_run_that_was_replaced_is_read_again(home: Path) -> None:
    assert ids(home, "lr=2e-4") == ["cfm-0002"]
    (home / "runs" / "cfm-0002").rename(home / "old")
    assert ids(home, "lr=2e-4") == []
    add(home, 2, "finished", 5.0, command="python train.py --lr 7e-4")
    assert ids(home, "lr=7e-4") == ["cfm-0002"]
    assert ids(home, "best reward") == ["cfm-0001", "cfm-0002"]


def test_a_live_run_is_found_as_it_is_now(home: Path) -> None:
    assert ids(home, "reward > 50 state:live") == []
    attempt = home / "runs" / "cfm-0005" / "attempts" / "1"
    (attempt / "output.log").write_text("step 9/9 reward 77\n")
    assert "cfm-0005" in ids(home, "reward > 50")


def test_a_trial_of_an_open_sweep_is_found_once_with_its_verdict_however_often_it_ran(home: Path) -> None:
    sweep = write_open_sweep(home, TRIALS).sweep_id
    for number in range(10, 22):
        trial, text = ("t2", "lr .2") if number == 10 else ("t1", "momentum .95, as in lr .2")
        add(home, number, sweep=sweep, cell=f"{trial}.{number}", why=f"{trial}: {text}")
    found = find(home, "'lr .2'")
    told = [line.rpartition("; why: ")[2] for line in found.lines]
    assert told == ["t1: momentum .95, as in lr .2; kept", "t2: lr .2; discarded"], found
    assert (found.total, found.notes) == (12, ["Not listed: 10 more cells of night-ab3d; sweep:NAME lists them."])


def test_many_cells_of_one_sweep_are_not_all_listed_beside_others(home: Path) -> None:
    for number in range(10, 20):
        add(home, number, sweep="grid-ab3d", cell=f"c{number}")
    found = find(home, "train.py")
    assert sum("cfm-001" in line for line in found.lines) == 3
    assert "Not listed: 7 more cells of grid-ab3d; sweep:NAME lists them." in found.notes
    assert found.lines[-1] == "sweep grid-ab3d | 10 cells match"
    store = RunStore(StateHome(home))
    searcher = Searcher(store, Scalars(store.home, store), "/lab/cube")
    cut = searcher.find(lambda names: read_question("/lab", NOW, list_kinds(), names), 10, most_tokens=60)
    own = sum("cfm-001" in line for line in cut.lines)
    assert own < 3
    assert f"Not listed: {10 - own} more cells of grid-ab3d; sweep:NAME lists them." in cut.notes
    assert found.total == 14
    assert len(find(home, "sweep:grid").lines) == 10
    assert len(find(home, "/lab", most=20).lines) == 16  # with the line of the sweep, where all have room


def test_a_reason_and_a_later_verdict_are_found_and_told(home: Path) -> None:
    add(home, 6, why="larger batches may help the critic")
    assert find(home, "larger batches").lines == [
        "cfm-0006 finished 21 Nov 10:00Z | why: larger batches may help the critic"
    ]
    assert ids(home, "verdict:discard") == []
    store = RunStore(StateHome(home))
    keep_note(store, store.observe("cfm-0001"), "discard", "unstable after step 5", "ada, on the page", {})
    assert find(home, "verdict:discard").lines[0].endswith("| discard: unstable after step 5 (ada, on the page)")
    keep_note(store, store.observe("cfm-0001"), "keep", "stable with clipping", "ada, on the page", {})
    assert (ids(home, "verdict:discard"), ids(home, "clipping verdict:keep")) == ([], ["cfm-0001"])


def test_a_metric_that_ended_as_nan_is_found_and_told(home: Path) -> None:
    run_id = add(home, 7)
    (home / "runs" / run_id / "attempts/1/progress.json").write_text('{"step": 9, "metrics": {"eval/success": "nan"}}')
    assert find(home, "ended as nan").lines == ["cfm-0007 finished ended nan: eval/success 21 Nov 10:00Z"]


def test_the_time_that_words_mean_is_told_also_where_nothing_is_found(home: Path) -> None:
    found = find(home, "best reward last week tag:nothing")
    assert (found.lines, found.ranked) == ([], "")
    assert any(note.startswith("Started since 09 Nov 00:00") for note in found.notes)


def test_a_run_in_a_copy_of_the_code_belongs_to_the_project_it_was_copied_from(home: Path) -> None:
    code = {"sync": "kept", "from": "/lab/cube", "to": "/state/code/ab12"}
    add(home, 6, cwd="/state/code/ab12/train", code=code)
    assert ids(home, "project:.") == ["cfm-0006", "cfm-0005", "cfm-0002", "cfm-0001"]
    assert ids(home, "project:/lab/cube/train") == ids(home, "project:/state/code") == ["cfm-0006"]


def test_a_cause_that_a_retry_cured_is_found_and_told(home: Path) -> None:
    add(home, 6)
    path = home / "runs" / "cfm-0006" / "events.jsonl"
    started, ended = map(json.loads, path.read_text().splitlines())
    retry = {**started, "seq": 2, "kind": "retrying", "failure": {"kind": "oom_gpu", "line": "CUDA out of memory."}}
    events = [started, retry, {**started, "seq": 3, "attempt": 2}, {**ended, "seq": 4}]
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert find(home, "failed:oom_gpu").lines[0].startswith("cfm-0006 finished (before: attempt 1 oom_gpu) 21 Nov")
    assert ids(home, "runs that were retried after out of memory and finished") == ["cfm-0006"]


def test_a_run_that_diverged_is_not_the_best_unless_it_is_asked_for(home: Path) -> None:
    add(home, 6, "finished", 99.0)
    path = home / "runs" / "cfm-0006" / "events.jsonl"
    started, ended = map(json.loads, path.read_text().splitlines())
    diverged = {**started, "seq": 2, "kind": "error_seen", "failure": {"kind": "divergence", "line": "loss is nan"}}
    ended |= {"seq": 3, "failure": diverged["failure"]}
    path.write_text("".join(f"{json.dumps(event)}\n" for event in (started, diverged, ended)))
    found = find(home, "best reward")
    assert [line[:8] for line in found.lines] == ["cfm-0002", "cfm-0001"]
    assert found.notes[0].startswith("4 that match are not ranked: failed, stopped, diverged or live.")
    assert ids(home, "best reward cause:divergence") == ["cfm-0006"]


def test_a_live_run_is_no_best_unless_it_is_asked_for(home: Path) -> None:
    with (home / "runs" / "cfm-0005" / "supervisor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ids(home, "best reward") == ["cfm-0002", "cfm-0001"]
        assert find(home, "best reward state:live").lines[0].startswith("cfm-0005 running")


def test_settings_that_tell_runs_apart_stand_before_their_seeds(home: Path) -> None:
    for number, (lr, seed) in enumerate([("1e-3", 1), ("2e-3", 1), ("3e-3", 2)], 6):
        add(home, number, name="grid", command=f"python train.py --seed {seed} --lr {lr} --wd {seed} --warmup {seed}")
    assert all("lr=" in line and "seed=" not in line for line in find(home, "name:grid").lines)


def test_no_metric_is_said_to_be_missing_before_all_runs_are_read(home: Path) -> None:
    find(home, "cube")
    store = RunStore(StateHome(home))
    searcher = Searcher(store, Scalars(store.home, store), "/lab/cube", read_s=0)
    found = searcher.find(lambda names: read_question("best:val/psnr", NOW, list_kinds(), names), 10)
    assert found.notes[-2:] == [
        "val/psnr of 2 older runs is not read yet: the same call reads more.",
        "None of the 2 runs that match has a metric 'val/psnr', as far as they are read.",
    ]


def test_lines_without_room_are_counted_beside_all_that_match(home: Path) -> None:
    store = RunStore(StateHome(home))
    searcher = Searcher(store, Scalars(store.home, store), "/lab/cube")
    found = searcher.find(lambda names: read_question("best reward", NOW, list_kinds(), names), 10, most_tokens=30)
    assert (len(found.lines), found.total) == (1, 2)
    assert found.notes[-1] == "1 of 2 have room here: a narrower question lists others."


@pytest.mark.parametrize(
    "text",
    [
        "finished cube",
        "finished cube since:2026-11-01",
        "tag:night finished cube lr>1e-5",
        "name:cfm",
        "tag:night seed>-1",
    ],
)
def test_the_work_of_a_question_grows_no_faster_than_the_runs(text: str) -> None:
    steps = []
    for count in (200, 800):
        index = RunIndex(None)
        runs = [(f"cfm-{number:04}", number) for number in range(count)]
        texts: dict[str, Any] = dict.fromkeys(Row._fields, "") | {
            "state": "finished",
            "created_at": "2026-11-20",
            "is_cut_off": False,
        }
        index.write(Row(**{**texts, "run_id": run_id, "inode": inode}) for run_id, inode in runs)
        memory, shared = Memory.of(index), [("lr", "1e-4"), (":tag", "night")]
        own = {run_id: [*shared, (":name", run_id), ("seed", str(number))] for run_id, number in runs}
        memory.put("main", [Remembered(run_id, settings, "cube", {}) for run_id, settings in own.items()])
        question, counted = read_question(text, NOW, list_kinds(), memory.read_names()), [0]

        def count_steps(counted: list[int] = counted) -> None:
            counted[0] += 1

        index._db.set_progress_handler(count_steps, 100)
        assert len(memory.select(question)) == count
        steps.append(counted[0])
    assert steps[1] < 6 * steps[0]
