"""Errors that agents and users read: each has a cause, a state and a remedy, which make up its message."""

from __future__ import annotations

from pathlib import Path

_MOST_RUN_IDS = 8  # that one message names


class RunwardError(Exception):
    """A refusal or failure. Its message is ``cause``, ``state`` (what is still true) and ``remedy`` (what to do)."""

    def __init__(self, cause: str, state: str = "", remedy: str = "") -> None:
        super().__init__(" ".join(part for part in (cause, state, remedy) if part))
        self.cause, self.state, self.remedy = cause, state, remedy


class BadArgument(RunwardError):
    """An argument was refused before anything was done. ``reason`` is the cause without the argument's name."""

    def __init__(self, argument: str, reason: str, remedy: str = "") -> None:
        super().__init__(f"{argument}: {reason}", "Nothing was done.", remedy)
        self.argument, self.reason = argument, reason


class SecretNotSet(RunwardError):
    """A launch names a secret that the server does not have."""

    def __init__(self, name: str, file: Path) -> None:
        super().__init__(
            f"Secret not set: {name!r}.",
            "Nothing was started.",
            f"A person can put it into the server's environment, or as {name}=VALUE into {file} (mode 0600).",
        )


class SecretsFileOpen(RunwardError):
    """Other users can read the secrets file."""

    def __init__(self, file: Path) -> None:
        super().__init__(
            f"{file} can be read by others and was not used.", remedy=f"A person should run: chmod 600 {file}"
        )


class SecretsFileUnreadable(RunwardError):
    """The secrets file cannot be read or parsed."""

    def __init__(self, file: Path, cause: str) -> None:
        super().__init__(f"{file} was not used: {cause}.", "Nothing was done.", "A person should fix the file.")


class ConfigInvalid(RunwardError):
    """config.toml or hosts.toml is not valid."""

    def __init__(self, file: Path, cause: str) -> None:
        super().__init__(f"{file}: {cause}", "Nothing was done.", "A person should fix the file.")


class StateUnusable(RunwardError):
    """The state directory cannot be written."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"{path}: {cause}.", "Nothing was done.", "A person can set RUNWARD_HOME to another directory."
        )
        self.path = path


class TmuxMissing(RunwardError):
    """tmux is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "tmux is not installed.", "Nothing was started.", "A person should run: sudo apt-get install tmux"
        )


class InterpreterGone(RunwardError):
    """The environment that runward itself runs in was removed or moved under a live server."""

    def __init__(self, python: Path, fault: str) -> None:
        super().__init__(
            f"runward's own environment is gone: {python} {fault}.",
            "Nothing was started; live runs go on.",
            "A person should install runward again, and start this server anew.",
        )


class ProcForeign(RunwardError):
    """The mounted /proc is of another process namespace: its numbers name strangers."""

    def __init__(self) -> None:
        super().__init__(
            "/proc is of another process namespace than this server: no process can be told from a stranger's.",
            "Nothing was started.",
            "A person should start the server with a /proc of its own, e.g. by unshare --mount-proc.",
        )


class LaunchFailed(RunwardError):
    """The supervisor did not start the command."""


class LaunchUnanswered(LaunchFailed):
    """The connection to a far host broke during a launch: whether the run was started is unknown until it answers."""

    def __init__(self, host: str, run_id: str, why: str) -> None:
        super().__init__(
            f"The connection to {host} broke while it started {run_id} ({why}): whether it runs is unknown.",
            "It is never started twice, and it is listed: once the host answers, it is there, or its state says that "
            "nothing was started.",
            f"Call wait_run({run_id!r}), and launch it again only if nothing was started.",
        )
        self.host, self.run_id = host, run_id


class GpusNotFree(RunwardError):
    """The GPUs, or cpu ``slots``, that a launch requests are not free. ``never``: waiting does not help either."""

    def __init__(self, cause: str, *, never: bool, remedy: str = "", slots: bool = False) -> None:
        what = "cpu slots" if slots else "GPUs"
        step = "Call gpu_check." if never else "Pass queue=true to wait in line, or call gpu_check."
        if slots:
            step = "Request fewer." if never else "Pass queue=true to wait in line."
        super().__init__(f"{what} not free: {cause.rstrip('.')}.", "Nothing was started.", remedy or step)
        self.never = never


class RunNotFound(RunwardError):
    """No run has this id or name."""

    def __init__(self, run_id: str, near: list[str]) -> None:
        near = [name for name in near if name != run_id]
        hint = f"Did you mean {' or '.join(near)}?" if near else "Call list_runs."
        super().__init__(f"Run not found: {run_id[:80]!r}.", remedy=hint)
        self.run_id, self.near = run_id, near


