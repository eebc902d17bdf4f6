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
from mcp_server.runs.preflight.checks import Wish
from mcp_server.runs.preflight.preflight import preflight
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from tests.support.fake_nvml import UUIDS, machine

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setattr(tmux_client, "check_installed", lambda: None)
    (tmp_path / "state").mkdir()
    return RunStore(StateHome(tmp_path / "state"))


async def look(store: RunStore, environ: dict[str, str] | None = None, **wish: Any) -> Preflight:
    here = {"PATH": os.environ["PATH"], "RUNWARD_LEASES": str(store.home.path / "leases")}
    blueprint = wish.pop("blueprint", None)
    cwd = str(store.home.path.parent)
    return await preflight(Wish(**{"cwd": cwd, **wish}), store, {**here, **(environ or {})}, blueprint)


def told(found: Preflight) -> list[tuple[str, str, str]]:
    assert found.ok == (not found.problems)
    return [(each.what, each.text, each.remedy) for each in found.problems]


async def test_nothing_is_told_where_nothing_is_wrong(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "a.yaml").write_text("x: 1\n")
    found = await look(
        store,
        {"WANDB_API_KEY": "not-to-be-told"},
        python=sys.executable,
        imports=["json", "pydantic"],
        paths=["a.yaml", str(tmp_path)],
        command="python train.py --config a.yaml",
        secrets=["WANDB_API_KEY"],
        disk_gb=0.001,
        result_dir="not/made/yet",
    )
    assert told(found) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "state", "train.py"]
    assert list(store.home.path.iterdir()) == []


