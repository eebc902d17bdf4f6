"""A run again: is code that was kept laid out byte for byte, and is each drift since named before the start?"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.benchmarks.harness import Sandbox, Server, connect
from tests.benchmarks.report import Row, Table
from tests.support.sandbox import Sandbox as Home
from tests.support.sshd import NAME, PROGRAM, FarHost

LONGEST_S = 400.0
_TRAIN = """
import os, pathlib, sys, time
print("step 1 loss 0.5", flush=True)
kept = pathlib.Path(os.environ["RECORDS"], os.environ["RUNWARD_RUN_ID"], "attempts/1/code/packages.txt")
until = time.monotonic() + 60
while not kept.exists() and time.monotonic() < until:
    time.sleep(0.05)
"""
_LARGE = bytes(range(256)) * 40


def _git(project: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", project, *who, *words], check=True, capture_output=True)


def _commit(project: Path) -> None:
    _git(project, "init", "-q")
    _git(project, "add", "-A")
    _git(project, "commit", "-qm", "one")


def _write(project: Path) -> None:
    (project / "pkg" / "deep").mkdir(parents=True)
    for name in ("train.py", "model.py", "pkg/__init__.py", "pkg/deep/part.py", "conf.yaml", "old.py"):
        (project / name).write_text(f"# {name}\nWIDTH = 1\n")
    (project / "train.py").write_text(_TRAIN)
    (project / "run.sh").write_text("#!/bin/sh\nexec true\n")


def _edit(project: Path, name: str, data: bytes) -> None:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_bytes(data)


def _add_submodule(project: Path) -> None:
    inner = project.with_name(f"{project.name}-inner")
    inner.mkdir()
    (inner / "lib.py").write_text("DEPTH = 3\n")
    _commit(inner)
    _git(project, "submodule", "add", "-q", str(inner), "lib")
    _git(project, "commit", "-qm", "two")


def _change_submodule(project: Path) -> None:
    _add_submodule(project)
    _edit(project, "lib/lib.py", b"DEPTH = 4\n")


def _stage(project: Path) -> None:
    _edit(project, "staged.py", b"S = 1\n")
    _git(project, "add", "staged.py")


def _link_and_allow(project: Path) -> None:
    (project / "run.sh").chmod(0o755)
    (project / "alias.py").symlink_to("pkg/deep/part.py")


def _no(_: Path) -> None:
    """Change nothing."""


_CASES: dict[str, tuple[bool, Callable[[Path], object]]] = {
    "git, clean": (True, _no),
    "git, changed": (True, lambda one: _edit(one, "model.py", b"WIDTH = 2\n")),
    "git, changed without a line's end": (True, lambda one: _edit(one, "model.py", b"WIDTH = 2")),
    "git, CRLF": (True, lambda one: _edit(one, "pkg/deep/part.py", b"A = 1\r\nB = 2\r\n")),
    "git, bytes that are no text": (True, lambda one: _edit(one, "model.py", b"# \xff\xfe\n" + _LARGE)),
    "git, untracked": (True, lambda one: _edit(one, "new/idea.py", b"X = 1\n")),
    "git, untracked of another language": (True, lambda one: _edit(one, "kernel.cu", b"__global__ void f() {}\n")),
    "git, deleted": (True, lambda one: (one / "old.py").unlink()),
    "git, renamed": (True, lambda one: (one / "old.py").rename(one / "newer.py")),
    "git, mode": (True, lambda one: (one / "run.sh").chmod(0o755)),
    "git, link": (True, lambda one: (one / "alias.py").symlink_to("model.py")),
    "git, staged": (True, _stage),
    "git, a name with spaces": (True, lambda one: _edit(one, "a name é.py", b"N = 1\n")),
    "git, empty file": (True, lambda one: _edit(one, "empty.py", b"")),
    "git, submodule": (True, _add_submodule),
    "git, submodule changed": (True, _change_submodule),
    "no git": (False, _no),
    "no git, mode and link": (False, _link_and_allow),
    "far host, git": (True, lambda one: _edit(one, "model.py", b"WIDTH = 2\n")),
    "far host, no git": (False, lambda one: _edit(one, "model.py", b"WIDTH = 2\n")),
}


def _read_tree(root: Path) -> dict[str, str]:
    """Return mode and digest of each file below a directory, the targets of links."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if ".git" in path.parts or "__pycache__" in path.parts:
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = f"{path.stat().st_mode & 0o111:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return found


