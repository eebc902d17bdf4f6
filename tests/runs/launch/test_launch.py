"""Arguments become a spec and what is handed over, or are refused with nothing done."""

import json
import os
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from mcp_server.errors import BadArgument, ConfigInvalid, RunwardError, TmuxMissing
from mcp_server.record.handover import Handover
from mcp_server.record.script import render
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.recovery.policy import normalize_policy
from mcp_server.runs.launch.launch import launch, plan
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system import processes, tmux
from tests.runs.launch.test_arguments import BAD_NAMES

ENVIRON = {
    "HOME": "/home/alice",
    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    "LANG": "en_GB.UTF-8",
    "RUNWARD_OWNER": "alice",
    "HF_TOKEN": "hf_9x7QwErTy",
    "PIN": "1234",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateHome:
    """A home that does not exist yet, on a host that has tmux."""
    monkeypatch.setattr(tmux, "check_installed", lambda: None)
    (tmp_path / "train.py").touch()
    return StateHome(tmp_path / "state" / "runward")


def everything_below(path: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mode, p.stat().st_mtime_ns) for p in [path, *path.rglob("*")]}


def plan_now(request: LaunchRequest, home: StateHome, environ: Mapping[str, str]) -> tuple[RunSpec, Handover]:
    return anyio.run(plan, request, home, environ)[:2]


def test_a_request_becomes_a_spec_and_a_handover(home: StateHome, tmp_path: Path) -> None:
    request = LaunchRequest(
        ["python", "train.py"],
        name="cfm v2",
        cwd=str(tmp_path),
        env={"SEED": "7"},
        secrets=["HF_TOKEN"],
        tags=["paper"],
        time_limit_s=3600,
        idempotency_key="k1",
        first_step_timeout_s=600,
        first_step_pattern="kl loss",
        stall_timeout_s=900,
        recovery={"oom_gpu": "retry"},
        params={"lr": 0.1},
        param_style="k=v",
        resume_args=["--resume"],
        gpus="4-7",
        queue=True,
        require={"power_limit_w": 400},
        tensorboard="logs",
    )
    spec, handover = plan_now(request, home, {**ENVIRON, "RUNWARD_TMUX_SOCKET": "test", "RUNWARD_LEASES": "/leases"})

    assert re.fullmatch(r"cfm-v2-[a-z2-9]{4}", spec.run_id)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", spec.created_at)
    assert spec.host
    assert replace(request) == request  # frozen, and unchanged
    assert {k: v for k, v in spec.facts().items() if k not in ("created_at", "host", "boot_id")} == {
        "layout": 3,
        "imported": None,
        "run_id": spec.run_id,
        "name": "cfm v2",
        "command": ["python", "train.py"],
        "why": None,
        "like": None,
        "change": {},
        "environment": None,
        "cwd": str(tmp_path),
        "env": {"SEED": "7"},
        "secrets": ["HF_TOKEN"],
        "owner": "alice",
        "tags": ["paper"],
        "time_limit_s": 3600,
        "first_step_timeout_s": 600,
        "first_step_pattern": "kl loss",
        "stall_timeout_s": 900,
        "recovery": normalize_policy({"oom_gpu": "retry"}),
        "params": {"lr": 0.1},
        "params_file": None,
        "param_style": "k=v",
        "resume_args": ["--resume"],
        "gpus": "4-7",
        "queue": True,
        "require": {"power_limit_w": 400},
        "leases": "/leases",
        "cpu_slots": os.cpu_count(),
        "gpu_sample_s": 5.0,
        "gpu_window_s": 120.0,
        "tensorboard": str(tmp_path / "logs"),
        "blueprint": None,
        "result_dir": None,
        "stop_grace_s": 5.0,
        "repair_grace_s": 0.0,
        "idempotency_key": "k1",
        "session": spec.run_id,
        "tmux_socket": "test",
        "sync": None,
        "code": None,
        "keep_code": False,
        "sweep": None,
        "cell": None,
        "filled": {},
        "backend": "tmux",
        "backend_options": {},
        "needs": [],
    }
    assert handover.secrets == {"HF_TOKEN": "hf_9x7QwErTy"}
    assert handover.env == {"HOME": "/home/alice", "PATH": ENVIRON["PATH"], "LANG": "en_GB.UTF-8", "PIN": "1234"}


def test_the_value_of_a_secret_is_in_neither_spec_nor_script(home: StateHome, tmp_path: Path) -> None:
    spec, _ = plan_now(LaunchRequest("python train.py", cwd=str(tmp_path), secrets=["HF_TOKEN"]), home, ENVIRON)
    assert ENVIRON["HF_TOKEN"] not in json.dumps(spec.facts()) + render(spec)


def test_a_plan_changes_nothing(home: StateHome, tmp_path: Path) -> None:
    before = everything_below(tmp_path)
    plan_now(LaunchRequest("python train.py", cwd=str(tmp_path), secrets=["HF_TOKEN"]), home, ENVIRON)
    assert everything_below(tmp_path) == before


