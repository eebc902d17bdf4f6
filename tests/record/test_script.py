"""Scripts of attempts, their arguments, and names of commands, by value."""

import shlex
import subprocess
from pathlib import Path

import pytest

from mcp_server.command.shell import parse
from mcp_server.record.script import (
    LONGEST_NAME,
    AttemptInputs,
    attempt_arguments,
    command_text,
    format_arguments,
    name_attempt,
    name_of,
    render,
    slug,
    takes_arguments,
)
from mcp_server.record.spec import RunSpec


@pytest.mark.parametrize(
    ("spec", "script"),
    [
        pytest.param(
            RunSpec(cwd="/data/cfm", command="python train.py --lr 3e-4"),
            """\
#!/usr/bin/env bash
set -o pipefail
cd -- /data/cfm || exit
exec python train.py --lr 3e-4
""",
            id="one program replaces the shell",
        ),
        pytest.param(
            RunSpec(cwd="/data/cfm", command="python train.py", params={"num_envs": 4096, "resume": True}),
            """\
#!/usr/bin/env bash
set -o pipefail
cd -- /data/cfm || exit
[ $# -gt 0 ] || [ "${RUNWARD_ATTEMPT-}" ] || set -- --num_envs 4096 --resume
exec python train.py "$@"
""",
            id="parameters are arguments, which a retry may change",
        ),
        pytest.param(
            RunSpec(
                cwd="/", command="cd sub && python train.py {params} | tee log", params={"lr": 1}, param_style="k=v"
            ),
            """\
#!/usr/bin/env bash
set -o pipefail
cd -- / || exit
[ $# -gt 0 ] || [ "${RUNWARD_ATTEMPT-}" ] || set -- lr=1
cd sub && python train.py "$@" | tee log
""",
            id="parameters go where the command says",
        ),
        pytest.param(
            RunSpec(cwd="/", command=["torchrun", "{params}", "a b.py"], resume_args=["--resume"]),
            """\
#!/usr/bin/env bash
set -o pipefail
cd -- / || exit
exec torchrun "$@" 'a b.py'
""",
            id="a list of words has its place too",
        ),
        pytest.param(
            RunSpec(cwd="/data/cfm", command="python prepare.py && python train.py | tee out.txt"),
            """\
#!/usr/bin/env bash
set -o pipefail
cd -- /data/cfm || exit
python prepare.py && python train.py | tee out.txt
""",
            id="a list of commands stays as it is",
        ),
        pytest.param(
            RunSpec(cwd="/data/cfm", command="set -e\nfor seed in 1 2; do\n  python train.py $seed\ndone"),
            """\
#!/usr/bin/env bash
set -o pipefail
cd -- /data/cfm || exit
set -e
for seed in 1 2; do
  python train.py $seed
done
""",
            id="a whole script stays as it is",
        ),
        pytest.param(
            RunSpec(cwd="/data/cfm", command=["python", "-c", "print('a; $HOME')", "a b", "", "&&"]),
            """\
#!/usr/bin/env bash
set -o pipefail
cd -- /data/cfm || exit
exec python -c 'print('"'"'a; $HOME'"'"')' 'a b' '' '&&'
""",
            id="an argv list is quoted word by word",
        ),
        pytest.param(
            RunSpec(
                cwd="/data/it's a $(touch here)\n dir",
                command="./train.sh",
                env={"B": "two words", "A": "", "C": "it's $HOME `id`", "D": "two\nlines"},
                secrets=["WANDB_API_KEY", "HF_TOKEN"],
            ),
            """\
#!/usr/bin/env bash
set -o pipefail
export A=''
export B='two words'
export C='it'"'"'s $HOME `id`'
export D='two
lines'
cd -- '/data/it'"'"'s a $(touch here)
 dir' || exit
# WANDB_API_KEY: a secret, handed over in memory
# HF_TOKEN: a secret, handed over in memory
exec ./train.sh
""",
            id="nothing in a directory or a value is run; secrets are named only",
        ),
    ],
)
def test_a_spec_becomes_a_script(spec: RunSpec, script: str) -> None:
    assert render(spec) == script


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "  python train.py  ",
        "/opt/conda/bin/python3.11 -m torch.distributed.run --nproc-per-node=8 train.py",
        "./train.sh",
        "~/bin/train --lr 3e-4",
        "g++ -O2 x.cpp",
        "env CUDA_VISIBLE_DEVICES=0 python train.py",
        "nice -n 10 python train.py",
        "bash -c 'a; b && c'",
        'python -c "print(1); print(2)"',
        "python train.py > log.txt",
        "python train.py --name $NAME",
        "python train.py \\\n  --name x",
    ],
)
def test_exec_may_precede_one_program(command: str) -> None:
    assert parse(command).is_one_program


