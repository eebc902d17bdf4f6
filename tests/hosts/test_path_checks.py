"""Commands that people write are let pass; those that cannot work here are refused with what to write instead."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_server.command.inputs import find_program_names
from mcp_server.command.shell import parse
from mcp_server.errors import BadArgument
from mcp_server.hosts.config import Environment, Host, HostsFile, find_this_host
from mcp_server.hosts.path_checks import Roots, find_foreign_paths, find_missing_inputs, refuse_first
from mcp_server.record.spec import LaunchRequest

FILES = """
train.py eval.py run.sh tools/train.py scripts/launch.sh configs/walker.yaml configs/go2.yaml configs/model.py
train.yaml ds.json conf/robot/arm.yaml src/pkg/configs/special/push.yaml ckpts/step_900.pt ckpts/step_800.pt
.venv/bin/python .venv/bin/activate .venv/bin/torchrun data/x.parquet
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [*FILES.split(), ".bashrc"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def site(here: Path | None = None, **more: Any) -> HostsFile:
    """This machine keeps its projects in ``here``; another in /data/scalelab2, a third in two directories."""
    roots = [str(here)] if here else ["/data/scalelab"]
    return HostsFile(
        hosts={
            "machine1": Host(name="machine1", hostnames=[socket.gethostname()], roots=roots, **more),
            "machine2": Host(name="machine2", roots=["/data/scalelab2"]),
            "machine3": Host(name="machine3", roots=["/srv/a", "/srv/b"]),
        }
    )


def check(command: str | list[str], cwd: Path, hosts_toml: HostsFile | None = None, **more: Any) -> None:
    hosts_toml = hosts_toml or HostsFile()
    check_request(LaunchRequest(command, cwd=str(cwd), **more), hosts_toml)


def check_request(request: LaunchRequest, hosts_toml: HostsFile) -> None:
    command, host = parse(request.command), find_this_host(hosts_toml)
    refuse_first(find_foreign_paths(request, command, Roots.of(hosts_toml, host)))
    refuse_first(find_missing_inputs(request, command, hosts_toml, host, Environment()))


PASS = r"""
python train.py
python train.py --config configs/walker.yaml
python -u train.py --config=configs/walker.yaml --seed 3
python -m pkg.train --config configs/walker.yaml
python -W ignore -X faulthandler train.py
.venv/bin/python train.py
./run.sh --gpus 4
bash run.sh 2>&1
bash scripts/launch.sh configs/walker.yaml 8
bash -lc "conda activate rl && python nothing.py"
CUDA_VISIBLE_DEVICES=0,1 python train.py task=AnymalC headless=True
source .venv/bin/activate && python train.py
source ~/.bashrc && python made_by_bashrc.py
cd configs && cat walker.yaml
cd $PROJECT && python missing.py
cd /nowhere/at/all && python missing.py
torchrun --standalone --nproc_per_node=4 train.py --config configs/go2.yaml
torchrun --nproc_per_node 8 -m pkg.train --config missing_in_cwd.py
.venv/bin/torchrun --nnodes 1 train.py
accelerate launch --config_file train.yaml --num_processes 4 train.py --config configs/walker.yaml
accelerate launch -m pkg.train
deepspeed --num_gpus 4 train.py --deepspeed ds.json
deepspeed --include localhost:0,1 train.py --deepspeed_config ds.json
nohup python train.py > out.log 2>&1
timeout 3h python train.py --max_iterations 1000
xvfb-run -a python train.py
numactl --cpunodebind=0 --membind=0 python train.py
stdbuf -oL python train.py | tee logs/new.log
python gen_missing.py; python train.py --config generated.yaml
cp configs/walker.yaml mine.yaml && python train.py --config mine.yaml
python tools/train.py --config conf/made.yaml || python train.py --config configs/none.yaml
test -f configs/none.yaml && python train.py --config configs/none.yaml
if [ -f a.yaml ]; then python train.py --config a.yaml; fi
for c in configs/*.yaml; do python train.py --config $c; done
python train.py --config $CONFIG --resume ${CKPT}
python train.py --config "{gpus}.yaml" {params}
python - <<'EOF'
python train.py --output_dir /data/out/new --logdir runs/new --save_path models/new.pt
python train.py tensorboard=/data/tb/new trainer.default_local_dir=/data/none
python train.py --config push.yaml
python train.py --config special/push.yaml
python train.py --config robot/arm.yaml
python train.py --config-name=walker --config-path conf
python train.py --config walker
python train.py --config=configs/model.py:variant
python train.py --resume
python train.py --resume auto --wandb_resume allow
python train.py --resume out/last.ckpt
python train.py --resume_from_checkpoint out/checkpoint.pt
python train.py --checkpoint hf://org/model/step.pt
python eval.py --checkpoint ckpts/step_900.pt
python eval.py --model_name_or_path meta-llama/Llama-3-8B
python -m verl.trainer.main_ppo data.train_files=data/x.parquet actor_rollout_ref.model.path=Qwen/Qwen2.5-7B
python -m verl.trainer.main_ppo data.train_files=hdfs://none/x.parquet data.val_files=$VAL
python train.py --data_path /data/none --data-dir ./data/mnist --dataset_path none
python train.py --model_path out/model.pt --model gpt2 --base_model none/model
python train.py --model_path /data/none/new.pt --save_model_path /data/none/new --model_dir /data/none
python gen_missing.py --train_file /data/none/x.json
python tools/train.py --seed 1 --eval_file out/result.json --actor_path ./out/actor --model ./out/model
python train.py --data_path ./downloads/tiny.txt --dataset none/demo.hdf5
python train.py --model_path ./none/model --pretrained org/model --base_model org/model
python train.py --model_path /data/none/model.safetensors
python train.py --out_file /none/val.json --results_path /none/results.json
python train.py --config s3://bucket/x.yaml
python train.py --config /none/a.yaml,/none/b.yaml
python - train.yaml < train.py
python -mpdb missing.py
python train.py 2> >(tee errors.log)
cat configs/walker.yaml | python train.py --config /dev/stdin
(cd tools && python train.py) && python made.py
while true; do python missing.py; done
nice -n 10 ./anything.sh
./run.sh && python result_of_run.py
time python train.py --config configs/walker.yaml
HYDRA_FULL_ERROR=1 python -m pkg.main +experiment=none trainer.max_epochs=3
python train.py --ckpt_dir /none/ckpts --results /none/results.json
python train.py --init-from none --config_name none.yaml
python train.py --weights yolo11n.pt
python train.py --resume last.pt
python train.py --restore step_900.pt
python 'a file with blanks.py'
python train.py --text "it's"
python train.py --config=~nobody/x.yaml
sbatch --nodes=2 none.slurm
uv run python train.py --config configs/walker.yaml
uv run --directory elsewhere python missing.py
conda run -n rl python train.py
ssh machine2 'cd /data/none && python /data/none/train.py'
docker run -v /data/none:/w image python /w/train.py --config /w/x.yaml
srun --container-image=x python /workspace/train.py
rsync -a machine2:/data/none/ckpt . && python new.py
git clone https://x.org/y && python y/train.py
python make_config.py --config /none/new.yaml
python -c "import torch; print(torch.__version__)"
mkdir -p logs && python train.py
export HF_HOME=/data/none && python train.py
ray start --head --port=6380 && python train.py
lerobot-train --config_path=outputs/train/none/train_config.json
llamafactory-cli train some_yaml_of_theirs.yaml
isaaclab.sh -p scripts/none.py --task X
make train CONFIG=configs/none.yaml
jupyter nbconvert --execute none.ipynb
env -u PYTHONPATH python missing.py
echo 'print(1)' > made.py && python made.py
printf 'a: 1' > configs/made.yaml && python train.py --config configs/made.yaml
sleep 60; python made_meanwhile.py
python train.py # --config configs/none.yaml
python train.py --checkpoint_path /data/out/none
python train.py --note 'see configs/none.yaml'
python train.py --output_model_path /data/none/m --model_path /data/none/outputs/m
python train.py save.model_path=/data/none/m output.model.path=/data/none/n log.model_path=./none/n
python train.py --checkpoint_path /data/none/outputs/best.pt
python train.py trainer.save.data_path=/data/none/x.json results.checkpoint=/data/none/y.pt
python train.py model.output_dir=/data/none/x +work.model.path=/data/none/y
python eval.py --log_dir /data/none/logs --save_checkpoint_path /data/none/x --checkpoint org/model
python train.py --checkpoint_path /data/none/step_40 --eval_every 5
python train.py --eval --checkpoint_path /data/none/outputs/run
python train.py --eval --checkpoint_dir /data/none/ckpt
python train.py --model_dir /data/none/m
python eval.py --log_dir /data/none/l --save.ckpt_dir /data/none/s --policy_dir org/policy
"""


@pytest.mark.parametrize("command", PASS.strip().split("\n"))
def test_a_good_command_passes(command: str, project: Path) -> None:
    project.joinpath("gen_missing.py").touch()
    project.joinpath("make_config.py").touch()
    check(command, project)


REFUSED = r"""
python trian.py | there is no script trian.py in . | train.py
python train.py --config none.yaml | there is no config none.yaml in .
python train.py --config conf/none.yaml | there is no config conf/none.yaml in .
python train.py -c none.yaml | there is no config none.yaml in .
python train.py --data /data/none.parquet | there is no data file /data/none.parquet.
python train.py --data_dir /data/none | there is no data directory /data/none.
python train.py --resume_from_checkpoint /data/ckpt | there is no checkpoint /data/ckpt.
python train.py --init_from /data/none.pt | there is no checkpoint /data/none.pt.
python train.py --pretrained_weights /data/none.safetensors | there is no checkpoint /data/none.safetensors.
bash -c 'cd configs && python train.py' | there is no script train.py in ./configs.
sh -c 'python nothing.py' | there is no script nothing.py in .
python -u missing.py --config configs/walker.yaml | there is no script missing.py in .
.venv/bin/python3.12 train.py | there is no program .venv/bin/python3.12 in . | .venv/bin/python
/data/none/envs/rl/bin/python train.py | there is no program /data/none/envs/rl/bin/python.
./runn.sh | there is no program ./runn.sh in . | run.sh
bash scripts/lunch.sh | there is no script scripts/lunch.sh in . | scripts/launch.sh
CUDA_VISIBLE_DEVICES=0 python missing.py | there is no script missing.py in .
source .venv/bin/activate && python missing.py | there is no script missing.py in .
source .vnev/bin/activate | there is no script .vnev/bin/activate in . | .venv
cd configs && python train.py | there is no script train.py in ./configs.
mkdir -p logs; cd tools && python missing.py | there is no script missing.py in ./tools.
torchrun --nproc_per_node=4 missing.py --config configs/walker.yaml | there is no script missing.py in .
accelerate launch --multi_gpu missing.py | there is no script missing.py in .
deepspeed --num_gpus 2 missing.py | there is no script missing.py in .
timeout 3h python missing.py | there is no script missing.py in .
nohup python missing.py > out.log 2>&1 | there is no script missing.py in .
python missing.py 2>&1 | there is no script missing.py in .
uv run python missing.py | there is no script missing.py in .
python train.py --config configs/waker.yaml | there is no config configs/waker.yaml in . | configs/walker.yaml
python train.py --config=configs/none.yaml | there is no config configs/none.yaml in .
python train.py --config trian.yaml | there is no config trian.yaml in . | train.yaml
python train.py --config confgs/walker.yaml | there is no config confgs/walker.yaml in . | configs
python train.py --config /data/none/x.yaml | there is no config /data/none/x.yaml.
python train.py agent.config=configs/gone.yaml | there is no config configs/gone.yaml in .
python -m pkg.train --cfg configs/gone.yaml | there is no config configs/gone.yaml in .
python tools/train.py configs/gone.yaml | there is no config configs/gone.yaml in .
deepspeed train.py --deepspeed /data/none/ds.json | there is no config /data/none/ds.json.
python eval.py --checkpoint ckpts/step_1000.pt | there is no checkpoint ckpts/step_1000.pt in . | ckpts/step_900.pt
python eval.py --checkpoint /data/none/last.pt | there is no checkpoint /data/none/last.pt.
python eval.py --weights out/none.npz | there is no checkpoint out/none.npz in .
python train.py --resume /data/none/step_1.ckpt | there is no checkpoint /data/none/step_1.ckpt.
python eval.py --ckpt out/ckpt_009999.json | there is no checkpoint out/ckpt_009999.json
python train.py --resume out/x/ckpt_009999.pt | there is no checkpoint out/x/ckpt_009999.pt
python train.py --resume /data/none/ckpt_009999.json | there is no checkpoint /data/none/ckpt_009999.json
python train.py --resume_from_checkpoint /data/none/step_1 | there is no checkpoint /data/none/step_1.
python train.py trainer.resume_from_path=/data/none/global_step_40 | there is no checkpoint
python train.py algo.ckpt=ckpts/step_901.pt | there is no checkpoint ckpts/step_901.pt in . | ckpts/step_900.pt
ray start --head && python missing.py | there is no script missing.py in .
python train.py data.val_files=./data/val.json | there is no data file ./data/val.json in .
python -m verl.trainer.main_ppo data.train_files=/none/x.parquet | there is no data file /none/x.parquet.
python train.py "data.train_files=[data/x.parquet,data/y.parquet]" | there is no data file data/y.parquet in .
python train.py --train_file data/z.json | there is no data file data/z.json in .
python train.py --dataset /data/none/lift.hdf5 | there is no data file /data/none/lift.hdf5.
python train.py rollout.model.model_path=/data/none/pi0 | there is no model /data/none/pi0.
python train.py --model_name_or_path /data/none/llama | there is no model /data/none/llama.
python train.py actor_rollout_ref.model.path=~/models/none | there is no model ~/models/none
python train.py --model_path /data/none/pi0 | there is no model /data/none/pi0.
python train.py --checkpoint /data/none/outputs/step_100.pt | there is no checkpoint /data/none/outputs/step_100.pt.
python eval.py --model_path /data/none/outputs/m | there is no model /data/none/outputs/m.
python train.py --load /data/none/outputs/best.pt | there is no checkpoint /data/none/outputs/best.pt.
python eval.py --ckpt_path /data/none/global_step_40 | there is no checkpoint /data/none/global_step_40.
python eval.py runner.ckpt_path=/data/none | there is no checkpoint /data/none.
python eval.py --checkpoint_dir /data/none | there is no checkpoint /data/none.
python -m robots.evaluate runner.ckpt-dir=/data/none | there is no checkpoint /data/none.
python eval.py --model_dir /data/none/m | there is no checkpoint /data/none/m.
python eval.py --ckpt_path /data/none/outputs/run/global_step_40 | there is no checkpoint /data/none/outputs/run/g
python train.py actor.checkpoint_load_path=/data/none/x | there is no checkpoint /data/none/x.
python train.py runner.resume_dir=/data/none/global_step_40 | there is no checkpoint /data/none/global_step_40.
python eval.py --model_path ./ckpts/step_901.pt | there is no model ./ckpts/step_901.pt in . | ckpts/step_900.pt
"""


@pytest.mark.parametrize("line", REFUSED.strip().split("\n"))
def test_a_command_that_cannot_work_is_refused_with_near_names(line: str, project: Path) -> None:
    command, cause, *near = (part.strip() for part in line.split(" | "))
    with pytest.raises(BadArgument) as refused:
        check(command, project)
    text = str(refused.value).replace(str(project), ".")
    assert text.startswith(f"command: {cause}")
    assert "Nothing was done." in text
    assert all(name in text for name in near)


LINES = """# first the environment
export HYDRA_FULL_ERROR=1  # for tracebacks
source .venv/bin/activate
cd tools &&
python \\
  {script} \\
  --note 'two
lines'
python made_by_the_first.py
"""


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("pyhton train.py", "pyhton"),
        ("cd configs && pyhton train.py", "pyhton"),
        ("mkdir -p logs; exec torchrunn train.py", "torchrunn"),
        ("timeout 3h pyhton3.99 train.py", None),
        ("PATH=/opt/x:$PATH pyhton train.py", None),
        ("source .venv/bin/activate && pyhton train.py", None),
        ("export PATH=/opt/x:$PATH; pyhton train.py", None),
        ("pip install x && pyhton train.py", None),
        ("f() { true; }; f", None),
        ("[ -f a ] && echo a; for i in 1 2; do echo $i; done; ulimit -n 1024", None),
        ("$PYTHON train.py", None),
        ("pyhton train.py || python train.py", None),
    ],
)
def test_a_program_that_path_does_not_have_is_refused(command: str, name: str | None, project: Path) -> None:
    request, path = LaunchRequest(command, cwd=str(project)), f"{Path(sys.executable).parent}:/usr/bin:/bin"
    found = list(
        find_missing_inputs(request, parse(command), HostsFile(), find_this_host(HostsFile()), Environment(), path)
    )
    missing = [str(each) for each in found if "PATH" in str(each)]
    assert missing == [] if name is None else [missing[0]]
    assert name is None or missing[0].startswith(f"command: {name} is on no directory of PATH.")
    assert name != "pyhton" or "Near: python" in missing[0]


