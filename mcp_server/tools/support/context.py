"""The common parts of all tools: the server, its caller and owners, a call's answer, and the revival of sweeps."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.mcpserver import Context

from mcp_server.backends.local import list_sessions
from mcp_server.errors import BadArgument, RunNotFound, RunwardError, ScreenNotAnswering, SessionOfOthers
from mcp_server.hosts.environment import mask_distinct_secrets
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.runs.launch.idempotency import find_owner_of_key
from mcp_server.runs.stop.confirmation import Confirmations, check_owner
from mcp_server.runs.wait.client_calls import ClientCalls, KeptState
from mcp_server.runs.wait.conversations import Conversation, Conversations
from mcp_server.runs.wait.cursors import CallerCursors, OpenWaits
from mcp_server.store.attribution.read_roots import check_readable
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.store.told_news import WAKES, CursorFiles, ToldNews
from mcp_server.store.wait_files import WaitFiles, WaitRecord
from mcp_server.system.server_keeper import REPEATED
from mcp_server.threads import run_in_thread

if TYPE_CHECKING:
    from mcp_server.scalars.run_scalars import Scalars

# The next step of a launch in a conversation that something wakes: it need not wait.
WOKEN = "End your turn: news of it starts the next one. Or call wait_run."
_KEY = "runward.delivery"
_offered: ContextVar[TaskOffer | None] = ContextVar("task_offer", default=None)


class Delivery:
    """The answer to one HTTP request: open, then sent whole, or lost because its client has gone."""

    def __init__(self) -> None:
        self._state: Literal["open", "sent", "lost"] = "open"
        self._scopes: set[anyio.CancelScope] = set()
        self._callbacks: list[Callable[[], None]] = []

    @classmethod
    def of(cls, scope: Mapping[str, Any] | None) -> Delivery | None:
        """Return the delivery that the scope of a request holds, or None over stdio."""
        return None if scope is None else scope.get(_KEY)

    @classmethod
    def attach(cls, scope: Any) -> Delivery:
        """Put a delivery into the scope of a request."""
        delivery: Delivery = scope.setdefault(_KEY, cls())
        return delivery

    def finish(self) -> None:
        """Note that the whole answer was sent."""
        if self._state == "open":
            self._state = "sent"
            for callback in self._callbacks:
                callback()

    def lose(self) -> None:
        """Note that the client has gone. Work for it alone is cancelled."""
        if self._state == "open":
            self._state = "lost"
            for scope in tuple(self._scopes):
                scope.cancel()

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the answer is sent, never if it is lost."""
        if self._state == "sent":
            callback()
        else:
            self._callbacks.append(callback)

    @contextlib.contextmanager
    def cancel_when_lost(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Cancel ``scope`` as soon as the client has gone."""
        if self._state == "lost":
            scope.cancel()
        self._scopes.add(scope)
        try:
            yield
        finally:
            self._scopes.discard(scope)


@dataclass(eq=False)
class TaskOffer:
    """A task that may answer the present call. Once accepted it has a ``record``, which a power cut does not end."""

    files: WaitFiles
    owner: str | None
    record: WaitRecord | None = None
    runs: Sequence[Watched] = ()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Offer the task to the tool that is called in the block."""
        token = _offered.set(self)
        try:
            yield
        finally:
            _offered.reset(token)

    @staticmethod
    def current() -> TaskOffer | None:
        """Return the offer to the present call, or None where its client did not declare tasks."""
        return _offered.get()

    async def accept(self, facts: Mapping[str, Any], runs: Sequence[Watched]) -> bool:
        """Keep the wait with these ``facts``. False where it cannot be kept, so that the call must block."""
        with contextlib.suppress(OSError):
            self.record = await run_in_thread(self.files.create, self.owner, facts)
        self.runs = runs
        return self.record is not None


@dataclass
class ServerContext:
    """The state of one server: its runs, its callers and its confirmations."""

    home: StateHome
    environ: Mapping[str, str]
    store: RunStore
    file_watch: FileWatch = field(default_factory=FileWatch)
    cursors: CallerCursors = field(default_factory=CallerCursors)
    confirmations: Confirmations = field(default_factory=Confirmations)
    launches_at_risk: Confirmations = field(default_factory=lambda: Confirmations(of_launches=True))
    open_waits: OpenWaits = field(default_factory=OpenWaits)
    told: ToldNews | None = None  # over stdio: what the agents of this directory know
    conversations: Conversations = field(default_factory=Conversations)
    calls: ClientCalls = field(default_factory=ClientCalls)
    secret: bytes = field(default_factory=lambda: os.urandom(32))  # seals what a client brings back
    wait_files: WaitFiles = field(init=False)
    cursor_files: CursorFiles = field(init=False)

    def __post_init__(self) -> None:
        self.wait_files = WaitFiles(self.home)
        self.cursor_files = CursorFiles(self.home)

    def resume(self, fd: int) -> None:
        """Go on where the former server of this client has died, and let the next one go on, by the file ``fd``."""
        kept = KeptState(fd)
        parts: list[tuple[Any, str]] = [(self, "secret"), (self.calls, "tables")]
        parts += [(each, "tables") for each in (self.cursors, self.confirmations, self.launches_at_risk)]
        if (state := kept.read()) is not None:
            for (owner, name), value in zip(parts, state, strict=True):
                setattr(owner, name, value)
        self.calls.keep = lambda: kept.write([getattr(owner, name) for owner, name in parts])
        self.calls.keep()

    async def note_told(self, conversation: Conversation | None = None) -> None:
        """Note for who wakes agents which news were just answered."""
        answered = self.cursors.take_answered()
        if self.told is None or not answered:
            return
        with contextlib.suppress(OSError):  # a full disk: an agent may hear of it once more
            if conversation is None:
                await run_in_thread(self.told.note, answered)
            else:
                told = ToldNews(self.home, conversation.name)
                await run_in_thread(told.note, answered)
                await run_in_thread(conversation.watch, told, self.environ)

    async def find_conversation(self, ctx: Call) -> Conversation | None:
        """Return the conversation of a call, which is woken with the news of its runs, or None."""
        if self.told is None or not ctx.request_context.meta:
            return None
        return await run_in_thread(self.conversations.find, ctx.request_context.meta)

    async def is_woken(self, ctx: Call) -> bool:
        """Return whether news of the caller's runs start its next turn."""
        return bool(self.told and self.environ.get(WAKES)) or await self.find_conversation(ctx) is not None

    @cached_property
    def scalars(self) -> Scalars:
        """The scalars of all runs, and what was read of them."""
        from mcp_server.scalars.run_scalars import Scalars  # noqa: PLC0415 - 89 ms of a server's start

        return Scalars(self.home, self.store, apart=True)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ServerContext:
        """Return the context for the state directory that ``environ`` names."""
        home = StateHome.of(environ)
        return cls(home, environ, RunStore(home))

    def mask(self, text: str) -> str:
        """Return ``text`` without the values of secrets that this server knows. Reads a file: call it in a thread."""
        return mask_distinct_secrets(text, self.environ, self.home.secrets)

    def actor(self, ctx: Call) -> str:
        """Return the owner that a call acts for: the name of its token, else the owner of this server."""
        return identity(ctx) or self.home.owner(self.environ)

    def owner(self, ctx: Call, owner: str | None) -> str | None:
        """Return the owner of a run that a call starts, None for the server's. BadArgument: not the token's name."""
        if (name := identity(ctx)) is None or owner in (None, name):
            return name or owner
        raise BadArgument("owner", f"your token is {name!r}'s: leave owner out.")

    async def idempotency_key(self, ctx: Call, key: str | None, owner: str | None) -> str | None:
        """Return ``key`` in the namespace of the run's ``owner``, over HTTP and stdio: another's never returns his run.

        ``owner``: as the call names it, checked by ``owner()``.
        """
        return None if key is None else await run_in_thread(self._name_key, ctx, key, owner)

    def _name_key(self, ctx: Call, key: str, owner: str | None) -> str:
        owner = owner or self.actor(ctx)
        # The owner of whom nobody says otherwise has no prefix, unless the key looks like another's with one (a token's
        # name holds no colon); nor had any owner over stdio in former versions.
        is_plain = identity(ctx) is None and find_owner_of_key(self.store, key) == owner
        return key if is_plain or (owner == self.home.owner({}) and ": " not in key) else f"{owner}: {key}"

    def check_owner(self, ctx: Call, run: Watched, *, force: bool = False) -> None:
        """Raise ForeignRun or ReadOnlyRun for another owner's run; ``force`` counts only without tokens."""
        if (name := identity(ctx)) is None:
            check_owner(run, self.actor(ctx), force=force)
        elif run.spec.owner != name:
            raise ReadOnlyRun(run, name)

    def own_directories(self, ctx: Call) -> list[str]:
        """Return the directories of runs that the caller may read: those of its token's name, without a token all."""
        if (name := identity(ctx)) is None:
            return [str(self.home.runs), *self.store.list_directories()]
        records = (str(self.home.runs / run_id) for run_id in self.store.list_ids(RunQuery(owner=name, cut_off=None)))
        return [*records, *self.store.list_directories(name)]

    def check_readable(
        self, ctx: Call, paths: Mapping[str, str | Iterable[str] | None], cwd: str | None = None
    ) -> None:
        """Refuse arguments with paths that a caller with a token may not read, with what a person can add. Blocks."""
        words = [
            (argument, word)
            for argument, value in paths.items()
            for word in ([value] if isinstance(value, str) else value or ())
        ]
        if identity(ctx) is None or not words:
            return
        base, own = Path(cwd or Path.cwd()).expanduser(), self.own_directories(ctx)
        for argument, word in words:
            check_readable(argument, word, self.home, own, base)

    def visible_sessions(self, ctx: Call, sessions: Iterable[str]) -> list[str]:
        """Return those ``sessions``, none of a run, that the caller may see: with a token ``allow_sessions``."""
        if identity(ctx) is None:
            return list(sessions)
        allowed = self.home.read_config().allow_sessions
        return [session for session in sessions if any(fnmatchcase(session, glob) for glob in allowed)]

    def check_session(self, ctx: Call, session: str) -> None:
        """Refuse a tmux session that a token may not see, without saying whether it exists. Blocks."""
        if self.visible_sessions(ctx, [session]) or self.store.list_sessions([session]):
            return
        raise BadArgument(
            "session",
            f"{session[:80]!r} is neither a run's nor one that tokens may see.",
            f"Name a run_id; a person can add it to allow_sessions in {self.home.path / 'config.toml'}.",
        )


@contextlib.asynccontextmanager
async def naming_sessions(ctx: Call) -> AsyncIterator[None]:
    """Raise SessionOfOthers where a name, which is no run, is a tmux session that runward did not start.

    One that the caller may not see is a run that does not exist.
    """
    try:
        yield
    except RunNotFound as error:
        server = server_of(ctx)
        with contextlib.suppress(ScreenNotAnswering):
            if error.run_id in server.visible_sessions(ctx, await list_sessions(server.environ)):
                script = Path(sys.executable).with_name("runward")
                program = [str(script)] if script.exists() else [sys.executable, "-m", "mcp_server"]
                raise SessionOfOthers(error.run_id, shlex.join([*program, "watch", error.run_id])) from error
        raise


class ReadOnlyRun(RunwardError):
    """The run belongs to another owner than the name of the caller's token."""

    def __init__(self, run: Watched, name: str) -> None:
        owner = repr(run.spec.owner) if run.spec.owner else "an unknown owner"
        super().__init__(
            f"Run {run.run_id!r} belongs to {owner}, your token is {name!r}'s;",
            f"it was left alone, still {run.state}.",
            "You can read it; its owner, or a person on the machine, can change it.",
        )
        self.run_id, self.owner = run.run_id, run.spec.owner


Call = Context[ServerContext, Any]


def server_of(ctx: Call) -> ServerContext:
    """Return the context of the server that is called."""
    return ctx.request_context.lifespan_context


def delivery_of(ctx: Call) -> Delivery | None:
    """Return how the answer to this call reaches its caller, or None over stdio, where nobody knows."""
    request = ctx.request_context.request
    return Delivery.of(request.scope) if request is not None else None


def hears_progress(ctx: Call) -> bool:
    """Return whether the client asks for reports of a call's progress."""
    meta: Mapping[str, Any] = ctx.request_context.meta or {}
    return meta.get("progress_token", meta.get("progressToken")) is not None


def opening_call(ctx: Call, *, changes: bool) -> contextlib.AbstractContextManager[None]:
    """Keep, over stdio, what a call leaves in memory, for a later server that is asked the same once more."""
    if ctx.headers is not None:
        return contextlib.nullcontext()
    context = ctx.request_context
    repeated_s: Any = (context.meta or {}).get(REPEATED)
    is_number = isinstance(repeated_s, int | float)
    return context.lifespan_context.calls.open(
        json.dumps(context.request_id), repeated_s if is_number else None, changes=changes
    )


def when_answered(ctx: Call, callback: Callable[[], None]) -> None:
    """Call ``callback`` once the answer to this call is sent, over stdio at once."""
    if (delivery := delivery_of(ctx)) is not None:
        delivery.when_sent(callback)
    else:
        callback()


def identity(ctx: Call) -> str | None:
    """Return the name of the caller's token, or None over stdio, and over HTTP without tokens."""
    request = ctx.request_context.request
    user = request.scope.get("user") if request is not None else None
    return user.username if isinstance(user, AuthenticatedUser) else None


def caller(ctx: Call) -> str | None:
    """Return a name for the caller: the client of a stdio server, else token and HTTP session; None without any."""
    if ctx.headers is None:
        return "client"
    return " ".join(part for part in (identity(ctx), ctx.headers.get("mcp-session-id")) if part) or None


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0  # between two conductors of one sweep, when they die at once
_CALM_S = 60.0  # one that lived so long is replaced at once
_LONGEST_WAIT_S = 1.0  # of a call, for the end of a pause


@dataclass
class _Pause:
    """Until when no further conductor of a sweep is started, and the pause after the next one."""

    until_s: float
    next_s: float


_pauses: dict[str, _Pause] = {}


async def revive(server: ServerContext, runs: Iterable[Watched]) -> None:
    """Start a conductor for each of ``runs`` that is a sweep and has none. Its state shows an obstacle."""
    for run in runs:
        if not isinstance(run, Sweep) or run.ended or run.conducted:
            continue
        pause = _pauses.get(run.run_id)
        if pause is None or time.monotonic() > pause.until_s + _CALM_S:
            pause = _Pause(0.0, _FIRST_PAUSE_S)
        left_s = pause.until_s - time.monotonic()
        if left_s > _LONGEST_WAIT_S:
            continue
        _pauses[run.run_id] = _Pause(time.monotonic() + pause.next_s, min(_LONGEST_PAUSE_S, 2 * pause.next_s))
        await anyio.sleep(max(0.0, left_s))
        from mcp_server.sweeps.conducting import ensure_conductor  # noqa: PLC0415 - 18 ms of a server's start

        with contextlib.suppress(RunwardError, OSError):
            await ensure_conductor(run, server.store, server.file_watch, server.environ)


async def revive_all(server: ServerContext) -> None:
    """Start a conductor for each unfinished sweep of this home that has none."""

    def find() -> list[Sweep]:
        if not server.home.sweeps.is_dir():
            return []
        return [sweep for sweep in server.store.sweeps.list_sweeps() if not sweep.ended]

    with contextlib.suppress(RunwardError, OSError):
        await revive(server, await run_in_thread(find))
