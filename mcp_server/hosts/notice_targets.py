"""The targets of notices that config.toml names, with the values of their secrets."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from mcp_server.errors import RunwardError
from mcp_server.hosts.environment import find_secrets
from mcp_server.record.notices.notice import Target, guess_service, name_target, split_command
from mcp_server.store.state_home import Config, NotifySettings, check_address


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