def test_a_script_of_several_lines_is_read_as_bash_reads_it(project: Path) -> None:
    check(LINES.format(script="train.py"), project)
    with pytest.raises(
        BadArgument,
        match=rf"^command: there is no script trian\.py in {project}/tools\. Nothing was done\. Near: .*/train\.py",
    ):
        check(LINES.format(script="trian.py"), project)


def test_an_argument_list_is_checked_word_by_word(project: Path) -> None:
    check(["python", "train.py", "--config", "configs/walker.yaml", "--note", "a b"], project)
    with pytest.raises(BadArgument, match=r"no config configs/x\.yaml"):
        check(["python", "train.py", "--config", "configs/x.yaml"], project)


def test_a_directory_that_a_training_may_make_is_not_a_missing_model(project: Path) -> None:
    (project / "models" / "pi0").mkdir(parents=True)
    check(f"python train.py --model_path {project}/models/mine", project)
    check("python train.py", project, params={"model_path": f"{project}/models/mine", "output_dir": "/data/none"})
    for command in (
        f"python eval.py --model_path {project}/models/mine",
        f"python train.py --model_path {project}/models/pi",
    ):
        with pytest.raises(BadArgument, match="there is no model"):
            check(command, project)


def test_parameters_name_files_as_the_command_does(project: Path) -> None:
    check("python train.py", project, params={"config": "configs/walker.yaml", "lr": 0.1, "save": "none.pt"})
    with pytest.raises(BadArgument, match=r"^params: there is no config configs/x\.yaml"):
        check("python train.py", project, params={"agent.config": "configs/x.yaml"})
    with pytest.raises(BadArgument, match=r"^params: there is no checkpoint /data/none\."):
        check("python eval.py", project, params={"checkpoint_dir": "/data/none"})
    check("cd tools && python train.py", project, params={"config": "configs/x.yaml"})
    check("./run.sh && python train.py", project, params={"config": "/none/x.yaml"})


