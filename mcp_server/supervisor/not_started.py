"""Reasons for which a command is not started."""

from __future__ import annotations


class StoppedBeforeStart(Exception):
    """There is a stop request, so the command must not start any more."""


class GpusUnavailable(Exception):
    """The requested GPUs or cpu slots are not available. The message says why. ``never``: waiting would not help."""

    def __init__(self, text: str, *, never: bool = False) -> None:
        super().__init__(text)
        self.never = never


class ServiceEnded(Exception):
    """A run that this one needs has ended, so the command must not start. The message says which, and how."""
