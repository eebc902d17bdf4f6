"""The trials of an open sweep as agents and people read them."""

from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.sweeps.sweep_spec import read_cell_notes
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.tables.comparison import compare_sweep
from mcp_server.sweeps.tables.log import SweepLog, note_cells
from mcp_server.sweeps.tables.trial_table import describe_trial, find_trial, read_diff
from mcp_server.sweeps.trials.ledger import list_rows, render_ledger
from mcp_server.sweeps.trials.trials import read_trials
from mcp_server.text.formatting import estimate_tokens
from mcp_server.tools.support.wait_answer import describe_trials
from tests.support.sweeps import TRIALS, add_runs, decide, propose, write_open_sweep


def make_sweep(home: Path, events: list[dict[str, Any]]) -> tuple[RunStore, Sweep]:
    store = RunStore(StateHome.of({"RUNWARD_HOME": str(home)}))
    return store, store.sweeps.observe(write_open_sweep(home, events).sweep_id)


def compare(store: RunStore, sweep: Sweep, *, as_markdown: bool = False) -> Any:
    return compare_sweep(sweep, store, Scalars(store.home, store), as_markdown=as_markdown)


def test_a_table_has_each_trial_with_its_gain_in_units_of_the_noise(tmp_path: Path) -> None:
    answer = compare(*make_sweep(tmp_path, TRIALS))
    assert answer.columns == "trial|by|verdict|mean ± sd|n|gain in sd|files|text"
    assert answer.rows == [
        "t0||kept|0.15 ± 0.0024|4|||the base",
        "t1|agent-a|kept|0.14 ± 0.0014|2|+4.8|train.py +2|momentum .95 / nesterov",
        "t2|agent-b|discarded|0.19|1|-23.8|train.py +2|lr .2",
        "t3|agent-b|suspect|0.001|1|+66.3|train.py +2|prints the answer",
        "t4|agent-a|queued||||train.py +2|deeper",
    ]
    assert answer.more is None
    assert answer.notes == [
        "4 trials: 1 kept, 1 discarded, 1 suspect, 1 without a verdict.",
        "Noise: sd 0.0021 of single runs like those of t1, 4 degrees of freedom.",
        "t1 was kept last: git merge runward/night takes it.",
        't3: too good. Who did not propose it reads its diff, then launch_sweep(name="night-ab3d", '
        'notes={"t3": "keep: …"}), or discard.',
    ]


def test_a_hundred_trials_fit_into_900_tokens(tmp_path: Path) -> None:
    events, tip = [], "t0"
    for number in range(1, 101):
        name, text = f"t{number}", f"a change of the schedule, warm-up {number} steps, then cosine down to a tenth"
        events += [propose(name, text, tip), *add_runs(name, [0.15])]
        if number % 5:
            events.append(
                decide(name, ("discarded", "undecided", "crash")[number % 3], "no better", mean=0.15, n=1, gain=0)
            )
        else:
            events.append({"kind": "verdict", "trial": name, "verdict": "kept", "mean": 0.14, "n": 2, "gain": 0.01})
            tip = name
    store, sweep = make_sweep(tmp_path, events)
    answer = compare(store, sweep)
    assert estimate_tokens(answer.model_dump_json(exclude_none=True)) <= 900
    names = [row.partition("|")[0] for row in answer.rows]
    assert names[-10:] == [f"t{number}" for number in range(91, 101)]
    assert {"t90", "t85"} <= {*names}
    counted = sum(int(part.split()[0]) for part in answer.more.partition(": ")[2].partition(";")[0].split(", "))
    assert len(names) + counted == 101
    assert len(compare(store, sweep, as_markdown=True).markdown.splitlines()) > 103