def test_a_directory_that_may_not_be_read_is_not_called_empty(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "stat", forbidden)
    check("python /data/locked/train.py", project)


# --- other hosts

KEEPS = r"""
python train.py --data /data/scalelab/x
python train.py --data /data/scalelab22/x /mnt/data/scalelab2/x
python train.py --data $HOME/data/scalelab2/x
rsync -a machine2:/data/scalelab2/ckpts ckpts
scp machine2:/data/scalelab2/x.pt .
python fetch.py machine2:/data/scalelab2/x.pt
ssh machine2 'ls /data/scalelab2'
sed -i s,/data/scalelab2,/data/scalelab,g train.yaml
docker run -v /data/scalelab:/data/scalelab2 image
python train.py # was /data/scalelab2/train.py
"""


@pytest.mark.parametrize("command", KEEPS.strip().split("\n"))
def test_what_only_looks_like_another_hosts_path_passes(command: str, project: Path) -> None:
    project.joinpath("fetch.py").touch()
    check(command, project, site())


FOREIGN = r"""
python train.py --data /data/scalelab2/x | python train.py --data /data/scalelab/x
python /data/scalelab2/train.py | python /data/scalelab/train.py
python train.py data.dir='/data/scalelab2' | python train.py data.dir='/data/scalelab'
cd /data/scalelab2/rl && bash run.sh | cd /data/scalelab/rl && bash run.sh
export PYTHONPATH=/a:/data/scalelab2/b && python train.py | export PYTHONPATH=/a:/data/scalelab/b && python train.py
python x.py > /data/scalelab2/log 2>&1 | python x.py > /data/scalelab/log 2>&1
bash -c "cd /data/scalelab2; ls" | bash -c "cd /data/scalelab; ls"
python x.py --files=[/data/scalelab2/a,/data/scalelab2/b] | python x.py --files=[/data/scalelab/a,/data/scalelab/b]
"""