async def test_modules_that_cannot_be_imported_are_told_one_by_one(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("print('noise')\nimport cv2_of_nobody\n")
    (tmp_path / "wrong.py").write_text("raise ValueError('first\\nsecond')\n")
    (tmp_path / "src" / "mine").mkdir(parents=True)
    names = ["json", "torch_of_nobody", "broken", "wrong", "mine", "json.nothing"]
    found = told(await look(store, python=sys.executable, imports=names))
    pip = f"{sys.executable} -m pip"
    assert [(text, remedy) for _, text, remedy in found] == [
        (
            "import torch_of_nobody: ModuleNotFoundError: No module named 'torch_of_nobody'.",
            f"If it is not code of yours: {pip} install torch_of_nobody",
        ),
        (
            "import broken: ModuleNotFoundError: No module named 'cv2_of_nobody'.",
            f"If it is not code of yours: {pip} install cv2_of_nobody",
        ),
        ("import wrong: ValueError: first.", f"To see why, run: {sys.executable} -c 'import wrong'"),
        ("import mine: ModuleNotFoundError: No module named 'mine'.", f"Put {tmp_path / 'src'} into PYTHONPATH."),
        (
            "import json.nothing: ModuleNotFoundError: No module named 'json.nothing'.",
            f"Look which version of json is installed: {pip} show json",
        ),
    ]


async def test_an_import_that_ends_python_does_not_end_the_answer(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    found = told(await look(store, python=sys.executable, imports=["json", "dies", "os"]))
    assert [text for _, text, _ in found] == ["import dies: python was ended by SIGSEGV."]


async def test_an_import_that_hangs_is_left_and_ended(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(300)\n")
    monkeypatch.setattr(python_imports, "PATIENCE_S", 3.0)
    found = told(await look(store, python=sys.executable, imports=["hangs"]))
    assert [text for _, text, _ in found] == ["import hangs: not done within 3 s."]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


@pytest.mark.parametrize(
    ("python", "text"),
    [
        ("/none/bin/python", "/none/bin/python is no program that can be started."),
        ("python9.9", "python9.9 is no program that can be started."),
        ("/bin/true", "/bin/true is no python by its name."),
    ],
)
async def test_a_python_that_does_not_run_is_told(python: str, text: str, store: RunStore) -> None:
    assert [found[:2] for found in told(await look(store, python=python))] == [("python", text)]


async def test_a_python_that_ends_at_once_is_told(store: RunStore, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.symlink_to("/bin/false")
    text = f"{python} does not run: python ended with exit code 1 at once."
    assert [found[:2] for found in told(await look(store, python=str(python)))] == [("python", text)]


async def test_what_is_no_modules_name_is_never_run(store: RunStore, tmp_path: Path) -> None:
    found = told(await look(store, python=sys.executable, imports=["os; open('x', 'w')"]))
    assert [text for _, text, _ in found] == ["\"os; open('x', 'w')\" is no module's name."]


async def test_files_that_are_missing_are_told_with_what_is_near(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").touch()
    found = told(await look(store, paths=["trian.yaml", "/none/at/all.h5"]))
    assert found == [
        ("path", f"{tmp_path}/trian.yaml does not exist.", f"Near: {tmp_path}/train.yaml."),
        ("path", "/none/at/all.h5 does not exist.", "/ has no none."),
    ]
    assert told(await look(store, cwd="/none/at"))[0] == ("cwd", "/none/at is no directory.", "/ has no none.")


async def test_a_config_that_names_another_hosts_path_is_told_with_its_line(store: RunStore, tmp_path: Path) -> None:
    (store.home.path / "hosts.toml").write_text(
        f'[hosts.a]\nhostnames = ["{socket.gethostname()}"]\nrewrites = {{ "/data/scalelab2" = "/data/scalelab" }}\n'
    )
    (tmp_path / "a.yaml").write_text("# /data/scalelab2\ndata:\n  root: /data/scalelab2/x\n")
    found = told(await look(store, paths=["a.yaml", "/data/scalelab2/y"], command="ls /data/scalelab2"))
    other = "is a path of another host, and this is a."
    assert found == [
        ("path", f"{tmp_path}/a.yaml, line 3: /data/scalelab2/x {other}", "Write `root: /data/scalelab/x`."),
        ("path", f"/data/scalelab2/y {other}", "Use /data/scalelab/y."),
        ("command", f"/data/scalelab2 {other}", "Use `ls /data/scalelab`."),
    ]


async def test_a_program_that_nobody_has_is_told(store: RunStore) -> None:
    assert [text for _, text, _ in told(await look(store, command="torchrun_of_nobody train.py"))] == [
        "torchrun_of_nobody is on no directory of PATH."
    ]


async def test_a_full_disk_is_told(store: RunStore, tmp_path: Path) -> None:
    found = told(await look(store, disk_gb=1e9, result_dir="out"))
    assert [(what, remedy) for what, _, remedy in found] == [
        ("disk", "Free space there, or let the results go elsewhere.")
    ]
    assert found[0][1].endswith(f"GB free at {tmp_path}, 1000000000.0 GB wanted.")


async def test_a_port_in_use_is_told_with_who_has_it_and_a_free_one(store: RunStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = told(await look(store, ports=[port, 70000]))
    assert found[0][0] == "port"
    assert found[0][1].endswith(f"(pid {os.getpid()}) listens on port {port}.")
    assert found[0][2].startswith("Use another, e.g. ")
    assert found[1][1:] == ("70000 is no port.", "Use one from 1024 to 65535.")


async def test_a_secret_is_told_by_its_name(store: RunStore) -> None:
    (store.home.path / "secrets.env").write_text("HF_TOKEN=not-to-be-told\n")
    (store.home.path / "secrets.env").chmod(0o600)
    found = await look(store, secrets=["WANDB_API_KEY", "HF_TOKEN"])
    assert [(what, text) for what, text, _ in told(found)] == [("secret", "Secret not set: 'WANDB_API_KEY'.")]
    assert "not-to-be-told" not in found.model_dump_json()


async def test_a_ray_that_answers_is_well_and_another_is_told(store: RunStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        place = f"127.0.0.1:{head.getsockname()[1]}"
        assert told(await look(store, {"RAY_ADDRESS": place}, ray=True)) == []
        assert told(await look(store, {"RAY_ADDRESS": f"ray://{place}"}, ray=True)) == []
    found = told(await look(store, {"RAY_ADDRESS": place}, ray=True))
    assert [what for what, *_ in found] == ["ray"]
    assert found[0][1].startswith(f"Ray at {place} cannot be reached: ")
    assert told(await look(store, ray=True))[0][1] == "RAY_ADDRESS names no Ray."
    assert told(await look(store, {"RAY_ADDRESS": "nonsense"}, ray=True))[0][0] == "ray"


async def test_gpus_are_judged_as_a_launch_would(store: RunStore, tmp_path: Path) -> None:
    nvml = machine(tmp_path)
    assert told(await look(store, nvml.environ, gpus=2)) == []
    assert told(await look(store, nvml.environ, require={"power_limit_w": 700})) == []
    found = told(await look(store, nvml.environ, gpus=2, require={"power_limit_w": 300}))
    assert found[0][0] == "gpus"
    assert "power limit 700 W, at most 300 W required: a person should run: sudo nvidia-smi" in found[0][1]
    assert told(await look(store, nvml.environ, gpus="7"))[0][2] == "Call gpu_check."
    assert told(await look(store, nvml.environ, gpus="x"))[0][1].startswith("'x' names no GPU.")
    assert UUIDS[0] not in str(found)


async def test_an_environment_is_looked_at_without_being_asked_for(store: RunStore) -> None:
    (store.home.path / "hosts.toml").write_text(
        f'[hosts.a]\nhostnames = ["{socket.gethostname()}"]\nenvironment = "robot"\n'
        '[environments.robot]\npython = "/none/bin/python"\nsecrets = ["WANDB_API_KEY"]\n'
    )
    assert [what for what, *_ in told(await look(store))] == ["python", "secret"]
    assert told(await look(store, environment="none")) == []
    assert told(await look(store, environment="none", host="mars"))[0][0] == "host"
    assert told(await look(store, environment="robots"))[0][0] == "environment"


async def test_a_hosts_file_that_cannot_be_read_is_told(store: RunStore) -> None:
    (store.home.path / "hosts.toml").write_text("[host.a]\n")
    assert [what for what, *_ in told(await look(store))] == ["host"]


async def test_a_blueprint_is_looked_at_as_a_launch_would(store: RunStore, tmp_path: Path) -> None:
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
    found = told(await look(store, blueprint=str(blueprint)))
    assert [(what, text.partition(" in ")[0]) for what, text, _ in found] == [
        ("command", "there is no script train.py")
    ]
    (tmp_path / "train.py").touch()
    assert told(await look(store, blueprint=str(blueprint))) == []
    (tmp_path / "train.yaml").unlink()
    assert "blueprint" in [what for what, *_ in told(await look(store, blueprint=str(blueprint)))]
    assert told(await look(store, blueprint="/none.md"))[0][0] == "blueprint"


async def test_a_look_that_takes_too_long_is_told_and_the_others_answer(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("mcp_server.runs.preflight.checks.ray", never)
    monkeypatch.setattr("mcp_server.runs.preflight.preflight._PATIENCE_S", 0.2)
    found = told(await look(store, paths=["none"]))
    assert ("ray", "No answer within 0.2 s.", "Look at it by hand.") in found
    assert "path" in [what for what, *_ in found]


async def test_a_path_that_is_none_is_a_problem_among_others(store: RunStore) -> None:
    found = told(await look(store, paths=["/data/a\0b"], cwd="/" + "x" * 5000, result_dir="/" + "y" * 5000))
    assert len(found) >= 2
    assert all(remedy for *_, remedy in found)
