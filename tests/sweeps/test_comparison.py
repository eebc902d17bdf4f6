"""A sweep as one table, from its record."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.results.notes import append_note
from mcp_server.record.sweeps.sweep_ranking import find_best
from mcp_server.record.sweeps.sweep_spec import Cell, SweepDir
from mcp_server.results.outcome_answers import Comparison
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.plan.plan import Phase, expand
from mcp_server.sweeps.tables.comparison import compare_sweep
from mcp_server.sweeps.tables.latex import render_latex
from mcp_server.sweeps.tables.log import SweepLog
from tests.support.sweeps import cell_events, write_sweep

OOM = {"kind": "oom_gpu", "line": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}


def compare(directory: SweepDir, **arguments: Any) -> Comparison:
    store = RunStore(StateHome(directory.path.parents[1]))
    return compare_sweep(store.sweeps.find("night"), store, Scalars(store.home, store), **arguments)


def small(home: Path, values: tuple[float | None, ...] = (1.0, 2.0, 3.0, 5.0, 7.0, None), **spec: Any) -> SweepDir:
    params = [{"lr": lr, "seed": seed} for lr in (0.1, 0.2) for seed in (1, 2, 3)]
    cells = [Cell(f"lr{p['lr']}-seed{p['seed']}", "1", p) for p in params] + [Cell("lr0.3-seed1", "1", {"lr": 0.3})]
    events = [
        event
        for cell, value in zip(cells, values, strict=False)
        for event in cell_events(cell.name, value, OOM if value is None else None)
    ]
    return write_sweep(home, cells, events, metric="reward", **spec)


def test_a_row_is_a_setting_with_the_mean_of_its_seeds_and_what_failed(tmp_path: Path) -> None:
    directory = small(tmp_path)
    append_note(directory.notes, {"cell": "lr0.2-seed2", "note": "keep | best so far"})
    table = compare(directory)
    assert table.columns == "lr|reward (best) mean±sd|n|best@step|cell|state|note"
    assert table.rows == [
        "0.2|6±1.4|2|7@2800|lr0.2-seed2|1 failed oom_gpu|lr0.2-seed2: keep ¦ best so far",
        "0.1|2±1|3|3@2800|lr0.1-seed3||",
        "0.3||0||lr0.3-seed1|queued|",
    ]
    assert table.notes == ["Best against lr0.1-seed3: Welch t 3.46, df 1.68, p 0.094 (two-sided)."]
    assert table.sweep is not None
    assert table.sweep.best is not None
    assert (table.sweep.best.run_id, table.sweep.best.value) == ("night-lr0.2-seed2-k7qz", 7)
    assert table.sweep.failed == [f"lr0.2-seed3: oom_gpu: {OOM['line']}"]
    text = compare(directory, as_markdown=True).markdown or ""
    assert "| 0.2 | 6±1.4 | 2 | 7@2800 | lr0.2-seed2 | 1 failed oom_gpu |" in text


def test_settings_with_fewer_seeds_rank_by_their_mean_where_that_is_asked_for(tmp_path: Path) -> None:
    directory = small(tmp_path, (1.0, 2.0, 3.0, 6.0, None, None))
    told = compare(directory)
    assert [row[:8] for row in told.rows or []] == ["0.1|2±1|", "0.2|6|1|", "0.3||0||"]
    assert told.notes == ['lr0.2-seed1 6 is better, with fewer seeds: metrics=["any:"] ranks it first.']
    table = compare(directory, metrics=["any:best:reward"])
    assert compare(directory, metrics=["any:"]).rows == table.rows
    assert [row[:8] for row in table.rows or []] == ["0.2|6|1|", "0.1|2±1|", "0.3||0||"]
    assert table.columns == "lr|reward (best) mean±sd|n|best@step|cell|state"
    assert not [note for note in table.notes or [] if "fewer seeds" in note]
    assert table.sweep is not None
    assert table.sweep.best is not None
    assert (table.sweep.best.run_id, table.sweep.best.value) == ("night-lr0.2-seed1-k7qz", 6)


def test_what_launches_override_is_a_setting_in_every_table(tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [
        {"launch": launch} | {"seed": seed}
        for launch in ({}, {"env": {"ABL": "1"}}, {"command": "t2.py {seed}", "params": {"width": 8}})
        for seed in (1, 2)
    ]
    cells = expand([Phase("1", {"command": "t.py {seed}", "env": {"ABL": "0"}}, cells=entries)], "night-ab3d")
    events = [event for n, cell in enumerate(cells) for event in cell_events(cell.name, float(n))]
    directory = write_sweep(tmp_path, list(cells), events, metric="reward", ranking="last")
    table = compare(directory)
    names = (table.columns or "").split("|")
    rows = [dict(zip(names, row.split("|"), strict=True)) for row in table.rows or []]
    assert [(row["$ABL"], row["command"], row["width"], row["reward (last) mean±sd"], row["n"]) for row in rows] == [
        ("0", "t2.py {seed}", "8", "4.5±0.71", "2"),
        ("1", "t.py {seed}", "-", "2.5±0.71", "2"),
        ("0", "t.py {seed}", "-", "0.5±0.71", "2"),
    ]
    assert table.sweep is not None
    assert table.sweep.best is not None
    best = {"width": 8, "seed": 2, "$ABL": "0", "command": "t2.py {seed}"}
    assert table.sweep.best.params == best
    sweep = RunStore(StateHome(tmp_path)).sweeps.find("night")
    header, *lines = SweepLog(directory).render_results(sweep, {}).splitlines()
    columns = header.split("\t")
    assert [line.split("\t")[columns.index("$ABL")] for line in lines] == ["0", "0", "1", "1", "0", "0"]
    assert "| t2.py {seed} |" in SweepLog(directory).render(sweep, {}, {})


def test_a_promotion_of_the_best_setting_is_no_better_one(tmp_path: Path) -> None:
    cells = [Cell(f"s{seed}", "1", {"lr": 1, "seed": seed}) for seed in (1, 2)] + [Cell("p", "2", {"lr": 1, "seed": 2})]
    values = {"s1": 1.0, "s2": 3.0, "p": 3.0}
    events = [event for name, value in values.items() for event in cell_events(name, value)]
    table = compare(write_sweep(tmp_path, cells, events, metric="reward", ranking="last"))
    assert [row.split("|")[0] for row in table.rows or []] == ["1", "2"]
    assert not [note for note in table.notes or [] if "fewer seeds" in note]


def test_a_test_of_two_settings_says_that_their_cells_ran_different_code(tmp_path: Path) -> None:
    values = {"a1": 1.0, "a2": 2.0, "b1": 8.0, "b2": 9.0}
    cells = [Cell(name, "1", {"lr": name[0], "seed": name[1]}, {"cwd": "/p"}) for name in values]
    events = [event for name, value in values.items() for event in cell_events(name, value)]

    def keep(name: str, digest: str) -> None:
        code = tmp_path / "runs" / f"night-{name}-k7qz" / "attempts" / "1" / "code"
        code.mkdir(parents=True, exist_ok=True)
        files = [{"path": "/p/sup.py", "kept": "", "size_bytes": 9, "sha256": digest}]
        (code / "snapshot.json").write_text(json.dumps({"files": files}))

    for name in values:
        keep(name, "1")
    directory = write_sweep(tmp_path, cells, events, metric="reward")
    welch = "Best against a2: Welch t 9.9, df 2, p 0.01 (two-sided)."
    assert compare(directory).notes == [welch]
    for name in ("b1", "b2"):
        keep(name, "2")
    told = "The cells of the best and of a2 did not all run the same code (sup.py), which may be the cause."
    assert compare(directory).notes == [f"{welch} {told}"]
    sweep = RunStore(StateHome(tmp_path)).sweeps.find("night")
    best = find_best(sweep)
    assert best is not None
    assert (best.doubt, best.text.count("Welch t 9.9")) == ("", 1), "of what was kept before, no number is known"
    cells_of_two = [replace(cell, end={**cell.end, "code": 1 + (cell.cell.name[0] == "b")}) for cell in sweep.cells]
    numbered = find_best(replace(sweep, cells=tuple(cells_of_two)))
    assert numbered is not None
    assert numbered.text == f"{best.text}; not all of the same code"
    assert f"{welch} {told}" in SweepLog(directory).render(sweep, {}, {})
    assert told in render_latex(sweep, tmp_path)


def test_best_says_what_a_retry_changed(tmp_path: Path) -> None:
    events = cell_events("num_envs8192", 5.0)
    events[1] |= {"params": {"num_envs": 4096}, "tries": ["oom_gpu"]}
    found = compare(write_sweep(tmp_path, [Cell("num_envs8192", "1", {"num_envs": 8192})], events, metric="reward"))
    assert found.sweep is not None
    assert found.sweep.best is not None
    assert (found.sweep.best.params, found.sweep.best.ran) == ({"num_envs": 4096}, {"num_envs": "8192→4096"})
    directory = SweepDir(tmp_path / "sweeps" / "night")
    sweep = RunStore(StateHome(tmp_path)).sweeps.find("night")
    header, line = SweepLog(directory).render_results(sweep, {}).splitlines()
    assert dict(zip(header.split("\t"), line.split("\t"), strict=True))["num_envs"] == "4096"
    assert dict(zip(header.split("\t"), line.split("\t"), strict=True))["num_envs planned"] == "8192"


def test_retries_are_those_of_all_runs_of_a_cell_and_a_continued_run_is_none(tmp_path: Path) -> None:
    def end(run: str, failure: str, *tries: str, **facts: Any) -> list[dict[str, Any]]:
        started = {"kind": "cell_started", "cell": "a", "run_id": run}
        ended = {"kind": "cell_ended", "cell": "a", "run_id": run, "state": "failed", "tries": list(tries)}
        return [started, {**ended, "failure": {"kind": failure, "line": "x"}, **facts}]

    events = [
        *end("a-1", "stall", "oom_gpu"),
        {"kind": "cell_resumed", "cell": "a"},
        *end("a-2", "killed", "oom_gpu", state="interrupted", then="again"),
        *end("a-3", "ray_error", state="waited", then="again"),
        *end("a-4", "divergence", "oom_gpu"),
        {"kind": "cell_measured", "cell": "a", "run_id": "a-4", "value_step": 80, "bad_end": "nan"},
    ]
    directory = write_sweep(tmp_path, [Cell("a", "1", {"x": 1})], events, metric="reward")
    table = compare(directory)
    row = dict(zip((table.columns or "").split("|"), (table.rows or [""])[0].split("|"), strict=True))
    assert row["retries"] == "3 oom_gpu, 1 killed"
    assert row["state"] == "failed divergence nan@80"
    sweep = RunStore(StateHome(tmp_path)).sweeps.find("night")
    told = "divergence: x, after 3 oom_gpu, 1 killed"
    assert told in SweepLog(directory).render(sweep, {}, {})
    assert told in SweepLog(directory).render_results(sweep, {})


def test_of_many_failed_cells_the_newest_of_each_kind_are_named(tmp_path: Path) -> None:
    kinds = ["divergence", "oom_gpu", "divergence", "stall", "stall", "stall"]
    events = [
        event
        for number, kind in enumerate(kinds)
        for event in cell_events(f"c{number}", None, {"kind": kind, "line": "x"})
    ]
    cells = [Cell(f"c{number}", "1", {"n": number}) for number in range(len(kinds))]
    table = compare(write_sweep(tmp_path, cells, events, metric="reward"))
    assert table.sweep is not None
    assert table.sweep.failed == ["c1: oom_gpu: x", "c2: divergence: x", "c5: stall: x"]


def test_a_seed_in_the_environment_is_a_seed(tmp_path: Path) -> None:
    entries = [{"launch": {"env": {"SEED": str(seed)}}} for seed in (1, 2, 3)]
    cells = expand([Phase("1", {"command": "t.py"}, cells=entries)], "night-ab3d")
    events = [event for n, cell in enumerate(cells) for event in cell_events(cell.name, float(n))]
    (row,) = compare(write_sweep(tmp_path, list(cells), events, metric="reward")).rows or []
    assert row.startswith("1±1|3|")


def test_without_a_metric_the_order_is_that_of_the_plan_and_the_answer_says_so(tmp_path: Path) -> None:
    cells = [Cell("a", "1", {"x": 1}), Cell("b", "1", {"x": 2})]
    table = compare(write_sweep(tmp_path, cells, cell_events("b", None)))
    assert (table.columns, table.rows) == ("x|step|cell|state", ["1||a|queued", "2|3000|b|finished"])
    assert "no metric" in (table.notes or [""])[0]


def test_two_hundred_cells_have_600_tokens(tmp_path: Path) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    axes = itertools.product((1e-5, 3e-5, 1e-4, 3e-4, 1e-3), (1024, 2048, 4096, 8192), ("elu", "relu"), range(5))
    params = [{"agent.learning_rate": a, "num_envs": b, "activation": c, "seed": s} for a, b, c, s in axes]
    cells = [Cell(f"learning_rate{i}-num_envs{p['num_envs']}-s{i}", "1", p) for i, p in enumerate(params)]
    events = [
        event
        for number, cell in enumerate(cells)
        for event in cell_events(cell.name, 1234.5678 + number * 1.2345, OOM if number % 9 == 0 else None)
    ]
    table = compare(write_sweep(tmp_path, cells, events, metric="Train/mean_reward"))
    facts = json.dumps(table.model_dump(), ensure_ascii=False, separators=(",", ":"))
    assert openai.o200k_base().count(facts) <= 600, facts
    assert len(table.rows or []) >= 4
    assert table.more == f"{40 - len(table.rows or [])} more settings behind these: markdown=true has all."
    assert any(note.startswith("23 cells failed: 23 oom_gpu") for note in table.notes or [])


def test_cells_that_were_cut_short_are_named_without_the_whole_table(tmp_path: Path) -> None:
    cells = [Cell(f"s{n}", "1", {"x": n}) for n in range(4)]
    events = [event for cell in cells for event in cell_events(cell.name, 1.0)]
    for event in events:
        state = {"s2": "timed_out", "s3": "killed"}.get(str(event.get("cell")))
        if event["kind"] == "cell_ended" and state:
            event.update(state=state, step=23 if state == "timed_out" else None)
    table = compare(write_sweep(tmp_path, cells, events, metric="eval/success_rate"))
    note = "1 stopped by the time limit, without a rank: s2 at step 23; 1 killed, without a rank: s3."
    assert note in (table.notes or [])
    for event in events:
        if event["kind"] == "cell_ended":
            event.update(state="timed_out", step=23)
    table = compare(write_sweep(tmp_path / "all", cells, events, metric="eval/success_rate"))
    assert not any("time limit" in note for note in table.notes or []), "it is the length of all trainings"


def test_cells_whose_metric_ended_as_nan_are_named_without_the_whole_table(tmp_path: Path) -> None:
    cells = [Cell(f"s{n}", "1", {"x": n}) for n in range(4)]
    events = [event for cell in cells for event in cell_events(cell.name, 1.0)]
    for event in events:
        if event["kind"] == "cell_measured" and event["cell"] != "s0":
            event.update(value=None, bad_end="nan", value_step=320)
    table = compare(write_sweep(tmp_path, cells, events, metric="eval/success_rate"))
    assert "3 ended with eval/success_rate nan: s1, s2 and 1 more." in (table.notes or [])
