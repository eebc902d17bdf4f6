"""The programs of Slurm at the command line, with a real process behind each job: no scheduling, no nodes.

Run as sbatch, squeue, scancel, scontrol or sacct. Jobs are directories beside the programs. A file ``full`` lets new
jobs wait, ``down`` lets the controller not answer, ``held`` lets sbatch take no job until it is removed. ``queries``
counts calls of squeue, ``submissions`` has a line for each call of sbatch with a job.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(sys.argv[0]).parent
JOBS = HERE / "jobs"
PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "sacct")
HELD = ("RUNNING", "COMPLETING")
KILL_WAIT_S = 5  # unless a file kill_wait_s holds another


def install(directory: Path) -> None:
    """Put the programs into ``directory``, for PATH."""
    (directory / "jobs").mkdir(parents=True)
    here = Path(__file__)  # imported, since Python keeps what it has compiled of a module alone
    lines = (f"#!{sys.executable} -IS", "import sys", f"sys.path.append({str(here.parent)!r})", f"import {here.stem}")
    source = "\n".join((*lines, f"sys.exit({here.stem}.main())", ""))
    for program in PROGRAMS:
        (directory / program).write_text(source)
        (directory / program).chmod(0o755)


def read(job: Path, name: str) -> str:
    try:
        return (job / name).read_text()
    except OSError:
        return ""


def write(job: Path, name: str, text: str) -> None:
    (job / f".{name}").write_text(text)
    (job / f".{name}").rename(job / name)


def options_of(script: str) -> dict[str, str]:
    return dict(re.findall(r'^#SBATCH --([a-z-]+)=?"?([^"\n]*)', script, re.MULTILINE))


def members(job_id: str) -> list[int]:
    """The processes of a job, by its id in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "environ").read_bytes().split(b"\0")
            if f"SLURM_JOB_ID={job_id}".encode() in words and f"FAKE_SLURM={HERE}".encode() in words:
                found.append(int(process.name))
    return found


def kill_wait_s() -> int:
    return int(read(HERE, "kill_wait_s") or KILL_WAIT_S)


def signal_all(job_id: str, number: int) -> list[int]:
    pids = members(job_id)
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    return pids