def test_parameters_that_were_kept_are_told_since_no_merge_brings_them(tmp_path: Path) -> None:
    params = {"lr": 0.1}
    events = [{**propose("t1", "a higher rate"), "files": [], "params": params}, *add_runs("t1", [0.13, 0.14])]
    events.append({"kind": "verdict", "trial": "t1", "verdict": "kept", "mean": 0.135, "n": 2, "gain": 0.01})
    store, sweep = make_sweep(tmp_path, events)
    answer = compare(store, sweep)
    assert answer.rows[1].endswith("|lr=0.1|a higher rate")
    merged = "t1 was kept last: git merge runward/night takes its code. It ran with lr=0.1, which no merge brings."
    assert merged in answer.notes
    assert describe_trials(sweep).kept.params == params
    directory = store.sweeps.files_of(sweep)
    assert "````diff\nParameters: lr=0.1\n````" in describe_trial(sweep, directory, "t1")


def test_the_log_has_the_trials_with_their_reasons(tmp_path: Path) -> None:
    store, sweep = make_sweep(tmp_path, TRIALS)
    log = SweepLog(store.sweeps.files_of(sweep)).render(sweep, {}, {})
    assert "Best val_loss (best), min: t1" in log
    assert "| t1 | agent-a | kept |" in log
    assert "0.14 (n 2) against t0 0.15 (n 4): +4.5 sd" in log


def test_a_trial_is_described_with_its_diff(tmp_path: Path) -> None:
    store, sweep = make_sweep(tmp_path, TRIALS)
    directory = store.sweeps.files_of(sweep)
    assert read_diff(directory, find_trial(sweep, "t1")) == ""
    directory.trials.mkdir()
    (directory.trials / "t1.diff").write_text("-momentum = 0.9\n+momentum = 0.95\x1b[31m\n")
    text = describe_trial(sweep, directory, "t1")
    assert "- verdict: kept\n" in text
    assert "````diff\n-momentum = 0.9\n+momentum = 0.95·[31m\n````\n" in text
    with pytest.raises(BadArgument, match=r"has no trial 't11'\. Nothing was done\. Did you mean"):
        find_trial(sweep, "t11")


def test_the_table_of_the_project_is_made_of_the_same_rows(tmp_path: Path) -> None:
    _, sweep = make_sweep(tmp_path, TRIALS)
    lines = render_ledger("val_loss", list_rows(read_trials(sweep))).splitlines()
    assert [line.split("\t")[3:6] for line in lines] == [
        ["status", "description", "trial"],
        ["keep", "the base", "t0"],
        ["keep", "momentum .95 | nesterov", "t1"],
        ["discard", "lr .2", "t2"],
        ["suspect", "prints the answer", "t3"],
        ["queued", "deeper", "t4"],
    ]
    assert lines[2].split("\t")[:3] == ["ccccccc", "0.140000", ""]
    assert lines[2].split("\t")[6:] == ["t0", "agent-a", "2", "0.001414", "4.77", "3000", "3"]


def test_whoever_proposed_a_trial_may_discard_but_not_keep_a_gain_too_good_to_be_true(tmp_path: Path) -> None:
    store, sweep = make_sweep(tmp_path, TRIALS)
    with pytest.raises(
        BadArgument, match=r"t3 is too good, and you \(agent-b\) proposed it: a person or another owner"
    ):
        note_cells(sweep, store, {"t3": "keep: it is fine"}, "agent-b", {})
    assert not store.sweeps.files_of(sweep).notes.exists()
    for by in ("agent-b", "agent-a"):
        note_cells(sweep, store, {"t3": "discard: it prints the answer"}, by, {})
    note_cells(sweep, store, {"t2": "keep: my own, and of no weight"}, "agent-b", {})
    note_cells(sweep, store, {"t3": "keep: read the diff"}, "agent-b, on a terminal", {})
    assert read_cell_notes(store.sweeps.files_of(sweep))["t3"] == "keep: read the diff"
    with pytest.raises(BadArgument, match="has no cell 't9'"):
        note_cells(sweep, store, {"t9": "keep"}, "agent-a", {})
