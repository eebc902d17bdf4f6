"""Runs that are handed in together, on this login node or on another one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from mcp_server.backends.base import backend_of
from mcp_server.backends.slurm.batch_script import list_shared_options
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import RunSpec


@dataclass(frozen=True)
class Element:
    """A run of an array: its directory, its spec, and what is handed over."""

    directory: RunDir
    spec: RunSpec
    handover: Handover


class ArrayBackend(Protocol):
    """A backend that hands runs in to Slurm as one array of jobs."""

    most_in_array: int

    def preview_array(self, spec: RunSpec, name: str, count: int, most_at_once: int | None) -> str:
        """Return the batch script of an array of ``count`` runs like ``spec``. May block for some seconds."""

    async def start_array(self, elements: Sequence[Element], name: str, most_at_once: int | None) -> None:
        """Hand prepared runs in as one array of jobs, of which Slurm starts at most so many at once.

        Raises:
            LaunchFailed: Slurm refused, and nothing is left of the runs; or it did not answer, as in ``start``.
        """

    async def discard(self, directory: RunDir, spec: RunSpec) -> None:
        """Remove a prepared run that was not handed in."""


def array_backend_of(spec: RunSpec) -> ArrayBackend:
    """Return the backend of a run that is a job of Slurm."""
    return cast("ArrayBackend", backend_of(spec))


def are_alike(one: RunSpec, other: RunSpec) -> bool:
    """Return whether two runs ask the same of the same Slurm, so that one script serves both."""
    return one.mirror == other.mirror and list_shared_options(one) == list_shared_options(other)
