"""The answers of a relay: each request with the types of its answer. Checked once, where the answer arrives.

The other host may be broken, hostile, or of another version. An answer that fails its check is discarded: readers raise
HostUnreachable, which says what is wrong. Texts that people and models read lose control characters, and have a length.
"""

import functools
import os
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from mcp_server import errors
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.codec import decode
from mcp_server.record.events import is_time
from mcp_server.record.relay_channel import MOST_CONTENT_BYTES, REQUESTS
from mcp_server.record.state import EndedState, LivenessReport
from mcp_server.text.formatting import printable

_LONGEST_TEXT, _LONGEST_PATH, _MOST_ENTRIES, _MOST_LINES = 1_000, 4_096, 50_000, 200
_MOST_PROBLEMS, _LONGEST_PROBLEM = 3, 80


def _show(text: str) -> str:
    return printable(text[:_LONGEST_TEXT], " ")


def _check_path(path: str) -> str:
    os.fsencode(path)
    if "\0" in path or len(path) > _LONGEST_PATH:
        raise ValueError("no path")
    return path


def _check_number(directories: dict[str, list[Any]]) -> dict[str, list[Any]]:
    if sum(map(len, directories.values())) > _MOST_ENTRIES:
        raise ValueError(f"more than {_MOST_ENTRIES:,} files")
    return directories


def _check_time(text: str) -> str:
    if not is_time(text):
        raise ValueError("no time")
    return text


Text = Annotated[str, AfterValidator(_show)]
When = Annotated[str, AfterValidator(_check_time)]
FarPath = Annotated[str, AfterValidator(_check_path)]
Count = Annotated[int, Field(ge=0, lt=2**62)]
Time = Annotated[int, Field(gt=-(2**62), lt=2**62)]  # in ns
Digest = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})$")]
Port = Annotated[int, Field(gt=0, lt=65_536)]
_Pid = Annotated[int, Field(ge=0, lt=2**31)]  # 0: a scheduler's job
_FINITE = with_config(ConfigDict(allow_inf_nan=False))


@_FINITE
class _Hello(TypedDict):
    state: FarPath
    state_id: NotRequired[Text]
    home: FarPath
    python: NotRequired[Text]
    host: NotRequired[Text]
    boot_id: NotRequired[Text]
    path: NotRequired[str]
    pythonpath: NotRequired[str]
    tmux: NotRequired[Text]
    tmux_socket: NotRequired[FarPath]
    inotify: NotRequired[bool]
    cpu_slots: NotRequired[Annotated[int, Field(gt=0, lt=2**20)]]
    pid: NotRequired[_Pid]
    time: NotRequired[Annotated[float, Field(ge=0, lt=2**40)]]


class _Unreachable(TypedDict):
    host: Text
    since: When
    why: Text


class _Failure(TypedDict):
    kind: Literal["killed", "oom_host", "timeout"]
    line: Text
    retryable: bool
    action: Literal["retry", "retry_changed"]
    advice: Text


class _JobEnd(TypedDict):
    state: EndedState
    reason: Text
    ended_at: When | None
    stopped_by: Text | None
    failure: _Failure | None


class _Report(TypedDict):
    liveness: Literal["alive", "dead", "pending", "unknown", "unreachable"]
    reason: Text
    job_id: NotRequired[Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}(?:_[0-9]{1,10})?$")]]
    unreachable: NotRequired[_Unreachable]
    end: NotRequired[_JobEnd]


class _There(TypedDict):
    kind: Literal["directory", "file"]
    path: FarPath


class _Missing(TypedDict):
    kind: Literal["missing"]
    near: NotRequired[list[Text]]


class _Unknown(TypedDict):
    kind: Literal["unknown"]


class _Repository(TypedDict):
    path: FarPath
    own: bool
    has: NotRequired[bool]
    tips: NotRequired[list[Digest]]


def _fields(**types: Any) -> Any:
    """Return the type of an answer with these fields, whose numbers are finite."""
    return _FINITE(TypedDict("Answer", types))  # type: ignore[operator]


