"""A preflight says what is wrong, each with its remedy, and nothing of what is well."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.backends import tmux_client
from mcp_server.runs.preflight import python_imports
from mcp_server.runs.preflight.answers import Preflight
from mcp_server.runs.preflight.checks import PreflightRequest
from mcp_server.runs.preflight.preflight import run_preflight
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from tests.support.fake_nvml import UUIDS, machine

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setattr(tmux_client, "check_installed", lambda: None)
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


async def test_modules_that_cannot_be_imported_are_reported_one_by_one(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("print('noise')\nimport cv2_of_nobody\n")
    (tmp_path / "wrong.py").write_text("raise ValueError('first\\nsecond')\n")
    (tmp_path / "src" / "mine").mkdir(parents=True)
    names = ["json", "torch_of_nobody", "broken", "wrong", "mine", "json.nothing"]
    problems = problems_of(await check(store, python=sys.executable, imports=names))
    pip = f"{sys.executable} -m pip"
    assert [(text, remedy) for _, text, remedy in problems] == [
        (
            "import torch_of_nobody: ModuleNotFoundError: No module named 'torch_of_nobody'.",
            f"If it is not your own code: {pip} install torch_of_nobody",
        ),
        (
            "import broken: ModuleNotFoundError: No module named 'cv2_of_nobody'.",
            f"If it is not your own code: {pip} install cv2_of_nobody",
        ),
        ("import wrong: ValueError: first.", f"To see why, run: {sys.executable} -c 'import wrong'"),
        ("import mine: ModuleNotFoundError: No module named 'mine'.", f"Put {tmp_path / 'src'} into PYTHONPATH."),
        (
            "import json.nothing: ModuleNotFoundError: No module named 'json.nothing'.",
            f"Check which version of json is installed: {pip} show json",
        ),
    ]


async def test_an_import_that_ends_python_does_not_end_the_answer(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    problems = problems_of(await check(store, python=sys.executable, imports=["json", "dies", "os"]))
    assert [text for _, text, _ in problems] == ["import dies: python was ended by SIGSEGV."]


async def test_an_import_that_hangs_is_left_and_ended(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(300)\n")
    monkeypatch.setattr(python_imports, "PATIENCE_S", 3.0)
    problems = problems_of(await check(store, python=sys.executable, imports=["hangs"]))
    assert [text for _, text, _ in problems] == ["import hangs: not done within 3 s."]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


@pytest.mark.parametrize(
    ("python", "text"),
    [
        ("/none/bin/python", "/none/bin/python is not a program that can be started."),
        ("python9.9", "python9.9 is not a program that can be started."),
        ("/bin/true", "/bin/true is not a python by its name."),
    ],
)
async def test_a_python_that_does_not_run_is_reported(python: str, text: str, store: RunStore) -> None:
    assert [problems[:2] for problems in problems_of(await check(store, python=python))] == [("python", text)]


async def test_a_python_that_ends_at_once_is_reported(store: RunStore, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.symlink_to("/bin/false")
    text = f"{python} does not run: python ended with exit code 1 at once."
    assert [problems[:2] for problems in problems_of(await check(store, python=str(python)))] == [("python", text)]


async def test_a_text_that_is_not_a_modules_name_is_never_run(store: RunStore, tmp_path: Path) -> None:
    problems = problems_of(await check(store, python=sys.executable, imports=["os; open('x', 'w')"]))
    assert [text for _, text, _ in problems] == ["\"os; open('x', 'w')\" is not a module's name."]


async def test_files_that_are_missing_are_reported_with_near_names(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").touch()
    problems = problems_of(await check(store, paths=["trian.yaml", "/none/at/all.h5"]))
    assert problems == [
        ("path", f"{tmp_path}/trian.yaml does not exist.", f"Near: {tmp_path}/train.yaml."),
        ("path", "/none/at/all.h5 does not exist.", "/ has no none."),
    ]
    assert problems_of(await check(store, cwd="/none/at"))[0] == (
        "cwd",
        "/none/at is not a directory.",
        "/ has no none.",
    )


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
    assert problems_of(await check(store, ray=True))[0][1] == "RAY_ADDRESS names no Ray."
    assert problems_of(await check(store, {"RAY_ADDRESS": "nonsense"}, ray=True))[0][0] == "ray"


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
    monkeypatch.setattr("mcp_server.runs.preflight.preflight._PATIENCE_S", 0.2)
    problems = problems_of(await check(store, paths=["none"]))
    assert ("ray", "No answer within 0.2 s.", "Check it by hand.") in problems
    assert "path" in [what for what, *_ in problems]


async def test_an_impossible_path_is_a_problem_among_others(store: RunStore) -> None:
    problems = problems_of(await check(store, paths=["/data/a\0b"], cwd="/" + "x" * 5000, result_dir="/" + "y" * 5000))
    assert len(problems) >= 2
    assert all(remedy for *_, remedy in problems)
