"""A task of doit becomes one command: its actions, the place of parameters, the device, the style of its arguments."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mcp_server.record.script import render
from mcp_server.record.spec import RunSpec
from mcp_server.sweeps.sources.cell import Scalar
from mcp_server.sweeps.sources.doit_tasks import DoitAction, DoitTask, build_launch
from tests.command.test_shell import SUBSTITUTED

CUBE = "python train.py --task cube --num_envs 4096 --device cuda:0"


def shell(text: str, cwd: str = "", **env: str) -> DoitAction:
    return DoitAction("shell", text, cwd=cwd, env=env)


@pytest.mark.parametrize(
    ("actions", "overrides", "command", "style"),
    [
        ([shell(CUBE)], {}, CUBE, "--k v"),
        ([DoitAction("argv", words=("python", "a b.py"))], {"lr": 1}, ["python", "a b.py"], "--k v"),
        ([shell("python -m verl.trainer.main_ppo data.seed=1")], {"data.seed": 2}, None, "k=v"),
        ([shell("python train.py --task ant agent.lr=1")], {"agent.lr": 2}, None, "k=v"),  # Isaac Lab takes both
        ([shell("python train.py --task ant agent.lr=1")], {"seed": 2}, None, "--k v"),
        (
            [shell("cd sub && python train.py --lr 1 2>&1 | tee log  # all")],
            {"lr": 2},
            "cd sub && python train.py --lr 1 2>&1 {params} | tee log  # all",
            "--k v",
        ),
        (
            [DoitAction("folder", "my logs"), DoitAction("argv", words=("python", "prep.py")), shell("python t.py")],
            {},
            "mkdir -p -- 'my logs' && python prep.py && python t.py {params}",
            "--k v",
        ),
        # The flag says which program is meant.
        (
            [shell("python t.py --lr 1"), shell("python eval.py")],
            {"lr": 2},
            "python t.py --lr 1 {params} && python eval.py",
            "--k v",
        ),
        # Neither directory nor variables nor `||` of one action concern the next.
        (
            [shell("a || b", "/x y", FOO="1 2"), shell("python t.py", "/z"), shell("c # d")],
            {},
            "( cd '/x y' && export FOO='1 2' && a || b ) && ( cd /z && python t.py {params} ) && ( c # d\n)",
            "--k v",
        ),
        # A here-document: where arguments belong is not certain.
        ([shell("cat <<E | python t.py\nx\nE")], {}, "cat <<E | python t.py\nx\nE", "--k v"),
    ],
)
def test_actions_become_one_command(
    actions: list[DoitAction], overrides: dict[str, Scalar], command: object, style: str
) -> None:
    task = DoitTask("t", actions=tuple(actions))
    launch = build_launch(task, [task], "/project", overrides, None)
    assert launch.arguments["command"] == (actions[0].text if command is None else command)
    assert launch.arguments["param_style"] == style
    assert launch.params == overrides


@pytest.mark.parametrize("word", SUBSTITUTED)
def test_parameters_follow_the_arguments_whatever_is_substituted_in_them(word: str, tmp_path: Path) -> None:
    program = "torchrun() { printf '%s\\0' \"$@\"; }\ndate() { :; }\nnvidia-smi() { echo GPU; }"
    for text, rest in [
        (f"torchrun {word} train.py {word}", ""),
        (f"# prepares\ntrue # it\ntorchrun {word} train.py {word}  # runs\ntrue", "  # runs\ntrue"),
        (f"cd /tmp && X={word} torchrun {word} train.py {word} 2>&1 | cat", " 2>&1 | cat"),
        (f"true\ntorchrun {word} \\\n  train.py {word}; exit 3", "; exit 3"),
    ]:
        task = DoitTask("t", actions=(shell(text),))
        arguments = build_launch(task, [task], "/", {"lr": "1 2"}, 4).arguments
        script = render(RunSpec(cwd=str(tmp_path), command=arguments["command"], params={"lr": "1 2"}))
        script = script.replace("exec torchrun", "torchrun").replace("\n", f"\n{program}\n", 1)
        before = text[: len(text) - len(rest)]
        plain = f"#!/bin/bash\n{program}\ncd {tmp_path}\n{before} --lr '1 2'{rest}\n"
        outputs = [subprocess.run(["bash", "-c", each], capture_output=True, check=False) for each in (script, plain)]
        assert outputs[0].stderr == b""
        assert (outputs[0].stdout, outputs[0].returncode) == (outputs[1].stdout, outputs[1].returncode)
        assert b"--lr\x001 2\0" in outputs[0].stdout


def test_a_single_action_keeps_its_directory_and_its_variables() -> None:
    task = DoitTask("t", actions=(shell("python t.py", "/elsewhere", FOO="1"),))
    arguments = build_launch(task, [task], "/project", {}, None).arguments
    assert (arguments["cwd"], arguments["env"]) == ("/elsewhere", {"FOO": "1"})


@pytest.mark.parametrize(
    ("text", "gpus", "overrides", "end"),
    [
        (CUBE, 1, {}, " --device cuda:{gpu_indices}"),
        ("python train.py --task ant | tee x", 1, {}, " --device cuda:{gpu_indices} {params} | tee x"),  # as its sister
        (CUBE, 1, {"device": "cuda:1"}, ""),
        (CUBE, 4, {}, ""),
        (CUBE, None, {}, ""),
        ("python train.py --device cpu", 1, {}, ""),
        ("python train.py --device cuda:{gpu_indices}", 1, {}, ""),
        ("python play.py --task ant", 1, {}, ""),  # another program
    ],
)
def test_one_gpu_is_named_by_the_device_flag_where_the_program_takes_it(
    text: str, gpus: int | None, overrides: dict[str, Scalar], end: str
) -> None:
    task, sister = DoitTask("t", actions=(shell(text),)), DoitTask("cube", actions=(shell(CUBE),))
    launch = build_launch(task, [task, sister], "/project", overrides, gpus)
    assert launch.arguments["command"] == text.removesuffix(" | tee x") + end
    assert any("is added" in note for note in launch.notes) == bool(end)


def test_an_option_of_the_task_is_a_parameter_only_where_the_command_shows_its_flag() -> None:
    text, options = "python t.py --lr 0.3 --seed 1", {"lr": "0.3", "scene": "'flat'"}
    task = DoitTask("t", actions=(shell(text),), options=options)
    launch = build_launch(task, [task], "/project", {"lr": 0.3, "scene": "flat", "seed": 2}, None)
    assert launch.params == {"lr": 0.3, "seed": 2}
    assert launch.notes == (
        "Options of the task: lr=0.3, scene='flat'.",
        "seed=2 follows seed=1 of the command: the last value wins.",
    )


def test_what_a_run_does_not_repeat_is_said() -> None:
    action = DoitAction("shell", "python t.py --lr 1 --lr 2", unset=("HOME",), settings=("executable",))
    task = DoitTask("g:t", group="g", needs=("g", "prepare"), has_teardown=True, actions=(action,))
    assert build_launch(task, [task], "/project", {}, None).notes == (
        "doit runs prepare before g:t; a cell does not.",
        "The teardown of g:t is not run.",
        "doit runs g:t without HOME; a cell keeps them.",
        "Settings of its actions that a cell does not have: executable.",
        "lr is in the command twice: the last value wins, 2.",
    )
