"""hosts.toml says which machine this is and what runs get here; what is wrong in it is named with its key."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mcp_server.errors import BadArgument, ConfigInvalid
from mcp_server.hosts.config import (
    Environment,
    Host,
    HostsFile,
    Ray,
    find_foreign_roots,
    find_this_host,
    read_hosts_file,
)
from mcp_server.store.state_home import StateHome

WHOLE = f"""
[hosts.machine1]
hostnames = ["{socket.gethostname()}"]
roots = ["/data/scalelab/"]
rewrites = {{ "/data/scalelab2" = "/data/scalelab" }}
python = "/data/envs/rl/bin/python"
keyword = "ajet"
first_step_timeout_s = 900
first_step_pattern = "kl loss"
environment = "robot"
[hosts.machine2]
roots = ["/data/scalelab2"]
[environments.robot]
env = {{ MUJOCO_GL = "egl", OMP_NUM_THREADS = 4, http_proxy = "http://proxy:3128", MAX_TOKENS = "4096" }}
secrets = ["WANDB_API_KEY"]
python = "/data/envs/robot/bin/python"
pythonpath = ["/data/scalelab/src"]
[environments.robot.ray]
ports = "20000-20010"
capacity_threshold = 0.98
[environments.plain]
"""


def read(text: str, home: Path) -> HostsFile:
    (home / "hosts.toml").write_text(text)
    return read_hosts_file(StateHome(home))


def test_everything_in_the_file_is_read(tmp_path: Path) -> None:
    site = read(WHOLE, tmp_path)
    host = find_this_host(site)
    assert host == Host(
        name="machine1",
        hostnames=[socket.gethostname()],
        roots=["/data/scalelab"],
        rewrites={"/data/scalelab2": "/data/scalelab"},
        python="/data/envs/rl/bin/python",
        keyword="ajet",
        first_step_timeout_s=900,
        first_step_pattern="kl loss",
        environment="robot",
    )
    assert site.environment(None, host) == Environment(
        env={"MUJOCO_GL": "egl", "OMP_NUM_THREADS": "4", "http_proxy": "http://proxy:3128", "MAX_TOKENS": "4096"},
        secrets=["WANDB_API_KEY"],
        python="/data/envs/robot/bin/python",
        pythonpath=["/data/scalelab/src"],
        ray=Ray(ports="20000-20010", capacity_threshold=0.98),
    )
    assert site.environment("plain", host) == site.environment("none", host) == Environment()


def test_no_file_means_this_host_and_no_environments(tmp_path: Path) -> None:
    site = read_hosts_file(StateHome(tmp_path / "none"))
    assert site == HostsFile()
    assert find_this_host(site, socket.gethostname()).name == socket.gethostname()
    assert find_this_host(site, "localhost") == find_this_host(site)
    assert site.environment(None, find_this_host(site)) == Environment()
    with pytest.raises(BadArgument, match=r"^environment: there is no 'robot' in hosts.toml. There are none\."):
        site.environment("robot", find_this_host(site))


@pytest.mark.parametrize("name", ["machine1", "MACHINE1", socket.gethostname(), f"{socket.gethostname()}.lab.org"])
def test_this_machine_has_many_names(name: str, tmp_path: Path) -> None:
    assert find_this_host(read(WHOLE, tmp_path), name).name == "machine1"


def test_a_run_for_another_machine_is_refused_by_its_name(tmp_path: Path) -> None:
    site = read(WHOLE, tmp_path)
    with pytest.raises(BadArgument, match=r"machine2 is another machine, this is machine1: a run is started on the"):
        find_this_host(site, "machine2")
    with pytest.raises(BadArgument, match=r"'mars' is not known. There are machine1, machine2; this is machine1"):
        find_this_host(site, "mars")
    with pytest.raises(BadArgument, match="There are robot, plain, none"):
        site.environment("robots", find_this_host(site))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[host.a]", "host: Extra inputs are not permitted."),
        ("[hosts.a]\nroot = ['/x']", "hosts.a.root: Extra inputs are not permitted."),
        ("[hosts.a]\nroots = ['x']", "hosts.a.roots.0: must be an absolute path, not 'x'."),
        ("[hosts.a]\nroots = ['/']", "hosts.a.roots.0: must be an absolute path, not '/'."),
        ("[hosts.a]\nrewrites = { 'x' = '/y' }", "hosts.a.rewrites.x.[key]: must be an absolute path, not 'x'."),
        ("[hosts.a]\npython = 'python'", "hosts.a.python: must be an absolute path, not 'python'."),
        ("[hosts.a]\nkeyword = 'a b'", "hosts.a.keyword: String should match pattern"),
        ("[hosts.a]\nfirst_step_timeout_s = 0", "hosts.a.first_step_timeout_s: Input should be greater than 0."),
        ("[hosts.a]\nfirst_step_pattern = '('", "hosts.a.first_step_pattern: Pattern not usable"),
        ("[hosts.a]\nenvironment = 'x'", "hosts.a.environment: there is no [environments.x]."),
        ("[hosts.a]\n[hosts.b]\nhostnames = ['A']", "hosts.b: 'A' is hosts.a already."),
        ("[hosts.a]\nray_address = 'head:6379'", "hosts.a.ray_address: must be the address of a Ray dashboard"),
        ("[hosts.a]\nray_address = 'http://bob:hunter22@h'", "hosts.a.ray_address: must be the address of a Ray"),
        ("[hosts.a]\nprepare = 'export HF_TOKEN=hunter2291x'", "hosts.a.prepare: holds a secret, which others"),
        ("[hosts.'a b']", "hosts.a b: a name has letters, digits, '.', '_' and '-'."),
        (
            "[environments.e]\nenv = { WANDB_API_KEY = 'abcdef123' }",
            "environments.e.env: WANDB_API_KEY looks like a secret: name it in secrets instead.",
        ),
        (
            "[environments.e]\nenv = { https_proxy = 'http://bob:hunter22@proxy:1' }",
            "environments.e.env: https_proxy looks like a secret",
        ),
        ("[environments.e]\nenv = { A = 'hf_AbCdEfGhIjKlMnOp' }", "environments.e.env: A looks like a secret"),
        ("[environments.e]\nenv = { 'A B' = 'x' }", "environments.e.env: 'A B' cannot be set."),
        ("[environments.e]\nenv = { RUNWARD_HOME = 'x' }", "environments.e.env: 'RUNWARD_HOME' cannot be set."),
        ("[environments.e.ray]\nports = '1'", 'environments.e.ray.ports: must be two ports, as in "20000-30000".'),
        ("[environments.e.ray]\nports = '9-1'", "environments.e.ray.ports: must be two ports"),
        ("[environments.e.ray]\nnamespace = '{x}'", "environments.e.ray.namespace: knows {run_id} and {port}"),
        ("hosts = [", "Invalid value"),
    ],
)
def test_a_refusal_names_the_file_and_the_key(text: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        read(text, tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/hosts.toml: {cause}")
    assert "hunter22" not in str(refused.value)
    assert "AbCdEf" not in str(refused.value)


def test_the_only_roots_of_two_hosts_hold_the_same_files() -> None:
    here = Host(name="a", roots=["/data/x"], rewrites={"/home/bob": "/home/al"})
    others = {
        "b": Host(name="b", roots=["/data/y"]),
        "c": Host(name="c", roots=["/srv/1", "/srv/2"]),
        "d": Host(name="d", roots=["/data/x/nested"]),
    }
    assert find_foreign_roots(HostsFile(hosts={"a": here, **others}), here) == {
        "/home/bob": "/home/al",
        "/data/y": "/data/x",
        "/srv/1": None,
        "/srv/2": None,
    }


def test_limits_of_a_host_tighten_what_a_launch_requires() -> None:
    host = Host(power_limit_w=275, max_sm_clock_mhz=1700)
    assert host.tighten(None) == {
        "power_limit_w": 275,
        "max_sm_clock_mhz": 1700,
        "clock_confirmed": True,  # by the person who wrote it
    }
    assert host.tighten({"max_sm_clock_mhz": 1700}, takes_several=False) == {
        "max_sm_clock_mhz": 1700,
        "clock_confirmed": True,
    }
    assert host.tighten({"max_sm_clock_mhz": 1600}, takes_several=False) == {"max_sm_clock_mhz": 1600}
    assert host.tighten({"power_limit_w": 200, "free_memory_mib": 1}) == {
        "power_limit_w": 200,
        "free_memory_mib": 1,
        "max_sm_clock_mhz": 1700,
        "clock_confirmed": True,
    }
    assert host.tighten({"power_limit_w": 400})["power_limit_w"] == 275  # type: ignore[index]
    assert Host().tighten(None) is None
    assert Host().tighten({"count": 2}) == {"count": 2}