@pytest.mark.parametrize("line", FOREIGN.strip().split("\n"))
def test_another_hosts_path_is_refused_with_the_line_to_use(line: str, project: Path) -> None:
    command, fixed = (part.strip() for part in line.split(" | "))
    with pytest.raises(BadArgument) as refused:
        check(command, project, site())
    assert "is a path of another host, and this is machine1. Nothing was done. Use `" in str(refused.value)
    assert str(refused.value).endswith(f"Nothing was done. Use `{fixed}`.")


@pytest.mark.parametrize(
    ("argument", "value", "fixed"),
    [
        ("cwd", "/data/scalelab2/rl", "/data/scalelab/rl"),
        ("tensorboard", "/data/scalelab2/tb", "/data/scalelab/tb"),
        ("env", {"EMBODIED_PATH": "/data/scalelab2/e"}, "EMBODIED_PATH=/data/scalelab/e"),
        ("params", {"data": "/data/scalelab2/d"}, "data=/data/scalelab/d"),
        ("resume_args", ["--load", "/data/scalelab2/l"], "/data/scalelab/l"),
        ("command", ["ls", "/data/scalelab2/l"], '["ls", "/data/scalelab/l"]'),
    ],
)
def test_every_argument_is_checked(argument: str, value: Any, fixed: str) -> None:
    hosts_toml = site()
    request = LaunchRequest(**{"command": "true", argument: value})
    with pytest.raises(BadArgument) as refused:
        check_request(request, hosts_toml)
    assert str(refused.value).startswith(f"{argument}: /data/scalelab2/")
    assert f"Use `{fixed}`." in str(refused.value)