@pytest.mark.parametrize(
    "command",
    [
        "",
        "   ",
        "# nothing",
        "python a.py; python b.py",
        "python a.py && python b.py",
        "python a.py&&python b.py",
        "python a.py || true",
        "python train.py | tee log.txt",
        "python train.py &",
        "python train.py 2>&1 | tee log.txt",
        "(python train.py)",
        "{ python train.py; }",
        "! python train.py",
        "[ -f x ]",
        "[[ -f x ]] && python train.py",
        "python a.py\npython b.py",
        "cd src && python train.py",
        "cd src",
        "source env.sh",
        ". env.sh",
        "export A=1",
        "ulimit -c 0",
        "A=1 python train.py",
        "A=1",
        "$PYTHON train.py",
        '"$PYTHON" train.py',
        "`which python` train.py",
        "> log.txt python train.py",
        "for i in 1 2; do python train.py; done",
        "if true; then python train.py; fi",
        "while true",
        "time python train.py",
        "exec python train.py",
        "eval python train.py",
        "echo 'unclosed",
        'echo "unclosed',
        "train() { python train.py; }",
    ],
)
def test_exec_may_not_precede_anything_else(command: str) -> None:
    assert not parse(command).is_one_program


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --run exp#3 && python evaluate.py",
        "python train.py --url http://host/#part; python evaluate.py",
        "python train.py a#b | tee log.txt",
    ],
)
def test_a_hash_inside_a_word_hides_nothing_that_follows(command: str) -> None:
    # bash begins a comment at a word's start only; with `exec` the second command would never run.
    assert not parse(command).is_one_program


# --- names


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 1", "train"),
        ("python /data/cfm/finetune_v2.py", "finetune_v2"),
        (["python", "my train.py"], "my train"),
        ("bash run.sh", "run"),
        ("torchrun --nproc-per-node 8 train.py --config a.yaml", "train"),
        ("python -m cfm.training.main --x 1", "main"),
        ("CUDA_VISIBLE_DEVICES=0 python train.py", "train"),
        ("A=1 /usr/bin/nvidia-smi -l", "nvidia-smi"),
        ("sleep 3600", "sleep"),
        ("A=1", "run"),
        ("   ", "run"),
        ([], "run"),
        ("it's broken", "it's"),
        ("/", "run"),
        ("''", "run"),
    ],
)
def test_a_run_is_named_after_its_script_its_module_or_its_program(command: str | list[str], name: str) -> None:
    assert name_of(parse(command)) == name


@pytest.mark.parametrize(
    ("command", "params", "name"),
    [
        ("python train.py trainer.experiment_name=agent-7b", {}, "agent-7b"),
        (["python", "-m", "verl.main", "--exp-name", "kl_0.01"], {}, "kl_0.01"),
        ("python train.py --run_name a1 --experiment_name lift", {}, "lift"),
        ("python train.py --run_name a1", {"run_name": "b2"}, "b2"),
        ("python train.py", {"trainer.experiment_name": "agent-7b", "lr": 1}, "agent-7b"),
        ("python train.py", {"run_name": "{run_id}-{attempt}"}, "train"),
        ("python train.py --run_name $NAME", {"experiment_name": 7}, "train"),
        ("python train.py --run_name=/data/x", {"exp_name": None}, "train"),
        ("python train.py --run_name", {}, "train"),
    ],
)
def test_a_run_whose_settings_name_the_experiment_has_that_name(
    command: str | list[str], params: dict[str, object], name: str
) -> None:
    assert name_of(parse(command), params) == name


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("cfm", "cfm"),
        ("cfm_v2-b", "cfm_v2-b"),
        ("cfm v2.1: größer", "cfm-v2-1-gr-er"),
        ("..", "run"),
        ("größe", "gr-e"),
        ("训练", "run"),
        ("-rf", "rf"),
        ("=x", "x"),
        ("a/b\\c\n", "a-b-c"),
        ("", "run"),
        ("x" * 300, "x" * LONGEST_NAME),
    ],
)
def test_a_slug_is_what_tmux_and_file_systems_take(name: str, label: str) -> None:
    assert slug(name) == label


@pytest.mark.parametrize(
    ("command", "takes"),
    [
        ("python train.py", True),
        (["python", "train.py"], True),
        ("cd x && python train.py", False),
        ("cd x && python train.py {params}", True),
        ("for i in 1 2; do python train.py; done", False),
        ("bash -c 'python train.py {params}'", False),
        ("python train.py --opts={params}", False),
        ("python train.py 'unbalanced {params}", False),
        (["bash", "-c", "python train.py {params}"], False),
        (["python", "train.py", "{params}"], True),
        ("bash -c 'python train.py \"$@\"' _", True),
    ],
)
def test_parameters_need_a_place(command: str | list[str], takes: bool) -> None:
    assert takes_arguments(parse(command)) == takes


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("--k v", ["--lr", "0.1", "--name", "a b", "--bf16", "--seed", "0"]),
        ("k=v", ["lr=0.1", "name=a b", "bf16=true", "compile=false", "seed=0", "resume=null"]),
    ],
)
def test_parameters_become_words(style: str, words: list[str]) -> None:
    params = {"lr": 0.1, "name": "a b", "bf16": True, "compile": False, "seed": 0, "resume": None}
    assert format_arguments(params, style) == words
    assert format_arguments(params, style, ["--resume"]) == [*words, "--resume"]