def _spoil(project: Path) -> None:
    """Change what is there since: other contents, a new commit, files removed."""
    for path in project.rglob("*.py"):
        if ".git" not in path.parts and not path.is_symlink():
            path.write_text("raise SystemExit('the code of today')\n")
    (project / "run.sh").unlink(missing_ok=True)
    if (project / ".git").exists():
        _git(project, "add", "-A")
        _git(project, "commit", "-qm", "later")


async def _repeat_all(server: Server, sandbox: Sandbox, far: FarHost | None) -> dict[str, str]:
    """Return of each case what is other than it was; empty where the code is byte-equal."""
    former: dict[str, tuple[str, Path, dict[str, str]]] = {}
    for name, (uses_git, change) in _CASES.items():
        is_far = name.startswith("far")
        project = sandbox.work / name.replace(" ", "_").replace(",", "")
        project.mkdir()
        _write(project)
        if uses_git:
            _commit(project)
        change(project)
        if is_far and far is None:
            continue
        records = (far.state if is_far and far is not None else sandbox.root / "state") / "runs"
        more = {"host": NAME} if is_far else {}
        was = _read_tree(project)
        command = [sys.executable, "train.py"]
        run_id = await server.launch(command, cwd=str(project), name="kept", env={"RECORDS": str(records)}, **more)
        former[name] = (run_id, project, was)
    await server.wait([run_id for run_id, *_ in former.values()], timeout_s=120)
    told = {}
    for name, (run_id, project, was) in former.items():
        _spoil(project)
        again = (await server.call("launch_run", like=run_id, code="kept")).data["run_id"]
        state = far.state if name.startswith("far") and far is not None else sandbox.root / "state"
        now = _read_tree(state / "code" / again)
        differing = sorted(path for path in {*was, *now} if was.get(path) != now.get(path))
        await server.wait(again, timeout_s=90)
        log = (await server.call("read_log", run_id=again)).text
        told[name] = ", ".join(differing[:4]) or ("" if "step 1" in log else "it did not run")
    return told


# --- drift


def _lay_out(sandbox: Sandbox) -> tuple[Path, Path, list[str]]:
    project, venv = sandbox.work / "drift", sandbox.work / "venv"
    project.mkdir()
    _write(project)
    for number in range(20):
        _edit(project, f"pkg/code{number}.py", b"A = 1\n")
        _edit(project, f"conf{number}.yaml", b"lr: 0.1\nsteps: 10\n")
        _edit(project, f"data{number}.jsonl", b'{"a": 1}\n')
        kit = venv / f"lib/python3.11/site-packages/kit{number}-1.0.dist-info"
        kit.mkdir(parents=True)
        (kit / "METADATA").write_text(f"Name: kit{number}\nVersion: 1.0\n")
    (project / ".gitignore").write_text("*.jsonl\n")
    _commit(project)
    (venv / "bin").mkdir()
    python = Path(sys.executable).resolve()
    (venv / "bin" / "python").symlink_to(python)
    (venv / "pyvenv.cfg").write_text(f"home = {python.parent}\nversion = 3.11.1\n")
    configs = [word for number in range(20) for word in (f"--config{number}", f"conf{number}.yaml")]
    data = [word for number, name in enumerate(_DATA) for word in (f"--{name}", f"data{number}.jsonl")]
    return project, venv, [str(venv / "bin" / "python"), "train.py", *configs, *data]


