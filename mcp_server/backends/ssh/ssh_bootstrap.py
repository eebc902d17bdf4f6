"""The first words of a connection: a script for ``/bin/sh`` that finds a Python, and the Python that starts the relay.

The login shell may be fish or tcsh, and may print anything. So it only executes ``/bin/sh``, which reads the script
from stdin, and everything before a line with the marker is not ours. This side sends nothing after the script until the
marker has come: a shell may read its script in blocks, and would swallow what follows.

The relay gets the environment that a person has after `ssh HOST`, or after the ``prepare`` line: a login shell prints
it. One that takes longer than 10 s, or asks for something, is left out. The relay is one file with the hash of its
content in its name. It is sent where it is missing.
"""

import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.backends.supervisor_copy import OLDEST_PYTHON
from mcp_server.errors import ConfigInvalid
from mcp_server.system.files import read_configuration

VERSIONS = ("3.13", "3.12", "3.11", "3.10", "3.9")
_SCRIPT = Path(__file__).with_name("bootstrap.sh").read_text(encoding="utf-8")
_STAGE = r"""
import hashlib, json, os, subprocess, sys
mark, digest, state, prepare = sys.argv[1:5]
def say(**facts):
    os.write(1, ("\n" + mark + json.dumps(facts) + "\n").encode())
def is_shared(path):
    kinds, best = ("nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "ceph", "gpfs", "9p", "afs"), ("", "")
    try:
        for line in open("/proc/self/mounts"):
            at, kind = line.split()[1:3]
            if (path + "/").startswith(at.rstrip("/") + "/") and len(at) >= len(best[0]):
                best = (at, kind)
    except OSError:
        pass
    return best[1].startswith(kinds)
def take_environment():
    shell = os.environ.get("SHELL") or "/bin/sh"
    if prepare:
        shell = "bash" if any(os.path.exists(p + "/bash") for p in os.environ["PATH"].split(":")) else "/bin/sh"
    line = "echo; echo " + mark + "; exec env -0"
    if prepare:
        line = "{ " + prepare + "\n} >&2 || exit 1; " + line
    login = "-c" if shell.endswith("csh") else "-lc"
    process = subprocess.Popen([shell, login, line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True)
    try:
        data, errors = process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return "slow", ""
    pairs = data.partition(("\n" + mark + "\n").encode())[2].split(b"\0")
    if len(pairs) == 1:
        return "failed", (errors.decode(errors="replace").strip().splitlines() or [""])[-1][:200]
    for pair in pairs:
        name, equals, value = pair.partition(b"=")
        if equals and name:
            os.environb[name] = value
    return "", ""
try:
    problem, said = take_environment()
except OSError:
    problem = ""
if problem and prepare:
    say(failed="prepare", found=problem, said=said)
    sys.exit(1)
chosen, umask = state, os.umask(0o077)
try:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    chosen = os.path.expanduser(state) if state else os.environ.get("RUNWARD_HOME") or os.path.join(home, "runward")
    if not state and "RUNWARD_HOME" not in os.environ and is_shared(os.path.realpath(chosen)):
        chosen = "/var/tmp/runward-%d" % os.getuid()
    os.makedirs(chosen, 0o700, exist_ok=True)
    if os.stat(chosen).st_uid != os.getuid():
        raise OSError("it belongs to user %d" % os.stat(chosen).st_uid)
    os.chmod(chosen, 0o700)
    directory = os.path.join(chosen, "relays")
    os.makedirs(directory, 0o700, exist_ok=True)
    program = os.path.join(directory, digest + ".pyz")
    if not os.path.exists(program):
        say(need=True)
        size, data = b"", b""
        while not size.endswith(b"\n"):
            size += os.read(0, 1) or sys.exit(1)
        while len(data) < int(size):
            data += os.read(0, min(1 << 16, int(size) - len(data))) or sys.exit(1)
        if hashlib.sha256(data).hexdigest()[:16] != digest:
            raise OSError("the program arrived damaged")
        part = "%s.%d" % (program, os.getpid())
        try:
            with open(part, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(part, program)
        except OSError:
            os.path.exists(part) and os.unlink(part)
            raise
    say(state=chosen)
except OSError as error:
    say(failed="state", found="%s: %s" % (chosen, error.strerror or error))
    sys.exit(1)
os.umask(umask)  # the commands' own
os.execv(sys.executable, [sys.executable, "-I", "-S", "-X", "utf8", program, "--relay", chosen])
"""


@dataclass(frozen=True)
class SshSettings:
    """The connection to one host. ``alias`` is a name of ``~/.ssh/config``, which says all else of the connection.

    ``pythons``: interpreters to try first. ``state``: the state directory there. ``prepare``: a line of sh before
    Python is looked for, such as ``module load python/3.12``.
    """

    name: str
    alias: str
    pythons: tuple[str, ...] = ()
    state: str = ""
    prepare: str = ""


def read_ssh_settings(mirror: Path) -> SshSettings:
    """Return the settings of the host whose mirror is ``mirror``, `hosts/NAME` in the state directory.

    Raises:
        ConfigInvalid: hosts.toml cannot be read, or does not say how this host is reached.
    """
    name, file = mirror.name, mirror.parents[1] / "hosts.toml"
    try:
        tables = tomllib.loads(read_configuration(file).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigInvalid(file, f"{error}.") from error
    host = _table(_table(tables, "hosts"), name)
    alias = host.get("ssh")
    if not isinstance(alias, str) or not alias:
        raise ConfigInvalid(file, f"hosts.{name} has no ssh = ALIAS any more.")
    environment = _table(_table(tables, "environments"), str(host.get("environment")))
    pythons = [host.get("python"), environment.get("python")]
    return SshSettings(
        name,
        alias,
        tuple(python for python in pythons if isinstance(python, str)),
        str(host.get("state") or ""),
        str(host.get("prepare") or ""),
    )


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name)
    return table if isinstance(table, dict) else {}


def render_bootstrap(settings: SshSettings, mark: str, digest: str) -> str:
    """Return the script for ``/bin/sh``. ``digest`` names the content of the relay's program."""
    pythons = [*settings.pythons, *(f"python{version}" for version in VERSIONS), "python3", "python"]
    line = f"{{ {settings.prepare}\n}} >&2; exec env" if settings.prepare else "exec env"
    values = {
        "mark": mark,
        "line": shlex.quote(line),
        "prepare": shlex.quote(settings.prepare),
        "pythons": shlex.join(dict.fromkeys(pythons)),
        "oldest": OLDEST_PYTHON,
        "stage": shlex.quote(_STAGE),
        "digest": digest,
        "state": shlex.quote(settings.state),
    }
    return _SCRIPT % values
