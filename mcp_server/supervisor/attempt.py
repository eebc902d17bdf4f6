"""One attempt: relay its terminal, keep its log, enforce its limits, write its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import Any

from mcp_server.supervisor import processes, terminal
from mcp_server.supervisor.ending import Asked, Ending, closing_line, judge
from mcp_server.supervisor.handover import Handover, StoppedBefore
from mcp_server.supervisor.redact import Redactor
from mcp_server.supervisor.relay import Relay
from mcp_server.supervisor.rundir import EventLog, ExitRecord, RunDir, boot_id, now, read_json

_TICK_S = 0.05  # while a stop is under way
_RETRY_S = 5.0  # until a full disk is tried again
_LONGEST_NAP_S = 3600.0  # poll(2) counts milliseconds in an int
# What a command leaves behind may be about to go by itself, such as a filter that still prints its last
# lines: it is let alone as long as it prints, within limits.
_SETTLE_S, _LONGEST_SETTLE_S = 0.25, 2.0
_TOLD_TROUBLES, _TOLD_COMMAND = 5, 80  # how many; characters of a left-over's command line
# tmux closes the panes a moment before it is gone itself.
_TMUX_DEATH_S = 2.0
# An end so soon after Ctrl-C is that person's doing.
_INTERRUPT_S = 60.0
_LEFTOVERS = (processes.Stage(signal.SIGTERM, 2.0), processes.Stage(signal.SIGKILL, 3.0))


class Attempt:
    """One try of a run: its command, from the start to the end on disk."""

    def __init__(self, rundir: RunDir, spec: dict[str, Any], events: EventLog, handover: Handover, woken: int) -> None:
        self.rundir, self.spec, self.events, self.woken = rundir, spec, events, woken
        rundir.attempt(1).mkdir(mode=0o700, parents=True)
        self.redactor = Redactor(handover.secrets)
        log = terminal.Log(rundir.log(1), self._on_log_trouble)
        self.record = ExitRecord(rundir.exit(1))
        self.pane = terminal.pane_of(0)
        self.relay = Relay(log, self.redactor, self.pane)
        self.tmux = terminal.tmux_server()
        processes.become_subreaper()
        env = {**handover.env, **handover.secrets, "TERM": os.environ.get("TERM", "xterm-256color")}
        env |= {"RUNWARD_RUN_ID": rundir.run_id, "RUNWARD_RUN_DIR": str(rundir.path), "RUNWARD_ATTEMPT": "1"}
        self.started_s, self.started_at = time.monotonic(), now()
        size = self.pane.size() if self.pane else None
        if handover.umask is not None:
            os.umask(handover.umask)
        if rundir.stop.exists():
            raise StoppedBefore
        self.child = terminal.spawn([terminal.bash(), str(rundir.script)], env, str(rundir.path), size)
        os.umask(0o077)
        self.relay.connect(self.child.master_fd)
        command, supervisor = processes.process(self.child.pid), processes.process(os.getpid())
        events.append(
            "started",
            "The command runs.",
            attempt=1,
            at_start={
                "pid": self.child.pid,
                "pid_started": command.started if command else None,
                "guard_pid": self.child.guard_pid,
                "supervisor_pid": os.getpid(),
                "supervisor_started": supervisor.started if supervisor else None,
                "host": socket.gethostname(),
                "boot_id": boot_id(),
            },
        )
        self.status: int | None = None
        self.ended_s = 0.0
        self.asked: Asked | None = None
        self.stopping: processes.Stopping | None = None
        # The pane was closed: by a person, unless tmux turns out to have died by then.
        self.hangup_until_s: float | None = None
        self.interrupted_s: float | None = None
        self.leftovers: dict[processes.Process, str] = {}
        # The guard lives, and will tell the command's end; afterwards it is let go.
        self.guarded, self.released, self.troubles = True, False, 0
        limit_s = spec.get("time_limit_s")
        self.deadline_s = self.started_s + limit_s if limit_s else None

    # --- the loop

    def loop(self) -> None:
        """Go on until the command and all that it left behind have ended, then write the end."""
        os.kill(os.getpid(), signal.SIGCHLD)  # first look for a stop that was asked for before
        over = False
        while not over:
            try:
                over = self._over() or self._turn()
            except Exception as error:
                self._on_trouble(error)
        self._finish()

    def _turn(self) -> bool:
        """Deal with whatever happens next; always False: whether the run is over is another question."""
        for fd, _ in self._poll():
            if fd == self.child.master_fd:
                self.relay.read()
            elif self.pane and fd == self.pane.fd:
                self._type()
                self.pane.write()
            elif fd == self.child.news_fd:
                self._read_status()
            elif fd == self.woken:
                self._on_signal()
            elif fd == self.tmux:
                self._on_tmux_death()
        self._keep_time()
        return False

    def _poll(self) -> list[tuple[int, int]]:
        poll = select.poll()
        poll.register(self.woken, select.POLLIN)
        if self.relay.connected:
            poll.register(self.child.master_fd, select.POLLIN)
        if self.status is None and self.guarded:
            poll.register(self.child.news_fd, select.POLLIN)
        if self.pane and self.pane.open:
            wants = select.POLLOUT if self.pane.wants_to_write else 0
            poll.register(self.pane.fd, select.POLLIN | wants)
        if self.hangup_until_s is not None and self.tmux is not None:
            poll.register(self.tmux, select.POLLIN)
        return poll.poll(self._patience_ms())

    def _patience_ms(self) -> int | None:
        if self.stopping or self.status is not None:
            return round(_TICK_S * 1000)
        due = [t for t in (self.deadline_s, self.hangup_until_s) if t is not None]
        if self.events.behind:
            due.append(time.monotonic() + _RETRY_S)
        if not due:
            return None
        return round(1000 * min(max(0.0, min(due) - time.monotonic()), _LONGEST_NAP_S)) + 1

    def _over(self) -> bool:
        """Whether nothing of the run is left, or what is left cannot be stopped."""
        if self.status is None:
            if not self.guarded and not processes.children(os.getpid()):
                return True  # the guard was killed with the status in its hands
            return self.stopping is not None and self._stop_step()
        if not self._settled():
            return False
        self._release()
        if not processes.has_children():
            return True
        if self.stopping is None:  # what a finished command leaves behind goes too, and is told
            self.stopping = processes.Stopping(_LEFTOVERS)
        return self._stop_step()

    def _stop_step(self) -> bool:
        assert self.stopping is not None  # noqa: S101
        living = self._living()
        done = self.stopping.step(living, time.monotonic())
        # The guard reports the command's end a moment after the last process is gone.
        return done and (self.status is not None or bool(living))

    def _living(self) -> list[processes.Process]:
        return [p for p in processes.descendants(os.getpid()) if p.pid != self.child.guard_pid]

    def _settled(self) -> bool:
        """Whether nothing is left of an ended command but its guard, or what is left had its time to go."""
        if self.released or self.asked or processes.children(os.getpid()) in ([self.child.guard_pid], []):
            return True
        now_s = time.monotonic()
        quiet_s = now_s - max(self.ended_s, self.relay.last_s)
        return quiet_s >= _SETTLE_S or now_s - self.ended_s >= _LONGEST_SETTLE_S

    def _release(self) -> None:
        """Note what the command has left behind, and let its guard go, which hangs up on them."""
        if self.released:
            return
        self.released = True
        if self.asked is None:
            self.leftovers = {p: p.command for p in self._living()}
        os.close(self.child.release_fd)
        processes.resume(self.child.guard_pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.child.guard_pid, 0)

    # --- what happens

    def _type(self) -> None:
        match self.relay.type():
            case "gone":
                self._on_hangup()
            case "interrupt" if self.status is None:
                self.interrupted_s = time.monotonic()
                self.events.append("interrupted", "A person at the terminal typed Ctrl-C.")

    def _read_status(self) -> None:
        if (status := terminal.read_number(self.child.news_fd)) is not None:
            self._ended(status)
        else:
            self.guarded = False  # its command comes back to us, see _on_signal

    def _ended(self, status: int) -> None:
        if self.status is None:
            self.status, self.ended_s = status, time.monotonic()
            self._write_record()

    def _on_signal(self) -> None:
        numbers = set()
        with contextlib.suppress(BlockingIOError):
            numbers = set(os.read(self.woken, 4096))
        if (request := read_json(self.rundir.stop)) is not None:
            self._stop(Asked("killed", str(request.get("by", "")), str(request.get("reason", ""))))
        elif signal.SIGTERM in numbers:
            self._stop(Asked("killed", "SIGTERM to the supervisor", "somebody terminated the supervisor"))
        processes.resume(self.child.guard_pid)  # paused with its group, it could not tell an end
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self.child.pid:  # its guard was killed, so it came back to us
                    self._ended(reaped[1])
        if signal.SIGHUP in numbers:
            self._on_hangup()
        if signal.SIGWINCH in numbers:
            self.relay.follow_size()

    def _on_hangup(self) -> None:
        if self.pane and self.pane.open:
            self.pane.close()
            self.hangup_until_s = time.monotonic() + _TMUX_DEATH_S

    def _on_tmux_death(self) -> None:
        if self.hangup_until_s is not None:
            self.hangup_until_s = None
            self.events.append("screen_lost", "tmux died; the run goes on without a screen.")

    def _on_trouble(self, error: Exception) -> None:
        """Tell of an error of the supervisor's own, a few times, and go on."""
        self.troubles += 1
        if self.troubles <= _TOLD_TROUBLES:
            self.events.append("observer_error", f"The supervisor met {error!r}; the run goes on.")
        time.sleep(_TICK_S)

    def _on_log_trouble(self, cause: str) -> None:
        self.events.append("log_lost", f"Output is not being written to the log: {cause}. The run goes on.")

    def _keep_time(self) -> None:
        now_s = time.monotonic()
        if self.events.behind:
            self.events.flush()
        if self.hangup_until_s is not None and now_s >= self.hangup_until_s:
            self.hangup_until_s = None
            self._stop(Asked("killed", "a person", "the tmux session was closed"))
        if self.deadline_s is not None and now_s >= self.deadline_s:
            self.deadline_s = None
            self._stop(Asked("timed_out", "time limit", f"{self.spec['time_limit_s']:g} s have passed"))

    def _stop(self, asked: Asked) -> None:
        """Begin to stop the run, once; the first who asks is recorded."""
        if self.asked is None and self.status is None:
            self.asked = asked
            self.stopping = processes.Stopping(processes.stages(self.spec.get("stop_grace_s", 5.0)))
            self.events.append("stopping", f"Stopping: {asked.text}.")

    # --- the end

    def _write_record(self) -> None:
        try:
            self.record.write(self.ending.record(self.started_at, now()))
        except OSError as error:  # e.g. somebody removed the directory; what is left must still be stopped
            self.events.append("log_lost", f"The exit record could not be written: {error}.")

    @property
    def ending(self) -> Ending:
        """How the command ended, by all that is known."""
        interrupted = self.interrupted_s is not None and self.ended_s - self.interrupted_s < _INTERRUPT_S
        return judge(self.status, self.asked, interrupted=interrupted)

    def _finish(self) -> None:
        self.relay.drain()
        if self.status is None:  # not even SIGKILL ended it, or nobody could tell
            self.ended_s = time.monotonic()
            self._write_record()
        survivors = self._living()
        ending = self.ending
        if self.pane:
            self.pane.write(closing_line(self.rundir, ending, self.ended_s - self.started_s))
        self.events.append(
            "ended",
            ending.text(len(self.leftovers), self.relay.log.lost_bytes),
            state=ending.state,
            exit_code=ending.exit_code,
            signal=ending.signal,
            elapsed_s=round(self.ended_s - self.started_s, 3),
            signals_sent=(self.stopping.sent if self.stopping else None) or None,
            leftovers=self._tell(self.leftovers) or None,
            survivors=self._tell({p: p.command for p in survivors}) or None,
        )
        if self.pane and self.pane.open:
            self.pane.leave()

    def _tell(self, found: dict[processes.Process, str]) -> list[dict[str, Any]]:
        return [{"pid": p.pid, "command": self.redactor.text(command)[:_TOLD_COMMAND]} for p, command in found.items()]