def test_rewrites_of_the_operator_apply_the_longest_first(project: Path) -> None:
    hosts_toml = site(rewrites={"/home/bob": "/home/alice", "/home/bob/envs": "/opt/envs"})
    with pytest.raises(BadArgument, match="Use `ls /home/alice/x /opt/envs/y`"):
        check("ls /home/bob/x /home/bob/envs/y", project, hosts_toml)


def test_a_space_that_a_rewrite_brings_in_is_quoted_for_the_shell(project: Path) -> None:
    hosts_toml = site(rewrites={"/home/bob": "/home/alice/my work"})
    with pytest.raises(BadArgument) as refused:
        check("""ls /home/bob/x '/home/bob/y' "/home/bob/z" --to=/home/bob""", project, hosts_toml)
    line = """ls /home/alice/my\\ work/x '/home/alice/my work/y' "/home/alice/my work/z" --to=/home/alice/my\\ work"""
    assert f"Use `{line}`" in str(refused.value)


def test_a_path_without_a_rewrite_is_refused_without_a_line(project: Path) -> None:
    with pytest.raises(
        BadArgument, match=r"/srv/a/x is a path of another host.* it is here: a person adds it to roots of \w+, or"
    ):
        check("ls /srv/a/x", project, site())


def test_another_hosts_root_that_is_here_as_well_passes(project: Path) -> None:
    hosts_toml = site().model_copy(
        update={"hosts": {**site().hosts, "machine3": Host(name="machine3", roots=[str(project), "/srv/b"])}}
    )
    check(f"ls {project}/train.py", project, hosts_toml)