def test_an_open_argument_has_a_default(home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec, handover = plan_now(LaunchRequest("python train.py"), home, ENVIRON)
    assert (spec.name, spec.cwd, spec.time_limit_s, spec.tmux_socket) == ("train", str(tmp_path), None, "default")
    assert handover.secrets == {}


def test_a_secret_named_twice_is_handed_over_once(home: StateHome, tmp_path: Path) -> None:
    spec, _ = plan_now(LaunchRequest("true", cwd=str(tmp_path), secrets=["HF_TOKEN", "HF_TOKEN"]), home, ENVIRON)
    assert spec.secrets == ["HF_TOKEN"]


def test_a_tilde_in_cwd_is_the_home_directory(home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert plan_now(LaunchRequest("true", cwd="~"), home, ENVIRON)[0].cwd == str(tmp_path)


def test_two_runs_of_one_name_have_two_ids(home: StateHome, tmp_path: Path) -> None:
    ids = {plan_now(LaunchRequest("true", cwd=str(tmp_path)), home, ENVIRON)[0].run_id for _ in range(20)}
    assert len(ids) == 20


def test_an_id_made_from_a_long_name_can_be_found_again(home: StateHome, tmp_path: Path) -> None:
    spec, _ = plan_now(LaunchRequest("true", name="a b" * 21, cwd=str(tmp_path)), home, ENVIRON)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,120}", spec.run_id)


KEY = "0123456789abcdef0123456789abcdef01234567"
OK = LaunchRequest("sleep 1", name="cfm", cwd="/")

REFUSED: dict[str, tuple[LaunchRequest, str]] = {
    "an empty command": (replace(OK, command=""), "command: is empty."),
    "a command of blanks": (replace(OK, command=" \n\t"), "command: is empty."),
    "an empty argv": (replace(OK, command=[]), "command: is empty."),
    "an argv without a program": (replace(OK, command=["", "x"]), "command: is empty."),
    "a NUL in the command": (replace(OK, command="echo a\0b"), "command: holds a NUL character."),
    "a NUL in an argv": (replace(OK, command=["echo", "a\0b"]), "command: holds a NUL character."),
    "a cwd that is not there": (replace(OK, cwd="/no/such/dir"), "cwd: is not a directory: '/no/such/dir'."),
    "a cwd that is a file": (replace(OK, cwd="/etc/passwd"), "cwd: is not a directory: '/etc/passwd'."),
    "a relative cwd": (replace(OK, cwd="src"), "cwd: must be an absolute path, not 'src'."),
    "a cwd of a dot": (replace(OK, cwd="."), "cwd: must be an absolute path, not '.'."),
    "a NUL in cwd": (replace(OK, cwd="/a\0b"), "cwd: is not a directory: '/a\\x00b'."),
    "a cwd of 300 characters": (replace(OK, cwd="/" + "a" * 300), "cwd: "),
    "a cwd in the home of an unknown user": (replace(OK, cwd="~no-such-user-7/x"), "cwd: "),
    "a time limit of 0": (replace(OK, time_limit_s=0), "time_limit_s: must be a number of seconds above 0."),
    "a negative time limit": (replace(OK, time_limit_s=-1), "time_limit_s: must be a number of seconds above 0."),
    "no number": (replace(OK, time_limit_s=float("nan")), "time_limit_s: must be a number of seconds above 0."),
    "no limit at all": (replace(OK, time_limit_s=float("inf")), "time_limit_s: must be a number of seconds above 0."),
    "a secret that is not set": (replace(OK, secrets=["WANDB_API_KEY"]), "Secret not set: 'WANDB_API_KEY'."),
    "a secret without a name": (replace(OK, secrets=[""]), "Secret not set: ''."),
    "a secret too short to mask": (replace(OK, secrets=["PIN"]), "secrets: PIN has fewer than 6 characters"),
    "a secret in env": (replace(OK, env={"WANDB_API_KEY": "0123456789"}), "env: WANDB_API_KEY looks like a secret"),
    "a key in the command": (
        replace(OK, command=f"export WANDB_API_KEY={KEY} && python train.py"),
        "command: holds what looks like a key (WANDB_API_KEY)",
    ),
    "a key after an option": (replace(OK, command=f"python a.py --wandb_key {KEY}"), "command: holds what looks like"),
    "a key in an argv": (replace(OK, command=["python", "a.py", "--wandb_key", KEY]), "command: holds what looks like"),
    "a key in a text for bash": (replace(OK, command=["bash", "-c", f"HF_TOKEN={KEY} python a.py"]), "command: holds"),
    "a key in params": (replace(OK, params={"wandb_key": KEY}), "params: holds what looks like a key (wandb_key)"),
    "a key in resume_args": (replace(OK, resume_args=["--api_key", KEY]), "resume_args: holds what looks like a key"),
    "a key in recovery": (
        replace(OK, recovery={"oom_gpu": {"do": "retry", "change": {"$A_B": "hf_AbCdEfGhIjKlMnOpQr"}}}),
        "recovery: holds what looks like a key (A_B)",
    ),
    "a key under another name": (replace(OK, env={"A": "hf_AbCdEfGhIjKlMnOpQr"}), "env: holds what looks like a key"),
    "a variable without a name": (replace(OK, env={"": "x"}), "env: '' cannot be an environment variable."),
    "a variable with a dash": (replace(OK, env={"A-B": "x"}), "env: 'A-B' cannot be an environment variable."),
    "a variable that is a command": (replace(OK, env={"A=1;id;B": "x"}), "env: 'A=1;id;B' cannot be"),
    "a variable with a line break": (replace(OK, env={"A\n": "x"}), "env: 'A\\n' cannot be an environment variable."),
    "a NUL in a value": (replace(OK, env={"A": "x\0y"}), "env: 'A' cannot be an environment variable."),
    **{f"the name {name[:9]!r}, {len(name)} long": (replace(OK, name=name), "name: must ") for name in BAD_NAMES},
}


@pytest.mark.parametrize(("request_", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_request_says_why_and_changes_nothing_on_disk(
    request_: LaunchRequest, message: str, home: StateHome, tmp_path: Path
) -> None:
    before = everything_below(tmp_path)
    with pytest.raises(RunwardError) as refused:
        plan_now(request_, home, ENVIRON)
    assert str(refused.value).startswith(message)
    assert "Nothing was " in str(refused.value)
    assert KEY not in str(refused.value)

    with pytest.raises(RunwardError):  # nor does the tool's own way in
        anyio.run(launch, request_, RunStore(home), cast("FileWatch", None), ENVIRON)
    assert everything_below(tmp_path) == before
    assert not home.path.exists()


def test_a_refusal_never_shows_a_secret(home: StateHome) -> None:
    for request in (replace(OK, env={"MY_TOKEN": "s3cr3t-value"}), replace(OK, env={"MY_TOKEN": "s3cr3t\0value"})):
        with pytest.raises(BadArgument) as refused:
            plan_now(request, home, ENVIRON)
        assert "s3cr3t" not in str(refused.value)


def test_without_tmux_nothing_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TmuxMissing, match=r"^tmux is not installed\. Nothing was started\."):
        plan_now(OK, StateHome(tmp_path / "home"), ENVIRON)


def test_without_a_valid_config_nothing_is_planned(home: StateHome) -> None:
    home.create()
    (home.path / "config.toml").write_text("kill_polcy = 'human'\n")
    with pytest.raises(ConfigInvalid, match="kill_polcy"):
        plan_now(OK, home, ENVIRON)
    assert list(home.runs.iterdir()) == []


def test_a_directory_whose_name_is_not_utf_8_is_refused(home: StateHome, tmp_path: Path) -> None:
    # Neither spec.json nor an answer can hold it; past the plan it would leave a half-made run behind.
    cwd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    Path(cwd).mkdir()
    with pytest.raises(BadArgument, match=r"^cwd: "):
        plan_now(replace(OK, cwd=cwd), home, ENVIRON)


@pytest.mark.parametrize("secret", ['ab"cd12345', "back\\slash99", "plain-value-1"])
@pytest.mark.parametrize("argument", ["params", "resume_args", "recovery"])
def test_no_argument_kept_in_a_file_holds_the_value_of_a_secret(
    home: StateHome, tmp_path: Path, argument: str, secret: str
) -> None:
    held: dict[str, dict[str, Any]] = {
        "params": {"params": {"key_file": f"x{secret}"}},
        "resume_args": {"resume_args": ["--from", secret]},
        "recovery": {"recovery": {"oom_gpu": {"do": "retry", "change": {"note": secret}}}},
    }
    request = LaunchRequest(["python", "x.py"], cwd=str(tmp_path), secrets=["HF_TOKEN"], **held[argument])
    with pytest.raises(BadArgument, match=rf"^{argument}: holds the value of a secret"):
        plan_now(request, home, {**ENVIRON, "HF_TOKEN": secret})
    assert not home.path.exists()


def test_a_launch_is_resolved_off_the_event_loop(
    home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    read_umask = processes.read_umask

    def read_and_note() -> int:
        threads.append(threading.current_thread())
        return read_umask()

    monkeypatch.setattr(processes, "read_umask", read_and_note)
    plan_now(LaunchRequest("true", cwd=str(tmp_path)), home, ENVIRON)
    assert threading.main_thread() not in threads
    assert len(threads) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"backend": "pbs"}, "backend: 'pbs' is not one of tmux"),
        ({"backend_options": {"partition": "a100"}}, "backend_options: tmux has none: partition"),
    ],
)
def test_an_unknown_backend_and_options_that_it_does_not_have_are_refused(
    home: StateHome, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadArgument, match=says):
        plan_now(LaunchRequest("true", **arguments), home, ENVIRON)
