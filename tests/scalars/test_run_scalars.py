"""Where a run's scalars are found, when a condition on them is met, and what read_tb answers."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.scalars import locate
from mcp_server.scalars.formats.detect import ScalarSource
from mcp_server.scalars.locate import DatedLocation, LookupCache, MetricLocation, find_scalars
from mcp_server.scalars.run_scalars import NoScalars, Scalars
from mcp_server.serve.app import build
from mcp_server.store.state_home import StateHome
from mcp_server.system import processes
from mcp_server.tools import read_tb as metrics
from mcp_server.tools.context import ServerContext
from mcp_server.views.scalar_report import ScalarQuery, build_report
from tests.support.sandbox import text_of

pytestmark = pytest.mark.anyio

BEGUN_S = 1_700_000_000


def iso(posix_s: float) -> str:
    return datetime.fromtimestamp(posix_s, UTC).isoformat()


def a_run(cwd: Path, *, command: str = "python train.py", begun_s: float = BEGUN_S, **facts: Any) -> Run:
    spec = RunSpec(run_id="cfm-7kqz", command=command, cwd=str(cwd), created_at=iso(begun_s))
    return replace(Run(spec, "running", started_at=iso(begun_s)), **facts)


def events(directory: Path, begun_s: float = BEGUN_S, pid: int = 77, more: str = "") -> Path:
    """A file of the name that TensorBoard's writers give, which holds nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"events.out.tfevents.{int(begun_s)}.host.example.{pid}.0{more}"
    file.touch()
    return file


