"""What a run has of the machine: nothing of its own, unless its launch asked for GPUs or cpu slots."""

from __future__ import annotations

from collections.abc import Callable


class NotAllotted(Exception):
    """The GPUs cannot be had; the message says why. ``never``: nor by waiting."""

    def __init__(self, text: str, *, never: bool = False) -> None:
        super().__init__(text)
        self.never = never


class Allotment:
    """Of a run that did not ask: its command sees what its launcher saw.

    ``uuids`` and ``indices``: what it has, of GPUs or of cpu slots; ``gpus``: the UUIDs of GPUs among them.
    ``asked``: whether the launch said anything of GPUs, if only that it needs none.
    """

    asked = False

    def __init__(self, leased: Callable[[], Allotment] | None = None) -> None:
        self._leased = leased  # makes what a retry takes instead
        self._other: Allotment | None = None
        self.uuids: tuple[str, ...] = ()
        self.indices: tuple[int, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of its GPUs; cpu slots are none."""
        return tuple(uuid for uuid in self.uuids if not uuid.startswith("cpu-"))

    def obtain(self) -> None:
        """Take what was asked for."""

    def environment(self) -> dict[str, str]:
        """Return the variables that keep the command to what it has."""
        return {}

    def fill(self, text: str) -> str:
        """Return ``text`` with what stands for the GPUs filled in."""
        return text

    def exchange(self, pinned: str | None) -> str | None:
        """Take other GPUs than the run has had, as many, and give up those; return them as CUDA takes them.

        ``pinned``: what an attempt without a lease was kept to. None: there are none, or it was to have exactly these.
        """
        if self._other is None and self._leased is not None:
            self._other = self._leased()
        if self._other is None:
            return None
        others = self._other.exchange(pinned)
        self.uuids, self.indices = self._other.uuids, self._other.indices
        return others

    def release(self) -> None:
        """Give everything back, before the run's end is told: whoever hears of it may want them."""
        if self._other is not None:
            self._other.release()
