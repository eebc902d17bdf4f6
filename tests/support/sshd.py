"""A real sshd on loopback that plays another machine: its runs, tmux server and leases are apart from this one's."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.sandbox import Sandbox, until

PROGRAM = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:/usr/bin")
_TMUX = shutil.which("tmux") or "tmux"
NAME = "lab"
needs_sshd = pytest.mark.skipif(PROGRAM is None, reason="no sshd is installed")


@dataclass
class FarHost:
    """A machine that the name ``lab`` of ssh leads to. ``path`` is the sandbox's directory for it."""

    sandbox: Sandbox
    path: Path
    port: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def socket(self) -> str:
        """The name of its tmux server."""
        return f"{self.sandbox.socket}-far"

    @property
    def log(self) -> str:
        return (self.path / "sshd.log").read_text()

    @property
    def pid(self) -> int:
        return self._processes[-1].pid

    @property
    def logins(self) -> int:
        return self.log.count("Accepted publickey")

    def start(self, **settings: str) -> None:
        """Start sshd, and let the sandbox's ``ssh`` find it under the name ``lab``."""
        (self.path / "home").mkdir(mode=0o700, parents=True, exist_ok=True)
        for key in ("host", "id"):
            if not (self.path / key).exists():
                command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.path / key)]
                subprocess.run(command, check=True)
        if not self.port:
            self.port = free_port()
        shutil.copy(self.path / "id.pub", self.path / "authorized_keys")
        lines = {
            "ListenAddress": "127.0.0.1",
            "Port": str(self.port),
            "HostKey": str(self.path / "host"),
            "PidFile": str(self.path / "sshd.pid"),
            "AuthorizedKeysFile": str(self.path / "authorized_keys"),
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "UsePAM": "no",
            "StrictModes": "no",
            "MaxStartups": "200",
            "SetEnv": f"HOME={self.path / 'home'}",
            **settings,
        }
        (self.path / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        Path("/run/sshd").mkdir(exist_ok=True)
        command = [str(PROGRAM), "-D", "-f", str(self.path / "sshd_config"), "-E", str(self.path / "sshd.log")]
        self._processes.append(subprocess.Popen(command, start_new_session=True))
        until(self._listens, "sshd")
        key = " ".join((self.path / "host.pub").read_text().split()[:2])
        if not (self.path / "known_hosts").exists():
            (self.path / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}\n")
        self.connect_through(self.port)
        self._install_client()

    def connect_through(self, port: int) -> None:
        """Let the name ``lab`` lead to a port, the host's own or one of a line to it."""
        (self.path / "config").write_text(
            f"Host {NAME}\n  HostName 127.0.0.1\n  Port {port}\n  User {self._user()}\n"
            f"  HostKeyAlias [127.0.0.1]:{self.port}\n"
            f"  IdentityFile {self.path}/id\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.path}/known_hosts\n"
            "  StrictHostKeyChecking yes\n"
        )

    def _install_client(self) -> None:
        """Put an ``ssh`` first in the PATH that reads this host's configuration instead of the user's."""
        client = self.path / "bin" / "ssh"
        client.parent.mkdir(exist_ok=True)
        ssh = shutil.which("ssh", path=os.defpath)
        client.write_text(f'#!/bin/sh\nexec {ssh} -F {shlex.quote(str(self.path / "config"))} "$@"\n')
        client.chmod(0o755)
        words = [word for word in self.sandbox.environ["PATH"].split(":") if word != str(client.parent)]
        self.sandbox.environ["PATH"] = ":".join([str(client.parent), *words])

    def write_hosts(self, **more: str) -> None:
        """Write the hosts.toml that leads here."""
        prepare = f"export RUNWARD_TMUX_SOCKET={self.socket} RUNWARD_LEASES={self.path / 'leases'}"
        values = {"ssh": NAME, "state": str(self.state), "prepare": prepare, **more}
        if "prepare" in more:
            values["prepare"] = f"{prepare}; {more['prepare']}"
        home = self.sandbox.path / "state"
        home.mkdir(mode=0o700, exist_ok=True)
        lines = [f"{name} = '{value}'\n" for name, value in values.items() if value and name != "rewrites"]
        if rewrites := values.get("rewrites"):  # FROM=TO
            here, _, there = rewrites.partition("=")
            lines.append(f"rewrites = {{ '{here}' = '{there}' }}\n")
        (home / "hosts.toml").write_text(f"[hosts.{NAME}]\n{''.join(lines)}")

    def cut_connections(self) -> None:
        """Kill the sshd processes that serve connections, without a word to the other side."""
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):  # it ended with another one
                os.kill(pid, signal.SIGKILL)

    def freeze_connections(self) -> list[int]:
        """Stop the sshd processes that serve connections: packets vanish, and nobody says so. Return their ids."""
        pids = self.sessions()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    def relays(self) -> list[int]:
        """The relays that run for this host."""
        mark = str(self.state)
        return [p.pid for p in self.sandbox.own_processes() if _is_relay(p.pid, mark)]

    def stop(self) -> None:
        """Stop sshd: the host is away."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()
        self.cut_connections()

    def close(self) -> None:
        self.stop()
        subprocess.run([_TMUX, "-L", self.socket, "kill-server"], capture_output=True, check=False)
        Path(f"/tmp/tmux-{os.getuid()}/{self.socket}").unlink(missing_ok=True)

    def sessions(self) -> list[int]:
        """The sshd processes that serve connections to this host."""
        mark = f"sshd: {self._user()}"
        pids = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if not (entry / "cmdline").read_bytes().decode(errors="replace").startswith(mark):
                    continue
                if str(self.port) in _local_ports(int(entry.name)):
                    pids.append(int(entry.name))
            except OSError:
                continue
        return pids

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def _user(self) -> str:
        return getpass.getuser()


def _is_relay(pid: int, mark: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"runward-relay")
    except OSError:
        return False


def _local_ports(pid: int) -> set[str]:
    """The local ports of a process's connections."""
    inodes: dict[str, str] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        inodes[words[9]] = str(int(words[1].rpartition(":")[2], 16))
    ports = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            ports.add(inodes.get(target[8:-1], ""))
    return ports