class Writer:
    """Writes event files as a training does."""

    def __init__(self, directory: Path) -> None:
        self._writer = EventFileWriter(str(directory))

    def tell(self, step: int, **values: float) -> None:
        told = [Summary.Value(tag=tag.replace("__", "/"), simple_value=value) for tag, value in values.items()]
        self._writer.add_event(Event(wall_time=BEGUN_S + step, step=step, summary=Summary(value=told)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def write(directory: Path, steps: int, curves: Mapping[str, Callable[[int], float]]) -> None:
    writer = Writer(directory)
    for step in range(steps):
        writer.tell(step, **{tag: curve(step) for tag, curve in curves.items()})
    writer.close()


# --- where


def locate_run_scalars(run: Run) -> list[MetricLocation]:
    """As somebody finds them who has never looked before."""
    return locate.locate_run_scalars(run, LookupCache())


def test_files_begun_while_the_run_ran_are_its_own(tmp_path: Path) -> None:
    events(tmp_path / "old", BEGUN_S - 100)
    events(tmp_path / "later", BEGUN_S + 100)
    events(tmp_path / "logs" / "mine", BEGUN_S + 5, more=".v2")
    ended = replace(a_run(tmp_path), state="finished", ended_at=iso(BEGUN_S + 50))
    assert locate_run_scalars(ended) == [tmp_path / "logs" / "mine"]
    assert locate_run_scalars(a_run(tmp_path / "old")) == []


def test_of_a_live_run_those_with_the_number_of_its_processes_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = processes.find_process(os.getpid())
    assert me is not None
    monkeypatch.setattr(processes, "descendants", lambda root: [me] if root == 4711 else [])
    events(tmp_path / "stranger", BEGUN_S + 5)
    mine = events(tmp_path / "mine", BEGUN_S + 5, me.pid)
    run = a_run(tmp_path, at_start={"supervisor_pid": 4711})
    assert locate_run_scalars(run) == [mine.parent]
    elsewhere = events(tmp_path / "elsewhere" / "tb", BEGUN_S - 5000)
    with elsewhere.open("ab"):
        # Held open for writing, so its own whatever the name says; torch closes its files between two writes.
        assert locate_run_scalars(run) == [elsewhere.parent, mine.parent]
    with elsewhere.open("rb"):
        assert locate_run_scalars(run) == [mine.parent], "only read"


def test_files_whose_names_tell_no_process_count_by_their_time(tmp_path: Path) -> None:
    for name, begun_s in (("mine", BEGUN_S + 5), ("old", BEGUN_S - 50)):
        (tmp_path / name).mkdir()
        # As tensorboardX names them; a host may look like numbers.
        (tmp_path / name / f"events.out.tfevents.{begun_s:.0f}.node-7.example").write_bytes(b"")
    assert locate_run_scalars(a_run(tmp_path, state="finished", ended_at=iso(BEGUN_S + 60))) == [tmp_path / "mine"]


def test_of_two_runs_in_one_directory_each_keeps_what_its_command_wrote_also_after_the_end(tmp_path: Path) -> None:
    for name, pid in (("one", 5001), ("two", 5002)):
        events(tmp_path / "runs" / name, BEGUN_S + 5, pid)
        events(tmp_path / "runs" / name / "eval", BEGUN_S + 9, pid + 100)
    for tensorboard in (None, "runs"):
        run = a_run(tmp_path, state="finished", ended_at=iso(BEGUN_S + 60), at_start={"pid": 5002})
        run = replace(run, spec=replace(run.spec, tensorboard=tensorboard))
        assert set(locate_run_scalars(run)) == {tmp_path / "runs" / "two", tmp_path / "runs" / "two" / "eval"}


def test_a_directory_that_the_command_names_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    events(tmp_path / "out" / "run", BEGUN_S + 5)
    for command in (f"python train.py --logdir {tmp_path}/out", f"python train.py log.dir='{tmp_path}/out' x=1"):
        assert locate_run_scalars(a_run(tmp_path / "work", command=command)) == [tmp_path / "out" / "run"]
    assert locate_run_scalars(a_run(tmp_path / "work")) == []


def test_the_directory_that_the_launch_names_comes_first(tmp_path: Path) -> None:
    events(tmp_path / "cwd" / "logs", BEGUN_S + 5)
    run = a_run(tmp_path / "cwd")
    named = replace(run, spec=replace(run.spec, tensorboard=str(tmp_path / "tb")))
    assert locate_run_scalars(named) == [tmp_path / "cwd" / "logs"], "nothing is there yet"
    events(tmp_path / "tb", BEGUN_S - 1000)
    assert locate_run_scalars(named) == [tmp_path / "tb"], (
        "the only one there, begun by an earlier run that this one resumes"
    )
    events(tmp_path / "tb" / "new", BEGUN_S + 5)
    assert locate_run_scalars(named) == [tmp_path / "tb" / "new"]


def test_tables_count_where_there_are_no_event_files(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name, at_s in (("old/progress.csv", BEGUN_S - 100), ("progress.csv", BEGUN_S + 5)):
        (tmp_path / name).write_text("step,loss\n1,2\n")
        os.utime(tmp_path / name, (at_s, at_s))
    assert locate_run_scalars(a_run(tmp_path)) == [ScalarSource("csv", tmp_path / "progress.csv")]
    events(tmp_path / "tb", BEGUN_S + 5)
    assert locate_run_scalars(a_run(tmp_path)) == [tmp_path / "tb"]


def test_of_a_directory_event_files_are_told_and_else_tables_below(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "progress.csv").write_text("step,loss\n1,2\n")
    assert [one.location for one in find_scalars(tmp_path)] == [ScalarSource("csv", deep / "progress.csv")]
    file = events(tmp_path / "c")
    assert [one.location for one in find_scalars(tmp_path)] == [file.parent]
    assert [one.location for one in find_scalars(file)] == [file.parent]


def test_what_took_long_to_find_is_remembered_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("mcp_server.scalars.locate.time.monotonic", lambda: clock[0])

    def slow(root: Path) -> list[DatedLocation]:
        clock[0] += 2
        return [DatedLocation(root, clock[0])]

    lookups = LookupCache()
    assert lookups.get(slow, tmp_path) == lookups.get(slow, tmp_path) == [DatedLocation(tmp_path, 2)]
    clock[0] += 39
    assert lookups.get(slow, tmp_path) == [DatedLocation(tmp_path, 2)]
    clock[0] += 2
    assert lookups.get(slow, tmp_path) == [DatedLocation(tmp_path, 45)]


# --- when


def test_several_directories_are_one_run_with_prefixes(tmp_path: Path) -> None:
    for name in ("train", "eval"):
        write(tmp_path / name, 2, {"loss": float})
    reading = Scalars(StateHome(tmp_path / "state")).read([tmp_path / "train", tmp_path / "eval"], "x")
    assert list(reading.series) == ["train/loss", "eval/loss"]


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(NoScalars, match=r"^No scalars of x can be read: [^.]*\. Pass another"):
        Scalars(StateHome(tmp_path / "state")).read([tmp_path / "none"], "x")


# --- the tool


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


async def test_a_run_is_told_in_one_line_a_tag(read_tb: Tool, logs: Path) -> None:
    answer = await read_tb(logdir=str(logs / "two"))
    assert (answer["source"], answer["step"]) == (str(logs / "two"), 99)
    reward, loss, lr = answer["tags"]
    assert reward.startswith("Train/reward 49.5 ↑500 0@0 49.5@99 0")
    assert "1e6@50" in loss
    assert loss.endswith("1 NaN from 70")
    assert lr == f"lr 0.001 ~ 0.001@0 0.001@0 {'5' * 32}"


async def test_named_tags_are_told_in_full_with_points(read_tb: Tool, logs: Path) -> None:
    answer = await read_tb(logdir=str(logs / "two"), tags=["loss", "*reward"])
    loss, reward = answer["values"]["loss"], answer["values"]["Train/reward"]
    assert (loss["last_step"], loss["count"], loss["nan"], loss["first_nan_step"], loss["max"]) == (99, 100, 1, 70, 1e6)
    assert (reward["slope"], reward["trend"], reward["min"], reward["first"], reward["mean"]) == (
        500,
        "up",
        0,
        0,
        24.75,
    )
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
    assert compared["tags"][0].startswith("Train/reward | 99@99 ↑1000 0..99 0")
    assert " | 49.5@99 ↑500 0..49.5 0" in compared["tags"][0]
    assert (await read_tb(logdir=str(logs), tags=["Train/reward"]))["tags"] == compared["tags"]


async def test_a_restart_is_named(read_tb: Tool, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "tb")
    for step in [*range(10), *range(4, 12)]:
        writer.tell(step, loss=float(step))
    writer.close()
    assert (await read_tb(logdir=str(tmp_path / "tb")))["notes"][0].startswith("Restarted at step 4")
    assert (await read_tb(logdir=str(tmp_path / "tb"), tags="loss"))["values"]["loss"]["restarts"] == [4]


async def test_what_was_asked_for_and_left_out_is_said(read_tb: Tool, logs: Path) -> None:
    answer = await read_tb(logdir=str(logs / "one"), tags=["loss", "los", "none/*"])
    assert list(answer["values"]) == ["loss"]
    assert answer["notes"] == ["Not among the tags: los, none/*."]
    for number in range(20):
        write(logs / f"more{number}", 1, {"loss": float})
    answer = await read_tb(compare=[str(logs / f"more{number}") for number in range(20)])
    assert (len(answer["runs"]), answer["notes"]) == (16, ["Only 16 of 20 runs are shown."])
    answer = await read_tb(logdir=str(logs), tags="loss")
    assert (len(answer["runs"]), answer["notes"]) == (8, ["Only 8 of 22 runs are shown."])
    answer = await read_tb(compare=[str(logs / "one"), f"{logs}/two/../one/"])
    assert answer["source"] == str(logs / "one"), "one run is not compared with itself"


async def test_points_come_without_tags_being_named(read_tb: Tool, logs: Path) -> None:
    answer = await read_tb(logdir=str(logs / "one"), points=3)
    assert answer["values"]["Train/reward"]["points"] == [[0, 0.0], [99, 99.0]]
    assert list(answer["values"]) == ["Train/reward", "loss", "lr"]


async def test_a_picture_of_an_unasked_choice_begins_with_what_is_odd(read_tb: Tool, tmp_path: Path) -> None:
    curves: dict[str, Callable[[int], float]] = {f"loss{n}": float for n in range(9)}
    write(tmp_path / "tb", 3, {**curves, "zeta": lambda _: math.nan})
    drawable = build_report(
        ScalarQuery(str(tmp_path / "tb"), plot=True), read_tb.context.scalars, read_tb.context.store
    )
    assert [panel.title for panel in drawable.panels] == ["zeta", *(f"loss{n}" for n in range(5))]
    assert drawable.answer.notes == ["The picture shows 6 of 10 tags."]


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
    ("arguments", "said"),
    [
        ({"logdir": "logs"}, "logdir: is not absolute"),
        ({"logdir": "/no/such/place"}, "there is no /no/such/place"),
        ({"logdir": "{logs}", "tags": ["nothing"]}, "none of 3 tags matches; the nearest are"),
        ({"logdir": "{logs}/../state"}, "No scalars under"),
        ({"run_id": "cfm-none"}, "Run not found"),
        ({}, "None of the newest runs has written scalars"),
        ({"logdir": "/x", "run_id": "y"}, "give either"),
        ({"logdir": "/x\0y"}, "logdir"),
        ({"logdir": "{logs}/one", "since_step": 1000}, "from step 1000 on"),
        ({"logdir": "/" + "a" * 5000}, "aaa' cannot be read: File name too long"),
    ],
)
async def test_a_refusal_says_what_to_do(read_tb: Tool, logs: Path, arguments: dict[str, Any], said: str) -> None:
    (logs.parent / "state").mkdir()
    filled = {k: v.format(logs=logs) if isinstance(v, str) else v for k, v in arguments.items()}
    assert said in await read_tb(**filled)


async def test_the_schema_is_short(read_tb: Tool) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    async with Client(read_tb.server) as client:
        tool = next(tool for tool in (await client.list_tools()).tools if tool.name == "read_tb")
    shown = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert shown["annotations"]["readOnlyHint"]
    seen = json.dumps({key: shown[key] for key in ("name", "description", "inputSchema")}, separators=(",", ":"))
    assert openai.o200k_base().count(seen) <= 330
