"""The programs of Slurm that a login node has: what they print, as values. Never their JSON, which changes shape.

All that ask Slurm raise SlurmError where it refuses or does not answer: then nothing is known.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from mcp_server.errors import RunwardError
from mcp_server.record.slurm.job_states import Job
from mcp_server.system.captured_run import run_captured
from mcp_server.text.formatting import printable

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
_TIMEOUT_S = 15.0
_SUBMIT_TIMEOUT_S = 60.0
_FORMAT = "%i|%T|%S|%N|%r|%j"  # the name last: those of other jobs may hold anything
_FORGOTTEN = re.compile(r"Invalid job id|Job \S+ not found", re.IGNORECASE)  # of an element of an array, the second
_COMPLETIONS_BYTES = 4 * 2**20
_MOST_BYTES = 16 * 2**20  # of an answer: some 200,000 jobs
_TIME_DIGITS = 11  # more are no time
_REASON_CHARS = 100
# The controller may have taken the job, although sbatch failed.
_UNSURE = re.compile(r"timed out|zero bytes|did not answer", re.IGNORECASE)
# Defaults of the user's that a launch may leave to them. Others would change what the script says.
_DEFAULTS = ("ACCOUNT", "PARTITION", "QOS", "RESERVATION", "CONSTRAINT")


UNLISTED = "a list of all jobs"  # that has no such job


class SlurmError(RunwardError):
    """A program of Slurm failed."""


def find_missing() -> list[str]:
    """Return the programs that are not installed."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def clean_environment(environ: Mapping[str, str], named: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment for Slurm's programs, which becomes the job's: nothing of the launcher's, no secret.

    ``named``: options that a launch names, so that the user's default does not override them. Pure.
    """
    defaults = [f"SBATCH_{each}" for each in _DEFAULTS if each.lower() not in named]
    kept = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "SLURM_CONF", *defaults)
    return {name: environ[name] for name in kept if name in environ} | {"SLURM_TIME_FORMAT": "%s"}


def run_program(
    words: Sequence[str],
    *,
    timeout_s: float = _TIMEOUT_S,
    named: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> str:
    """Return what a program of Slurm prints."""
    try:
        done = run_captured(
            words, env or clean_environment(os.environ, named), most_bytes=_MOST_BYTES, limit_s=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{words[0]} did not answer within {timeout_s:g} s.") from error
    except OSError as error:
        raise SlurmError(f"{words[0]}: {error.strerror}.") from error
    if done.cut:
        raise SlurmError(f"A program of Slurm printed more than {_MOST_BYTES >> 20} MiB.")
    output = done.output.decode(errors="replace")
    if done.code != 0:
        raise SlurmError(f"{' '.join((done.complaint or output).split())[:400] or f'{words[0]} failed'}.")
    # --test-only writes its estimate to stderr.
    return output or done.complaint


def submit(script: Path, named: Sequence[str]) -> str:
    """Hand a batch script in and return the job's id.

    Raises:
        SlurmError: Slurm refused it; or whether it took it is unknown, see ``is_unsure``.
    """
    answer = run_program(["sbatch", "--parsable", str(script)], timeout_s=_SUBMIT_TIMEOUT_S, named=named)
    job_id = answer.strip().split("\n")[-1].partition(";")[0]
    if not re.fullmatch(r"[0-9]{1,20}", job_id):
        raise SlurmError(f"sbatch did not answer with the id of a job, but with {answer[-80:]!r}.")
    return job_id


def is_unsure(error: SlurmError) -> bool:
    """Return whether Slurm may have taken a job although it was not handed in as far as sbatch knows."""
    return _UNSURE.search(error.cause) is not None


def estimate(script: Path, named: Sequence[str]) -> str:
    """Return when Slurm would start a script, in its own words."""
    text = run_program(["sbatch", "--test-only", str(script)], named=named)
    text = re.sub(r"(?<=start at )\d+", lambda found: read_time(found[0]), text.replace("sbatch: ", ""))
    return " ".join(text.split())


def list_own_jobs() -> dict[str, tuple[Job, str]]:
    """Return the user's jobs with their names, by id, also those that ended and are still known."""
    return parse_queue(run_program(["squeue", "--me", "-h", "-r", "-t", "all", "-o", _FORMAT]))