_DATA = (
    *("train_file", "val-file", "dataset", "data", "data_path", "eval_data", "corpus", "motion_file", "urdf", "demos"),
    *("input", "features", "vocab", "annotations", "labels", "task_list", "prompts", "train", "test_csv", "replay"),
)
_VARIABLES = (
    *("OMP_NUM_THREADS", "PYTHONPATH", "LD_LIBRARY_PATH", "NCCL_P2P_DISABLE", "CUDA_HOME", "CUDA_LAUNCH_BLOCKING"),
    *("TORCH_HOME", "PYTORCH_CUDA_ALLOC_CONF", "HF_HOME", "XLA_FLAGS", "JAX_PLATFORMS", "MKL_NUM_THREADS"),
    *("TF_ENABLE_ONEDNN_OPTS", "NVIDIA_TF32_OVERRIDE", "MUJOCO_GL", "PYTHONHASHSEED"),
)


async def _drift_all(sandbox: Sandbox) -> dict[str, list[str]]:
    """Return by kind which of 20 injected drifts were not named."""
    project, venv, command = _lay_out(sandbox)
    launch = {"cwd": str(project), "name": "drift", "env": {"RECORDS": str(sandbox.home / "runs")}}
    async with sandbox.server() as server:
        run_id = await server.launch(command, **launch)
        await server.wait(run_id, timeout_s=90)

        async def tell(on: Server = server) -> str:
            answer = (await on.call("launch_run", like=run_id, dry_run=True)).data
            return "\n".join(one for one in answer.get("warnings", ()) if not one.startswith("Tried before"))

        missed: dict[str, list[str]] = {kind: [] for kind in ("code", "config", "package", "data", "environment")}
        before = await tell()
        changes: list[tuple[str, str, Callable[[], object], Callable[[], object]]] = []
        for number in range(20):
            for kind, name, data in (
                ("code", f"pkg/code{number}.py", b"A = 2\n"),
                ("config", f"conf{number}.yaml", b"lr: 0.2\nsteps: 10\n"),
                ("data", f"data{number}.jsonl", b'{"a": 2}\n' * (number % 2 + 1)),
            ):
                path = project / name
                old = path.read_bytes()
                changes.append((kind, path.name, partial(path.write_bytes, data), partial(path.write_bytes, old)))
            kit = venv / f"lib/python3.11/site-packages/kit{number}-1.0.dist-info"
            new = kit.with_name(f"kit{number}-2.0.dist-info")
            changes.append(("package", f"kit{number}", partial(kit.rename, new), partial(new.rename, kit)))
        for kind, name, act, undo in changes:
            act()
            said = (await tell()).replace(before, "")
            undo()
            if name not in said:
                missed[kind].append(name)
        configuration = venv / "pyvenv.cfg"
        for version in ("3.11.2", "3.12.0", "3.10.1", "3.9.0"):
            was = configuration.read_text()
            configuration.write_text(was.replace("3.11.1", version))
            if version not in await tell():
                missed["environment"].append(version)
            configuration.write_text(was)
    for name in _VARIABLES:
        async with sandbox.server(**{name: "1"}) as other:
            if name not in await tell(other):
                missed["environment"].append(name)
    return missed


async def measure(sandbox: Sandbox) -> Table:
    """Measure both, with a real sshd where one is installed."""
    far, home = None, Home(sandbox.root, sandbox.socket, sandbox.environment())
    home.environ["RUNWARD_HOME"] = str(sandbox.root / "state")
    if PROGRAM is not None:
        far = FarHost(home, sandbox.root / "far")
        far.start()
        far.write_hosts()
    try:
        parameters = sandbox.parameters(["-m", "mcp_server", "serve"], home.environ)
        async with connect(parameters, sandbox.root / "server.log") as server:
            told = await _repeat_all(server, sandbox, far)
    finally:
        if far is not None:
            far.close()
    missed = await _drift_all(sandbox)
    equal = sum(not differs for differs in told.values())
    rows = [Row('code="kept", byte-equal', f"{equal} of {len(told)}", bar="20 of 20", ok=equal == len(_CASES))]
    for kind, names in missed.items():
        rows.append(Row(f"drift named: {kind}", f"{20 - len(names)} of 20", bar="20 of 20", ok=not names))
    notes = [f"{name}: {differs}." for name, differs in told.items() if differs]
    notes += [f"Not named, {kind}: {', '.join(names)}." for kind, names in missed.items() if names]
    return Table("A run again", tuple(rows), tuple(notes))