def test_a_refusal_names_where_this_host_keeps_the_file(project: Path) -> None:
    theirs = project / "theirs"
    theirs.mkdir()
    hosts = site(project / "configs").hosts
    hosts_toml = HostsFile(hosts={**hosts, "machine2": Host(name="machine2", roots=[str(theirs)])})
    check(f"ls {theirs}", project, hosts_toml)
    with pytest.raises(BadArgument, match=rf"Here it is {project}/configs/go2\.yaml\."):
        check(f"python train.py --config {theirs}/go2.yaml", project, hosts_toml)


def test_a_root_of_this_host_below_anothers_is_its_own(project: Path) -> None:
    hosts_toml = site(rewrites={"/data": "/mnt"})
    check("ls /data/scalelab/x", project, hosts_toml)
    with pytest.raises(BadArgument, match="Use `ls /mnt/other`"):
        check("ls /data/other", project, hosts_toml)


def test_an_environments_python_that_is_gone_is_refused(project: Path) -> None:
    gone = Environment(python=str(project / ".venv/bin/python3.9"))
    with pytest.raises(BadArgument, match=r"^environment: its python does not exist: .*Near: .*/\.venv/bin/python"):
        refuse_first(
            find_missing_inputs(LaunchRequest("true", cwd=str(project)), parse("true"), HostsFile(), Host(), gone)
        )


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("pyhton train.py", ["pyhton"]),
        ("cd tools && pyhton train.py 2>&1 | tee log; echo done", ["pyhton"]),
        ("nothing_needed; python train.py", ["python"]),
        ("nothing_needed & python train.py", []),
        ("nothing_needed || python train.py", []),
        ("module load cuda && program_of_the_module", []),
    ],
)
def test_a_program_is_needed_where_no_other_work_goes_on_without_it(command: str, names: list[str]) -> None:
    found = [name for name in find_program_names(parse(command)) if name not in ("tee", "log")]
    assert set(found) <= set(names)
    assert ("pyhton" in command) == ("pyhton" in found)
