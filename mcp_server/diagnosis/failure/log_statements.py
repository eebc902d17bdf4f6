"""Lines in which shells, schedulers, launchers and native libraries state a failure. Pure."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from mcp_server.diagnosis.failure.error_patterns import TEXT_CHARS, match_error_kind
from mcp_server.text.regex import compile_lazily


class Weight(IntEnum):
    """How much a line proves. The heaviest evidence left after order and rank is quoted."""

    HINT = 0  # mentions an error; proves nothing while the exit status is unknown
    ECHO = 1  # reports a failure elsewhere: launchers, parent processes, closed pipes
    ABORT = 2  # the process gave up; its reason, if any, is on another line
    STOPPED = 3  # by a signal, a scheduler or a person
    PEER = 4  # other ranks were lost
    CRASH = 5  # native code crashed, or SIGKILL
    OWN = 6  # the cause itself


class Statement(NamedTuple):
    """Weight and kind of one line."""

    weight: Weight
    kind: str


_SIGNALS = {
    **dict.fromkeys((1, 2, 3), (Weight.STOPPED, "killed")),
    **dict.fromkeys((4, 7, 8, 11), (Weight.CRASH, "segfault")),
    6: (Weight.ABORT, "segfault"),
    9: (Weight.CRASH, "killed"),
    15: (Weight.ECHO, "killed"),  # usually a launcher that stops the healthy ranks
}
_BY_SIGNAL = "by signal"  # the signal in the line decides weight and kind
_BY_TEXT = "by text"  # error_patterns.py decides the kind

_CHILD = r"(?:\S+: line \d+: +|\[\d+\][+-]? +)?(?:\d+ +)?"  # printed by shells before the end of a child process
_HELPER = r"(?!.*(?:tensorboard|nvidia-smi|dcgm|gpustat|monitor|Xvfb|http\.server|jupyter|\bsleep |\btail ))"
_FATE = r"\b(?: {2,}.*| *$| *\(core|: \d)"  # ... and after it
_FOR_GOOD = (  # excludes a watchdog's settings, and processes that it replaces
    r"(?i:(?!.*(?:\bwill\b|\bif\b|start|enabl|armed|watching|set to|every|episode|spawn|replac|trial|request|env \d)))"
)
_LONG = r"\d+(?:\.\d+)? ?(?:s|sec|m|min)\w*\b.{0,120}"
_END = r"\b(?:(?:abort|kill|terminat|exit|dump)ing|giving up|sending SIG)"
_GAVE_UP = "(?:hang|hung|stuck|abort|kill|terminat|exit|stall)"

# A weight, a kind, and their patterns: each a literal that the line contains, and a pattern that matches from the
# beginning of the line without prefixes. First match wins: memory before signals, because schedulers name both in one
# sentence.
# fmt: off
_TABLE: tuple[tuple[Weight, str, tuple[tuple[str, str], ...]], ...] = (
    (Weight.OWN, "oom_host", (  # the kernel, Slurm, PBS, LSF, Kubernetes
        ("oom", r".*\b[Dd]etected \d+ oom[-_ ]kill event|.*oom[-_]kill(?:er)? event|.*\boom-kill:constraint"),
        ("oom", r".*invoked oom-killer"),
        ("OOM", r".*\b(?:OOMKilled|OOM Killed)\b(?!['\"]?: ?[Ff]alse)"),
        ("ut of memory", r".*(?:Out of memory: Kill|Memory cgroup out of memory)"),
        ("Out Of Memory", r"srun: error: .*: Out Of Memory"),
        ("emory limit", r".*[Ee]xceeded (?:job |step )?memory limit"),
        ("job killed: mem", r"=>> PBS: job killed: mem"),
        ("TERM_MEMLIMIT", r"TERM_MEMLIMIT"),
        ("annot allocate memory", r"(?:\S{1,80}: )*(?:fork|mmap|malloc|\w+): .*Cannot allocate memory"),
        ("bad_alloc", r".*\bstd::bad_alloc"),
        ("memory pressure", r".*systemd-oomd.*Killed .* due to memory pressure"),
        ("low on resource", r".*node was low on resource: memory"),
        ("ut-of-memory handler", r".*killed by the cgroup out-of-memory handler"),
    )),
    (Weight.OWN, "oom_host", (("pinned memory", r".*PhysX error: "),)),
    (Weight.OWN, "oom_gpu", (
        ("PhysX error", r".*PhysX error: .{0,120}\b[Ff]ail(?:ed)? to allocate"),
        ("ailed to malloc", r"(?:\S+ )*\[Error\] .*[Ff]ailed to malloc"),
        ("PxgCudaDeviceMemoryAllocator", r"(?:\S+ )*PxgCudaDeviceMemoryAllocator fail"),
    )),
    (Weight.STOPPED, "killed", (  # schedulers, launchers, persons
        ("CANCELLED", r"(?:slurmstepd|srun|slurmd): (?:error: )?\*\*\* (?:JOB|STEP) .*CANCELLED"),
        ("PBS: job killed", r"=>> PBS: job killed"),
        ("TERM_", r"TERM_(?:RUNLIMIT|OWNER|PREEMPT|ADMIN|EXTERNAL_SIGNAL|FORCE)"),
        ("Main process", r"Main process received SIG(?:INT|TERM|HUP)"),
        ("SIG", r"(?:\[[^]]{1,20}\] )?(?:\S+ )?[Ss]ignal SIG(?:TERM|INT|HUP|USR[12]) received"),
        ("SIG", r"(?:\[[^]]{1,20}\] )?(?:\S+ )?(?i:received|caught|got) (?:signal )?SIG(?:TERM|INT|HUP|USR[12])\b"),
        ("SIG", r".{0,60}\b(?:[Ee]xit|[Ss]top|[Tt]ermin|[Ss]hutt).{0,30} (?:receiv\w+|upon|to|of) (?:\w+ )?SIG[TIHU]"),
        ("ignal 1", r".{0,80}[Rr]eceived (?:termination )?signal:? 1[05]\b"),
        ("low on resource", r".*node was low on resource: "),
        ("ruption notice", r".{0,80}\b[Ii]nterruption notice\b(?!.{0,60}(?:handler|monitor|watch|listen|enabled))"),
        ("signal` is", r"FatalError: `(?:Termination|Interrupt)"),
        ("reempted", r"(?:.{0,40}(?:[Jj]ob|[Ii]nstance|[Nn]ode|VM|[Pp]od) .{0,40})?(?:was|been|being|is) [Pp]reempted"),
        ("Evicted", r"(?:.{0,60}(?:[Rr]eason|[Ss]tatus): ?)Evicted\b"),
        ("DeadlineExceeded", r"(?:.{0,60}(?:[Rr]eason|[Ss]tatus): ?)DeadlineExceeded\b"),
        ("nterrupt", r".{0,120}(?:[Dd]etected|[Rr]eceived|[Cc]aught) (?:a )?[Kk]eyboard ?[Ii]nterrupt"),
        ("nterrupt", r"(?:[Tt]raining |[Rr]un )?[Ii]nterrupted by (?:the )?user|srun: (?:interrupt|sending Ctrl-C)"),
        ("KeyboardInterrupt", r"(?:Exiting|Stopping).{0,40}KeyboardInterrupt"),
        ("training early", r"Exiting from training early"),
        ("^C", r"(?:\^C)+$"),
        ("Terminated", _HELPER + _CHILD + "Terminated" + _FATE),
        ("closed by remote", r"Connection to \S+ closed by remote host"),
        ("Hangup", _HELPER + _CHILD + "Hangup" + _FATE),
    )),
    (Weight.STOPPED, _BY_SIGNAL, (("received by PID", r"traceback *: Signal (\d+) \(SIG\w+\) received by PID"),)),
    (Weight.CRASH, _BY_SIGNAL, (
        ("exit", r".*exits with return code = -(\d+)|.*failed \(exitcode: -(\d+)\)|exitcode *: -(\d+) "),
        ("EXIT STRING", r".*EXIT STRING: .*\(signal (\d+)\)"),
        ("exited on signal", r".*exited on signal (\d+)"),
        ("code 1", r"(?:.*\b)?(?:[Ee]xited|[Tt]erminated|[Ff]inished|[Ff]ailed) with (?:exit )?code (1[234]\d)\b"),
        ("terminated with signal", r".*process \d+ terminated with signal SIG(\w+)"),
        ("died with <Signals", r".*died with <Signals\.SIG(\w+)"),
    )),
    (Weight.CRASH, "killed", (
        ("137", r".*\bexit(?:ed)?(?: with)?(?: exit)? (?:code|status)\W{1,3}137\b"),
        ("Killed", _HELPER + _CHILD + "Killed" + _FATE + "|srun: error: .*: Killed"),
        ("killed", r"zsh: killed|\[\d+\] +[+-]? *\d+ killed\b"),
    )),
    (Weight.CRASH, "segfault", (
        ("egmentation fault", _CHILD + r"[Ss]egmentation fault\b|srun: error: .*: Segmentation fault"),
        ("zsh: segmentation fault", r"zsh: segmentation fault"),
        ("atal e", r"Windows fatal exception: |# A fatal error has been detected by the Java"),
        ("aught signal ", r".*Caught signal (?:4|7|8|11) \("),
        ("egmentation fault", r".*Signal: Segmentation fault|Fatal Python error: .*Segmentation"),
        ("FatalError: `", r"FatalError: `(?:Segmentation|Process abort|Erroneous|Access to an undefined)"),
        ("-1073741819", r".*exit code -1073741819"),
        ("egfault", r"!+ *Segfault encountered|(?:\[ *\d[\d.]*\] )?\S+\[\d+\]: segfault at"),
        ("Fatal Python error", r"Fatal Python error: (?!Aborted|.*Segmentation|Bus)"),
        ("protection fault", r".*general protection fault"),
        ("us error", _CHILD + r"Bus error\b|.*Unexpected bus error encountered|srun: error: .*: Bus error"),
        ("us error", r"Fatal Python error: Bus error|.*Signal: Bus error"),
        ("core dumped", _CHILD + "(?:Floating point exception|Illegal instruction|Trace/breakpoint trap)"),
        ("SIG", r"\*{3} (?:SIGSEGV|SIGBUS|SIGILL|SIGFPE)\b|\*{3} Aborted at .*SIGSEGV"),
        ("received signal SIG", r".*(?:Program|Process|Thread .*) received signal SIG(?:SEGV|BUS|ILL|FPE)"),
        ("()", r"(?:malloc|free|realloc|munmap_chunk|malloc_consolidate)\(\): (?:invalid|corrupt|unaligned|memory)"),
        ("()", r"(?:malloc|free|realloc)\(\): (?:double|unsorted|mismatching|largebin)"),
        ("corrupt", r"(?:\*{3} Error in .*: )?(?:double free or corruption|corrupted (?:size|double-linked|unsorted))"),
        ("smashing", r"\*{3} stack smashing detected"),
        ("[crash]", r".*\[crash\] +Crash detected|.*\[crash\] A crash has occurred"),
    )),
    (Weight.ABORT, "segfault", (
        ("Aborted", _CHILD + "Aborted" + _FATE + "|srun: error: .*: Aborted|Fatal Python error: Aborted"),
        ("SIGABRT", r"\*{3} SIGABRT"),
        ("terminate called", r"terminate called (?:after|without|recursively)"),
    )),
    (Weight.ABORT, _BY_TEXT, (
        ("what():", r"what\(\): "),
        ("Check failed", r"(?:F\d{4} |.*: F |.*\bFATAL\b|F tensorflow).*Check failed"),
        ("Check failed: ", r"(?:[\w./-]{1,99}:\d+: )?Check failed: "),
    )),
    (Weight.OWN, "ray_error", (
        ("aylet", r"(?:\(raylet\) )?(?:.*: )?(?:Raylet is terminated|The raylet exited immediately|Raylet exiting)"),
        ("register worker", r".*(?:Failed to|Unable to) register worker (?:to|with) [Rr]aylet"),
        ("GCS", r".*Failed to connect to GCS within \d+|.*GCS may have been killed"),
    )),
    (Weight.OWN, _BY_TEXT, (
        ("panicked at", r"thread '.*' panicked at"),
        ("cuda error", r"(?:\[Error\] .*)?Gym cuda error"),
        ("fatal: ", r"fatal: (?:unable to access|could not read|Authentication|repository|Could not read)"),
    )),
    (Weight.PEER, _BY_TEXT, (
        ("atchdog", r".*[Ww]atchdog (?:caught collective operation timeout|thread terminated with exception)"),
    )),
    (Weight.PEER, "nccl_error", (
        ("NCCL", r".*(?:ProcessGroupNCCL's watchdog got stuck|Some NCCL operations have failed|NCCL failure)"),
        ("NCCL error", r".*NCCL error"),
        ("detected fatal errors", r".*distributed service detected fatal errors"),
        ("eartbeat monitor", r".*[Hh]eartbeat monitor timed out"),
    )),
    (Weight.OWN, "cuda_error", (
        ("CUDA_ERROR_", r"(?!.*cuInit).*CUDA_ERROR_(?!OUT_OF_MEMORY|NO_DEVICE)\w+:"),
        ("PhysX", r".*PhysX (?:Internal CUDA )?error: .*(?:fail to launch|illegal|launch fail|CUDA)"),
        ("windowless context", r".*[Uu]nable to create windowless context"),
        ("NVRM: Xid", r".*NVRM: Xid"),
    )),
    (Weight.OWN, "config_error", (  # arguments rejected before the start
        (": error: ", r"(?:srun|sbatch|salloc): error: (?!Batch job subm).{0,120}"
         r"(?:[Ii]nvalid |not available|not permitted|[Ll]imit|than permitted|specification|satisf)"),
        (": fatal: ", r"(?:srun|sbatch|salloc|scrun): fatal: \S"),
        (": error: ", r"[\w./-]{1,80}: error: (?:unrecognized arguments|the following arguments|argument |ambiguous)"),
        (": error: ", r"[\w./-]{1,80}: error: (?:one of the arguments|invalid choice|unknown|expected|no such option)"),
        ("Error: ", r"Error: (?:No such (?:option|command)|Missing (?:option|argument|parameter)|Invalid value for)"),
        ("Error: ", r"Error: (?:Got unexpected extra argument|Option .* requires)"),
        ("│ ", r"│ (?:No such (?:option|command)|Missing (?:option|argument)|Invalid value for|Got unexpected extra)"),
        ("andatory value", r"Missing mandatory value: \w"),
        ("ould not override", r"Could not override '"),
        (" input '", r"(?:(?:mismatched|extraneous) input|no viable alternative at input) '.*"),  # Hydra's overrides
        ("LexerNoViableAlt", r"LexerNoViableAltException: "),
        ("Error in call to target", r"Error in call to target '"),
        ("primary config", r"(?:Cannot find primary config|Primary config (?:directory|module) .*not found)"),
        ("ould not find '", r"In '.*': Could not find '"),
        ("command line flag", r"(?:FATAL Flags parsing error: *)?Unknown command line flag"),
        ("Unrecognized options", r"\W{0,4}Unrecognized options?:"),
        ("Required options", r"\W{0,8}Required options\b"),
        ("lag --", r"flag --[\w.-]+(?:=\S*)?: |Flag --[\w.-]+ must have a value"),
    )),
    (Weight.OWN, "config_error", (  # mpirun, which starts nothing then
        ("enough slots", r"There are not enough slots available in the system"),
        ("run as root", r"(?:mpirun|mpiexec|prterun|\S*orterun) has detected an attempt to run as root"),
    )),
    (Weight.OWN, "divergence", (  # training loops that check their own metrics
        ("topping", r".*\b[Ll]oss(?:es)? (?:is |are |became |= |: ?)(?:[Nn]a[Nn]|[Ii]nf|infinite)\b.{0,60}[Ss]topping"),
        ("topping", r".*\b[Ll]oss (?:is |= ?)(?:not finite|non-finite).{0,60}[Ss]topping"),
        ("topping", r".*\b(?:NaNs?|nan|[Ii]nf) (?:was )?(?:detected |found |encountered )?in .{0,60}[Ss]topping"),
        ("topping", r".*\b(?:NaN|nan|non-finite) (?:loss|grad)\w*\b.{0,60}[Ss]topping"),
        ("xiting", r".*\b[Ll]oss .{0,20}\b(?:[Nn]a[Nn]|[Ii]nf|infinite|non-finite)\b.{0,60}[Ee]xiting"),
        ("nvalid loss", r".*\b[Ii]nvalid loss\b.{0,60}\b(?:[Tt]erminat|[Ss]topp|[Aa]bort)ing"),
        ("is not finite", r".*is not finite\. Previous best value was"),
        ("loss scale already", r".*loss scale already at minimum"),
    )),
    (Weight.OWN, "stall", (  # watchdogs
        ("o progress", r".*\b[Nn]o progress (?:for|in|since) .*" + _GAVE_UP),
        ("o progress", r".*\b[Nn]o progress (?:for|in|since) \d+ ?(?:s|m|h)[a-z]*\b.{0,80}\bg(?:iving|ave) up"),
        ("ermination timeout", r".*Termination timeout .{1,300}exceeded|Termination timeout .{0,300}Exiting to"),
        (" output ", r".*\b[Nn]o (?:new |log )?output (?:for|in|since) .*" + _GAVE_UP),
        ("talled", r".*\b(?:[Tt]raining|[Rr]un|[Jj]ob|[Pp]rocess)\b.{0,20}\bstalled\b.{0,80}(?i:" + _GAVE_UP + ")"),
        ("heartbeat", r".*\b(?:[Nn]o|[Ll]ost|[Mm]issed) heartbeat .*" + _GAVE_UP),
        ("eartbeat", r"(?!.*\bnot\b).*\b[Hh]eartbeat (?:was )?(?:lost|missed) .*" + _GAVE_UP),
        (" hung", _FOR_GOOD + r".{0,60}\b(?i:training|run|job|process|rank)\b.{0,20} hung\b.{0,160}" + _END),
        ("stuck", _FOR_GOOD + r".{0,60}\b(?i:training|run|job|process|rank)\b.{0,20} stuck\b.{0,160}" + _END),
        ("atchdog", _FOR_GOOD + r".{0,40}[Ww]atchdog\b.{0,120}\b(?:for|since|in|of|after) " + _LONG + _END),
        (" detected", r".*\b(?:[Dd]eadlock|[Ss]tall|[Hh]ang) detected"),
        ("to be ", r".*(?:ERROR|FATAL|CRITICAL|[Ww]atchdog).{0,80}(?:appears|seems) to be (?:hung|hanging|stuck)"),
        ("atchdog timeout", r".{0,40}[Ww]atchdog timeout \(\S*=\d"),  # SGLang
        ("Timeout (", r"Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!"),
    )),
    (Weight.OWN, "timeout", (("timeout: sending", r"timeout: sending signal"),)),
    (Weight.OWN, "data_error", (("an't open file", r"\S*python[\d.]*: can't open file '"),)),
    (Weight.OWN, "disk_full", (
        ("No space left", r"[\w./-]{1,60}: .*No space left on device"),
        ("uota exceeded", r"[\w./-]{1,60}: .*[Dd]isk quota exceeded"),
    )),
    (Weight.OWN, "import_error", (
        ("OMP: Error", r"OMP: Error #15"),
        ("ould not load library lib", r"Could not load library libcud\w*\S* Error: "),
        ("ERROR ", r"ERROR \S+\.py\S* - (?:ModuleNotFound|Import)Error"),  # pytest
    )),
    (Weight.OWN, "python_error", (
        ("FAILED ", r"FAILED \S+\.py::\S+"),
        ("ERROR ", r"ERROR \S+\.py(?:::\S+)?(?: - .*)?$"),
    )),
    (Weight.OWN, "auth_error", (("api_key not configured", r"wandb: ERROR api_key not configured"),)),
    (Weight.ECHO, "killed", (("death signal", r"Received \d+ death signal"),)),
    (Weight.ECHO, "other", (
        ("xited with exit code", r"srun: error: .*: Exited with exit code"),
        ("exit", r".{0,160}\b(?:exited with|exit|returned non-zero exit)(?: exit)? (?:code|status)\W{1,3}[1-9]"),
        ("non-zero", r".{0,160}\b(?:[Cc]ommand|[Pp]rocess|[Jj]ob|[Ss]cript) .{0,80}non-zero (?:exit )?status"),
        ("] Error ", r"make(?:\[\d+\])?: \*\*\* \[.*\] Error \d"),
        ("an error running", r"There was an error running python"),
        ("EXIT", r"EXIT(?:_| ?)(?:CODE|STATUS)\W{1,3}[1-9]"),
        ("(failed ", r"wandb: .*\(failed -?\d+\)"),
    )),
    (Weight.HINT, "ray_error", (
        ("raylet", r"\(raylet\b.*\) .*(?:died|killed|crash|dead)|.*[Rr]aylet (?:died|is dead|exited|process)"),
        ("system error", r"(?:\(raylet.*\) )?A worker died or was killed"),
    )),
    (Weight.HINT, "port_conflict", (
        ("port is already allocated", r"(?:docker: )?Error response from daemon: .*port is already allocated"),
    )),
    (Weight.HINT, "auth_error", (
        ("pull access denied", r"(?:docker: )?Error response from daemon: pull access denied"),
        ("ost key", r"(?:\S{1,60}: )?(?:Host key verification failed|No \w+ host key is known for)"),
        ("ermission denied (", r"(?:\S{1,80}: ){0,2}Permission denied \((?:publickey|password|keyboard)"),
        ("wandb: ERROR", r"wandb: ERROR .*(?:permission denied|[Uu]nauthorized|not logged in)"),
    )),
    (Weight.ECHO, "config_error", (("Batch job", r"(?:srun|sbatch|salloc): error: Batch job submission failed"),)),
    (Weight.HINT, "config_error", (  # containers, Kubernetes, Isaac's extensions
        ("Error response from daemon", r"(?:docker: )?Error response from daemon: "),
        ("Docker daemon", r"(?:docker|ERROR): .{0,20}(?:[Cc]annot connect to"
        r"|permission denied while trying) .*Docker daemon"),
        ("nvidia-container-cli", r"(?:.*: )?nvidia-container-cli: "),
        ("Failed to pull image", r".*\bFailed to pull image \""),
        ("FailedScheduling", r".*\bFailedScheduling\b"),
        ("extension dependencies", r".*\[Error\].*Failed to resolve extension dependencies"),
        ("mount source", r"FATAL: .*mount source"),
    )),
    (Weight.HINT, "network_error", (
        ("launch", r"srun: error: (?:Task launch for|Application launch failed)"),
        ("rsync error", r"rsync error: "),
    )),
)
# fmt: on
_STATEMENTS = tuple(
    (word, weight, kind, compile_lazily(pattern)) for weight, kind, rows in _TABLE for word, pattern in rows
)

_SOURCE = ("raise ", "return ", "assert ", "print(", "logger.", "logging.")  # a traceback shows it
_SIGNAL_BASE = 128  # a shell's exit code for a child killed by a signal is this plus the signal
_NAMED_SIGNALS = {
    "HUP": 1,
    "INT": 2,
    "QUIT": 3,
    "ILL": 4,
    "ABRT": 6,
    "BUS": 7,
    "FPE": 8,
    "KILL": 9,
    "SEGV": 11,
    "TERM": 15,
}

WORDS: tuple[str, ...] = tuple(dict.fromkeys(word for word, *_ in _STATEMENTS))


def parse_statement(text: str) -> Statement | None:
    """Return the statement of ``text``, a line without prefixes, or None for ordinary output."""
    text = text[:TEXT_CHARS].lstrip()
    return None if text.startswith(_SOURCE) else _parse_statement(text)


@lru_cache(maxsize=4_096)
def _parse_statement(text: str) -> Statement | None:
    for word, weight, kind, pattern in _STATEMENTS:
        match = pattern.match(text) if word in text else None
        if match:
            return (
                _from_signal(match)
                if kind == _BY_SIGNAL
                else _from_text(text, weight)
                if kind == _BY_TEXT
                else Statement(weight, kind)
            )
    return None


def _from_signal(match: re.Match[str]) -> Statement:
    """Return the statement for the signal that the match names by number or name."""
    signal = next(filter(None, match.groups()), "")
    number = _NAMED_SIGNALS.get(signal) or int(signal if signal.isdecimal() else 0)
    return Statement(*_SIGNALS.get(number % _SIGNAL_BASE, (Weight.ECHO, "other")))


def _from_text(text: str, weight: Weight) -> Statement:
    kind = match_error_kind(text)
    if kind is None:
        return Statement(weight, "segfault" if weight == Weight.ABORT else "other")
    return Statement(Weight.PEER if kind == "nccl_error" else Weight.OWN, kind)
