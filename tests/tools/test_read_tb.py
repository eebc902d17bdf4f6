"""What read_tb answers, and what it refuses."""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from mcp_server.scalars.run_scalars import resolve_target
from mcp_server.serve.app import build
from mcp_server.store.state_home import StateHome
from mcp_server.tools import read_tb as metrics
from mcp_server.tools.support.context import ServerContext
from mcp_server.views.scalar_report import ScalarQuery, build_report
from tests.scalars.formats.test_sqlite import trackio
from tests.support import event_records
from tests.support.ended_runs import BEGAN_S, Runs
from tests.support.event_records import header, points
from tests.support.sandbox import text_of
from tests.support.scalar_runs import Writer, write

pytestmark = pytest.mark.anyio


class Tool:
    def __init__(self, home: Path) -> None:
        self.context = ServerContext.of({"RUNWARD_HOME": str(home)})
        self.server = build({}, self.context)

    async def __call__(self, **arguments: Any) -> Any:
        async with Client(self.server) as client:
            result = await client.call_tool("read_tb", arguments)
        return text_of(result) if result.is_error else result.structured_content


@pytest.fixture
def read_tb(tmp_path: Path) -> Tool:
    return Tool(tmp_path / "state")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two runs of three scalars, the second with a spike and a NaN."""
    root = tmp_path / "logs"
    spike: dict[int, float] = {50: 1e6}
    write(root / "one", 100, {"Train__reward": float, "loss": lambda i: 1 / (i + 1), "lr": lambda _: 1e-3})
    write(
        root / "two",
        100,
        {
            "Train__reward": lambda i: i / 2,
            "loss": lambda i: math.nan if i == 70 else spike.get(i, 1 / (i + 1)),
            "lr": lambda _: 1e-3,
        },
    )
    return root


async def test_a_run_is_one_line_per_tag(read_tb: Tool, logs: Path) -> None:
    answer = await read_tb(logdir=str(logs / "two"))
    assert (answer["source"], answer["step"]) == (str(logs / "two"), 99)
    reward, loss, lr = answer["tags"]
    assert reward.startswith("Train/reward 49.5 ↑5 0@0 49.5@99 0")
    assert "1e6@50" in loss
    assert loss.endswith("1 NaN from 70")
    assert lr == f"lr 0.001 ~ 0.001@0 0.001@0 {'5' * 32}"


async def test_named_tags_are_shown_in_full_with_points(read_tb: Tool, logs: Path) -> None:
    answer = await read_tb(logdir=str(logs / "two"), tags=["loss", "*reward"])
    loss, reward = answer["values"]["loss"], answer["values"]["Train/reward"]
    assert (loss["last_step"], loss["count"], loss["nan"], loss["first_nan_step"], loss["max"]) == (99, 100, 1, 70, 1e6)
    assert (reward["slope"], reward["slope_steps"], reward["trend"]) == (5, 10, "up")
    assert (reward["min"], reward["first"], reward["mean"]) == (0, 0, 24.75)
    assert len(loss["points"]) <= 20
    assert [50, 1e6] in loss["points"]
    assert "points" not in (await read_tb(logdir=str(logs / "two"), tags="lr", points=0))["values"]["lr"]
    assert (await read_tb(logdir=str(logs / "two"), tags="lr", since_step=90))["values"]["lr"]["count"] == 10


async def test_several_runs_are_listed_newest_first_or_compared(read_tb: Tool, logs: Path) -> None:
    os.utime(next((logs / "one").iterdir()), (time.time() + 60, time.time() + 60))
    listed = await read_tb(logdir=str(logs))
    assert [line.partition(",")[0] for line in listed["runs"]] == ["one", "two"]
    assert (await read_tb(logdir=f"{logs}/latest"))["source"] == str(logs / "one")
    compared = await read_tb(compare=[str(logs / "one"), str(logs / "two")], tags=["Train/reward"])
    assert compared["runs"] == ["one", "two"]
    assert compared["tags"][0].startswith("Train/reward | 99@99 ↑10 0..99 0")
    assert " | 49.5@99 ↑5 0..49.5 0" in compared["tags"][0]
    assert (await read_tb(logdir=str(logs), tags=["Train/reward"]))["tags"] == compared["tags"]


async def test_what_a_listing_names_can_be_passed_back(read_tb: Tool, tmp_path: Path) -> None:
    """The names are paths below the directory that was asked for, also where all are in one directory of it."""
    root = tmp_path / "work"
    for version in range(3):
        write(root / "lightning_logs" / f"version_{version}", 2, {"loss": float})
    await _expect_round_trip(read_tb, root, 3)
    tables = tmp_path / "tables"
    for version in range(2):
        (tables / "lightning_logs" / f"version_{version}").mkdir(parents=True)
        (tables / "lightning_logs" / f"version_{version}" / "metrics.csv").write_text("step,loss\n1,0.5\n")
    (tables / "runs.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    trackio(
        tables / "proj.db", [("a" * 32, "one run", 0, b'{"loss":1}'), ("b" * 32, "two/2", 0, b'{"loss":2}')]
    ).close()
    await _expect_round_trip(read_tb, tables, 5)
    await _expect_round_trip(read_tb, tables / "proj.db", 2)
    mlflow_runs = tmp_path / "store"
    for name in ("a", "b"):
        (mlflow_runs / "mlruns" / "0" / name / "metrics").mkdir(parents=True)
        (mlflow_runs / "mlruns" / "0" / "meta.yaml").touch()
        (mlflow_runs / "mlruns" / "0" / name / "meta.yaml").touch()
        (mlflow_runs / "mlruns" / "0" / name / "metrics" / "loss").write_text("1700000000000 0.5 1\n")
    await _expect_round_trip(read_tb, mlflow_runs, 2)


async def _expect_round_trip(read_tb: Tool, root: Path, count: int) -> None:
    listed = await read_tb(logdir=str(root))
    names = [line.rpartition(", ")[0] for line in listed["runs"]]
    assert len(names) == count
    for name in names:
        assert (await read_tb(logdir=f"{root}/{name}", tags="*"))["values"].keys() == {"loss"}, name


def test_the_runs_of_wandb_are_named_by_their_path(read_tb: Tool, tmp_path: Path) -> None:
    for name in ("a1", "b2"):
        run = tmp_path / "wandb" / f"offline-run-20260101_000000-{name}"
        run.mkdir(parents=True)
        (run / f"run-{name}.wandb").write_bytes(b"")
    store, scalars = read_tb.context.store, read_tb.context.scalars
    choices = resolve_target(str(tmp_path), scalars, store).choices
    paths = {f"{tmp_path}/{name}" for name, _ in choices}
    assert {str(resolve_target(path, scalars, store).path) for path in paths} == paths
    assert len(paths) == 2
    below = resolve_target(str(tmp_path / "wandb" / "offline-run-20260101_000000-a1"), scalars, store)
    assert str(below.path) in paths


async def test_a_directory_with_its_own_events_keeps_them_whatever_is_below(read_tb: Tool, tmp_path: Path) -> None:
    root = tmp_path / "tb"
    write(root, 3, {"loss": float})
    for number in range(20):
        write(root / f"below{number}", 1, {"hparam": float})
    os.utime(next(root.glob("events*")), (1, 1))  # the oldest of all
    answer = await read_tb(logdir=str(root), tags="loss")
    assert (answer["source"], answer["values"]["loss"]["last"]) == (str(root), 2.0)
    assert answer["notes"] == ["5 more directories below it were left out."]


async def test_an_incomplete_end_is_named(read_tb: Tool, logs: Path, tmp_path: Path) -> None:
    file = next((logs / "one").iterdir())
    file.write_bytes(file.read_bytes()[:-5])
    (note,) = (await read_tb(logdir=str(logs / "one"), tags="lr"))["notes"]
    assert note.startswith(f"{file.name}: the last ")
    assert note.endswith("bytes are not a whole record: being written, or cut off")
    table = tmp_path / "progress.csv"
    table.write_text("step,loss\n1,0.5\n2,0.2")
    answer = await read_tb(logdir=str(table), tags="loss")
    assert (answer["values"]["loss"]["count"], answer["notes"]) == (
        1,
        ["progress.csv: the last 5 bytes are not a whole row: being written, or cut off"],
    )


async def test_a_last_line_of_json_counts_without_its_newline(read_tb: Tool, tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    lines.write_text('{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}')
    assert (await read_tb(logdir=str(lines), tags="loss"))["values"]["loss"]["last_step"] == 2
    with lines.open("a") as file:
        file.write('\n{"step": 3, "loss": 1}\n{"step": 4, "lo')
    answer = await read_tb(logdir=str(lines), tags="loss")
    assert (answer["values"]["loss"]["count"], answer["values"]["loss"]["last_step"]) == (3, 3)
    assert answer["notes"] == ["log.jsonl: the last 15 bytes are not a whole row: being written, or cut off"]


async def test_a_restart_is_named(read_tb: Tool, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "tb")
    for step in [*range(10), *range(4, 12)]:
        writer.log(step, loss=float(step))
    writer.close()
    assert (await read_tb(logdir=str(tmp_path / "tb")))["notes"][0].startswith("Restarted at step 4")
    assert (await read_tb(logdir=str(tmp_path / "tb"), tags="loss"))["values"]["loss"]["restarts"] == [4]


async def test_programs_that_share_a_directory_are_shown_side_by_side_and_alone(read_tb: Tool, tmp_path: Path) -> None:
    logs = tmp_path / "tb"
    for pid, plus, last in ((11, 0.0, 9), (12, 0.5, 7)):
        name = f"events.out.tfevents.1700000000.host.{pid}.0"
        event_records.write(logs / name, header(), points(range(1, last + 1), wall=10 + plus, plus=plus))
    answer = await read_tb(logdir=str(logs))
    assert answer["runs"] == [f"events.out.tfevents.1700000000.host.{pid}.0" for pid in (11, 12)]
    assert [cell.split()[0] for cell in answer["tags"][0].split(" | ")[1:]] == ["9@9", "7.5@7"]
    assert not any("Restarted" in note for note in answer["notes"])
    assert answer["notes"][0].startswith("Several programs wrote event files into one directory")
    alone = await read_tb(logdir=str(logs / answer["runs"][1]), tags="loss")
    assert (alone["values"]["loss"]["count"], alone["values"]["loss"]["last"]) == (7, 7.5)
    both = await read_tb(logdir=str(logs), compare=[str(logs / answer["runs"][1])])
    assert len(both["runs"]) == 2


async def test_notes_name_what_was_left_out(read_tb: Tool, logs: Path) -> None:
    answer = await read_tb(logdir=str(logs / "one"), tags=["loss", "los", "none/*"])
    assert list(answer["values"]) == ["loss"]
    assert answer["notes"] == ["Not among the tags: los, none/*."]
    asked = await read_tb(logdir=str(logs / "one"), tags=["best:loss", "los"])
    assert (len(asked["answers"]), asked["notes"]) == (1, ["Not among the tags: los."]), "a question is an answer"
    for number in range(20):
        write(logs / f"more{number}", 1, {"loss": float})
    answer = await read_tb(compare=[str(logs / f"more{number}") for number in range(20)])
    assert (len(answer["runs"]), answer["notes"]) == (16, ["Only 16 of 20 runs are shown."])
    answer = await read_tb(logdir=str(logs), tags="loss")
    assert (len(answer["runs"]), answer["notes"]) == (8, ["Only 8 of 22 runs are shown."])
    answer = await read_tb(compare=[str(logs / "one"), f"{logs}/two/../one/"])
    assert answer["source"] == str(logs / "one"), "one run is not compared with itself"


async def test_points_are_shown_without_named_tags(read_tb: Tool, logs: Path) -> None:
    answer = await read_tb(logdir=str(logs / "one"), points=3)
    assert answer["values"]["Train/reward"]["points"] == [[0, 0.0], [99, 99.0]]
    assert list(answer["values"]) == ["Train/reward", "loss", "lr"]


async def test_a_picture_without_named_tags_begins_with_nan_values(read_tb: Tool, tmp_path: Path) -> None:
    curves: dict[str, Callable[[int], float]] = {f"loss{n}": float for n in range(9)}
    write(tmp_path / "tb", 3, {**curves, "zeta": lambda _: math.nan})
    drawable = build_report(
        ScalarQuery(str(tmp_path / "tb"), plot=True), read_tb.context.scalars, read_tb.context.store
    )
    assert [panel.title for panel in drawable.panels] == ["zeta", *(f"loss{n}" for n in range(5))]
    assert drawable.answer.notes == ["The picture shows 6 of 10 tags."]


async def test_without_matplotlib_the_answer_names_the_install_line(
    read_tb: Tool, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # an interpreter without site-packages
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    answer = await read_tb(logdir=str(logs / "one"), tags="loss", plot=True)
    assert answer["values"]["loss"]["count"] == 100
    assert answer["notes"] == [
        "matplotlib is not installed. No picture was drawn. A person can run: pip install 'matplotlib>=3.9'"
    ]


async def test_hundreds_of_tags_and_endless_names_stay_short(read_tb: Tool, tmp_path: Path) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    names = [f"group{n // 50}/{'x' * 500 if n == 3 else n}" for n in range(400)]
    (tmp_path / "progress.csv").write_text("step," + ",".join(names) + "\n1" + ",0.123" * 400 + "\n")
    for arguments in ({}, {"tags": "*"}, {"compare": [str(tmp_path / "progress.csv")] * 2}):
        answer = await read_tb(logdir=str(tmp_path / "progress.csv"), **arguments)
        assert openai.o200k_base().count(json.dumps(answer, ensure_ascii=False, separators=(",", ":"))) <= 800
        assert "more tags: group" in answer["next_step"]


async def test_every_answer_keeps_to_the_schema_and_has_no_bare_nan(read_tb: Tool, logs: Path) -> None:
    validate = pytest.importorskip("jsonschema").validate
    schema = metrics.TOOL.output_schema
    for arguments in ({"logdir": str(logs)}, {"logdir": str(logs / "two")}, {"logdir": str(logs / "two"), "tags": "*"}):
        answer = await read_tb(**arguments)
        validate(answer, schema)
        json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logdir": "logs"}, "logdir: is not absolute"),
        ({"logdir": "/no/such/place"}, "there is no /no/such/place"),
        ({"logdir": "{logs}", "tags": ["nothing"]}, "no tag matches 'nothing', of 3 that there are; the nearest are"),
        ({"logdir": "{logs}/../state"}, "No scalars seen under"),
        ({"run_id": "cfm-none"}, "Run not found"),
        ({}, "No scalars seen of the newest runs"),
        ({"logdir": "/x", "run_id": "y"}, "give either"),
        ({"logdir": "/x\0y"}, "logdir"),
        ({"logdir": "{logs}/one", "since_step": 1000}, "from step 1000 on"),
        ({"logdir": "/" + "a" * 5000}, "logdir: "),  # Python 3.14 finds no difference to a missing one
    ],
)
async def test_a_refusal_states_its_cause(read_tb: Tool, logs: Path, arguments: dict[str, Any], message: str) -> None:
    (logs.parent / "state").mkdir()
    filled = {k: v.format(logs=logs) if isinstance(v, str) else v for k, v in arguments.items()}
    assert message in await read_tb(**filled)


async def test_the_schema_is_short(read_tb: Tool) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    async with Client(read_tb.server) as client:
        tool = next(tool for tool in (await client.list_tools()).tools if tool.name == "read_tb")
    schema = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert schema["annotations"]["readOnlyHint"]
    seen = json.dumps({key: schema[key] for key in ("name", "description", "inputSchema")}, separators=(",", ":"))
    assert openai.o200k_base().count(seen) <= 330


async def test_a_run_without_files_answers_with_what_it_printed(read_tb: Tool, tmp_path: Path) -> None:
    home = StateHome(tmp_path / "state")
    home.create()
    runs = Runs(tmp_path)
    runs.add()
    log = runs.store.run_directory("cfm-7kqz").log(1)
    refusal = await read_tb(run_id="cfm-7kqz")
    assert "compare_runs" in refusal
    steps = [f"step:{step} - critic/score/mean:{step / 10} - actor/kl_loss:0.5" for step in range(30)]
    log.write_text("\n".join(steps) + "\n")
    answer = await read_tb(run_id="cfm-7kqz")
    assert (answer["source"], answer["run_id"], answer["step"]) == (str(log), "cfm-7kqz", 29)
    (score,) = (line for line in answer["tags"] if line.startswith("critic/score/mean"))
    assert "2.9" in score
    assert answer["notes"][0].startswith("Numbers that the run printed, read from its log")
    assert "compare_runs" in answer["notes"][0]
    values = (await read_tb(tags="critic/score/mean"))["values"]["critic/score/mean"]
    assert (values["last"], values["last_step"], values["trend"]) == (2.9, 29, "up")
    assert "age_s" not in values, "a log has no times"


async def test_what_is_asked_for_and_in_no_file_is_read_from_the_output(read_tb: Tool, tmp_path: Path) -> None:
    home = StateHome(tmp_path / "state")
    home.create()
    runs = Runs(tmp_path)
    path = runs.add() / "progress.csv"
    path.write_text("step,loss\n1,3\n2,2\n")
    os.utime(path, (BEGAN_S + 60,) * 2)
    runs.store.run_directory("cfm-7kqz").log(1).write_text("step 1 loss 3 (ema 3.5)\nstep 2 loss 2 (ema 2.75)\n")
    answer = await read_tb(run_id="cfm-7kqz", tags=["loss", "ema@2"])
    assert (list(answer["values"]), answer["answers"]) == (["loss"], ["ema at step 2: 2.75"])
    assert answer["notes"] == ["Printed, in no file: ema."]
    runs.store.run_directory("cfm-7kqz").log(1).write_text(
        "step 1 loss 3\nrecall@10 : 0.25\nstep 2 loss 2\nrecall@10 : 0.5\n"
    )
    answer = await read_tb(run_id="cfm-7kqz", tags=["recall@10"])
    assert answer["values"]["recall@10"]["last"] == 0.5, "a name of its own, and no question"
