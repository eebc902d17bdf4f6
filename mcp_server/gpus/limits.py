"""GPUs above a required power limit or SM clock, in one line for all of them, with the commands for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mcp_server.gpus.request import Requirements
from mcp_server.gpus.snapshot import Gpu
from mcp_server.text.formatting import join_ranges

_SLACK_W = 0.5  # drivers report limits in milliwatts


@dataclass(frozen=True)
class Excess:
    """The GPUs above the limits of ``requirements``, by index. None: no limit is reported, so it is not known."""

    requirements: Requirements
    power_w: Mapping[int, float | None] = field(default_factory=dict)
    clock_mhz: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def indices(self) -> frozenset[int]:
        """Indices of the GPUs above a limit."""
        return frozenset((*self.power_w, *self.clock_mhz))

    @property
    def text(self) -> str:
        """What is exceeded: ``0-3: power limit 300 W, at most 275 W required``, or empty where nothing is."""
        clauses = []
        if self.power_w:
            seen = _describe(self.power_w.values(), "W", "unknown")
            most = f"at most {self.requirements.power_limit_w:g} W required"
            clauses.append((tuple(self.power_w), f"power limit {seen}, {most}"))
        if self.clock_mhz:
            most = f"at most {self.requirements.max_sm_clock_mhz:,} MHz required"
            seen = _describe(self.clock_mhz.values(), "MHz", "unknown (no cap is reported)")
            clauses.append((tuple(self.clock_mhz), f"SM clock {seen}, {most}"))
        if len(clauses) > 1 and clauses[0][0] == clauses[1][0]:
            clauses = [(clauses[0][0], ", ".join(text for _, text in clauses))]
        return "; ".join(f"{join_ranges(indices)}: {text}" for indices, text in clauses)

    @property
    def remedy(self) -> str:
        """The commands that a person should run, as one sentence, or empty where nothing is exceeded."""
        commands = []
        if self.power_w:
            commands.append(f"sudo nvidia-smi -i {_list(self.power_w)} -pl {self.requirements.power_limit_w:g}")
        if self.clock_mhz:
            commands.append(f"sudo nvidia-smi -i {_list(self.clock_mhz)} -lgc 0,{self.requirements.max_sm_clock_mhz}")
        if not commands:
            return ""
        confirm = '. Once that is done, confirm it: "clock_confirmed": true in require'
        is_unknown = None in self.clock_mhz.values()
        return f"A person should run: {' && '.join(commands)}" + (confirm if is_unknown else "")


def find_excess(gpus: Iterable[Gpu], requirements: Requirements) -> Excess:
    """Return which of ``gpus`` are above the required power limit or SM clock. A lost GPU is above none.

    A limit that is not reported is not met, but for a clock cap that a person has confirmed.
    """
    gpus = sorted((gpu for gpu in gpus if not (gpu.lost or gpu.hangs)), key=lambda gpu: gpu.index)
    power: dict[int, float | None] = {}
    clock: dict[int, int | None] = {}
    for gpu in gpus:
        most_w, most_mhz = requirements.power_limit_w, requirements.max_sm_clock_mhz
        if most_w is not None and (gpu.power_limit_w is None or gpu.power_limit_w > most_w + _SLACK_W):
            power[gpu.index] = gpu.power_limit_w
        # Drivers do not report locked clocks (-lgc), and the hardware's maximum is not a cap.
        capped = gpu.sm_clock_cap_mhz if gpu.sm_clock_cap_mhz != gpu.sm_clock_max_mhz else None
        seen = gpu.sm_clock_mhz if capped is None else capped
        if most_mhz is not None and seen is not None and seen > most_mhz:
            clock[gpu.index] = seen
        elif most_mhz is not None and capped is None and not requirements.clock_confirmed:
            clock[gpu.index] = None
    return Excess(requirements, power, clock)


def _describe(values: Iterable[float | None], unit: str, unknown: str) -> str:
    """Return the span of the values that are reported, and that others are not."""
    values = list(values)
    known = sorted(value for value in values if value is not None)
    texts = [f"{low:,g}" if (low := known[0]) == known[-1] else f"{low:,g}-{known[-1]:,g}"] if known else []
    return " or ".join([*(f"{text} {unit}" for text in texts), *([unknown] if len(known) < len(values) else [])])


def _list(indices: Mapping[int, object]) -> str:
    return ",".join(map(str, indices))
