"""A preflight says what is wrong, each with its remedy, and nothing of what is well."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.errors import RunwardError
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs.launch.launch import rehearse
from mcp_server.runs.preflight.checks import Preflight, PreflightRequest
from mcp_server.runs.preflight.run_preflight import run_preflight
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system import ports, tmux
from tests.support.fake_nvml import UUIDS, machine

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setattr(tmux, "check_installed", lambda: None)
    (tmp_path / "state").mkdir()
    return RunStore(StateHome(tmp_path / "state"))


async def check(store: RunStore, environ: dict[str, str] | None = None, **arguments: Any) -> Preflight:
    # This test's Python first: a machine may have python3 alone.
    here = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RUNWARD_LEASES": str(store.home.path / "leases"),
    }
    request = PreflightRequest.from_arguments({"cwd": str(store.home.path.parent), **arguments})
    return await run_preflight(request, store, {**here, **(environ or {})})


def problems_of(answer: Preflight) -> list[tuple[str, str, str]]:
    assert answer.ok == (not answer.problems)
    return [(each.what, each.text, each.remedy) for each in answer.problems]


async def test_a_machine_without_problems_has_none_reported(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "a.yaml").write_text("x: 1\n")
    answer = await check(
        store,
        {"WANDB_API_KEY": "not-to-be-shown"},
        python=sys.executable,
        imports=["json", "pydantic"],
        paths=["a.yaml", str(tmp_path)],
        command="python train.py --config a.yaml",
        secrets=["WANDB_API_KEY"],
        disk_gb=0.001,
        result_dir="not/made/yet",
    )
    assert problems_of(answer) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "state", "train.py"]
    assert list(store.home.path.iterdir()) == []


async def test_what_is_not_installed_is_reported_one_by_one(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "src" / "mine").mkdir(parents=True)
    (tmp_path / "beside.py").touch()
    names = ["json", "torch_of_nobody", "hydra-of-nobody", "x y", "beside", "mine", "json.nothing", "PyYAML"]
    problems = problems_of(await check(store, python=sys.executable, imports=names))
    here, pip = f"is not installed for {sys.executable}.", f"{sys.executable} -m pip"
    assert [(text, remedy) for _, text, remedy in problems] == [
        (f"torch_of_nobody {here}", f"If it is not your own code: {pip} install torch-of-nobody"),
        (
            f"hydra-of-nobody (module hydra_of_nobody) {here}",
            f"If it is not your own code: {pip} install hydra-of-nobody",
        ),
        ("'x y' is not the name of a module or package.", "Write the name alone."),
        (f"mine {here}", f"Put {tmp_path / 'src'} into PYTHONPATH."),
        (f"json.nothing {here}", f"Check which version of json is installed: {pip} show json"),
    ]


async def test_a_check_runs_no_program_and_no_module_that_the_caller_names(store: RunStore, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    (tmp_path / "sitecustomize.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    (tmp_path / "evil.pth").write_text(f"import os; open({str(ran)!r}, 'w').close()\n")
    script = tmp_path / "python3"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    text = f"{script} is a script: which python it starts is unknown, and a check does not run it."
    arguments: dict[str, Any] = {"imports": ["evil", "sitecustomize"], "command": "python3 evil.py"}
    for python in (str(script), "python3", "./python3"):
        assert text in [each[1] for each in problems_of(await check(store, env, python=python, **arguments))]
    assert problems_of(await check(store, env, python=sys.executable, **arguments)) == []
    assert not ran.exists()


@pytest.mark.parametrize(
    ("python", "text"),
    [
        ("/none/bin/python", "/none/bin/python is not a program that can be started."),
        ("python9.9", "python9.9 is not a program that can be started."),
        ("/usr/bin/env", "/usr/bin/env is not a python by its name."),
    ],
)
async def test_a_python_that_does_not_run_is_reported(python: str, text: str, store: RunStore) -> None:
    assert [problems[:2] for problems in problems_of(await check(store, python=python))] == [("python", text)]


async def test_another_program_under_the_name_of_python_is_reported(store: RunStore, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.symlink_to("/bin/false")
    text = f"{python} is not a python: it is {Path('/bin/false').resolve()}."
    assert [problems[:2] for problems in problems_of(await check(store, python=str(python)))] == [("python", text)]


async def test_files_that_are_missing_are_reported_with_near_names(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").touch()
    problems = problems_of(await check(store, paths=["trian.yaml", "/none/at/all.h5"]))
    assert problems == [
        ("path", f"{tmp_path}/trian.yaml does not exist.", f"Near: {tmp_path}/train.yaml."),
        ("path", "/none/at/all.h5 does not exist.", "/ has no none."),
    ]
    assert problems_of(await check(store, cwd="/none/at")) == [
        ("cwd", "is not a directory: '/none/at'.", "/ has no none.")
    ]


async def test_a_config_that_names_another_hosts_path_is_reported_with_its_line(
    store: RunStore, tmp_path: Path
) -> None:
    (store.home.path / "hosts.toml").write_text(
        f'[hosts.a]\nhostnames = ["{socket.gethostname()}"]\nrewrites = {{ "/data/scalelab2" = "/data/scalelab" }}\n'
    )
    (tmp_path / "a.yaml").write_text("# /data/scalelab2\ndata:\n  root: /data/scalelab2/x\n")
    problems = problems_of(await check(store, paths=["a.yaml", "/data/scalelab2/y"], command="ls /data/scalelab2"))
    other = "is a path of another host, and this is a."
    assert problems == [
        ("path", f"{tmp_path}/a.yaml, line 3: /data/scalelab2/x {other}", "Write `root: /data/scalelab/x`."),
        ("path", f"/data/scalelab2/y {other}", "Use /data/scalelab/y."),
        ("command", f"/data/scalelab2 {other}", "Use `ls /data/scalelab`."),
    ]


async def test_a_program_that_is_not_installed_is_reported(store: RunStore) -> None:
    assert [text for _, text, _ in problems_of(await check(store, command="torchrun_of_nobody train.py"))] == [
        "torchrun_of_nobody is on no directory of PATH."
    ]


async def test_a_full_disk_is_reported(store: RunStore, tmp_path: Path) -> None:
    problems = problems_of(await check(store, disk_gb=1e9, result_dir="out"))
    assert [(what, remedy) for what, _, remedy in problems] == [
        ("disk", "Free space there, or write the results to another directory.")
    ]
    assert problems[0][1].endswith(f"GB free at {tmp_path}, 1000000000.0 GB wanted.")


async def test_a_port_in_use_is_reported_with_its_process_and_a_free_one(store: RunStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        problems = problems_of(await check(store, ports=[port, 70000]))
    assert problems[0][0] == "port"
    assert problems[0][1].endswith(f"(pid {os.getpid()}) listens on port {port}.")
    assert problems[0][2].startswith("Use another, e.g. ")
    assert problems[1][1:] == ("70000 is not a port.", "Use one from 1024 to 65535.")


async def test_a_secret_is_reported_by_its_name(store: RunStore) -> None:
    (store.home.path / "secrets.env").write_text("HF_TOKEN=not-to-be-shown\n")
    (store.home.path / "secrets.env").chmod(0o600)
    answer = await check(store, secrets=["WANDB_API_KEY", "HF_TOKEN"])
    assert [(what, text) for what, text, _ in problems_of(answer)] == [("secret", "Secret not set: 'WANDB_API_KEY'.")]
    assert "not-to-be-shown" not in answer.model_dump_json()


async def test_a_ray_that_does_not_answer_is_reported(store: RunStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        place = f"127.0.0.1:{head.getsockname()[1]}"
        assert problems_of(await check(store, {"RAY_ADDRESS": place}, ray=True)) == []
        assert problems_of(await check(store, {"RAY_ADDRESS": f"ray://{place}"}, ray=True)) == []
    problems = problems_of(await check(store, {"RAY_ADDRESS": place}, ray=True))
    assert [what for what, *_ in problems] == ["ray"]
    assert problems[0][1].startswith(f"Ray at {place} cannot be reached: ")
    assert problems_of(await check(store, {"RAY_ADDRESS": "local"}, ray=True))[0][1] == "RAY_ADDRESS names no Ray."
    assert problems_of(await check(store, {"RAY_ADDRESS": "nonsense"}, ray=True))[0][0] == "ray"
    # An environment with a Ray of its own: an address of the launch wins, and one that it names has to answer.
    (store.home.path / "hosts.toml").write_text(
        f'[environments.given.env]\nRAY_ADDRESS = "{place}"\n[environments.given.ray]\n[environments.own.ray]\n'
        f'[environments.named.ray]\naddress = "{place}"\n'
        '[environments.started.ray]\naddress = "127.0.0.1:{port}"\n'
    )
    for environment, env in (("own", {"RAY_ADDRESS": place}), ("named", {}), ("given", {})):
        problems = problems_of(await check(store, env=env, ray=True, environment=environment))
        assert problems[0][1].startswith(f"Ray at {place} cannot be reached: ")
    for command in (f"RAY_ADDRESS={place} python -V", f"export RAY_ADDRESS={place}; python -V"):
        problems = problems_of(await check(store, {}, ray=True, environment="own", command=command))
        assert [(what, place in text) for what, text, _ in problems] == [("ray", True)], command
    for environment in ("own", "started"):
        answer = await check(store, {}, ray=True, environment=environment)
        assert problems_of(answer) == []
        assert any(each.startswith("a Ray of the run's own, which it starts (") for each in answer.found or [])


async def test_gpus_are_judged_as_a_launch_would(store: RunStore, tmp_path: Path) -> None:
    nvml = machine(tmp_path)
    assert problems_of(await check(store, nvml.environ, gpus=2)) == []
    assert problems_of(await check(store, nvml.environ, require={"power_limit_w": 700})) == []
    problems = problems_of(await check(store, nvml.environ, gpus=2, require={"power_limit_w": 300}))
    assert problems[0][0] == "gpus"
    assert (
        problems[0][1]
        == "GPUs not free: 2 GPUs requested, 0 available. 0-1: power limit 700 W, at most 300 W required."
    )
    assert problems[0][2] == "A person should run: sudo nvidia-smi -i 0,1 -pl 300"
    gated = await check(store, nvml.environ, gpus=2, require={"power_limit_w": 300}, queue=True)
    assert [each[1:] for each in problems_of(gated)] == [problems[0][1:]]
    limit = "0-1: power limit 700 W, at most 300 W required"
    assert [each for each in gated.found or [] if "H100" in each] == [
        f"GPU 0-1 NVIDIA H100 80GB HBM3 81559 MiB; {limit}"
    ]
    assert problems_of(await check(store, nvml.environ, gpus="7"))[0][2] == "Call gpu_check."
    assert problems_of(await check(store, nvml.environ, gpus="x"))[0][1].startswith("'x' names no GPU.")
    assert UUIDS[0] not in str(problems)


async def test_the_hosts_environment_is_checked_by_default(store: RunStore) -> None:
    (store.home.path / "hosts.toml").write_text(
        f'[hosts.a]\nhostnames = ["{socket.gethostname()}"]\nenvironment = "robot"\n'
        '[environments.robot]\npython = "/none/bin/python"\nsecrets = ["WANDB_API_KEY"]\n'
    )
    assert [what for what, *_ in problems_of(await check(store))] == ["python", "secret"]
    assert problems_of(await check(store, environment="none")) == []
    assert problems_of(await check(store, environment="none", host="mars"))[0][0] == "host"
    assert problems_of(await check(store, environment="robots"))[0][0] == "environment"


async def test_a_hosts_file_that_cannot_be_read_is_reported(store: RunStore) -> None:
    (store.home.path / "hosts.toml").write_text("[host.a]\n")
    assert [what for what, *_ in problems_of(await check(store))] == ["host"]


async def test_a_blueprint_is_checked_as_a_launch_would(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").touch()
    blueprint = tmp_path / "blueprint.md"
    sections = {
        "exp_purpose": "Try it.",
        "exp_codebase_dir": str(tmp_path),
        "exp_venv_exe": sys.executable,
        "exp_yaml_path": f"{tmp_path}/train.yaml",
        "exp_launch_command": "python train.py --config train.yaml",
        "exp_result_dir": f"{tmp_path}/out",
        "exp_max_time": "2 hours",
    }
    blueprint.write_text("\n\n".join(f"## [{name}]\n\n{text}" for name, text in sections.items()))
    problems = problems_of(await check(store, blueprint=str(blueprint)))
    assert [(what, text.partition(" in ")[0]) for what, text, _ in problems] == [
        ("command", "there is no script train.py")
    ]
    (tmp_path / "train.py").touch()
    assert problems_of(await check(store, blueprint=str(blueprint))) == []
    (tmp_path / "train.yaml").unlink()
    assert "blueprint" in [what for what, *_ in problems_of(await check(store, blueprint=str(blueprint)))]
    assert problems_of(await check(store, blueprint="/none.md"))[0][0] == "blueprint"


async def test_a_check_that_takes_too_long_is_reported_and_the_others_answer(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("mcp_server.runs.preflight.checks.check_ray", never)
    monkeypatch.setattr("mcp_server.runs.preflight.run_preflight._PATIENCE_S", 0.2)
    problems = problems_of(await check(store, paths=["none"]))
    assert ("ray", "No answer within 0.2 s.", "Check it by hand.") in problems
    assert "path" in [what for what, *_ in problems]


async def test_an_impossible_path_is_a_problem_among_others(store: RunStore) -> None:
    problems = problems_of(await check(store, paths=["/data/a\0b"], cwd="/" + "x" * 5000, result_dir="/" + "y" * 5000))
    assert len(problems) >= 2
    assert all(remedy for *_, remedy in problems)


async def test_a_ray_on_the_default_port_is_found_without_an_address(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        monkeypatch.setattr(ports, "_RAY_PORT", port)
        answer = await check(store, ray=True)
        assert problems_of(answer) == []
        assert any(f"(pid {os.getpid()}) listens on port {port}, Ray's default" in each for each in answer.found or [])
        assert any("listens on port" in each for each in (await check(store)).found or [])
    (problem,) = problems_of(await check(store, ray=True))
    assert problem[1] == f"RAY_ADDRESS names no Ray, and none runs on the default port {port}."


async def test_free_space_sizes_and_gpus_are_told(store: RunStore, tmp_path: Path) -> None:
    nvml = machine(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "val.json").write_bytes(b"x" * 12_300)
    (tmp_path / "train.py").touch()
    command = "python train.py data.val_files=./data/val.json"
    answer = await check(
        store, nvml.environ, command=command, python=sys.executable, imports=["PyYAML"], paths=["data"]
    )
    found = "\n".join(answer.found or [])
    assert problems_of(answer) == []
    assert f" GB free at {tmp_path}" in found
    assert f"{tmp_path}/data/val.json: 12 KiB" in found
    assert f"{tmp_path}/data: a directory" in found
    assert "GPU 0-1 NVIDIA H100 80GB HBM3 81559 MiB; free: 0-1" in found
    assert f"{sys.executable}: Python 3.{sys.version_info[1]}; PyYAML " in found


async def test_variables_of_the_caller_load_no_library_into_a_check(store: RunStore, tmp_path: Path) -> None:
    nvml = machine(tmp_path)
    answer = await check(store, env=nvml.environ, gpus=1)
    assert "81559" not in answer.model_dump_json()


HYDRA = """
import hydra
@hydra.main(config_path="conf", config_name="train", version_base=None)
def main(cfg): ...
"""


@pytest.fixture
def project(store: RunStore, tmp_path: Path) -> Path:
    """A project with a Hydra configuration, on a host whose other root is /data/scalelab2."""
    (store.home.path / "hosts.toml").write_text(
        f'[hosts.a]\nhostnames = ["{socket.gethostname()}"]\nrewrites = {{ "/data/scalelab2" = "/data/scalelab" }}\n'
    )
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "train.py").write_text(HYDRA)
    (tmp_path / "plain.py").touch()
    (tmp_path / "run.sh").write_text('D=$(dirname "$0")\npython any.py --config-path $D/conf --config-name $1\n')
    (tmp_path / "conf" / "train.yaml").write_text("defaults:\n  - model: small\n  - _self_\nlr: 1\n")
    (tmp_path / "conf" / "far.yaml").write_text("root: /data/scalelab2/x\n")
    (tmp_path / "conf" / "data.yaml").write_text(
        "data:\n  val_files: ./data/none.json\n  train_files: [/none/a.parquet]\n"
    )
    (tmp_path / "conf" / "one.yaml").write_text("data:\n  val_files: ./data/none.json\n")
    (tmp_path / "conf" / "model" / "small.yaml").write_text("size: 1\n")
    (tmp_path / "conf" / "model" / "far.yaml").write_text("model_path: /data/scalelab2/m\n")
    return tmp_path


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"command": "python train.py --config-name trian"}, "command", "there is no Hydra config trian.yaml in {}/conf."),
    (
        {"command": "python train.py -cn far"},
        "command",
        "{}/conf/far.yaml, line 1: /data/scalelab2/x is a path of another host",
    ),
    (
        {"command": "python train.py model=far"},
        "command",
        "{}/conf/model/far.yaml, line 1: /data/scalelab2/m is a path",
    ),
    (
        {"command": "bash {}/run.sh far"},
        "command",
        "{}/conf/far.yaml, line 1: /data/scalelab2/x is a path of another host",
    ),
    (
        {"command": "python -m any.module --config-path {}/conf --config-name none"},
        "command",
        "there is no Hydra config none",
    ),
    (
        {"command": "python train.py -cn one"},
        "command",
        "{}/conf/one.yaml: data.val_files: there is no data file ./data/none.json.",
    ),
    (
        {"command": "python plain.py", "recovery": {"oom_gpu": {"change": {"num_envs": "halve"}}}},
        "recovery",
        "a retry would halve num_envs, and params has no num_envs",
    ),
    (
        {"command": "python plain.py", "recovery": {"oom_gpu": {"change": {"num_env": "half"}}}},
        "recovery",
        "num_env: 'half' is neither a value nor an operator. Operators are 'halve'",
    ),
    (
        {"command": "python plain.py data.val_files=./data/val.json"},
        "command",
        "there is no data file ./data/val.json in {}.",
    ),
    (
        {"command": "python plain.py", "params": {"rollout.model.model_path": "/none/pi0"}},
        "params",
        "there is no model /none/pi0.",
    ),
    (
        {"command": "python plain.py", "recovery": {"oom": {"do": "retry"}}},
        "recovery",
        "has an unknown key 'oom'. Allowed:",
    ),
    ({"command": "python plain.py", "recovery": {"oom_gpu": "again"}}, "recovery", "recovery.oom_gpu"),
    ({"command": "python plain.py", "time_limit_s": -1}, "time_limit_s", "must be a number of seconds above 0."),
    ({"command": "python plain.py", "gpus": ["cpu-900000"]}, "gpus", "cpu slots not free: cpu-900000 requested"),
    (
        {"command": "python plain.py --device cuda:{{gpu_indices}}"},
        "command",
        "stands for leased GPUs, and gpus requests none.",
    ),
    ({"command": "python plain.py", "queue": True}, "queue", "`queue` and `require` need `gpus`."),
    ({"command": "python plain.py", "env": {"HF_TOKEN": "not-to-be-shown"}}, "env", "HF_TOKEN looks like a secret"),
]


@pytest.mark.parametrize(("arguments", "what", "text"), REFUSED)
async def test_what_a_launch_refuses_is_refused_with_the_same_words(
    arguments: dict[str, Any], what: str, text: str, store: RunStore, project: Path
) -> None:
    arguments = {**arguments, "command": arguments["command"].format(project), "cwd": str(project)}
    if "env" not in arguments and what != "command":
        arguments["env"] = {"A": "1"}
    environ = {"PATH": os.environ["PATH"], "RUNWARD_LEASES": str(store.home.path / "leases")}
    with pytest.raises(RunwardError) as refused:
        await rehearse(LaunchRequest.from_arguments(arguments), store.home, environ)
    problems = problems_of(await check(store, **arguments))
    assert [each[0] for each in problems] == [what]
    assert text.format(project) in problems[0][1]
    assert problems[0][1] in str(refused.value)


async def test_data_that_a_config_names_is_reported_unless_the_command_sets_it(store: RunStore, project: Path) -> None:
    (project / "here.json").touch()
    problems = problems_of(await check(store, command="python train.py -cn data"))
    assert [text for _, text, _ in problems] == [
        f"{project}/conf/data.yaml: data.val_files: there is no data file ./data/none.json.",
        f"{project}/conf/data.yaml: data.train_files: there is no data file /none/a.parquet.",
    ]
    assert problems_of(await check(store, paths=["conf/data.yaml"]))[0][1] == problems[0][1]
    command = "python train.py -cn data data.val_files=here.json"
    answer = await check(store, command=command, params={"data.train_files": "here.json"})
    assert problems_of(answer) == []


async def test_the_recovery_that_a_run_would_have_is_told_and_impossible_changes_are_reported(
    store: RunStore, project: Path
) -> None:
    recovery = {"oom_gpu": {"do": "retry", "times": 2, "change": {"num_envs": "halve"}}, "max_retries": 5}
    arguments: dict[str, Any] = {"command": "python plain.py", "recovery": recovery}
    answer = await check(store, **arguments, params={"num_envs": 4096})
    assert problems_of(answer) == []
    assert "recovery: oom_gpu: retry 2 times (num_envs halve); at most 5 retries, and 2 of one kind in a row" in (
        answer.found or []
    )
    (problem,) = problems_of(await check(store, **arguments))
    assert problem[:2] == (
        "recovery",
        "a retry would halve num_envs, and params has no num_envs: no retry could follow.",
    )


async def test_a_config_or_a_path_made_to_be_endless_ends_the_check(store: RunStore, project: Path) -> None:
    layers = "\n".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 40))
    (project / "conf" / "bomb.yaml").write_text(f"a0: &a0 {{val_files: none.json}}\n{layers}\n")
    (project / "loop").symlink_to("loop")
    answer = await check(store, command="python train.py -cn bomb", python=str(project / "loop"), paths=["loop"])
    texts = [text for _, text, _ in problems_of(answer)]
    assert 0 < sum("there is no data file none.json" in text for text in texts) < 10
    assert any(text.startswith(f"{project}/loop is not a program") for text in texts)