# --- later attempts

SPEC = RunSpec(
    cwd="/data/{gpus}",
    env={"PORT": "1", "KEPT": "it's", "DEVICES": "cuda:{gpu_indices}"},
    command="python train.py --device cuda:{gpu_indices}",
    params={"num_envs": 4096, "ids": "{gpus}"},
    resume_args=["--resume"],
)
SECOND = AttemptInputs(
    {"num_envs": 2048, "ids": "{gpus}"},
    resumes=True,
    environment={"PORT": "2", "NEW": "a b; exit 1"},
    placeholders={"{gpus}": "GPU-a,GPU-b", "{gpu_indices}": "0,1"},
)


def test_the_script_of_a_later_attempt_has_its_arguments_its_variables_and_its_gpus() -> None:
    assert (
        render(SPEC, SECOND)
        == """\
#!/usr/bin/env bash
set -o pipefail
export DEVICES='cuda:0,1'
export KEPT='it'"'"'s'
export NEW='a b; exit 1'
export PORT=2
cd -- '/data/{gpus}' || exit
[ $# -gt 0 ] || [ "${RUNWARD_ATTEMPT-}" ] || set -- --num_envs 2048 --ids GPU-a,GPU-b --resume
exec python train.py --device cuda:0,1 "$@"
"""
    )


def test_the_first_attempt_does_not_resume() -> None:
    assert render(SPEC, AttemptInputs(SPEC.params)) == render(SPEC)
    assert attempt_arguments(SPEC, AttemptInputs(SPEC.params)) == ["--num_envs", "4096", "--ids", "{gpus}"]
    assert attempt_arguments(SPEC, SECOND) == ["--num_envs", "2048", "--ids", "GPU-a,GPU-b", "--resume"]


def test_resume_args_alone_are_arguments_of_later_attempts() -> None:
    spec = RunSpec(cwd="/", command="python train.py", resume_args=["--resume"])
    assert "set --" not in render(spec)
    assert "set -- --resume\n" in render(spec, AttemptInputs({}, resumes=True))


def test_changed_variables_replace_those_of_the_spec_and_are_never_executed(tmp_path: Path) -> None:
    spec = RunSpec(cwd=str(tmp_path), env={"PORT": "1", "KEPT": "it's"}, command="echo $PORT $KEPT $NEW")
    text = render(spec, AttemptInputs({}, environment={"PORT": "2", "NEW": "a b; exit 1"}))
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "2 it's a b; exit 1\n"


def test_by_hand_a_script_has_the_arguments_of_its_attempt_and_given_ones_replace_them(tmp_path: Path) -> None:
    spec = RunSpec(cwd=str(tmp_path), command="echo", params={"lr": 1}, resume_args=["--resume"])
    text = render(spec, AttemptInputs({"lr": 2}, resumes=True))
    outputs = [
        subprocess.run(["bash", "-c", text, "run.sh", *words], capture_output=True, text=True, check=True).stdout
        for words in ([], ["--lr", "3"])
    ]
    assert outputs == ["--lr 2 --resume\n", "--lr 3\n"]


# --- names of the run


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python train.py --logdir runs/{run_id}/{attempt}", "python train.py --logdir runs/cfm-7kqz/2"),
        ("bash -c 'python train.py --out {run_id}'", "bash -c 'python train.py --out cfm-7kqz'"),
        ("echo ${run_id} {{run_id}} > {run_id}.log", "echo ${run_id} {{run_id}} > cfm-7kqz.log"),
        (
            """python -u -c 'print(f"{run_id}")' --out {run_id}""",
            """python -u -c 'print(f"{run_id}")' --out cfm-7kqz""",
        ),
        ("jq '{run_id}' a.json > {run_id}.json", "jq '{run_id}' a.json > cfm-7kqz.json"),
        (
            "python - <<'EOF'\nprint(f'{run_id}')\nEOF\npython e.py {run_id}",
            "python - <<'EOF'\nprint(f'{run_id}')\nEOF\npython e.py cfm-7kqz",
        ),
        ("cat > a.yaml <<EOF\nout: {run_id}\nEOF", "cat > a.yaml <<EOF\nout: cfm-7kqz\nEOF"),
        (["python", "train.py", "--logdir={run_id}"], "python train.py --logdir=cfm-7kqz"),
        (["python", "-c", "f'{run_id}'", "{run_id}"], """python -c 'f'"'"'{run_id}'"'"'' 'cfm-7kqz'"""),
    ],
)
def test_the_names_of_a_run_are_filled_in_but_not_in_text_of_another_language(
    command: str | list[str], shown: str
) -> None:
    spec = RunSpec(run_id="cfm-7kqz", cwd="/", command=command)
    inputs = AttemptInputs({}, placeholders=name_attempt("cfm-7kqz", 2))
    assert shlex.split(command_text(spec, inputs)) == shlex.split(shown)
    assert shlex.split(render(spec, inputs).partition("cd -- / || exit\n")[2].removeprefix("exec ")) == shlex.split(
        shown
    )
