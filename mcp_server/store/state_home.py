"""The state directory, ``$RUNWARD_HOME``, and the operator's settings in its ``config.toml``."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets as random
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mcp_server.errors import ConfigInvalid, StateUnusable
from mcp_server.record.notices.notice import DEFAULT_EVENTS, DEFAULT_PER_HOUR, EVENTS, SERVICES, split_command
from mcp_server.record.run_directory import path_below
from mcp_server.record.script import slug
from mcp_server.system.files import is_shortage, read_configuration, state_directory
from mcp_server.system.lock_files import user_name


class NotifySettings(BaseModel):
    """Who hears of runs, beside their agents: a command, a webhook, or both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    on: tuple[str, ...] = DEFAULT_EVENTS
    command: str | tuple[str, ...] = ()
    webhook: str = ""
    webhook_secret: str = ""  # the name of a secret that is the address
    service: str = ""  # empty: by the host of the address
    token_secret: str = ""
    sign_secret: str = ""
    max_per_hour: int = Field(default=DEFAULT_PER_HOUR, ge=1, le=10_000)

    @field_validator("on", mode="before")
    @classmethod
    def _check_events(cls, value: object) -> object:
        events = [value] if isinstance(value, str) else value
        for event in events if isinstance(events, list) else []:
            if event not in EVENTS:
                raise ValueError(f"{event!r} is not an event; there are {', '.join(EVENTS)}")
        return events

    @model_validator(mode="after")
    def _check(self) -> NotifySettings:
        if self.webhook and self.webhook_secret:
            raise ValueError("webhook and webhook_secret exclude each other")
        if not (self.webhook or self.webhook_secret or self.command):
            raise ValueError("a command, a webhook or a webhook_secret is needed")
        if self.service and self.service not in SERVICES:
            raise ValueError(f"service is one of {', '.join(SERVICES)}")
        if self.webhook:
            check_address(self.webhook)
        if self.command:
            split_command(self.command)
        return self


