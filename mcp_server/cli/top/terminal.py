"""The terminal of `runward top`: its keys by name, and its modes, which are given back whatever happens."""

import contextlib
import os
import re
import sys
import termios
import tty
from collections.abc import Iterator

_SEQUENCES = {
    "up": ("\x1b[A", "\x1bOA"),
    "down": ("\x1b[B", "\x1bOB"),
    "page up": ("\x1b[5~",),
    "page down": ("\x1b[6~",),
    "home": ("\x1b[H", "\x1bOH", "\x1b[1~"),
    "end": ("\x1b[F", "\x1bOF", "\x1b[4~"),
    "enter": ("\r", "\n"),
    "rubout": ("\x7f", "\b"),
    "escape": ("\x1b",),
}
KEY_NAMES = {sequence: name for name, sequences in _SEQUENCES.items() for sequence in sequences}
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J", "\x1b[?7h\x1b[?25h\x1b[?1049l"


def split_keys(text: str) -> tuple[list[str], str]:
    """Return the keys that a terminal sent, by name or character, and the beginning of a sequence at its end. Pure."""
    keys = [KEY_NAMES.get(each, each) for each in _SEQUENCE.findall(text)]
    for length in (2, 1):
        if text[-length:] in ("\x1b[", "\x1bO", "\x1b"):
            return keys[:-length], text[-length:]
    return keys, ""


class Terminal:
    """The terminal of standard input and output, in cbreak mode and with a screen of its own."""

    def __init__(self) -> None:
        self._fd, self.is_cleared = sys.stdin.fileno(), False
        self._mode = termios.tcgetattr(self._fd)

    @property
    def size(self) -> os.terminal_size:
        """Its columns and lines, 80 x 24 where it says none."""
        with contextlib.suppress(OSError):
            return os.get_terminal_size(sys.stdout.fileno())
        return os.terminal_size((80, 24))

    def enter(self) -> None:
        """Take the screen and the keys."""
        tty.setcbreak(self._fd)
        self.write(_ENTER)
        self.is_cleared = True

    def clear(self) -> None:
        """Draw all lines anew."""
        self.write("\x1b[2J")
        self.is_cleared = True

    def leave(self) -> None:
        """Give the screen and the keys back."""
        self.write(_LEAVE)
        with contextlib.suppress(termios.error):  # it is gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._mode)

    def write(self, text: str) -> None:
        """Write ``text``, if the terminal is still there."""
        with contextlib.suppress(OSError):
            sys.stdout.write(text)
            sys.stdout.flush()


@contextlib.contextmanager
def open_terminal() -> Iterator[Terminal]:
    """Have the terminal's screen and keys for the block."""
    terminal = Terminal()
    try:
        terminal.enter()
        yield terminal
    finally:
        terminal.leave()
