"""Finds the earlier line of a machine, network, launcher or simulator that explains a later, general failure. Pure.

Ranks that wait for each other, a scheduler's time limit, and a policy that became NaN say what followed, not why. What
a host key, an InfiniBand port, a physics buffer or a cluster without GPUs said before is the cause, whatever came last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mcp_server.diagnosis.failure import tracebacks
from mcp_server.diagnosis.failure.evidence import FailureEvidence
from mcp_server.diagnosis.failure.ordinary_work import count_steps
from mcp_server.diagnosis.failure.statements import Weight
from mcp_server.text.lines import Line
from mcp_server.text.regex import compile_lazily

_REACH_LINES = 3_000  # above a failure are searched
_VERDICT_LINES = 10  # that a scheduler prints about one end
_TEXT_CHARS = 500  # of a line
_MOST_STEPS = 10  # between a cause and its aftermath: after more, the run had survived it
_MOST_STEPS_OF_SIMULATION = 120  # a simulation goes on with wrong contacts until a value overflows
# IPv6 is tried first and is not there: every start prints it. A timeout (110) is only what follows.
_NO_CAUSE = r"errno: (?:97|110)\b"
_RUNS = compile_lazily(r"\b[1-9]\d* RUNNING\b|\bRUNNING: [1-9]")  # trials of Ray Tune


class _Cause(NamedTuple):
    group: str
    kind: str
    word: str  # a literal that the line contains
    pattern: re.Pattern[str]


def _cause(group: str, kind: str, word: str, pattern: str) -> _Cause:
    return _Cause(group, kind, word, compile_lazily(pattern))


# What states a cause, most telling first. The patterns match from the beginning of a line, behind any prefix.
_CAUSES = (
    # --- launchers
    _cause("launcher", "auth_error", "ost key", r".{0,80}\b(?:Host key verification failed|host key is known for)"),
    _cause(
        "launcher", "auth_error", "ermission denied (", r".{0,80}Permission denied \((?:publickey|password|keyboard)"
    ),
    _cause("launcher", "network_error", "ssh: ", r".{0,80}ssh: (?:connect to host|Could not resolve)"),
    _cause("launcher", "config_error", ": command not found", r"\S{1,60}: (?:ba|z|da)?sh: .{0,80}: command not found"),
    _cause("launcher", "data_error", "No such file", r"\S{1,60}: (?:ba|z|da)?sh: .{0,20}: (?:cd: )?\S+: No such file"),
    _cause("launcher", "network_error", "launch", r"srun: error: (?:Task launch for|Application launch failed)"),
    _cause("launcher", "other", "unable to", r".{0,40}(?:ORTE|PRTE|PRRTE) was unable to"),
    # --- memory, disks and GPUs of a machine
    _cause("machine", "oom_host", "ut of memory: Kill", r".*[Oo]ut of memory: Kill(?:ed)? process"),
    _cause("machine", "oom_host", "oom", r".*(?:invoked oom-killer|oom-kill:constraint|[Dd]etected \d+ oom[-_ ]kill)"),
    _cause(
        "machine", "cuda_error", "Xid", r".*\bXid \([^)]{1,40}\): (?:48|62|63|64|74|79|92|94|95|119|120|12[1-4]|14\d)\b"
    ),
    _cause("machine", "cuda_error", "fallen off the bus", r".*GPU has fallen off the bus"),
    _cause("machine", "cuda_error", "ECC error", r".*(?:[Uu]ncorrectable|[Dd]ouble[- ][Bb]it) ECC error"),
    _cause("disk", "disk_full", "No space left", r".*No space left on device"),
    _cause("disk", "disk_full", "uota exceeded", r".*[Dd]isk quota exceeded"),
    _cause("disk", "disk_full", "writing", r".*PytorchStreamWriter failed writing file|.*file write failed"),
    # --- a node that its scheduler lost: survivors print their errors first, and the scheduler its own afterwards
    _cause("node", "killed", "ode failure on", r".{0,80}\b[Nn]ode failure on \S+"),
    _cause("node", "killed", "NODE FAILURE", r".{0,120}\bDUE TO NODE FAILURE"),
    # --- libraries of other versions than the program was built with
    _cause(
        "library",
        "cuda_error",
        "compiled with",
        r".{0,200}Loaded runtime CuDNN library: \S+ but source was compiled with",
    ),
    # --- the check in a kernel that failed: what the host sees afterwards is any CUDA error
    _cause("assert", "cuda_error", "Assertion `", r".*\.(?:cu|cuh|h):\d+: .{0,300}Assertion `.{1,200}` failed"),
    # --- networks
    _cause("link", "nccl_error", "NET/IB", r".*NET/IB ?:.{0,20}Got completion .{0,40}with (?:status|error)"),
    _cause("link", "nccl_error", "NET/IB", r".*NET/IB ?:.{0,20}Got async(?: fatal)? event"),
    _cause("link", "nccl_error", "ibv_", r".*\bibv_\w+(?:\(\))? failed|.*Call to ibv_\w+ failed"),
    _cause("network", "network_error", "connect", rf"(?!.*{_NO_CAUSE}).*failed to connect to \S{{3,120}} \(errno: \d+"),
    _cause("network", "network_error", "o route to host", r".*[Nn]o route to host"),
    _cause("network", "network_error", "etwork is unreachable", r".*[Nn]etwork is unreachable"),
    _cause("network", "network_error", "ame ", r".*(?:Name or service not known|Temporary failure in name resolution)"),
    _cause("network", "network_error", "onnection refused", r".*\S:\d{2,5}\b.*[Cc]onnection refused"),
    _cause("network", "network_error", "onnection refused", r".*[Cc]onnection refused.*\S:\d{2,5}\b"),
    # --- what a scheduler of the cluster could not give
    _cause("resources", "ray_error", "o available node types", r".*No available node types can fulfill"),
    _cause("resources", "ray_error", "cannot be scheduled", r".*cannot be scheduled right now|.*infeasible re"),
    _cause("resources", "ray_error", "infeasible", r".*\binfeasible\b.{0,80}(?:request|resource|placement|task|actor)"),
    _cause("resources", "ray_error", "enough resources", r".*cluster.{0,30} not (?:have|having) enough resources"),
    _cause("resources", "ray_error", "GPUs", r".*[Cc]luster has 0(?:\.0)? GPUs?\b"),
    _cause("resources", "config_error", "nsufficient", r".*\bInsufficient (?:nvidia\.com/gpu|cpu|memory)\b"),
    # --- simulators that go on with too small a buffer or an unstable state
    _cause(
        "simulator",
        "config_error",
        "PhysX",
        r".*PhysX error: .{0,80}(?:needs? to increase|overflow detected, please increase)",
    ),
    _cause(
        "simulator",
        "config_error",
        "internal error",
        r".*internal error ?: .{0,80}(?:needs? to increase|overflow detected, please increase)",
    ),
    _cause(
        "simulator",
        "config_error",
        "increase n",
        r".*(?:overflow|too small|full|exceeded).{0,60}increase n(?:jmax|conmax)",
    ),
    _cause("simulator", "divergence", "he simulation is unstable", r".*Nan, Inf or huge value in Q\w+"),
)


class _Aftermath(NamedTuple):
    kinds: frozenset[str]
    pattern: re.Pattern[str]
    groups: tuple[str, ...]  # of the causes that explain it


def _aftermath(kinds: str, pattern: str, *groups: str) -> _Aftermath:
    return _Aftermath(frozenset(kinds.split()), compile_lazily(pattern), groups)


# What only follows from a cause elsewhere, and which causes explain it.
_AFTERMATH = (
    _aftermath(  # ranks that did not meet
        "nccl_error network_error timeout other",
        r".*(?:DistStoreError|DistNetworkError|client socket has (?:timed out|failed)|Rendezvous\w*(?:Error|Exception)"
        r"|waiting for clients|clients? joined|TCPStore|store->get|store[ -]based barrier|Socket Timeout"
        r"|connectFullMesh|Barrier timed out|(?i:timed? ?out.{0,60}(?:init|join|barrier|connect|rendezvous|coordinat))"
        r"|(?i:failed to (?:connect to|initiali[sz]e) .{0,40}(?:coordinat|process group|rendezvous)))",
        "launcher",
        "machine",
        "network",
    ),
    _aftermath(  # ranks that lost one of them
        "nccl_error",
        r".*(?:[Ww]atchdog|remote process exited|[Cc]onnection closed by|[Cc]onnection reset|ncclRemoteError"
        r"|ncclSystemError|unhandled system error|NCCL error|[Hh]eartbeat|unhealthy|NCCL operations have failed"
        r"|[Tt]imed out|[Tt]imeout|HorovodInternalError|detected fatal errors)",
        "machine",
        "link",
        "launcher",
    ),
    _aftermath("nccl_error network_error timeout other ray_error", r"", "node"),
    _aftermath("killed", r".*DUE TO NODE FAILURE", "node"),
    _aftermath("cuda_error", r".*DNN library", "library"),
    _aftermath("cuda_error", r"what\(\): .*device-side assert|.*(?:CUBLAS|CUDNN)_STATUS_", "assert"),
    _aftermath("killed", r".*(?i:time limit|walltime|RUNLIMIT|DeadlineExceeded)", "resources", "launcher", "link"),
    _aftermath("stall timeout", r"", "resources", "launcher", "machine", "link"),
    _aftermath(
        "ray_error", r".*(?:[Tt]imed out|[Dd]ied|is dead|crashed|unavailable|[Tt]imeout)", "resources", "machine"
    ),
    _aftermath("divergence", r"", "simulator"),
    _aftermath("cuda_error segfault", r"", "simulator", "machine"),
    _aftermath(
        "python_error",
        r".*(?i:\bnan\b|non-?finite|invalid values|failed to (?:get|set) .{1,60} (?:from|in|to) backend)",
        "simulator",
    ),
    _aftermath(
        "disk_full data_error segfault", r".*(?:unexpected pos|inline_container|truncated|unexpected EOF)", "disk"
    ),
)


def find_cause_outside(lines: Sequence[Line], evidence: FailureEvidence) -> FailureEvidence | None:
    """Return the earlier line that explains ``evidence``, or None where it is itself a cause, or none is near."""
    text = evidence.text.strip()[:_TEXT_CHARS]
    groups = [
        group for one in _AFTERMATH if evidence.kind in one.kinds and one.pattern.match(text) for group in one.groups
    ]
    if "node" in groups and (lost := _find_lost_node(lines, evidence)):
        return lost
    stated = next((cause for cause in _CAUSES if cause.group in groups and _states(cause, text)), None)
    if stated is not None:
        return replace(evidence, kind=stated.kind)
    top = max(evidence.start - _REACH_LINES, 0)
    texts = [line.text[:_TEXT_CHARS] for line in lines[top : evidence.start]]
    for cause in sorted((one for one in _CAUSES if one.group in groups), key=lambda one: groups.index(one.group)):
        at = next((at for at in range(len(texts) - 1, -1, -1) if _states(cause, texts[at])), None)
        if at is None:
            continue
        at += top
        if cause.group == "resources" and (count_steps(lines, top, evidence.start, 1) or any(map(_RUNS.search, texts))):
            continue  # part of it ran: what waited was not what took the time
        most = _MOST_STEPS_OF_SIMULATION if cause.group == "simulator" else _MOST_STEPS
        if count_steps(lines, at + 1, evidence.start, most) < most:
            tag, said, _ = tracebacks.strip_prefixes(lines[at].text)
            return FailureEvidence(at, at, at, max(evidence.weight, Weight.PEER), cause.kind, said.strip(), tag)
    return None


def _find_lost_node(lines: Sequence[Line], evidence: FailureEvidence) -> FailureEvidence | None:
    """Return the line in which the scheduler says that a node failed: it comes after the errors of surviving ranks.

    The line that names the node may stand a few lines before the verdict about the job.
    """
    for cause in (one for one in _CAUSES if one.group == "node"):
        top = max(evidence.start - _VERDICT_LINES, 0)
        for at in range(top, min(evidence.start + _REACH_LINES, len(lines))):
            if _states(cause, lines[at].text[:_TEXT_CHARS]):
                tag, said, _ = tracebacks.strip_prefixes(lines[at].text)
                return FailureEvidence(at, at, at, max(evidence.weight, Weight.PEER), cause.kind, said.strip(), tag)
    return None


def _states(cause: _Cause, text: str) -> bool:
    return cause.word in text and bool(cause.pattern.match(text))
