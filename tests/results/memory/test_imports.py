"""Trainings that runward did not start become records: whatever wrote their curves, each is one, as far as known."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from mcp_server.__main__ import main
from mcp_server.errors import BadArgument
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.run_directory import read_json
from mcp_server.record.spec import LaunchRequest
from mcp_server.record.state import Run
from mcp_server.results.configuration import read_configuration
from mcp_server.results.memory.imports import Imported, import_trainings
from mcp_server.results.memory.question import read_question
from mcp_server.results.memory.searcher import Searcher, list_kinds
from mcp_server.results.metrics import read_metrics
from mcp_server.results.ran_status import describe_ran
from mcp_server.runs.launch.repeat import repeat
from mcp_server.sweeps.tables.log import keep_note
from tests.scalars.formats.test_wandb import HEADER, history, item
from tests.support.ended_runs import Runs
from tests.support.scalar_files import chunked_log, field, varint
from tests.support.scalar_runs import write as write_events

LOSS = {"loss": lambda step: 1 / (step + 1)}


def bring_in(runs: Runs, *roots: Path) -> dict[str, Run]:
    """Import, and return the new records by name."""
    store = runs.store
    done, _ = import_trainings(roots, store, runs.scalars, "ada")
    found = [store.observe(one.run_id) for one in done if one.did != "run"]
    return {run.spec.name: run for run in found}


def settings(runs: Runs, run: Run) -> dict[str, str]:
    kept = read_configuration(run, read_code_snapshot(runs.store.record_of(run), 1))
    return {name.rpartition(":")[2]: value for name, value in kept.items()}


def last(runs: Runs, run: Run) -> dict[str, float | str]:
    return {one.tag: one.last for one in read_metrics(run, runs.scalars, (), runs.store.record_of(run)).metrics}


def test_each_directory_of_event_files_is_a_run_and_the_parts_of_one_are_not(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    for name in ("a", "b", "keras/train", "keras/validation", "ppo/tb"):
        write_events(lab / "runs" / name, 4, LOSS)
    found = bring_in(runs := Runs(tmp_path), lab)
    assert sorted(found) == ["runs-a", "runs-b", "runs-keras", "runs-ppo"]
    run = found["runs-a"]
    assert (run.state, run.ended, run.exit_code, run.ended_at) == ("imported", True, None, None)
    assert run.reason == "Imported: how it ended is not known."
    assert (run.spec.owner, run.spec.cwd, run.progress["step"]) == ("ada", str(lab / "runs/a"), 3)
    assert run.started_at == "2023-11-14T22:13:20.000Z"
    assert run.elapsed_s(0.0) is None
    assert last(runs, run) == {"loss": 0.25}
    assert sorted(last(runs, found["runs-keras"])) == ["train/loss", "validation/loss"]


def test_hyperparameters_in_event_files_are_settings_and_say_how_it_ended(tmp_path: Path) -> None:
    start, end = plugin_data_pb2.HParamsPluginData(), plugin_data_pb2.HParamsPluginData()
    start.session_start_info.hparams["lr"].number_value = 0.003
    start.session_start_info.hparams["optimizer"].string_value = "adam"
    start.session_start_info.hparams["amp"].bool_value = True
    end.session_end_info.status = 2  # failure
    writer = EventFileWriter(str(tmp_path / "lab/one"))
    for tag, data in (("_hparams_/session_start_info", start), ("_hparams_/session_end_info", end)):
        content = SummaryMetadata(
            plugin_data=SummaryMetadata.PluginData(plugin_name="hparams", content=data.SerializeToString())
        )
        writer.add_event(Event(step=0, summary=Summary(value=[Summary.Value(tag=tag, metadata=content)])))
    writer.add_event(Event(step=5, wall_time=1.7e9, summary=Summary(value=[Summary.Value(tag="loss", simple_value=2)])))
    writer.close()
    run = bring_in(runs := Runs(tmp_path), tmp_path / "lab")["one"]
    assert settings(runs, run).items() >= {"lr": "0.003", "optimizer": "adam", "amp": "true"}.items()
    assert run.reason == "Imported: TensorBoard says that it failed."


def test_the_table_of_cleanrl_is_settings(tmp_path: Path) -> None:
    writer = EventFileWriter(str(tmp_path / "lab/one"))
    text = Summary.Value(tag="hyperparameters/text_summary")
    text.tensor.string_val.append(b"|param|value|\n|-|-|\n|learning_rate|0.0003|\n|env_id|Hopper-v4|")
    writer.add_event(Event(step=0, summary=Summary(value=[text])))
    writer.add_event(Event(step=5, wall_time=1.7e9, summary=Summary(value=[Summary.Value(tag="loss", simple_value=2)])))
    writer.close()
    run = bring_in(runs := Runs(tmp_path), tmp_path / "lab")["one"]
    assert settings(runs, run).items() >= {"learning_rate": "0.0003", "env_id": "Hopper-v4"}.items()


def test_what_lightning_and_transformers_leave_is_one_run_each_with_its_settings(tmp_path: Path) -> None:
    version = tmp_path / "lab/lightning_logs/version_0"
    write_events(version, 4, LOSS)
    (version / "metrics.csv").write_text("epoch,step,train_loss\n0,10,0.5\n0,20,0.25\n")
    (version / "hparams.yaml").write_text("lr: 0.01\nmodel:\n  depth: 3\n")
    out = tmp_path / "lab/out"
    (out / "checkpoint-20").mkdir(parents=True)
    state = {"global_step": 20, "log_history": [{"loss": 0.5, "step": 10}, {"loss": 0.25, "step": 20}]}
    (out / "checkpoint-20/trainer_state.json").write_text(json.dumps(state))
    (out / "checkpoint-20/model.safetensors").write_bytes(bytes(64))
    found = bring_in(runs := Runs(tmp_path), tmp_path / "lab")
    assert sorted(found) == ["lightning_logs-version_0", "out"]
    assert settings(runs, found["lightning_logs-version_0"]).items() >= {"lr": "0.01", "model.depth": "3"}.items()
    assert last(runs, found["out"]) == {"train/loss": 0.25}
    places = describe_ran(runs.store, runs.scalars, found["out"]).results
    assert places is not None
    assert places.checkpoint == str(out / "checkpoint-20")


def test_an_offline_run_of_wandb_has_its_name_settings_command_log_and_end(tmp_path: Path) -> None:
    directory = tmp_path / "lab/wandb/offline-run-20261121_213809-fpjajw8p"
    (directory / "files").mkdir(parents=True)
    (directory / "files/output.log").write_text("".join(f"step {n}/3 loss {1 / n}\n" for n in range(1, 4)))
    (directory / "logs").mkdir()
    (directory / "logs/debug.log").write_text("step 9/9 loss 7\n" * 99)
    start = field(17, b"\x08" + varint(1_700_000_000))
    config = field(4, item("lr", field(16, b"0.003")) + item("model", field(16, b'{"depth": 3}')))
    run = field(17, config + field(8, b"big-lr") + field(9, b"try bigger") + field(10, b"night") + start)
    environment = field(26, field(5, b"--alpha") + field(5, b"3") + field(6, b"train.py"))
    changed, ended = field(5, item("seed", field(16, b"7"))), field(18, b"\x08\x01\x10\x3c")
    records = (run, environment, changed, *(history(n, item("loss", field(16, b"0.5"))) for n in range(3)), ended)
    (directory / "run-fpjajw8p.wandb").write_bytes(chunked_log(HEADER, *records))
    found = bring_in(runs := Runs(tmp_path), tmp_path / "lab")
    assert list(found) == ["big-lr"]
    one = found["big-lr"]
    assert one.reason == "Imported: wandb says that it failed, exit code 1."
    assert (one.exit_code, one.elapsed_s(0.0), one.spec.why, one.spec.tags) == (1, 60, "try bigger", ["night"])
    assert one.command == "python train.py --alpha 3"
    assert settings(runs, one).items() >= {"alpha": "3", "lr": "0.003", "model.depth": "3", "seed": "7"}.items()
    assert "step 3/3" in runs.store.record_of(one).log(1).read_text()


def test_runs_of_mlflow_end_as_it_says_in_its_store_and_in_its_database(tmp_path: Path) -> None:
    run = tmp_path / "lab/mlruns/1" / ("a" * 32)
    for name in ("metrics", "params", "tags"):
        (run / name).mkdir(parents=True)
    facts = {"run_name": "big-lr", "status": 4, "start_time": 1_700_000_000_000, "end_time": 1_700_000_060_000}
    (run / "meta.yaml").write_text("".join(f"{name}: {value}\n" for name, value in facts.items()))
    (run.parent / "meta.yaml").write_text("name: cube")
    (run / "metrics/loss").write_text("1700000000000 0.5 10\n1700000001000 0.25 20\n")
    (run / "params/lr").write_text("0.003")
    (run / "tags/mlflow.source.name").write_text("train.py")
    (run / "tags/mlflow.source.git.commit").write_text("ab" * 20)
    with closing(sqlite3.connect(tmp_path / "lab/mlflow.db")) as database:
        database.executescript(
            "CREATE TABLE experiments (experiment_id INTEGER, name TEXT);"
            "CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time BIGINT, end_time BIGINT,"
            " lifecycle_stage TEXT, experiment_id INTEGER);"
            "CREATE TABLE metrics (key TEXT, value FLOAT, timestamp BIGINT, run_uuid TEXT, step BIGINT,"
            " is_nan BOOLEAN); CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);"
            "INSERT INTO experiments VALUES (1, 'cube');"
            "INSERT INTO runs VALUES ('aa', 'crow', 'FINISHED', 1700000000000, 1700000009000, 'active', 1),"
            " ('bb', 'owl', 'RUNNING', 1700000000000, NULL, 'active', 1);"
            "INSERT INTO metrics VALUES ('loss', 0.5, 1700000000500, 'aa', 10, 0),"
            " ('loss', 3, 1700000000500, 'bb', 1, 0);"
            "INSERT INTO params VALUES ('lr', '7', 'bb');"
        )
    found = bring_in(runs := Runs(tmp_path), tmp_path / "lab")
    assert sorted(found) == ["big-lr", "crow", "owl"]
    assert found["big-lr"].reason == "Imported: MLflow says that it failed."
    assert found["big-lr"].elapsed_s(0.0) == 60
    assert found["crow"].ended_at == "2023-11-14T22:13:29.000Z"
    assert (found["owl"].ended_at, found["owl"].reason) == (None, "Imported: how it ended is not known.")
    assert settings(runs, found["owl"])["lr"] == "7"
    code = describe_ran(runs.store, runs.scalars, found["big-lr"]).code
    assert code is not None
    assert code.commit == "ab" * 20


def test_each_run_of_trackio_is_one_with_its_settings(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    with closing(sqlite3.connect(tmp_path / "lab/cube.db")) as database:
        database.executescript(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id TEXT, timestamp TEXT, run_name TEXT, step INTEGER,"
            " metrics TEXT);"
            "CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT, config TEXT, created_at TEXT);"
            "INSERT INTO metrics VALUES (1, 'a', '2023-11-14T22:13:20+00:00', 'one', 4, '{\"loss\": 0.5}'),"
            " (2, 'b', '2023-11-14T22:13:20+00:00', 'two', 5, '{\"loss\": 0.25}');"
            "INSERT INTO configs VALUES (1, 'b', 'two', '{\"lr\": 0.1, \"_Username\": \"x\"}',"
            " '2023-11-14T22:13:19+00:00');"
        )
    found = bring_in(runs := Runs(tmp_path), tmp_path / "lab")
    assert sorted(found) == ["one", "two"]
    assert (settings(runs, found["two"])["lr"], last(runs, found["two"])) == ("0.1", {"loss": 0.25})
    assert "_Username" not in settings(runs, found["two"])


def test_a_log_alone_is_a_run_where_a_step_stands_in_it_and_its_failure_is_told(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    lab.mkdir()
    steps = "".join(f"step {n}/9 loss {1 / n:.4f}\n" for n in range(1, 6))
    (lab / "slurm-41.out").write_text(steps)
    (lab / "slurm-42.out").write_text(f"{steps}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    (lab / "requirements.txt").write_text("torch==2.8\n")
    found = bring_in(runs := Runs(tmp_path), lab)
    assert sorted(found) == ["slurm-41", "slurm-42"]
    assert found["slurm-41"].failure is None
    assert (found["slurm-42"].failure or {})["kind"] == "oom_gpu"
    assert found["slurm-42"].state == "imported"
    assert last(runs, found["slurm-41"]) == {"loss": 0.2}


def test_imported_runs_are_found_compared_and_noted_like_others_and_repeat_nothing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_events(tmp_path / "lab" / name, 4, LOSS)
    found = bring_in(runs := Runs(tmp_path), tmp_path / "lab")
    store = runs.store
    keep_note(store, found["a"], "keep", "good", "ada", {})
    text = "state:imported verdict:keep best:loss"
    searcher = Searcher(store, runs.scalars, "/")
    lines = searcher.find(lambda names: read_question(text, datetime.now(UTC), list_kinds(), names), 10).lines
    assert [line.partition(" | ")[0] for line in lines] == [f"{found['a'].run_id} imported 14 Nov 22:13Z loss=0.25@3"]
    with pytest.raises(BadArgument, match="was imported"):
        repeat(LaunchRequest(like=found["a"].run_id), store)


def test_the_files_of_a_run_are_not_imported_beside_it(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    cwd = runs.add("cfm-7kqz", command="python train.py --logdir tb")
    write_events(cwd / "tb", 4, LOSS)
    (runs.home.runs / "cfm-7kqz/attribution.json").write_text(json.dumps({"tensorboard": [str(cwd / "tb")]}))
    done, _ = import_trainings([cwd], runs.store, runs.scalars, "ada")
    assert done == [Imported("run", "cfm-7kqz", str(cwd))]
    assert runs.store.list_ids() == ["cfm-7kqz"]


def test_a_second_import_changes_nothing_unless_there_is_more_and_notes_stay(tmp_path: Path) -> None:
    log = tmp_path / "lab/slurm-41.out"
    log.parent.mkdir()
    log.write_text("".join(f"step {n}/9 loss {1 / n:.4f}\n" for n in range(1, 6)))
    runs = Runs(tmp_path)
    (one,), _ = import_trainings([log], runs.store, runs.scalars, "ada")
    keep_note(runs.store, runs.store.observe(one.run_id), "keep", "good", "ada", {})
    (again,), _ = import_trainings([log.parent], runs.store, runs.scalars, "ada")
    assert (again.did, again.run_id) == ("known", one.run_id)
    log.write_text(log.read_text() + "step 9/9 loss 0.1\n")
    store = runs.store
    assert store.observe(one.run_id).progress["step"] == 5
    (more,), _ = import_trainings([log], store, runs.scalars, "ada")
    assert (more.did, more.run_id) == ("again", one.run_id)
    assert store.list_runs()[0].progress["step"] == 9
    assert "good" in (store.record_of(store.observe(one.run_id)).path / "notes.jsonl").read_text()
    assert sorted(path.name for path in runs.home.runs.iterdir()) == [one.run_id]


def test_secrets_in_settings_are_masked(tmp_path: Path) -> None:
    write_events(tmp_path / "lab/one", 4, LOSS)
    (tmp_path / "lab/one/args.json").write_text(json.dumps({"lr": 1, "api_key": "sk-live-0123456789abcdef0123"}))
    run = bring_in(runs := Runs(tmp_path), tmp_path / "lab")["one"]
    assert "0123456789abcdef" not in json.dumps([read_json(p) for p in runs.store.record_of(run).path.rglob("*.json")])


def test_the_verb_says_what_it_did_and_a_dry_run_or_a_wrong_path_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_events(tmp_path / "lab/one", 4, LOSS)
    monkeypatch.setenv("RUNWARD_HOME", str(tmp_path / "home"))
    assert main(["import", str(tmp_path / "lab"), "--dry-run"]) == 0
    assert capsys.readouterr().out == f"imported  {tmp_path}/lab/one\n1 imported\n"
    assert main(["import", str(tmp_path / "no")]) == 2
    assert not (tmp_path / "home/runs").exists() or not list((tmp_path / "home/runs").iterdir())
    assert main(["import", str(tmp_path / "lab"), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["trainings"]
    assert (told["did"], told["source"]) == ("new", f"{tmp_path}/lab/one")