def check_address(address: str) -> None:
    """Raise ValueError where a webhook's address is none of http or https with a host. No message repeats it."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the address of a webhook begins with https:// or http://, and has a host")


class Config(BaseModel):
    """The operator's settings. Unknown names are refused: a misspelt policy would otherwise count as absent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kill_policy: Literal["confirm", "human"] = "confirm"
    hook: Literal["nudge", "block", "off"] = "nudge"  # of `runward hook`, which reads it itself
    owner: str = ""
    stop_grace_s: float = Field(default=5.0, ge=0, le=3600)
    repair_grace_s: float = Field(default=0.0, ge=0, le=86400)
    keep_sessions: int = Field(default=50, ge=0)
    cpu_slots: int | None = Field(default=None, ge=0, le=10_000)  # None: one per core
    gpu_sample_s: float = Field(default=5.0, ge=0.1, le=600)
    gpu_window_s: float = Field(default=120.0, ge=0.5, le=86400)
    read_roots: tuple[str, ...] = ()  # further directories whose logs read_log may read, and callers with a token all
    allow_sessions: tuple[str, ...] = ()  # tmux sessions, by glob, that callers with a token may see besides runs'
    http_hosts: tuple[str, ...] = ()  # further host names by which clients reach the server, such as a proxy's
    notify: tuple[NotifySettings, ...] = ()
    quotas: dict[str, Annotated[int, Field(ge=0, le=100_000)]] = {}  # GPUs at once by owner; "*": of all others, each

    @field_validator("notify", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value


_ID_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"  # none that a reader confuses
_MISSING = (FileNotFoundError, NotADirectoryError)


@contextlib.contextmanager
def configuration_errors(file: Path) -> Iterator[Path]:
    """Give the path of a file that a person wrote, and raise ConfigInvalid where the block cannot use its content."""
    try:
        yield file
    except ValidationError as error:
        first = error.errors()[0]
        cause = first["msg"].removeprefix("Value error, ").rstrip(".")
        raise ConfigInvalid(file, f"{'.'.join(map(str, first['loc']))}: {cause}.") from error
    except (OSError, ValueError, RecursionError) as error:
        if is_shortage(error):
            raise
        raise ConfigInvalid(file, f"{error}.") from error


@dataclass(frozen=True)
class StateHome:
    """The state directory."""

    path: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> StateHome:
        """Return ``$RUNWARD_HOME``, else ``$XDG_STATE_HOME/runward``, else ``~/.local/state/runward``."""
        try:
            return cls(state_directory(environ))
        except RuntimeError as error:
            raise StateUnusable(Path("~"), "this user has no home directory") from error

    runs = path_below("runs")  # one directory per run
    sweeps = path_below("sweeps")  # one directory per sweep
    hosts = path_below("hosts")  # one per host reached by ssh, with a mirror of its runs, see ``backends/ssh/mirror``
    keys = path_below("keys")  # one file per idempotency key, with the id of its run
    waits = path_below("waits")  # those that outlive their server, see ``store/wait_files``
    secrets = path_below("secrets.env")  # ``NAME=VALUE`` lines, mode 0600

    def list_mirrors(self) -> list[Path]:
        """Return the directories of the hosts that were reached by ssh."""
        try:
            return sorted(path for path in self.hosts.iterdir() if not path.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def choose_id(self, name: str) -> str:
        """Return an id for a run or sweep of this name that none has, here or in a mirror."""
        kept = (self.runs, self.sweeps, *(path / "runs" for path in self.list_mirrors()))
        ids = iter(lambda: f"{slug(name)}-{''.join(random.choice(_ID_LETTERS) for _ in range(4))}", "")
        return next(one for one in ids if not any((place / one).exists() for place in kept))

    def create(self) -> None:
        """Create the directories, with access for their owner alone, or raise StateUnusable."""
        try:
            for path in (self.path, self.runs, self.keys):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                self.path.chmod(0o700)
        except OSError as error:
            raise StateUnusable(self.path, str(error.strerror)) from error

    def read_config(self) -> Config:
        """Return the settings of ``config.toml``. Without that file, the defaults.

        Raises:
            ConfigInvalid: the file is not valid TOML, or has a setting that does not exist.
        """
        with configuration_errors(self.path / "config.toml") as file, contextlib.suppress(*_MISSING):
            return Config.model_validate(tomllib.loads(read_configuration(file).decode()))
        return Config()

    def read_kill_policy(self) -> Literal["confirm", "human"]:
        """Return who may confirm a stop. A broken ``config.toml`` prevents no stop, and takes no stop from people.

        One that cannot be read at all may say ``human``, so it counts as if it did.
        """
        policy, text = self._read_valid_settings()
        is_certain = "kill_policy" in policy.model_fields_set or (text is not None and "pol" not in text)
        return policy.kill_policy if is_certain else "human"

    def _read_valid_settings(self) -> tuple[Config, str | None]:
        """Return the settings, of a broken file those in lines that are valid by themselves, and the file's text.

        The text is None, and the settings are the defaults, where the file cannot be read at all.
        """
        try:
            return self.read_config(), ""
        except ConfigInvalid:
            settings: dict[str, object] = {}
            try:
                text = read_configuration(self.path / "config.toml").decode(errors="replace")
            except OSError:
                return Config(), None
            for line in text.splitlines():
                if line.partition("=")[0].strip() not in Config.model_fields:
                    continue
                with contextlib.suppress(ValueError, RecursionError):  # of TOML, and of a setting
                    setting = tomllib.loads(line)
                    Config.model_validate(setting)
                    settings |= setting
            return Config.model_validate(settings), text

    def find_warning(self) -> str | None:
        """Return a warning where another user can change what this user's runs read: ``sudo`` keeps such a home."""
        for path in (self.path, self.secrets):
            with contextlib.suppress(OSError):
                uid = path.stat().st_uid
                if uid not in (0, os.geteuid()):
                    owner, user = user_name(uid), user_name(os.geteuid())
                    return (
                        f"{path} belongs to {owner}, and you are {user}: {owner} can change what your runs do. "
                        "Set RUNWARD_HOME to a directory of your own."
                    )
        return None

    def owner(self, environ: Mapping[str, str]) -> str:
        """Return the owner of new runs: ``$RUNWARD_OWNER``, else the configured owner, else the user's name."""
        return environ.get("RUNWARD_OWNER") or self._read_valid_settings()[0].owner or _user()


def _user() -> str:
    """Return the user's name, or the user's number where there is no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
