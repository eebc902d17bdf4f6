"""Names and patterns choose tasks of doit, with several GPUs their variant; what no launch can run is refused."""

from __future__ import annotations

import pytest

from mcp_server.errors import BadArgument
from mcp_server.sweeps.sources.doit_tasks import DoitAction, DoitTask, choose_tasks, list_patterns

TRAIN = (DoitAction("shell", "python t.py"),)
TASKS = [
    DoitTask("cube", "Train the cube", actions=TRAIN),
    DoitTask("cube-mgpu", actions=TRAIN),
    DoitTask("walk", is_group=True, needs=("walk:ant", "walk:go2")),
    DoitTask("walk:ant", group="walk", actions=TRAIN),
    DoitTask("walk:go2", group="walk", actions=TRAIN),
    DoitTask("walk_mgpu:ant", group="walk_mgpu", actions=TRAIN),
    DoitTask("_hidden", actions=TRAIN),
    DoitTask("report", actions=(*TRAIN, DoitAction("python", "write_report"))),
    DoitTask("all", needs=("cube", "walk")),
    DoitTask("late", is_delayed=True),
    DoitTask("odd", actions=(DoitAction("fault", "KeyError: 'changed'"),)),
    DoitTask("typed", actions=TRAIN, fault="CmdParseError: lr is not a number"),
]


def choose(*words: str, gpus: int | None = 1) -> list[str]:
    return [choice.task.name for choice in choose_tasks(TASKS, words, gpus, "/project")]


@pytest.mark.parametrize(
    ("words", "gpus", "names"),
    [
        (["cube"], 1, ["cube"]),
        (["cube-mgpu", "cube"], 1, ["cube-mgpu", "cube"]),
        (["walk"], 1, ["walk:ant", "walk:go2"]),
        (["walk:go2", "w*", "_hidden"], 1, ["walk:go2", "walk:ant", "_hidden"]),
        (["*"], 1, ["cube", "walk:ant", "walk:go2"]),
        (["cube", "cube-mgpu"], 4, ["cube-mgpu"]),
        (["walk"], 2, ["walk_mgpu:ant", "walk:go2"]),
        (["cube*"], None, ["cube", "cube-mgpu"]),
    ],
)
def test_names_groups_and_patterns_choose_each_task_once(words: list[str], gpus: int | None, names: list[str]) -> None:
    assert choose(*words, gpus=gpus) == names
    assert {"cube", "cube-mgpu", "cube_mgpu"} <= set(list_patterns(["cube"]))


def test_a_variant_its_absence_and_what_a_pattern_leaves_out_are_said() -> None:
    assert choose_tasks(TASKS, ["cube"], 4, "/p")[0].notes == (
        "cube-mgpu in the place of cube, because a cell has 4 GPUs.",
    )
    assert choose_tasks(TASKS, ["walk:go2"], 4, "/p")[0].notes == (
        "There is no task walk:go2-mgpu: walk:go2 itself gets 4 GPUs.",
    )
    (note,) = choose_tasks(TASKS, ["cube*", "r*"], 1, "/p")[0].notes
    assert note == (
        "Left out of the sweep: cube-mgpu (the variant of cube for several GPUs); "
        "report (it runs the Python function write_report in doit's own process)."
    )


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "cub",
            "doit has no task 'cub' in /project. Nothing was done. Did you mean cube? Tasks: cube (Train the cube)",
        ),
        ("x*", "doit has no task 'x*'"),
        ("report", "runs the Python function write_report in doit's own process. Nothing was done. Move it"),
        ("all", "it has no command, only tasks that it needs: cube, walk. Nothing was done. Name these."),
        ("late", "Launch `doit run late` as a command."),
        ("odd", "cannot be known without running other tasks: KeyError: 'changed'."),
        ("typed", "its options cannot be used: CmdParseError: lr is not a number."),
    ],
)
def test_what_is_not_a_command_is_refused_by_name(word: str, message: str) -> None:
    with pytest.raises(BadArgument) as refusal:
        choose(word)
    assert message in str(refusal.value)


def test_no_task_at_all_lists_those_that_a_source_can_name() -> None:
    with pytest.raises(BadArgument, match="names no task") as refusal:
        choose()
    listed = "cube (Train the cube), cube-mgpu, walk:ant, walk:go2, walk_mgpu:ant, report, all, late, odd, typed."
    assert refusal.value.remedy == f"Tasks: {listed}"
    with pytest.raises(BadArgument, match=r"no task that l\*, o\* means is a command: late \(doit creates it only"):
        choose("l*", "o*")
