"""A real Slurm on loopback: munged, slurmctld and two slurmd in one directory; nothing is left of them.

With accounting also slurmdbd and its database.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.sandbox import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
ACCOUNTING_PROGRAMS = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db", "mariadb")
NODES = ("n1", "n2")
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={path}/m/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
{accounting}
{jobcomp}
MpiDefault=none
KillWait={kill_wait_s}
MinJobAge={min_job_age_s}
SlurmdTimeout=10
SlurmdParameters=config_overrides
DefMemPerCPU=100
SchedulerParameters=sched_interval=1,batch_sched_delay=0
StateSaveLocation={path}/state
SlurmdSpoolDir={path}/spool-%n
SlurmctldPidFile={path}/slurmctld.pid
SlurmdPidFile={path}/slurmd-%n.pid
SlurmctldLogFile={path}/slurmctld.log
SlurmdLogFile={path}/slurmd-%n.log
ReturnToService=2
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=8 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=8 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=short Nodes=n1,n2 MaxTime=1 State=UP OverSubscribe=NO
{partitions}
"""
_PREEMPTING = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=requeued Nodes=n1,n2 PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s} State=UP
PartitionName=cancelled Nodes=n1,n2 PriorityTier=1 PreemptMode=CANCEL GraceTime={grace_s} State=UP
PartitionName=urgent Nodes=n1,n2 PriorityTier=9 PreemptMode=OFF State=UP
"""
_ACCOUNTING = """\
AuthType=auth/munge
AuthInfo=socket={path}/m/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={path}/slurmdbd.log
PidFile={path}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