def start(job: Path) -> None:
    """Run the batch script in a process that notes its end, as slurmstepd does."""
    if os.fork():
        return
    os.setsid()
    for fd in (0, 1, 2):  # of the sbatch that a caller reads to its end
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    while (former := read(job, "pid")) and Path(f"/proc/{former}").exists():  # the processes of the job before
        time.sleep(0.02)
    options = options_of(read(job, "script"))
    restarts = read(job, "restarts") or "0"
    environ = {**os.environ, "SLURM_JOB_ID": job.name, "SLURM_JOB_NAME": options["job-name"]}
    environ |= {"FAKE_SLURM": str(HERE), "SLURM_RESTART_COUNT": restarts}
    array, _, index = job.name.partition("_")
    if index:
        environ |= {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": index}
    if "gres" in options:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(int(options["gres"].rpartition(":")[2]))))
    out = os.open(
        options["output"].replace("%a", index).replace("%%", "%"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    (job / "pid").unlink(missing_ok=True)
    write(job, "state", "RUNNING")  # the controller says so before the command begins
    child = subprocess.Popen(
        ["bash", str(job / "script")],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        cwd=options["chdir"],
        start_new_session=True,
    )
    write(job, "pid", str(child.pid))
    code = child.wait()
    if read(job, "state") in HELD and (read(job, "restarts") or "0") == restarts:
        write(job, "code", f"{max(code, 0)}:{max(-code, 0)}")
        write(job, "ended", str(int(time.time())))
        write(job, "state", "COMPLETED" if code == 0 else "FAILED")
    start_next(array)
    os._exit(0)


def number_of(job: Path) -> tuple[int, ...]:
    return tuple(map(int, job.name.split("_")))


def start_next(array: str) -> None:
    """Start the next waiting element of an array, once."""
    for job in sorted(JOBS.glob(f"{array}_*"), key=number_of):
        if read(job, "state") == "PENDING" and not (HERE / "full").exists():
            with contextlib.suppress(FileExistsError):
                (job / "claimed").mkdir()
                return start(job)
    return None


def end(job: Path, state: str) -> None:
    """End a job in ``state``: SIGTERM to all, and SIGKILL to who is left after KillWait."""
    was = read(job, "state")
    write(job, "ended", str(int(time.time())))
    write(job, "state", state)
    if was in HELD:
        give_up_s = time.monotonic() + kill_wait_s()
        pids = signal_all(job.name, signal.SIGTERM)
        while (pids := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < give_up_s:
            time.sleep(0.02)
        for pid in pids:  # not who came since: they start the job again
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def sbatch(words: list[str]) -> int:
    script = Path(words[-1]).read_text()
    if options_of(script).get("partition") == "nope":
        return fail("sbatch: error: invalid partition specified: nope")
    if "--test-only" in words:
        print("sbatch: Job 1 to start at 1795399628 using 1 processors on nodes n1 in partition debug", file=sys.stderr)
        return 0
    with (HERE / "submissions").open("a") as submissions:
        submissions.write("\n")
    while (HERE / "held").exists():
        time.sleep(0.02)
    number = max((number_of(job)[0] for job in JOBS.iterdir()), default=0) + 1
    while True:
        try:
            (JOBS / str(number)).mkdir()
            break
        except FileExistsError:
            number += 1
    job = JOBS / str(number)
    if array := options_of(script).get("array"):
        elements, _, at_once = array.partition("%")
        for index in range(int(elements.partition("-")[2]) + 1):
            element = JOBS / f"{number}_{index}"
            element.mkdir()
            write(element, "script", script)
            write(element, "state", "PENDING")
        answer(number)
        for _ in range(int(at_once or 1000)):
            start_next(str(number))
        return 0
    write(job, "script", script)
    write(job, "state", "PENDING")
    answer(number)
    if not (HERE / "full").exists():
        start(job)
    return 0


def answer(number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # who submitted the job died; it starts all the same
        print(number, flush=True)


def squeue(words: list[str]) -> int:
    with (HERE / "queries").open("a") as file:
        file.write("squeue\n")
    assert words == ["--me", "-h", "-r", "-t", "all", "-o", "%i|%T|%S|%N|%r|%j"], words
    for job in sorted(JOBS.iterdir(), key=number_of):
        state = read(job, "state")
        if state:
            reason = "Resources" if state == "PENDING" else "None"
            print(f"{job.name}|{state}|N/A|n1|{reason}|{options_of(read(job, 'script')).get('job-name', '')}")
    return 0


def scancel(words: list[str]) -> int:
    job = JOBS / words[-1]
    state = read(job, "state")
    if "--batch" in words:
        if state not in HELD:
            return fail("scancel: error: Kill job error: Job/step already completing or completed")
        while not (pid := read(job, "pid")):
            time.sleep(0.01)
        os.kill(int(pid), signal.SIGTERM)
    elif state in ("PENDING", *HELD):
        end(job, "CANCELLED")
    return 0


def scontrol(words: list[str]) -> int:
    if words[:2] == ["show", "config"]:
        print(f"KillWait                = {kill_wait_s()} sec\nJobCompLoc              = /dev/null")
        return 0
    job = JOBS / words[2 if words[0] == "show" else 1]
    if not read(job, "state"):
        return fail("slurm_load_jobs error: Invalid job id specified")
    if words[0] == "requeue":
        write(job, "restarts", str(int(read(job, "restarts") or 0) + 1))
        end(job, "PENDING")
        start(job)
        return 0
    if words[0] == "release":
        start(job)
        return 0
    if words[0] == "end":  # what no command of Slurm's can do: the site ends a job in this state
        end(job, words[2])
        return 0
    array, _, index = job.name.partition("_")
    facts = {"ArrayJobId": array, "ArrayTaskId": index} if index else {}
    facts |= {
        "JobId": "99" if index else job.name,
        "JobName": options_of(read(job, "script")).get("job-name", ""),
        "JobState": read(job, "state"),
        "Restarts": read(job, "restarts") or "0",
    }
    facts |= {"ExitCode": read(job, "code") or "0:0", "EndTime": read(job, "ended") or "Unknown"}
    print(" ".join(f"{name}={value}" for name, value in facts.items()))
    return 0


def fail(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


def main() -> int:
    program = Path(sys.argv[0]).name
    if program == "sacct":
        return fail("Slurm accounting storage is disabled")
    if (HERE / "down").exists():
        return fail("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    return {"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "scontrol": scontrol}[program](sys.argv[1:])