def parse_queue(text: str) -> dict[str, tuple[Job, str]]:
    """Return jobs and their names, by id. Pure.

    No line of an id that stands in two lines is believed: a job's name may hold a line end and a false line.
    """
    jobs: dict[str, tuple[Job, str]] = {}
    doubtful = set()
    for line in text.splitlines():
        fields = line.split("|", 5)
        if len(fields) == len(_FORMAT.split("|")):
            job_id, state, start, nodes, reason, name = fields
            reason = printable(reason, "")[:_REASON_CHARS]
            job = Job.of(job_id, state, start_at=read_time(start), nodes=nodes, reason=reason, name=name)
            if job_id in jobs:
                doubtful.add(job_id)
            jobs[job_id] = (job, name)
    return {job_id: row for job_id, row in jobs.items() if job_id not in doubtful}


def list_node_hosts() -> frozenset[str]:
    """Return the names of the hosts that run jobs."""
    return frozenset(run_program(["sinfo", "-h", "-N", "-o", "%n"]).split())


def describe_job(job_id: str) -> Job:
    """Return what Slurm says of a job that has left the queue: sacct where it is, else scontrol, else the jobs' log.

    A job that the controller has started again, or will, is as the controller sees it: sacct knows its last end. One
    that nobody knows has no state. Its source is ``UNLISTED`` where a list of all jobs that began was read.
    """
    accounted = _ask_accounting(job_id)
    ended = accounted if accounted is not None and accounted.state else None
    try:
        live = ask_controller(job_id)
    except SlurmError:
        if ended is None:
            raise
        return ended
    if ended is not None and (live.is_final or not live.state):
        return ended
    if live.state:
        return live
    if (logged := _read_completions(job_id)) is not None and logged.state:
        return logged
    return Job(job_id, "", source="nowhere" if accounted is None and logged is None else UNLISTED)


def _ask_accounting(job_id: str) -> Job | None:
    """Return how a job ended, without a state where the accounting has no such job; None where it does not say.

    A job that it calls live is left to the controller: an end that never reached its database stays so for ever.
    """
    if shutil.which("sacct") is None:
        return None
    try:
        text = run_program(["sacct", "-n", "-P", "-X", "-j", job_id, "-o", "State,ExitCode,End,NodeList,JobName"])
    except SlurmError:  # it is installed and switched off, or its database does not answer
        return None
    if not text.strip():
        return Job(job_id, "", source="sacct")
    fields = text.strip().split("\n")[-1].split("|")
    if len(fields) < 4:  # noqa: PLR2004 - those of the format above
        return None
    state, code, end, nodes, name = [*fields, ""][:5]
    ended_at = read_time(end)
    job = Job.of(job_id, state, exit_code=code, ended_at=ended_at, nodes=_nodes(nodes), name=name, source="sacct")
    return job if job.is_final else None


def ask_controller(job_id: str) -> Job:
    """Return a job as the controller sees it now, without a state where it has forgotten the job, which is then gone.

    Only the controller says when a job has left its nodes: sacct has its end from the moment that Slurm ends it.
    """
    try:
        facts = parse_facts(run_program(["scontrol", "show", "job", job_id, "-o"]))
    except SlurmError as error:
        if not _FORGOTTEN.search(error.cause):
            raise
        facts = {}
    return _job_of_facts(job_id, facts if job_id in _ids_of(facts) else {}, "scontrol")