class RunNameAmbiguous(RunNotFound):
    """Several runs have this name. ``near`` holds their ids, the newest first."""

    def __init__(self, name: str, run_ids: list[str]) -> None:
        listed = ", ".join(run_ids[:_MOST_RUN_IDS])
        more = f" and {len(run_ids) - _MOST_RUN_IDS} more" if len(run_ids) > _MOST_RUN_IDS else ""
        RunwardError.__init__(
            self,
            f"{len(run_ids)} runs are named {name[:80]!r}, the newest first: {listed}{more}.",
            "Nothing was done.",
            "Pass a run_id.",
        )
        self.run_id, self.near = name, run_ids


class SweepNotFound(RunwardError):
    """No sweep has this id or name."""

    def __init__(self, name: str, near: list[str]) -> None:
        hint = f"Did you mean {' or '.join(near)}?" if near else "list_runs names the newest, `runward sweep` all."
        super().__init__(f"Sweep not found: {name[:80]!r}.", remedy=hint)
        self.name, self.near = name, near


class SessionOfOthers(RunwardError):
    """A call that takes runs was given a tmux session that runward did not start. ``command`` follows it as a run."""

    def __init__(self, session: str, command: str) -> None:
        super().__init__(
            f"{session!r} is a tmux session that runward did not start, and no run.",
            "Nothing was done.",
            f"capture_pane(session={session!r}) shows it. To wait for it, launch_run(command={command!r}, "
            f"name={f'watch-{session}'!r}), then wait_run for that.",
        )


class NotOfSweeps(RunwardError):
    """A call that takes runs was given a sweep."""

    def __init__(self, sweep_id: str) -> None:
        super().__init__(
            f"{sweep_id} is a sweep, and this takes one run.",
            "Nothing was done.",
            f"list_runs(sweep={sweep_id!r}) names its runs; wait_run, kill_run, compare_runs(sweep=...) take sweeps.",
        )


class BackendUnknown(RunwardError):
    """A run's record names a backend that this version does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"This version of runward has no backend {name!r:.40}: a newer one started the run.")


class RunUnreadable(RunwardError):
    """The record of a run is there, and cannot be read now."""

    def __init__(self, run_id: str, error: OSError | RunwardError) -> None:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        super().__init__(
            f"The record of {run_id} cannot be read now: {why.rstrip('.')}.",
            "Its state is unknown; nothing was changed, and if it runs, it goes on.",
            "Call again in a moment; runward doctor says what the machine lacks.",
        )
        self.run_id = run_id


class ScreenNotFound(RunwardError):
    """The tmux session to capture does not exist."""


class ScreenNotAnswering(RunwardError):
    """tmux does not answer in time."""


class PatternError(RunwardError):
    """A regular expression cannot be used. ``why`` is the reason."""

    def __init__(self, pattern: str, why: str) -> None:
        super().__init__(f"Pattern not usable: {pattern[:200]!r}: {why}.", "Nothing was searched.")
        self.pattern, self.why = pattern, why


class LogTooLarge(RunwardError):
    """A log cannot be read from its start within the time of a call."""

    def __init__(self, size: int, seconds: float) -> None:
        super().__init__(
            f"A log of {size / 2**30:,.0f} GiB cannot be read from its start within {seconds:g} s.",
            remedy="read_log with tail reads only its end.",
        )


class KillNotConfirmed(RunwardError):
    """A confirmation was wrong. Nothing was signalled."""


class HostUnreachable(RunwardError):
    """A far host does not answer, so nothing new is known of its runs."""

    def __init__(self, host: str, why: str, state: str = "", remedy: str = "") -> None:
        super().__init__(
            f"{host} cannot be reached: {why.rstrip('.')}.",
            state or "Runs there go on; nothing new is known of them.",
            remedy or f"Call again later; a person can look with: runward hosts {host}",
        )
        self.host, self.why = host, why


class RunElsewhere(RunwardError):
    """The run is supervised on another host."""

    def __init__(self, run_id: str, host: str) -> None:
        super().__init__(f"Run {run_id!r} is supervised on {host!r};", "nothing was signalled.", "Stop it there.")


class StopNotSeen(RunwardError):
    """A run's supervisor lives where this process cannot see it, and did not answer a stop request."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Not stopped: the supervisor of {run_id} holds its lock, but cannot be seen from here (another container "
            "or process namespace), and did not answer.",
            "The run goes on, and the request is withdrawn.",
            f"Stop it where it runs: runward kill {run_id}",
        )


class StopUnknown(RunwardError):
    """The processes of a run cannot be found now, so nobody knows whether its stop is complete."""

    def __init__(self, run_id: str, error: OSError) -> None:
        super().__init__(
            f"Whether {run_id} was stopped is unknown: its processes cannot be found now ({error.strerror or error}).",
            "Its supervisor, if it lives, has the request and stops it.",
            "Call kill_run again in a moment; runward doctor says what the machine lacks.",
        )


class ForeignRun(RunwardError):
    """The run belongs to another owner."""

    def __init__(self, run_id: str, owner: str, caller: str) -> None:
        super().__init__(
            f"Run {run_id!r} belongs to {owner!r}, you are {caller!r};",
            "it was left alone.",
            "If its owner agreed, call again with force_other_owner=true.",
        )
