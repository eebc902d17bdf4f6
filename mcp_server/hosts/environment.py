"""The environment that a run inherits from this host, the values of its secrets, and the targets of its notices."""

import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from mcp_server.errors import BadArgument, RunwardError, SecretNotSet, SecretsFileOpen, SecretsFileUnreadable
from mcp_server.record.notices.notice import Target, guess_service, name_target, split_command
from mcp_server.store.state_home import Config, NotifySettings, StateHome, check_address
from mcp_server.system.files import read_configuration
from mcp_server.text.redaction import Redactor
from mcp_server.text.secret_patterns import is_distinct, is_secret_variable, names_a_secret
from mcp_server.text.secret_spellings import SHORTEST_SECRET

_LINE = re.compile(
    r"(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*"
    r"(?:(?P<quote>[\"'])(?P<quoted>.*)(?P=quote)(?:\s+#.*)?|(?P<plain>\S.*)?)"
)
_SHORTEST_KEY = 8
_FIXED = frozenset({"UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO", "TERM"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_environment(env: Mapping[str, str]) -> None:
    """Raise BadArgument for a variable that cannot be set, or a secret, which spec.json would keep. Tells no value."""
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise BadArgument("env", f"{name[:80]!r} cannot be an environment variable.")
        if name in _FIXED or name.startswith("RUNWARD_"):
            raise BadArgument("env", f"{name} cannot be set: bash or runward sets it.")
        if is_secret_variable(name, value):
            raise BadArgument(
                "env", f"{name} looks like a secret and would be written to a file: use secrets=[{name!r}]."
            )


def find_secrets(names: Iterable[str], environ: Mapping[str, str], file: Path) -> dict[str, str]:
    """Return the values of ``names``, from the server's environment or the 0600 ``file``.

    Raises:
        SecretNotSet: neither has a value.
        SecretsFileOpen: other users can read the file.
        BadArgument: a value is too short to be masked in the output.
    """
    values = {}
    for name in names:
        value = environ.get(name) or read_secrets_file(file).get(name)
        if not value:
            raise SecretNotSet(name, file)
        if len(value.strip()) < SHORTEST_SECRET:
            raise BadArgument("secrets", f"{name} has fewer than {SHORTEST_SECRET} characters: it cannot be masked.")
        values[name] = value
    return values


def list_known_secrets(environ: Mapping[str, str], file: Path) -> dict[str, str]:
    """Return all values that this server knows to be secret.

    They are those of its secrets file, and of variables that are so named, or that a target of notices names, and the
    addresses that such targets have.
    """
    named, addresses = _list_secrets_of_notices(file.parent)
    values = addresses | {
        name: value for name, value in environ.items() if value and (names_a_secret(name) or name in named)
    }
    with suppress(RunwardError):
        values |= read_secrets_file(file)
    return values


def find_distinct_secrets(environ: Mapping[str, str], file: Path) -> dict[str, str]:
    """Return those known secrets whose values no ordinary argument contains: not `enabled`, not the name of a team.

    Where it is an address that a target of notices names, its key counts: the host is not a secret.
    """
    named, addresses = _list_secrets_of_notices(file.parent)
    distinct = {}
    for name, value in list_known_secrets(environ, file).items():
        if is_distinct(name, value) and name not in addresses:
            distinct[name] = value
        elif (name in named or name in addresses) and len(key := _find_key(value)) >= _SHORTEST_KEY:
            distinct[name] = key
    return distinct


def _find_key(address: str) -> str:
    """Return the longest word of an address behind its host; of another text the whole."""
    _, separator, rest = address.strip().partition("://")
    return max(re.split("[/?&=#]", rest)[1:], key=len, default="") if separator else address.strip()


def _list_secrets_of_notices(home: Path) -> tuple[frozenset[str], dict[str, str]]:
    """Return the names of the secrets that the targets of notices have, and the addresses that are written plainly."""
    with suppress(RunwardError, OSError):
        targets = StateHome(home).read_config().notify
        named = frozenset(name for one in targets for name in (one.webhook_secret, one.token_secret, one.sign_secret))
        plain = [one.webhook for one in targets if len(_find_key(one.webhook)) >= _SHORTEST_KEY]
        return named, {f"notify.webhook{number or ''}": address for number, address in enumerate(plain)}
    return frozenset(), {}


def mask_distinct_secrets(text: str, environ: Mapping[str, str], file: Path) -> str:
    """Return ``text`` without the values of ``find_distinct_secrets``."""
    secrets = {
        name: value
        for name, value in find_distinct_secrets(environ, file).items()
        if len(value.strip()) >= SHORTEST_SECRET
    }
    return Redactor(secrets).text(text) if secrets else text


def read_secrets_file(file: Path) -> dict[str, str]:
    """Return the secrets in a file by name. A missing file holds none.

    Raises:
        SecretsFileOpen, SecretsFileUnreadable: other users can read the file, or it is not a list of NAME=VALUE.
    """
    try:
        data = read_configuration(file)
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SecretsFileOpen(file)
        lines = data.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SecretsFileUnreadable(file, str(error.strerror)) from error
    except ValueError as error:
        raise SecretsFileUnreadable(file, "it is not text in UTF-8") from error
    secrets = {}
    for number, line in enumerate(lines, 1):
        if (match := _LINE.fullmatch(line.strip())) is not None:
            secrets[match["name"]] = match["quoted"] or match["plain"] or ""
        elif line.strip() and not line.strip().startswith("#"):
            raise SecretsFileUnreadable(file, f"line {number} is not NAME=VALUE")
    return secrets


def find_targets(config: Config, environ: Mapping[str, str], secrets_file: Path) -> tuple[list[Target], list[str]]:
    """Return the targets that can be used, and a sentence for each that cannot: a run never waits for a notice."""
    targets: list[Target] = []
    problems: list[str] = []
    for settings in config.notify:
        try:
            targets += _make_targets(settings, environ, secrets_file)
        except RunwardError as error:
            problems.append(f"A target of notices gets nothing: {error}")
        except ValueError as error:
            problems.append(f"A target of notices gets nothing: {settings.webhook_secret}: {error}.")
    return targets, problems


def _make_targets(settings: NotifySettings, environ: Mapping[str, str], secrets_file: Path) -> Iterator[Target]:
    names = [settings.webhook_secret, settings.token_secret, settings.sign_secret]
    secrets = find_secrets(filter(None, names), environ, secrets_file)
    if url := secrets.get(settings.webhook_secret, settings.webhook):
        check_address(url)
        yield Target(
            name=name_target(url, ()),
            url=url,
            service=settings.service or guess_service(url),
            token=secrets.get(settings.token_secret, ""),
            sign_secret=secrets.get(settings.sign_secret, ""),
            events=settings.on,
            max_per_hour=settings.max_per_hour,
        )
    if settings.command:
        command = split_command(settings.command)
        name = name_target("", command if not isinstance(settings.command, str) else settings.command.split())
        yield Target(name=name, command=command, events=settings.on, max_per_hour=settings.max_per_hour)