def _ids_of(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids of a job: an element of an array has two."""
    return facts.get("JobId", ""), f"{facts.get('ArrayJobId', '')}_{facts.get('ArrayTaskId', '')}"


def _read_completions(job_id: str) -> Job | None:
    """Return a job from the log of jobs that some sites keep as a file (jobcomp/filetxt), where it can be read.

    Without a state where the whole log has no such job.
    """
    try:
        config = _read_config()
        location = config.get("JobCompLoc", "")
        if not location.startswith("/"):
            return None
        with Path(location).open("rb") as file:
            begin = max(0, os.fstat(file.fileno()).st_size - _COMPLETIONS_BYTES)
            file.seek(begin)
            lines = file.read().decode(errors="replace").splitlines()
    except (SlurmError, OSError):
        return None
    described = (parse_facts(line) for line in reversed(lines) if line.startswith("JobId="))
    facts = next((each for each in described if job_id in _ids_of(each)), None)
    if facts is not None:
        return _job_of_facts(job_id, facts, "the jobs' log")
    is_whole = begin == 0 and config.get("JobCompType") == "jobcomp/filetxt"  # without a type the file may be old
    return Job(job_id, "", source="the jobs' log") if is_whole else None


def read_memory() -> tuple[float, float]:
    """Return for how many seconds the controller remembers ended jobs, and since when it runs (POSIX time)."""
    config = _read_config()
    age, boot = config.get("MinJobAge", "").partition(" ")[0], config.get("BOOT_TIME", "")
    if not (age.isdecimal() and boot.isdecimal() and len(age) <= _TIME_DIGITS and len(boot) <= _TIME_DIGITS):
        raise SlurmError("scontrol does not say for how long it remembers jobs.")
    return float(age), float(boot)


def _read_config() -> dict[str, str]:
    return dict(re.findall(r"^(\w+)\s*=\s*(\S+)", run_program(["scontrol", "show", "config"]), re.MULTILINE))


def _job_of_facts(job_id: str, facts: Mapping[str, str], source: str) -> Job:
    return Job.of(
        job_id,
        facts.get("JobState", ""),
        reason=facts.get("Reason", ""),
        start_at=read_time(facts.get("StartTime", "")),
        exit_code=facts.get("ExitCode", ""),
        ended_at=read_time(facts.get("EndTime", "")),
        nodes=_nodes(facts.get("NodeList", "")),
        name=facts.get("JobName", "") or facts.get("Name", ""),
        source=source,
    )


def parse_facts(text: str) -> dict[str, str]:
    """Return the ``Name=value`` pairs of a line of scontrol, of equal names the first: comments come last. Pure."""
    return dict(reversed(re.findall(r"(?:^|\s)([A-Z][A-Za-z_/:]*)=(\S*)", text)))


def read_time(text: str) -> str:
    """Return a time of Slurm, in seconds since 1970 as is asked of it, in ISO 8601 UTC; empty for words."""
    if not text.isdecimal() or len(text) > _TIME_DIGITS or int(text) == 0:
        return ""
    return datetime.fromtimestamp(int(text), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _nodes(text: str) -> str:
    return "" if text in ("(null)", "None assigned", "None") else text


_SECONDS = re.compile(r"\d+")


@dataclass(frozen=True)
class Site:
    """A Slurm as a login node sees it.

    ``accounting``: whether sacct may know ended jobs. ``forgets_after_s``: MinJobAge, after which the controller
    forgets them. ``partitions``: those that are up. ``node_hosts``: the names of the hosts that run jobs.
    """

    version: str
    accounting: bool
    forgets_after_s: int | None
    partitions: tuple[str, ...]
    node_hosts: frozenset[str]


def describe_site() -> Site:
    """Return what Slurm says of itself. Three short queries."""
    version = run_program(["sbatch", "--version"]).strip().rpartition(" ")[2]
    config = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", run_program(["scontrol", "show", "config"]), re.MULTILINE))
    lines = [line.split("|") for line in run_program(["sinfo", "-h", "-N", "-o", "%R|%a|%n"]).splitlines()]
    rows = [(fields[0], fields[1], fields[2]) for fields in lines if len(fields) == 3]  # noqa: PLR2004 - as asked
    seconds = _SECONDS.match(config.get("MinJobAge", ""))
    return Site(
        version=version,
        accounting=config.get("AccountingStorageType", "").endswith("slurmdbd"),
        forgets_after_s=int(seconds[0]) if seconds else None,
        partitions=tuple(dict.fromkeys(name for name, availability, _ in rows if availability == "up")),
        node_hosts=frozenset(host for _, _, host in rows),
    )
