"""Every program of examples/, as a reader runs it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import fake_nvml, fake_slurm, warm_start
from tests.support.sandbox import Sandbox
from tests.support.sshd import NAME, FarHost, needs_sshd

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


# Starts the server of a client by a fork. Commands of runs have the interpreter itself.
WARM = """
import runpy, sys
from mcp.client import stdio
command, name, *sys.argv[1:] = sys.argv[1].split("\\n"), *sys.argv[2:]
start = stdio.StdioServerParameters
def warm(**server):
    assert server["args"] == ["-m", "mcp_server", "serve"], server
    return start(**server | {"command": command[0], "args": [*command[1:], "serve"]})
stdio.StdioServerParameters = warm
sys.path.insert(0, name.rpartition("/")[0])
runpy.run_path(name, run_name="__main__")
"""


def run(sandbox: Sandbox, name: str, *words: str, cold: bool = False) -> str:
    """Run an example to its end, and return what it printed. ``cold``: with a server that is no fork, as readers do."""
    program = [sys.executable, str(EXAMPLES / f"{name}.py"), *words]
    if not cold:
        program[1:1] = ["-c", WARM, "\n".join(warm_start.command())]
    environ = {**sandbox.environ, "TMPDIR": str(sandbox.path)}
    done = subprocess.run(program, env=environ, cwd=sandbox.path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_gpu_leases_a_cpu_slot_where_there_is_no_gpu(sandbox: Sandbox) -> None:
    said = run(sandbox, "one_gpu", cold=True)
    assert "gpus='cpu:1'" in said
    assert "finished" in said
    assert "eval_loss 0.0" in said.partition(">>> read_tb")[2]


def test_one_gpu_leases_a_gpu_where_there_is_one(sandbox: Sandbox) -> None:
    sandbox.environ.update(fake_nvml.machine(sandbox.path).environ)
    said = run(sandbox, "one_gpu")
    assert "gpus=1" in said
    (launched,) = sandbox.store.list_runs()
    assert (launched.state, launched.gpu_indices) == ("finished", (0,))


def test_retry_halves_the_batch_until_it_fits(sandbox: Sandbox) -> None:
    said = run(sandbox, "retry")
    (launched,) = sandbox.store.list_runs()
    assert (launched.state, launched.attempt) == ("finished", 2)
    assert "batch_size" in said
    assert "64" in said.partition(">>> compare_runs")[2]


def test_sweep_ranks_three_learning_rates(sandbox: Sandbox) -> None:
    said = run(sandbox, "sweep")
    assert len(sandbox.store.list_runs()) == 6
    assert re.search(r"best.*0\.05", said.partition(">>> compare_runs")[2], re.DOTALL)


def test_research_keeps_what_pairs_of_runs_prove(sandbox: Sandbox) -> None:
    said = run(sandbox, "research")
    rows = re.findall(r"(t\d)\|[^|]*\|(\w+)\|", said.rpartition(">>> compare_runs")[2])
    verdicts = [("t0", "kept"), ("t1", "kept"), ("t2", "discarded"), ("t3", "invalid"), ("t4", "repeat")]
    assert rows == verdicts
    project = Path(said.splitlines()[-1].partition("/results.tsv")[0])
    table = [line.split("\t") for line in (project / "results.tsv").read_text().splitlines()]
    assert [(row[5], row[3]) for row in table[1:]] == [
        *(("t0", "keep"), ("t1", "keep"), ("t2", "discard"), ("t3", "invalid"), ("t4", "repeat"))
    ]
    assert "LEARNING_RATE = 0.01" in (project / "train.py").read_text()
    kept = subprocess.run(
        ["git", "-C", str(project), "show", f"runward/{project.parent.name}:train.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "LEARNING_RATE = 0.02" in kept.stdout


def test_blueprint_leaves_its_log_its_results_and_its_flag(sandbox: Sandbox) -> None:
    results = Path(run(sandbox, "blueprint").splitlines()[-1].split(" has ")[0])
    assert {path.name for path in results.iterdir()} >= {"experiment_log.md", "results.md", "finish.flag"}
    assert "Converges" in (results / "results.md").read_text()


@needs_sshd
def test_ssh_sends_the_code_and_reads_the_curve_here(sandbox: Sandbox, far_host: FarHost) -> None:
    far_host.write_hosts()
    said = run(sandbox, "ssh", NAME)
    assert "step 200/200" in said
    assert "eval_loss" in said.partition(">>> read_tb")[2]
    assert list((far_host.state / "code").rglob("train.py"))


def test_slurm_shows_the_script_and_runs_as_a_job(sandbox: Sandbox) -> None:
    fake_slurm.install(sandbox.path / "slurm")
    sandbox.environ["PATH"] = f"{sandbox.path / 'slurm'}:{sandbox.environ['PATH']}"
    said = run(sandbox, "slurm")
    assert "#SBATCH --time=10" in said
    assert "step 200/200" in said.partition(">>> read_log")[2]


def test_slurm_says_what_is_missing_elsewhere(sandbox: Sandbox) -> None:
    if shutil.which("sbatch"):
        pytest.skip("Slurm is installed here")
    program = [sys.executable, str(EXAMPLES / "slurm.py")]
    done = subprocess.run(program, env=sandbox.environ, capture_output=True, text=True, check=False)
    assert (done.returncode, "sbatch is not in PATH" in done.stderr) == (1, True)


def test_the_page_of_the_examples_names_each_of_them() -> None:
    named = set(re.findall(r"\(([\w.]+)\)", (EXAMPLES / "README.md").read_text()))
    assert named == {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".md")} - {
        *("README.md", "agent.py", "train.py")
    }
