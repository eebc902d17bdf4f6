"""`python -m tests.benchmarks [NAME …]`: measures, prints a table a group, exits with 1 when a bar is missed.

Figures of a group that could be measured go to `results.json`, and from there into README.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable

import anyio

from tests.benchmarks import (
    agents,
    attribution,
    browser,
    canary,
    day,
    flood,
    frameworks,
    fuzz,
    gpus,
    history,
    idle,
    judgement,
    judging,
    kill,
    large_reads,
    latency,
    leases,
    listing,
    loop,
    loop_guards,
    page,
    repeats,
    results,
    scalars,
    shapes,
    ssh,
    startup,
    supervising,
    swarm,
    sweeps,
    tasks,
    tokens,
    watching,
)
from tests.benchmarks.faults import bad_inputs, clocks, deaths, far_deaths, growth, shortages, silence, versions
from tests.benchmarks.harness import Sandbox, sandbox
from tests.benchmarks.report import Row, Table, machine

_LONGEST_S = 150.0
_LONGER_S = {
    "agents": agents.LONGEST_S,
    "frameworks": frameworks.LONGEST_S,
    "sweeps": sweeps.LONGEST_S,
    "tasks": tasks.LONGEST_S,
    "ssh": ssh.LONGEST_S,
    "idle": idle.LONGEST_S,
    "bad_inputs": bad_inputs.LONGEST_S,
    "deaths": deaths.LONGEST_S,
    "far_deaths": far_deaths.LONGEST_S,
    "growth": growth.LONGEST_S,
    "history": history.LONGEST_S,
    "loop": loop.LONGEST_S,
    "loop_guards": loop_guards.LONGEST_S,
    "large_reads": large_reads.LONGEST_S,
    "shortages": shortages.LONGEST_S,
    "repeats": repeats.LONGEST_S,
}
_GROUPS: dict[str, Callable[[Sandbox], Awaitable[Table]]] = {
    "shapes": shapes.measure,
    "latency": latency.measure,
    "watching": watching.measure,
    "idle": idle.measure,
    "flood": flood.measure,
    "judging": judging.measure,
    "judgement": judgement.measure,
    "fuzz": fuzz.measure,
    "startup": startup.measure,
    "listing": listing.measure,
    "history": history.measure,
    "repeats": repeats.measure,
    "tokens": tokens.measure,
    "agents": agents.measure,
    "day": day.measure,
    "supervising": supervising.measure,
    "gpus": gpus.measure,
    "leases": leases.measure,
    "scalars": scalars.measure,
    "large_reads": large_reads.measure,
    "swarm": swarm.measure,
    "page": page.measure,
    "browser": browser.measure,
    "sweeps": sweeps.measure,
    "loop": loop.measure,
    "loop_guards": loop_guards.measure,
    "tasks": tasks.measure,
    "attribution": attribution.measure,
    "kill": kill.measure,
    "ssh": ssh.measure,
    "canary": canary.measure,
    "bad_inputs": bad_inputs.measure,
    "deaths": deaths.measure,
    "far_deaths": far_deaths.measure,
    "clocks": clocks.measure,
    "silence": silence.measure,
    "shortages": shortages.measure,
    "growth": growth.measure,
    "versions": versions.measure,
}
# Need more than `make setup` installs: only when named.
_ON_DEMAND: dict[str, Callable[[Sandbox], Awaitable[Table]]] = {"frameworks": frameworks.measure}
_ALL = {**_GROUPS, **_ON_DEMAND}


def main() -> int:
    """Measure the groups named on the command line; without names, all but those on demand."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(_GROUPS)} (all without), {', '.join(_ON_DEMAND)}"
    )
    names = parser.parse_args().names or list(_GROUPS)
    if unknown := [name for name in names if name not in _ALL]:
        parser.error(f"no such group: {', '.join(unknown)}. There are {', '.join(_ALL)}.")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    print(f"{machine()}\n", flush=True)
    missed = []
    begun_s = time.monotonic()
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        table = _measure(name)
        print(table.markdown(), flush=True)
        if table.title != name:  # else it could not be measured
            results.keep(name, table)
        missed += [f"{name}: {row.what}" for row in table.rows if row.ok is False]
    print(f"Took {time.monotonic() - begun_s:.0f} s. " + (f"Missed: {'; '.join(missed)}." if missed else "All met."))
    return 1 if missed else 0


def _measure(name: str) -> Table:
    async def within_limit(place: Sandbox) -> Table:
        with anyio.fail_after(_LONGER_S.get(name, _LONGEST_S)):
            return await _ALL[name](place)

    with sandbox() as place:
        try:
            return anyio.run(within_limit, place)
        except Exception:  # one group that fails must not hide the others' figures
            traceback.print_exc()
            log = place.root / "server.log"
            print(log.read_text()[-4000:] if log.exists() else "", file=sys.stderr)
            return Table(name, (Row("could not be measured: see stderr", "", ok=False),))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
