"""One attempt: relay its terminal, keep its log, stop it when asked, write its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_server.record.exit_record import ExitRecord
from mcp_server.record.exit_status import CTRL_C, Ending, StopRequest, classify_ending
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import now
from mcp_server.supervisor import start_command, terminal
from mcp_server.supervisor.control import Desk
from mcp_server.supervisor.gpu_allocation import Allotment
from mcp_server.supervisor.observer import Observer
from mcp_server.supervisor.output_relay import Relay
from mcp_server.system import processes
from mcp_server.system.stop_sequence import Stage, StopSequence, stop_stages
from mcp_server.text.redaction import Redactor

_TICK_S = 0.05  # while a stop is under way
# What a command leaves behind may be about to go by itself, such as a filter that still prints its last
# lines: it is let alone as long as it prints, within limits.
_SETTLE_S, _LONGEST_SETTLE_S = 0.25, 2.0
_TOLD_COMMAND = 80  # characters of a left-over's command line
# An end so soon after Ctrl-C is that person's doing.
_INTERRUPT_S = 60.0
_LEFTOVERS = (Stage(signal.SIGTERM, 2.0), Stage(signal.SIGKILL, 3.0))


class Attempt:
    """One try of a run: its command, from the start to the end on disk."""

    def __init__(
        self,
        desk: Desk,
        handover: Handover,
        allotment: Allotment,
        number: int,
        arguments: Sequence[str],
        changed: Mapping[str, str],
    ) -> None:
        self.desk, self.rundir, self.events = desk, desk.rundir, desk.events
        self.number, self.arguments = number, [allotment.fill(word) for word in arguments]
        self.rundir.attempt(number).parent.mkdir(mode=0o700, exist_ok=True)
        self.rundir.attempt(number).mkdir(mode=0o700)
        self.redactor = Redactor(handover.secrets)
        log = terminal.Log(self.rundir.log(number), self._on_log_trouble)
        self.record = ExitRecord(self.rundir.exit(number))
        processes.become_subreaper()
        self.started_s, self.started_at = time.monotonic(), now()
        self.child = start_command.spawn(desk, handover, allotment, number, self.arguments, changed)
        self.gpus = start_command.watch_gpus(desk, number, allotment.gpus, handover.env)
        self.observer = Observer(desk, number, self.living, self.redactor.text, handover.env.get("PATH"), self.gpus)
        self.relay = Relay(log, self.redactor, desk.pane, self.observer.feed)
        self.relay.connect(self.child.master_fd)
        desk.start_clock(self.started_s)
        self.events.append(
            "started",
            "The command runs." if number == 1 else f"Attempt {number} runs.",
            attempt=number,
            arguments=self.arguments or None,
            environment=dict(changed) or None,
            gpus=list(allotment.uuids) or None,
            gpu_indices=list(allotment.indices) or None,
            at_start=start_command.identity(self.child),
        )
        self.observer.begin()
        self.gpus.start()
        self.status: int | None = None
        self.ended_s = 0.0
        self.asked: StopRequest | None = None
        self.stopping: StopSequence | None = None
        self.interrupted_s: float | None = None
        self.leftovers: dict[processes.Process, str] = {}
        # The guard lives, and will tell the command's end; afterwards it is let go.
        self.guarded, self.released = True, False

    # --- the loop

    def loop(self) -> None:
        """Go on until the command and all that it left behind have ended, then write the attempt's end."""
        os.kill(os.getpid(), signal.SIGCHLD)  # first look for a stop that was asked for before
        over = False
        while not over:
            try:
                over = self._over() or self._turn()
            except Exception as error:
                self.desk.trouble(error)
        self.relay.drain()
        if self.status is None:  # not even SIGKILL ended it, or nobody could tell
            self.ended_s = time.monotonic()
            self._write_record()

    def _turn(self) -> bool:
        """Deal with whatever happens next; always False: whether the run is over is another question."""
        pane = self.desk.pane
        for fd, _ in self._poll():
            if fd == self.child.master_fd:
                self.relay.read()
            elif pane and fd == pane.fd:
                self._type()
                pane.write()
            elif fd == self.child.news_fd:
                self._read_status()
            elif fd == self.gpus.fd:
                self.gpus.read()
            else:
                self._on_signals(self.desk.hear(fd))
        self.desk.keep_time()
        self.gpus.tick(time.monotonic())
        self._obey()
        return False

    def _poll(self) -> list[tuple[int, int]]:
        poll = select.poll()
        self.desk.register(poll)
        if self.relay.connected:
            poll.register(self.child.master_fd, select.POLLIN)
        if self.status is None and self.guarded:
            poll.register(self.child.news_fd, select.POLLIN)
        if self.gpus.fd is not None:
            poll.register(self.gpus.fd, select.POLLIN)
        if self.stopping or self.status is not None:
            return poll.poll(round(_TICK_S * 1000))
        return poll.poll(self.desk.nap_ms(self.observer.due_s, self.gpus.due_s))

    def _obey(self) -> None:
        """Begin to stop when somebody asks for it; a person's word stands above the policy's."""
        if self.status is not None:
            return
        wish = self.desk.asked or self.asked
        if wish is None and self.stopping is None:
            wish = self.observer.tick()
        if wish is not None and wish is not self.asked:
            self.asked = wish
            self.events.append("stopping", f"Stopping: {wish.text}.")
            if self.stopping is None:
                self.stopping = StopSequence(stop_stages(self.desk.spec.get("stop_grace_s", 5.0)))

    def _over(self) -> bool:
        """Whether nothing of the run is left, or what is left cannot be stopped."""
        if self.status is None:
            if not self.guarded and not self._children():
                return True  # the guard was killed with the status in its hands
            return self.stopping is not None and self._stop_step()
        if not self._settled():
            return False
        self._release()
        if not processes.has_children():
            return True
        if self.stopping is None:  # what a finished command leaves behind goes too, and is told
            self.stopping = StopSequence(_LEFTOVERS)
        return self._stop_step()

    def _stop_step(self) -> bool:
        assert self.stopping is not None  # noqa: S101
        living = self.living()
        done = self.stopping.step(living, time.monotonic())
        # The guard reports the command's end a moment after the last process is gone.
        return done and (self.status is not None or bool(living))

    def living(self) -> list[processes.Process]:
        """Return the attempt's processes."""
        return [p for p in processes.descendants(os.getpid()) if p.pid not in (self.child.guard_pid, self.gpus.pid)]

    def _children(self) -> list[int]:
        return [pid for pid in processes.children(os.getpid()) if pid != self.gpus.pid]

    def _settled(self) -> bool:
        """Whether nothing is left of an ended command but its guard, or what is left had its time to go."""
        if self.released or self.asked or self._children() in ([self.child.guard_pid], []):
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
            self.leftovers = {p: p.command for p in self.living()}
        os.close(self.child.release_fd)
        processes.resume_process(self.child.guard_pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.child.guard_pid, 0)

    # --- what happens

    def _type(self) -> None:
        match self.relay.type():
            case "gone":
                self.desk.on_hangup()
            case "interrupt" if self.status is None:
                self.interrupted_s = time.monotonic()
                self.events.append("interrupted", "A person at the terminal typed Ctrl-C.")
            case "interrupt":  # the command has ended: no other shall follow
                self.desk.ask(CTRL_C)

    def _read_status(self) -> None:
        if (status := terminal.read_number(self.child.news_fd)) is not None:
            self._ended(status)
        else:
            self.guarded = False  # its command comes back to us, see _on_signals

    def _ended(self, status: int) -> None:
        if self.status is None:
            self.status, self.ended_s = status, time.monotonic()
            self._write_record()
            self.gpus.close()

    def _on_signals(self, numbers: set[int]) -> None:
        self._obey()
        processes.resume_process(self.child.guard_pid)  # paused with its group, it could not tell an end
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self.child.pid:  # its guard was killed, so it came back to us
                    self._ended(reaped[1])
        if signal.SIGWINCH in numbers:
            self.relay.follow_size()

    def _on_log_trouble(self, cause: str) -> None:
        self.events.append("log_lost", f"Output is not being written to the log: {cause}. The run goes on.")

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
        return classify_ending(self.status, self.asked, interrupted=interrupted)

    def facts(self) -> dict[str, Any]:
        """Return how the attempt ended, for the event that tells it."""
        survivors = {p: p.command for p in self.living()}
        return {
            "exit_code": self.ending.exit_code,
            "signal": self.ending.signal,
            "signals_sent": (self.stopping.sent if self.stopping else None) or None,
            "leftovers": self._tell(self.leftovers) or None,
            "survivors": self._tell(survivors) or None,
            "gpus": self.gpus.figures() or None,
        }

    def close(self) -> None:
        """Let go of what only this attempt used; call it once it has ended and been told."""
        self.relay.log.close()
        self.gpus.close()
        for fd in (self.child.master_fd, self.child.news_fd):
            os.close(fd)

    def _tell(self, found: dict[processes.Process, str]) -> list[dict[str, Any]]:
        return [{"pid": p.pid, "command": self.redactor.text(command)[:_TOLD_COMMAND]} for p, command in found.items()]
