"""Arguments become a spec and what is handed over, or are refused with nothing done."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from mcp_server.backends import tmux_client
from mcp_server.errors import (
    BadArgument,
    ConfigInvalid,
    RunwardError,
    SecretNotSet,
    SecretsFileOpen,
    SecretsFileUnreadable,
    StateUnusable,
    TmuxMissing,
)
from mcp_server.hosts.environment import check_environment, names_a_secret, secrets_by_name
from mcp_server.record.environment import base_environment
from mcp_server.record.script import LONGEST_NAME, render
from mcp_server.record.spec import LaunchRequest
from mcp_server.recovery.policy import normalize_policy
from mcp_server.runs.launch import check_name, launch, plan
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import Config, StateHome

ENVIRON = {
    "HOME": "/home/alice",
    "PATH": "/usr/bin:/bin",
    "LANG": "en_GB.UTF-8",
    "RUNWARD_OWNER": "alice",
    "HF_TOKEN": "hf_9x7QwErTy",
    "PIN": "1234",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateHome:
    """A home that does not exist yet, on a host that has tmux."""
    monkeypatch.setattr(tmux_client, "check_installed", lambda: None)
    return StateHome(tmp_path / "state" / "runward")


def everything_below(path: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mode, p.stat().st_mtime_ns) for p in [path, *path.rglob("*")]}


# --- names


@pytest.mark.parametrize("name", ["cfm", "cfm v2.1", "größe", "训练", "x" * LONGEST_NAME, "a.b", "-x", "=x", "$(id)"])
def test_an_ordinary_name_is_taken(name: str) -> None:
    check_name(name)


BAD_NAMES = [
    "",
    "   ",
    "\t",
    "x" * 65,
    "x" * 300,
    "a/b",
    "/",
    "../x",
    "..",
    "a..b",
    "a:b",
    "a\\b",
    "a\nb",
    "a\0b",
    "\x1b[2J",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_be_something_else_is_refused(name: str) -> None:
    with pytest.raises(BadArgument, match=r"^name: must .* Nothing was done\.$") as refused:
        check_name(name)
    assert refused.value.argument == "name"


# --- a plan


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
    spec, handover = plan(request, home, {**ENVIRON, "RUNWARD_TMUX_SOCKET": "test", "RUNWARD_LEASES": "/leases"})

    assert re.fullmatch(r"cfm-v2-[a-z2-9]{4}", spec.run_id)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", spec.created_at)
    assert spec.host
    assert replace(request) == request  # frozen, and unchanged
    assert {k: v for k, v in spec.facts().items() if k not in ("created_at", "host", "boot_id")} == {
        "layout": 3,
        "run_id": spec.run_id,
        "name": "cfm v2",
        "command": ["python", "train.py"],
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
        "idempotency_key": "k1",
        "session": spec.run_id,
        "tmux_socket": "test",
    }
    assert handover.secrets == {"HF_TOKEN": "hf_9x7QwErTy"}
    assert handover.env == {"HOME": "/home/alice", "PATH": "/usr/bin:/bin", "LANG": "en_GB.UTF-8", "PIN": "1234"}


def test_the_value_of_a_secret_is_in_neither_spec_nor_script(home: StateHome, tmp_path: Path) -> None:
    spec, _ = plan(LaunchRequest("python train.py", cwd=str(tmp_path), secrets=["HF_TOKEN"]), home, ENVIRON)
    assert ENVIRON["HF_TOKEN"] not in json.dumps(spec.facts()) + render(spec)


def test_a_plan_touches_nothing(home: StateHome, tmp_path: Path) -> None:
    before = everything_below(tmp_path)
    plan(LaunchRequest("python train.py", cwd=str(tmp_path), secrets=["HF_TOKEN"]), home, ENVIRON)
    assert everything_below(tmp_path) == before


def test_what_is_not_said_has_a_default(home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec, handover = plan(LaunchRequest("python train.py"), home, ENVIRON)
    assert (spec.name, spec.cwd, spec.time_limit_s, spec.tmux_socket) == ("train", str(tmp_path), None, "default")
    assert handover.secrets == {}


def test_a_secret_named_twice_is_handed_over_once(home: StateHome, tmp_path: Path) -> None:
    spec, _ = plan(LaunchRequest("x", cwd=str(tmp_path), secrets=["HF_TOKEN", "HF_TOKEN"]), home, ENVIRON)
    assert spec.secrets == ["HF_TOKEN"]


def test_a_tilde_in_cwd_is_the_home_directory(home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert plan(LaunchRequest("x", cwd="~"), home, ENVIRON)[0].cwd == str(tmp_path)


def test_two_runs_of_one_name_have_two_ids(home: StateHome, tmp_path: Path) -> None:
    ids = {plan(LaunchRequest("x", cwd=str(tmp_path)), home, ENVIRON)[0].run_id for _ in range(20)}
    assert len(ids) == 20


def test_an_id_made_from_a_long_name_can_be_found_again(home: StateHome, tmp_path: Path) -> None:
    spec, _ = plan(LaunchRequest("x", name="a b" * 21, cwd=str(tmp_path)), home, ENVIRON)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,120}", spec.run_id)


OK = LaunchRequest("python train.py", name="cfm", cwd="/")

REFUSED: dict[str, tuple[LaunchRequest, str]] = {
    "an empty command": (replace(OK, command=""), "command: is empty."),
    "a command of blanks": (replace(OK, command=" \n\t"), "command: is empty."),
    "an empty argv": (replace(OK, command=[]), "command: is empty."),
    "an argv without a program": (replace(OK, command=["", "x"]), "command: is empty."),
    "a NUL in the command": (replace(OK, command="echo a\0b"), "command: holds a NUL character."),
    "a NUL in an argv": (replace(OK, command=["echo", "a\0b"]), "command: holds a NUL character."),
    "a cwd that is not there": (replace(OK, cwd="/no/such/dir"), "cwd: is no directory: '/no/such/dir'."),
    "a cwd that is a file": (replace(OK, cwd="/etc/passwd"), "cwd: is no directory: '/etc/passwd'."),
    "a relative cwd": (replace(OK, cwd="src"), "cwd: must be an absolute path, not 'src'."),
    "a cwd of a dot": (replace(OK, cwd="."), "cwd: must be an absolute path, not '.'."),
    "a NUL in cwd": (replace(OK, cwd="/a\0b"), "cwd: is no directory: '/a\\x00b'."),
    "a cwd of 300 characters": (replace(OK, cwd="/" + "a" * 300), "cwd: "),
    "a cwd of nobody's home": (replace(OK, cwd="~no-such-user-7/x"), "cwd: "),
    "a time limit of 0": (replace(OK, time_limit_s=0), "time_limit_s: must be a number of seconds above 0."),
    "a negative time limit": (replace(OK, time_limit_s=-1), "time_limit_s: must be a number of seconds above 0."),
    "no number": (replace(OK, time_limit_s=float("nan")), "time_limit_s: must be a number of seconds above 0."),
    "no limit at all": (replace(OK, time_limit_s=float("inf")), "time_limit_s: must be a number of seconds above 0."),
    "a secret that is not set": (replace(OK, secrets=["WANDB_API_KEY"]), "Secret not set: 'WANDB_API_KEY'."),
    "a secret without a name": (replace(OK, secrets=[""]), "Secret not set: ''."),
    "a secret too short to mask": (replace(OK, secrets=["PIN"]), "secrets: PIN has fewer than 6 characters"),
    "a secret in env": (replace(OK, env={"WANDB_API_KEY": "0123456789"}), "env: WANDB_API_KEY looks like a secret"),
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
        plan(request_, home, ENVIRON)
    assert str(refused.value).startswith(message)
    assert "Nothing was " in str(refused.value)

    with pytest.raises(RunwardError):  # nor does the tool's own way in
        anyio.run(launch, request_, RunStore(home), cast("FileWatch", None), ENVIRON)
    assert everything_below(tmp_path) == before
    assert not home.path.exists()


def test_a_refusal_never_says_a_secret(home: StateHome) -> None:
    for request in (replace(OK, env={"MY_TOKEN": "s3cr3t-value"}), replace(OK, env={"MY_TOKEN": "s3cr3t\0value"})):
        with pytest.raises(BadArgument) as refused:
            plan(request, home, ENVIRON)
        assert "s3cr3t" not in str(refused.value)


def test_without_tmux_nothing_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TmuxMissing, match=r"^tmux is not installed\. Nothing was started\."):
        plan(OK, StateHome(tmp_path / "home"), ENVIRON)


def test_without_a_valid_config_nothing_is_planned(home: StateHome) -> None:
    home.create()
    (home.path / "config.toml").write_text("kill_polcy = 'human'\n")
    with pytest.raises(ConfigInvalid, match="kill_polcy"):
        plan(OK, home, ENVIRON)
    assert list(home.runs.iterdir()) == []


def test_a_directory_whose_name_is_no_utf_8_is_refused(home: StateHome, tmp_path: Path) -> None:
    # Neither spec.json nor an answer can hold it; past the plan it would leave a half-made run behind.
    cwd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    Path(cwd).mkdir()
    with pytest.raises(BadArgument, match=r"^cwd: "):
        plan(replace(OK, cwd=cwd), home, ENVIRON)


# --- what a run gets from its host


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("WANDB_API_KEY", True),
        ("HF_TOKEN", True),
        ("hf_token", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("CLIENT_SECRET", True),
        ("DB_PASSWORD", True),
        ("PGPASSWD", True),
        ("SSH_PASSPHRASE", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("KEYBOARD", False),
        ("PATH", False),
        ("SEED", False),
    ],
)
def test_secrets_are_known_by_their_names(name: str, is_secret: bool) -> None:
    assert names_a_secret(name) == is_secret


def test_a_run_inherits_neither_secrets_nor_terminals_nor_what_is_the_launchers() -> None:
    kept = {"PATH": "/bin", "HOME": "/home/alice", "LC_ALL": "C", "CUDA_HOME": "/usr/local/cuda", "TERMINFO": "/x"}
    secret = ("HF_TOKEN", "WANDB_API_KEY")
    terminal = ("TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TMUX", "TMUX_PANE", "COLUMNS", "LINES")
    shell = ("_", "SHLVL", "PWD", "OLDPWD")
    launcher = ("RUNWARD_HOME", "RUNWARD_OWNER", "RUNWARD_RUN_ID", "RUNWARD_TMUX_SOCKET")
    dropped = dict.fromkeys((*secret, *terminal, *shell, *launcher), "x")
    assert base_environment({**kept, **dropped}) == kept


@pytest.mark.parametrize(
    ("environ", "lang"),
    [({}, "C.UTF-8"), ({"LANG": "de_DE.UTF-8"}, "de_DE.UTF-8"), ({"LC_ALL": "C"}, None), ({"LC_CTYPE": "C"}, None)],
)
def test_a_run_has_a_locale_that_can_print(environ: Mapping[str, str], lang: str | None) -> None:
    assert base_environment(environ).get("LANG") == lang


def test_an_inherited_environment_is_a_copy() -> None:
    environ = {"LANG": "C"}
    base_environment(environ)["A"] = "1"
    assert environ == {"LANG": "C"}


def test_a_short_value_of_a_secret_name_is_a_setting() -> None:
    check_environment({"USE_TOKEN": "1", "SORT_KEY": "date", "A": "x" * 100_000, "_": "", "b2": "é\n"})


def test_a_variable_that_bash_lets_nobody_set_is_refused() -> None:
    for name in ("UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS"):
        with pytest.raises(BadArgument, match=rf"^env: .*{name}"):
            check_environment({name: "7"})


def secrets_file(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    file = tmp_path / "secrets.env"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_secrets_come_from_the_environment_before_the_file(tmp_path: Path) -> None:
    file = secrets_file(tmp_path, "HF_TOKEN=from-file\nWANDB_API_KEY=from-file\n")
    environ = {"HF_TOKEN": "from-environment", "WANDB_API_KEY": ""}
    found = secrets_by_name(["WANDB_API_KEY", "HF_TOKEN"], environ, file)
    assert list(found.items()) == [("WANDB_API_KEY", "from-file"), ("HF_TOKEN", "from-environment")]


@pytest.mark.parametrize(
    "line",
    [
        "TOKEN=abc=def#1",
        "export TOKEN=abc=def#1",
        "  TOKEN = abc=def#1  ",
        "TOKEN='abc=def#1'",
        'TOKEN="abc=def#1"',
        "# TOKEN=other-value\nTOKEN=abc=def#1",
        "TOKEN=other-value\nTOKEN=abc=def#1",
        "\n\nTOKEN=abc=def#1",
        "\ufeffTOKEN=abc=def#1",
        "TOKEN='abc=def#1' # of the lab",
        "TOKEN=abc=def#1\r\nOTHER=1",
    ],
)
def test_a_secrets_file_is_read_as_people_write_it(tmp_path: Path, line: str) -> None:
    assert secrets_by_name(["TOKEN"], {}, secrets_file(tmp_path, line)) == {"TOKEN": "abc=def#1"}


def test_a_line_that_is_no_assignment_is_refused_with_its_number(tmp_path: Path) -> None:
    file = secrets_file(tmp_path, "A=1234567\nhunter2-and-more\n")
    with pytest.raises(SecretsFileUnreadable, match="line 2 is not NAME=VALUE") as error:
        secrets_by_name(["A"], {}, file)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_secrets_file_of_its_owner_alone_is_used(tmp_path: Path, mode: int) -> None:
    assert secrets_by_name(["TOKEN"], {}, secrets_file(tmp_path, "TOKEN=abcdef", mode)) == {"TOKEN": "abcdef"}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602, 0o610, 0o666])
def test_a_secrets_file_that_others_can_reach_is_not_used(tmp_path: Path, mode: int) -> None:
    file = secrets_file(tmp_path, "TOKEN=abcdef", mode)
    with pytest.raises(SecretsFileOpen, match=f"chmod 600 {re.escape(str(file))}$") as refused:
        secrets_by_name(["TOKEN"], {}, file)
    assert "abcdef" not in str(refused.value)


def test_a_missing_secret_says_where_it_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "secrets.env"
    with pytest.raises(SecretNotSet) as refused:
        secrets_by_name(["TOKEN"], {}, file)
    assert str(refused.value) == (
        "Secret not set: 'TOKEN'. Nothing was started. A person can put it into the server's environment, "
        f"or as TOKEN=VALUE into {file} (mode 0600)."
    )


@pytest.mark.parametrize(("value", "taken"), [("12345", False), (" 12345 ", False), ("123456", True)])
def test_a_value_too_short_to_be_masked_is_refused(tmp_path: Path, value: str, taken: bool) -> None:
    if taken:
        assert secrets_by_name(["PIN"], {"PIN": value}, tmp_path / "none") == {"PIN": value}
        return
    with pytest.raises(BadArgument) as refused:
        secrets_by_name(["PIN"], {"PIN": value}, tmp_path / "none")
    assert value.strip() not in str(refused.value)


# --- home


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"RUNWARD_HOME": "/srv/runward", "XDG_STATE_HOME": "/state"}, "/srv/runward"),
        ({"RUNWARD_HOME": "~/runs"}, "/home/alice/runs"),
        ({"RUNWARD_HOME": "here"}, "/anywhere/here"),
        ({"RUNWARD_HOME": "", "XDG_STATE_HOME": "/state"}, "/state/runward"),
        ({"XDG_STATE_HOME": ""}, "/home/alice/.local/state/runward"),
        ({}, "/home/alice/.local/state/runward"),
        # The XDG specification: "If an implementation encounters a relative path … ignore it."
        ({"XDG_STATE_HOME": "state"}, "/home/alice/.local/state/runward"),
    ],
)
def test_home_is_where_the_environment_says(
    environ: dict[str, str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setattr(os, "getcwd", lambda: "/anywhere")
    assert StateHome.of(environ).path == Path(path)


def test_home_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    home = StateHome(tmp_path / "a" / "b")
    home.create()
    home.create()
    assert {p.name: oct(p.stat().st_mode & 0o777) for p in (home.path, home.runs, home.keys)} == {
        "b": "0o700",
        "runs": "0o700",
        "keys": "0o700",
    }


def test_a_home_that_cannot_be_made_says_where_and_why(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "runward"):
        with pytest.raises(StateUnusable, match=f"^{re.escape(str(path))}: .*Nothing was done") as refused:
            StateHome(path).create()
        assert refused.value.path == path
    assert StateHome(file / "runward").read_config() == Config()


def config(tmp_path: Path, text: str | bytes) -> Config:
    (tmp_path / "config.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    return StateHome(tmp_path).read_config()


def test_no_config_means_the_defaults(tmp_path: Path) -> None:
    assert StateHome(tmp_path).read_config() == config(tmp_path, "") == Config()
    assert (Config().kill_policy, Config().owner, Config().stop_grace_s) == ("confirm", "", 5.0)


def test_a_config_is_read(tmp_path: Path) -> None:
    text = 'kill_policy = "human"\nowner = "größe"\nstop_grace_s = 0\n'
    assert config(tmp_path, text) == Config(kill_policy="human", owner="größe", stop_grace_s=0)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('kill_polcy = "human"', "kill_polcy: Extra inputs are not permitted."),
        ('kill_policy = "nobody"', "kill_policy: Input should be 'confirm' or 'human'."),
        ("stop_grace_s = -1", "stop_grace_s: Input should be greater than or equal to 0."),
        ("stop_grace_s = 3601", "stop_grace_s: Input should be less than or equal to 3600."),
        ("stop_grace_s = nan", "stop_grace_s: "),
        ("stop_grace_s = inf", "stop_grace_s: "),
        ("owner = 7", "owner: Input should be a valid string."),
        ("[section]\na = 1", "section: Extra inputs are not permitted."),
        ("kill_policy = human", "Invalid value (at line 1, column 15)."),
        ("a = 1\na = 2", "Cannot overwrite a value"),
        (b"owner = '\xff'", "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_a_config_that_is_not_what_it_should_be_is_refused(tmp_path: Path, text: str | bytes, cause: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        config(tmp_path, text)
    file = tmp_path / "config.toml"
    assert str(refused.value).startswith(f"{file}: {cause}")
    assert str(refused.value).endswith(" Nothing was done. A person should fix the file.")


def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigInvalid, match="Is a directory"):
        StateHome(tmp_path).read_config()


def test_the_owner_is_the_environments_then_the_configs_then_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = StateHome(tmp_path)
    monkeypatch.setenv("LOGNAME", "carol")
    assert home.owner({}) == "carol"
    config(tmp_path, 'owner = "bob"')
    assert home.owner({}) == "bob"
    assert home.owner({"RUNWARD_OWNER": "alice"}) == "alice"


@pytest.mark.parametrize("secret", ['ab"cd12345', "back\\slash99", "plain-value-1"])
@pytest.mark.parametrize("argument", ["params", "resume_args", "recovery"])
def test_no_kept_argument_may_hold_the_value_of_a_secret(
    home: StateHome, tmp_path: Path, argument: str, secret: str
) -> None:
    held: dict[str, dict[str, Any]] = {
        "params": {"params": {"key_file": f"x{secret}"}},
        "resume_args": {"resume_args": ["--from", secret]},
        "recovery": {"recovery": {"oom_gpu": {"do": "retry", "change": {"note": secret}}}},
    }
    request = LaunchRequest(["python", "x.py"], cwd=str(tmp_path), secrets=["HF_TOKEN"], **held[argument])
    with pytest.raises(BadArgument, match=rf"^{argument}: holds the value of a secret"):
        plan(request, home, {**ENVIRON, "HF_TOKEN": secret})
    assert not home.path.exists()