def why_not(*more: str) -> str:
    """Return why a real Slurm cannot be brought up here, or empty. ``more``: further programs that it takes."""
    missing = [program for program in (*PROGRAMS, *more) if shutil.which(program, path=_PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "only root brings up a Slurm with munge here"


@dataclass
class Cluster:
    path: Path
    kill_wait_s: int = 8
    min_job_age_s: int = 300
    has_jobcomp: bool = True
    has_accounting: bool = False
    grace_s: int | None = None  # of preempted jobs; None: there are no partitions that preempt
    environ: dict[str, str] = field(default_factory=dict)
    _ports: list[int] = field(default_factory=list)
    _database: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        self._ports = _free_ports(5)
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o755)
        for name in ("state", "m", *(f"spool-{node}" for node in NODES)):
            (self.path / name).mkdir(mode=0o755, exist_ok=True)
        key = self.path / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self._write_conf()
        for number in range(2):  # character devices, so that CUDA_VISIBLE_DEVICES is really set
            if not (self.path / f"gpu{number}").exists():
                os.mknod(self.path / f"gpu{number}", 0o20600, os.makedev(1, 3))
        gres = "".join(f"NodeName={n} Name=gpu Flags=nvidia_gpu_env File={self.path}/gpu[0-1]\n" for n in NODES)
        (self.path / "gres.conf").write_text(gres)
        (self.path / "cgroup.conf").write_text("CgroupAutomount=no\n")
        self.environ = {"SLURM_CONF": str(self.path / "slurm.conf"), "PATH": _PATH}
        munge = self.path / "m"
        words = ["--force", f"--socket={munge}/munge.sock", f"--key-file={key}", f"--log-file={munge}/munged.log"]
        self.run("munged", *words, f"--pid-file={munge}/munged.pid", f"--seed-file={munge}/seed")
        if self.has_accounting:
            self._start_database()
            self.start_accounting()
            until(lambda: "lab" in self.run("sacctmgr", "-i", "add", "cluster", "lab", check=False), "slurmdbd")
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        until(lambda: set(self.run("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}, "idle nodes")

    def _write_conf(self) -> None:
        jobcomp = f"JobCompType=jobcomp/filetxt\nJobCompLoc={self.path}/jobcomp.txt" if self.has_jobcomp else ""
        accounting = "AccountingStorageType=accounting_storage/none"
        if self.has_accounting:
            accounting = (
                "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\n"
                f"AccountingStoragePort={self._ports[3]}\nAccountingStoragePass={self.path}/m/munge.sock"
            )
        conf = _CONF.format(
            accounting=accounting,
            partitions="" if self.grace_s is None else _PREEMPTING.format(grace_s=self.grace_s),
            path=self.path,
            host=socket.gethostname(),
            port=self._ports[0],
            port1=self._ports[1],
            port2=self._ports[2],
            jobcomp=jobcomp,
            kill_wait_s=self.kill_wait_s,
            min_job_age_s=self.min_job_age_s,
        )
        (self.path / "slurm.conf").write_text(conf)

    def _start_database(self) -> None:
        data, socket_file = self.path / "data", self.path / "m" / "db.sock"
        own = ["--no-defaults", "--user=root", f"--datadir={data}"]
        self.run("mariadb-install-db", *own, "--auth-root-authentication-method=normal")
        words = [*own, f"--socket={socket_file}", "--bind-address=127.0.0.1", f"--port={self._ports[4]}"]
        words += [f"--pid-file={self.path}/mariadbd.pid", f"--log-error={self.path}/mariadbd.log"]
        environ = {**self.environ, "HOME": str(self.path)}
        self._database = subprocess.Popen(["mariadbd", *words], env=environ, stdout=subprocess.DEVNULL)
        admin = ["mariadb", "--no-defaults", f"--socket={socket_file}", "-e"]
        until(socket_file.exists, "the database")
        self.run(*admin, "GRANT ALL ON slurm.* TO slurm@'127.0.0.1' IDENTIFIED BY 'slurm'")
        text = _ACCOUNTING.format(path=self.path, port=self._ports[3], database_port=self._ports[4])
        (self.path / "slurmdbd.conf").write_text(text)
        (self.path / "slurmdbd.conf").chmod(0o600)

    def start_accounting(self) -> None:
        self.run("slurmdbd")

    def stop_accounting(self) -> None:
        self._end(self.path / "slurmdbd.pid")

    def start_controller(self) -> None:
        self.run("slurmctld")

    def remember_jobs(self, min_job_age_s: int) -> None:
        """Let the controller forget ended jobs after ``min_job_age_s``."""
        self.min_job_age_s = min_job_age_s
        self._write_conf()
        self.run("scontrol", "reconfigure")

    def start_node(self, node: str) -> None:
        self.run("slurmd", "-N", node)

    def stop_controller(self) -> None:
        self._end(self.path / "slurmctld.pid")

    def kill_node(self, node: str) -> None:
        """Let a node die with all its jobs' processes: slurmd, its step daemons, and what they started.

        The daemons are frozen first: a node that dies reports no end of a process.
        """
        mark, conf = f"SLURMD_NODENAME={node}".encode(), str(self.path).encode()
        started: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = (process / "environ").read_bytes()
                started += [int(process.name)] if conf in environ and mark in environ else []
        daemons = {int((self.path / f"slurmd-{node}.pid").read_text()), *filter(_is_step_daemon, map(_parent, started))}
        for number, pids in ((signal.SIGSTOP, daemons), (signal.SIGKILL, started), (signal.SIGKILL, daemons)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._end(self.path / f"slurmd-{node}.pid", signal.SIGKILL)

    def run(self, *words: str, check: bool = True) -> str:
        environ = {"HOME": os.environ.get("HOME", "/root"), **self.environ, "PATH": _PATH}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
        return done.stdout

    def down(self) -> None:
        self.run("scancel", "--me", check=False)
        for name in ("slurmctld.pid", *(f"slurmd-{node}.pid" for node in NODES), "slurmdbd.pid", "m/munged.pid"):
            self._end(self.path / name)
        if self._database is not None:
            self._database.terminate()
            self._database.wait()
        conf = str(self.path).encode()
        for process in Path("/proc").glob("[0-9]*"):  # step daemons and what they started
            try:
                if conf in (process / "environ").read_bytes() and int(process.name) != os.getpid():
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue

    def _end(self, pid_file: Path, number: signal.Signals = signal.SIGTERM) -> None:
        try:
            pid = int(pid_file.read_text())
            os.kill(pid, number)
        except (OSError, ValueError):
            return
        give_up_s = time.monotonic() + 20
        while Path(f"/proc/{pid}").exists() and time.monotonic() < give_up_s:
            time.sleep(0.05)
        pid_file.unlink(missing_ok=True)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _is_step_daemon(pid: int) -> bool:
    try:
        return b"slurmstepd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
