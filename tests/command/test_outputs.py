"""The directories that a command says it writes."""

import os

import pytest

from mcp_server.command.outputs import (
    configuration_words,
    find_in_command,
    find_in_configuration,
    find_mentioned,
    list_redirected,
    names_an_output,
)

OUTPUTS = """
    --logdir --log_dir --log-dir --output_dir --out_dir --outdir --save_dir --save_path --result_dir --results-dir
    --work_dir --work-dir hydra.run.dir trainer.default_local_dir --default_root_dir --tensorboard_dir --tb_log_dir
    logger.log_dir train_output_dir runner.logger.log_path --run_dir --exp_dir --output --eval_dir --outputPath LOG_DIR
"""
OTHERS = """
    --data_dir --dataset_path --model_path --model --load_run --checkpoint --checkpoint_dir --ckpt_path --resume_from
    --init_dir --cache_dir --tokenizer_path --config_path --config --name --run_name --lr --num_envs --task
    data.train_files --log_interval --save_freq --output_format --eval_steps --pretrained_dir
    --root --seed --log_config_path
"""


@pytest.mark.parametrize("name", OUTPUTS.split())
def test_a_name_that_means_an_output(name: str) -> None:
    assert names_an_output(name)


@pytest.mark.parametrize("name", OTHERS.split())
def test_a_name_that_means_something_else(name: str) -> None:
    assert not names_an_output(name)


def test_the_directories_of_a_command_are_absolute() -> None:
    command = "python train.py --logdir runs/a --data_dir /data hydra.run.dir=/out/b --seed 1"
    assert find_in_command(command, "/p") == ["/p/runs/a", "/out/b"]
    assert find_in_command(["python", "t.py", "--output_dir=../x"], "/p/q") == ["/p/x"]
    assert find_in_command("python t.py", "/p", {"save_dir": "s", "lr": 0.1}) == ["/p/s"]


@pytest.mark.parametrize(
    ("command", "directories"),
    [
        ("cd sub && python t.py --logdir runs", ["/p/sub/runs"]),
        ("cd a; cd b; python t.py --logdir runs > log", ["/p/a/b/runs"]),
        ("cd a && python t.py --logdir x; cd /o && python t.py --logdir x", ["/p/a/x", "/o/x"]),
        ("cd $DIR && python t.py --logdir runs --out_dir /o", ["/o"]),
        ("pushd a; python t.py --logdir runs", []),
        ("bash -c 'cd sub && python t.py --logdir runs'", ["/p/sub/runs"]),
        ("tensorboard --logdir runs & python t.py --logdir new", ["/p/new"]),
        ("ARGS=(--logdir runs); python t.py ${ARGS[@]}", ["/p/runs"]),
    ],
)
def test_a_directory_is_relative_to_where_its_program_runs(command: str, directories: list[str]) -> None:
    assert find_in_command(command, "/p") == directories


def test_redirected_files_are_relative_to_where_their_program_runs() -> None:
    assert list(list_redirected("cd sub && python t.py > log 2>&1; x | tee a b", "/p")) == [
        "/p/sub/log",
        "/p/sub/a",
        "/p/sub/b",
    ]


@pytest.mark.parametrize(
    "value", ["$OUT/a", "outputs/${now:%Y}", "s3://bucket/x", "{run_id}", "true", "'a*'", "x" * 5000]
)
def test_text_that_something_replaces_names_no_directory(value: str) -> None:
    assert find_in_command(f"python t.py --output_dir {value}", "/p") == []


def test_a_configuration_names_directories() -> None:
    text = "trainer:\n  default_local_dir: ck/a  # here\n  data_dir: /data\nlogging:\n  log_dir: '/logs'\n"
    assert find_in_configuration(text, "/p") == ["/p/ck/a", "/logs"]
    assert find_in_configuration('{"output_dir": "out", "lr": 1}', "/p") == ["/p/out"]
    assert configuration_words("python t.py --config=a.yaml b.json c.txt") == ["a.yaml", "b.json"]


def test_paths_that_a_command_mentions() -> None:
    mentioned = find_mentioned(
        "python3 eval.py /data/out --ckpt ../in/a out=/x/y --url http://h/a b/c $D/x /usr/lib", "/w"
    )
    assert mentioned == ["/data/out", "/w/b/c", "/in/a", "/x/y"]
    home = os.path.expanduser("~/out")  # noqa: PTH111 - plain strings
    assert find_mentioned(["/venv/bin/python", "a.py", "/w/inside", "/w/", "~/out"], "/w") == ["/w/inside", home]


def test_the_home_of_a_user_who_is_not_known_here_is_a_path_as_any_other() -> None:
    assert find_mentioned(["cp", "a", "~nobody-here/x"], "/w") == ["/w/~nobody-here/x"]
    assert find_mentioned(["cp", "a", "../~nobody-here/x"], "/w/b") == ["/w/~nobody-here/x"]