_PROCESSES = Annotated[list[tuple[_Pid, Text]], Field(max_length=_MOST_ENTRIES)]
_FILES = Annotated[dict[FarPath, tuple[Count, Time, Count]], Field(max_length=_MOST_ENTRIES)]
_PATH = Annotated[_There | _Missing | _Unknown, Field(discriminator="kind")]
_TREES = Annotated[dict[FarPath, list[tuple[FarPath, Count, Time]]], AfterValidator(_check_number)]
_LINES = Annotated[list[Text], Field(max_length=_MOST_LINES)]
_DIGESTS = NotRequired[list[Digest]]
_NO_FIELDS = _fields()
_ANSWERS = {
    "ping": _fields(time=float),
    "withdraw": _fields(withdrawn=bool),
    "interrupt": _fields(reached=bool),
    "reap": _fields(signals_sent=list[Text], survivors=_PROCESSES, unsupervised=bool),
    "leftovers": _fields(processes=_PROCESSES),
    "screen": _fields(is_log=NotRequired[bool]),
    "sessions": _fields(sessions=list[str]),
    "read": _fields(size=Count, mtime_ns=Time),
    "files": _fields(files=_FILES, cut=NotRequired[bool]),
    "gpus": _fields(snapshot=Snapshot, holders=dict[Text, Text]),
    "paths": _fields(paths=dict[str, _PATH]),
    "trees": _fields(directories=_TREES, cut=bool),
    "contents": _fields(sizes=list[Annotated[int, Field(ge=-1, lt=2**40)]]),
    "code_look": _fields(directory=FarPath, there=bool, repositories=NotRequired[list[_Repository]], missing=_DIGESTS),
    "code_make": _fields(directory=FarPath),
    "code_restore": _fields(directory=FarPath),
    "code_changes": _fields(changed=Annotated[list[Text], Field(max_length=_MOST_ENTRIES)]),
    "free_port": _fields(port=Port | None),
    "check": _fields(problems=list[tuple[Text, Text, Text]], found=list[Text]),
    "disk": _fields(path=Text, free=Count, writable=bool),
    "preview_job": _fields(lines=_LINES),
    "preview_array": _fields(lines=_LINES),
}

_ERRORS = {kind.__name__: kind for kind in (errors.LaunchFailed, errors.ScreenNotFound, errors.ScreenNotAnswering)}


def read_answer(
    host: str, name: str, asked: Mapping[str, Any], facts: object, data: bytes
) -> tuple[dict[str, Any], bytes]:
    """Return the answer of ``host`` to the request ``name`` with the words ``asked``, and its bytes, unpacked."""
    answer = _check(host, f"its answer to {name}", _ANSWERS.get(name, _NO_FIELDS), facts)
    if name == "paths" and not set(asked["paths"]) <= answer["paths"].keys():
        raise errors.HostUnreachable(host, "its answer to paths lacks one of them")
    if most_bytes := REQUESTS[name].most_bytes:
        try:
            data = decompress(data, most_bytes)
        except OSError as error:
            raise errors.HostUnreachable(host, f"its answer to {name} is not understood ({error.strerror})") from error
    if name == "contents":
        sizes = answer["sizes"]
        if len(sizes) > len(asked["paths"]) or sum(size for size in sizes if size > 0) != len(data):
            raise errors.HostUnreachable(host, "its answer to contents has other sizes than it says")
    return answer, data


def read_hello(host: str, facts: object) -> dict[str, Any]:
    """Return the first words of a relay."""
    return _check(host, "its greeting", _Hello, facts)


def read_report(host: str, facts: object) -> LivenessReport:
    """Return what a relay says of a run's supervisor."""
    return decode(LivenessReport, _check(host, "its report on a run", _Report, facts))


def read_error(host: str, words: object) -> Exception:
    """Return the error that a relay answered with: the name of a class, its cause, state and remedy."""
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return errors.HostUnreachable(host, "its answer is an error without words")
    name, cause, state, remedy = (*map(_show, words), "", "", "")[:4]
    if name == "OSError":
        number = int(state) if state.isascii() and state.isdigit() and len(state) <= len("9999") else 0
        return OSError(number, cause, remedy or None)
    if name in _ERRORS:
        return _ERRORS[name](cause, state, remedy)
    if name == "RunNotFound":
        error = errors.RunNotFound("", [])
        errors.RunwardError.__init__(error, cause, state, remedy)
        return error
    return errors.RunwardError(f"{host}: {cause}", state, remedy or f"A person can look with: runward hosts {host}")


def decompress(data: bytes, most_bytes: int = MOST_CONTENT_BYTES) -> bytes:
    """Return what a relay compressed; OSError where it is damaged, or more than ``most_bytes``."""
    decompressor = zlib.decompressobj()
    try:
        content = decompressor.decompress(data, most_bytes)
    except zlib.error as error:
        raise OSError(0, f"the host sent damaged data ({error})") from error
    if decompressor.unconsumed_tail:
        raise OSError(0, "the host sent more than it was asked for")
    return content


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _check(host: str, what: str, kind: type, facts: object) -> dict[str, Any]:
    try:
        checked: dict[str, Any] = _adapter(kind).validate_python(facts)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(str(part)[:_LONGEST_PROBLEM] for part in each['loc']) or 'all of it'}: {each['msg']}"
            for each in error.errors(include_input=False, include_url=False, include_context=False)[:_MOST_PROBLEMS]
        ]
        raise errors.HostUnreachable(host, f"{what} is not understood ({_show('; '.join(wrong))})") from error
    return checked
