"""Which GPUs a run can use, and why not the others: values in, values out."""

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from mcp_server.gpus.placement import (
    Placement,
    Unavailable,
    choose_devices,
    choose_gpus,
    choose_slots,
    find_excess,
    find_obstacles,
)
from mcp_server.gpus.request import GpuRequest, Requirements, parse_requirements
from mcp_server.gpus.snapshot import IDLE_MIB, Gpu, GpuProcess, Snapshot
from mcp_server.text.formatting import join_ranges
from tests.support.rows import for_each

ANYTHING = Requirements()
TRAINING = GpuProcess(4711, 31_000, user="anna", command="python train.py")
DESKTOP = GpuProcess(900, 300, graphics=True, user="anna", command="Xorg")


def gpu(index: int = 0, **facts: Any) -> Gpu:
    """Return an idle GPU."""
    known: dict[str, Any] = {"name": "H200", "memory_total_mib": 143_000, "memory_used_mib": 0}
    return Gpu(index, f"GPU-{index:x}f3a", **{**known, **facts})


def busy(index: int = 0, *processes: GpuProcess, **facts: Any) -> Gpu:
    """Return a GPU whose used memory is that of these processes."""
    used = sum(process.memory_mib or 0 for process in processes)
    return gpu(index, processes=processes, memory_used_mib=used, **facts)


def machine(*gpus: Gpu) -> Snapshot:
    return Snapshot("2026-11-21T14:00:00Z", "570.1", gpus)


def linked(count: int, *islands: tuple[int, ...]) -> Snapshot:
    """Return GPUs linked by NVLink within islands, and across the system otherwise."""

    def near(index: int) -> dict[str, str]:
        mine = next(island for island in islands if index in island)
        others = (other for other in range(count) if other != index)
        return {gpu(other).uuid: "nvlink" if other in mine else "sys" for other in others}

    return machine(*(gpu(index, near=near(index)) for index in range(count)))


def indices(choice: Placement | Unavailable) -> tuple[int, ...]:
    assert isinstance(choice, Placement), choice
    return choice.indices


def refusal(choice: Placement | Unavailable) -> str:
    assert isinstance(choice, Unavailable), choice
    return choice.text


# --- obstacles


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"lost": True}, "lost: it has fallen off the bus"),
        ({"failed": {"power": "hangs"}}, "hangs: the driver does not answer for it"),
        ({"mig": True}, "MIG is on: a person should run: sudo nvidia-smi -i 3 -mig 0"),
        (
            {"compute_mode": "prohibited"},
            "its compute mode is prohibited: a person should run: sudo nvidia-smi -i 3 -c",
        ),
        ({"recovery_action": "reset"}, "needs a reset: a person should run: sudo nvidia-smi -i 3 --gpu-reset"),
        ({"recovery_action": "reboot"}, "needs a reboot of the machine"),
        ({"remap_pending": True}, "needs a reset (bad memory is still in use)"),
        ({"retirement_pending": True}, "needs a reset (bad memory"),
        ({"remap_failed": True}, "row remapping has failed"),
        ({"xids": (31, 48)}, "needs a reset (Xid 48): a person should run: sudo nvidia-smi -i 3 --gpu-reset"),
        ({"xids": (31, 79)}, "needs a reboot of the machine (Xid 79)"),
        ({"memory_used_mib": 18_000}, "18,000 MiB are used by no visible process"),
    ],
)
def test_a_fault_is_an_obstacle_with_its_remedy(facts: dict[str, Any], text: str) -> None:
    (reason,) = find_obstacles(gpu(3, **facts), None, ANYTHING)
    assert reason.startswith(text)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"memory_used_mib": IDLE_MIB},
        {"mig": False, "compute_mode": "exclusive_process", "recovery_action": "none"},
        {"xids": (13, 31)},
        {"recovery_action": "none", "xids": (79,)},  # the driver reports that no recovery is needed
        {"failed": {"power": "unsupported"}},
        {"memory_total_mib": None, "memory_used_mib": None},
        {"processes": (DESKTOP,), "memory_used_mib": 300},
    ],
)
def test_a_harmless_state_is_not_an_obstacle(facts: dict[str, Any]) -> None:
    assert find_obstacles(gpu(**facts), None, ANYTHING) == []


def test_a_lease_and_a_strangers_process_are_obstacles() -> None:
    holder = "cfm-7kqz (mz) since 14:02 UTC"
    training = "python train.py of anna uses 31,000 MiB (pid 4711)"
    assert find_obstacles(busy(0, TRAINING), holder, ANYTHING) == [f"leased by {holder}", training]
    hidden = GpuProcess(5)
    assert find_obstacles(gpu(processes=(hidden,)), None, ANYTHING) == [
        "a process of a user not visible here uses it (pid 5)"
    ]
    assert find_obstacles(busy(0, GpuProcess(5, 10), TRAINING), None, ANYTHING) == [f"{training} and 1 more"]


def test_the_runs_own_processes_are_not_strangers() -> None:
    own = busy(0, replace(TRAINING, run_id="cfm-7kqz"))
    assert find_obstacles(own, None, ANYTHING, "cfm-7kqz") == []
    assert find_obstacles(own, None, Requirements(free_memory_mib=140_000), "cfm-7kqz") == []
    assert find_obstacles(own, None, ANYTHING, "other") != []
    assert find_obstacles(busy(0, TRAINING), None, ANYTHING, "") != []


def test_sharing_allows_strangers_but_not_leases() -> None:
    shared = Requirements(no_strangers=False)
    assert find_obstacles(busy(0, TRAINING), None, shared) == []
    assert find_obstacles(gpu(memory_used_mib=18_000), None, shared) == []
    assert find_obstacles(gpu(), "cfm-7kqz", shared) == ["leased by cfm-7kqz"]
    (reason,) = find_obstacles(busy(0, TRAINING, compute_mode="exclusive_process"), None, shared)
    assert reason.startswith("its compute mode lets in one process only")


@pytest.mark.parametrize(
    ("facts", "requirements", "text"),
    [
        ({"memory_used_mib": 500}, {"free_memory_mib": 142_501}, "142,500 MiB free, 142,501 MiB required"),
        ({"memory_used_mib": None}, {"free_memory_mib": 1}, "free memory is unknown, 1 MiB required"),
    ],
)
def test_too_little_free_memory_is_an_obstacle(
    facts: dict[str, Any], requirements: dict[str, object], text: str
) -> None:
    assert find_obstacles(gpu(3, **facts), None, parse_requirements(requirements)) == [text]


@pytest.mark.parametrize(
    ("facts", "requirements", "text"),
    [
        (
            {"power_limit_w": 700.0},
            {"power_limit_w": 400},
            "3: power limit 700 W, at most 400 W required. A person should run: sudo nvidia-smi -i 3 -pl 400",
        ),
        (
            {},
            {"power_limit_w": 400},
            "3: power limit unknown, at most 400 W required. A person should run: sudo nvidia-smi -i 3 -pl 400",
        ),
        (
            {"sm_clock_cap_mhz": 1700, "sm_clock_max_mhz": 1980, "sm_clock_mhz": 210},
            {"max_sm_clock_mhz": 1400},
            "3: SM clock 1,700 MHz, at most 1,400 MHz required. A person should run: sudo nvidia-smi -i 3 -lgc 0,1400",
        ),
        (
            {"sm_clock_mhz": 1755},
            {"max_sm_clock_mhz": 1400},
            "3: SM clock 1,755 MHz, at most 1,400 MHz required. A person should run: sudo nvidia-smi -i 3 -lgc 0,1400",
        ),
        *(
            (
                facts,
                {"max_sm_clock_mhz": 1400},
                "3: SM clock unknown (no cap is reported), at most 1,400 MHz required. A person should run: "
                'sudo nvidia-smi -i 3 -lgc 0,1400. Once that is done, confirm it: "clock_confirmed": true in require',
            )
            for facts in ({}, {"sm_clock_mhz": 210}, {"sm_clock_cap_mhz": 1980, "sm_clock_max_mhz": 1980})
        ),
    ],
)
def test_a_gpu_above_a_limit_is_named_with_the_remedy(
    facts: dict[str, Any], requirements: dict[str, object], text: str
) -> None:
    excess = find_excess([gpu(3, **facts)], parse_requirements(requirements))
    assert f"{excess.text}. {excess.remedy}" == text


def test_gpus_above_the_limits_share_one_line_and_one_remedy() -> None:
    limits = parse_requirements({"power_limit_w": 275, "max_sm_clock_mhz": 1700})
    confirmed = replace(limits, clock_confirmed=True)
    four = machine(*(gpu(index, power_limit_w=300.0 + index, sm_clock_mhz=1980) for index in range(4)))
    choice = choose_gpus(four, {}, GpuRequest(count=4), limits)
    assert choice == Unavailable(
        "4 GPUs requested, 0 available.",
        detail="0-3: power limit 300-303 W, at most 275 W required, SM clock 1,980 MHz, at most 1,700 MHz required",
        remedy="A person should run: sudo nvidia-smi -i 0,1,2,3 -pl 275 && sudo nvidia-smi -i 0,1,2,3 -lgc 0,1700",
    )
    some = machine(gpu(0, power_limit_w=275.0, sm_clock_mhz=1980), gpu(1, power_limit_w=None, sm_clock_mhz=210))
    choice = choose_gpus(some, {}, GpuRequest(count=1), confirmed)
    assert refusal(choice) == (
        "1 GPU requested, 0 available. 1: power limit unknown, at most 275 W required; "
        "0: SM clock 1,980 MHz, at most 1,700 MHz required."
    )
    fit = machine(gpu(0, power_limit_w=275.0), gpu(1, power_limit_w=300.0))
    assert indices(choose_gpus(fit, {}, GpuRequest(count=1), confirmed)) == (0,)


@pytest.mark.parametrize(
    ("facts", "requirements"),
    [
        ({"memory_used_mib": 500}, {"free_memory_mib": 142_500}),
        ({"power_limit_w": 400.2}, {"power_limit_w": 400}),
        ({"sm_clock_cap_mhz": 1400, "sm_clock_max_mhz": 1980}, {"max_sm_clock_mhz": 1400}),
        ({"sm_clock_mhz": 210}, {"max_sm_clock_mhz": 1400, "clock_confirmed": True}),
        ({}, {"max_sm_clock_mhz": 1400, "clock_confirmed": True}),
    ],
)
def test_a_requirement_that_is_met_or_shows_only_under_load_is_not_an_obstacle(
    facts: dict[str, Any], requirements: dict[str, object]
) -> None:
    idle, required = gpu(**facts), parse_requirements(requirements)
    assert find_obstacles(idle, None, required) == []
    assert not find_excess([idle], required).indices


# --- a count


def test_a_count_takes_the_lowest_free_indices_where_nothing_else_differs() -> None:
    eight = machine(*(gpu(index) for index in reversed(range(8))))
    assert choose_gpus(eight, {}, GpuRequest(count=3), ANYTHING) == Placement(
        ("GPU-0f3a", "GPU-1f3a", "GPU-2f3a"), (0, 1, 2)
    )
    assert indices(choose_gpus(eight, {gpu(1).uuid: "cfm-7kqz"}, GpuRequest(count=2), ANYTHING)) == (0, 2)


def test_more_free_memory_counts_more_than_a_lower_index_but_a_few_mib_do_not() -> None:
    some = machine(gpu(0, memory_used_mib=3), gpu(1), busy(2, replace(DESKTOP, memory_mib=2_000)))
    assert indices(choose_gpus(some, {}, GpuRequest(count=1), ANYTHING)) == (0,)
    assert indices(
        choose_gpus(machine(busy(0, replace(DESKTOP, memory_mib=2_000)), gpu(1)), {}, GpuRequest(count=1), ANYTHING)
    ) == (1,)


def test_gpus_of_one_model_stay_together() -> None:
    mixed = machine(gpu(0, name="T4"), gpu(1), gpu(2, name="T4"), gpu(3))
    assert indices(choose_gpus(mixed, {gpu(0).uuid: "a"}, GpuRequest(count=2), ANYTHING)) == (1, 3)
    choice = choose_gpus(mixed, {gpu(0).uuid: "a", gpu(1).uuid: "b"}, GpuRequest(count=2), ANYTHING)
    cause = "2 GPUs of one model requested, fewer available: name those to use together, e.g. gpus=[2, 3]."
    assert choice == Unavailable(cause, detail="0: leased by a; 1: leased by b; free: 2-3")
    too_many = choose_gpus(mixed, {}, GpuRequest(count=3), ANYTHING)
    assert too_many == Unavailable(
        "3 GPUs of one model requested, and this machine has 2: name those to use together, e.g. gpus=[0, 1, 2].", True
    )


def test_neighbours_are_preferred_where_the_links_are_known() -> None:
    assert indices(choose_gpus(linked(8, (0, 2, 4, 6), (1, 3, 5, 7)), {}, GpuRequest(count=4), ANYTHING)) == (
        0,
        2,
        4,
        6,
    )
    holders = {gpu(0).uuid: "a"}
    assert indices(choose_gpus(linked(8, (0, 1), (2, 3), (4, 5), (6, 7)), holders, GpuRequest(count=2), ANYTHING)) == (
        2,
        3,
    )


def test_neighbours_are_found_among_more_than_can_be_enumerated() -> None:
    islands = [tuple(range(first, first + 8)) for first in (0, 8, 16, 24)]
    many = linked(32, *islands)
    holders = {gpu(index).uuid: "a" for index in (1, 9, 17)}
    assert indices(choose_gpus(many, holders, GpuRequest(count=8), ANYTHING)) == tuple(range(24, 32))


def test_a_refusal_names_every_gpu_once_and_compactly() -> None:
    holders = {gpu(index).uuid: "cfm-7kqz (mz)" for index in (0, 1, 2, 6)}
    some = machine(*(gpu(index) for index in range(5)), gpu(5, lost=True), gpu(6), busy(7, TRAINING))
    assert refusal(choose_gpus(some, holders, GpuRequest(count=4), ANYTHING)) == (
        "4 GPUs requested, 2 available. 0-2, 6: leased by cfm-7kqz (mz); "
        "5: lost: it has fallen off the bus, and a person should reset it or reboot; "
        "7: python train.py of anna uses 31,000 MiB (pid 4711); free: 3-4."
    )


def test_waiting_cannot_help_where_the_machine_has_no_more() -> None:
    one = machine(gpu(0))
    assert choose_gpus(one, {}, GpuRequest(count=2), ANYTHING) == Unavailable(
        "2 GPUs requested, and this machine has 1.", never=True
    )
    assert choose_gpus(machine(), {}, GpuRequest(ids=("all",)), ANYTHING) == Unavailable(
        "1 GPU requested, and this machine has 0.", True
    )
    unknown = choose_gpus(one, {}, GpuRequest(ids=("0", "7")), ANYTHING)
    assert unknown == Unavailable("No GPU, or more than one, is 7. There are 0.", never=True)
    assert isinstance(
        busy_now := choose_gpus(machine(busy(0, TRAINING)), {}, GpuRequest(count=1), ANYTHING), Unavailable
    )
    assert not busy_now.never


@pytest.mark.parametrize(("trouble", "never"), [("no_driver", True), ("no_permission", True), ("hangs", False)])
def test_no_driver_is_not_no_gpus(trouble: Any, never: bool) -> None:
    choice = choose_gpus(Snapshot(trouble=trouble, text="The driver is not loaded."), {}, GpuRequest(count=1), ANYTHING)
    assert choice == Unavailable("The driver is not loaded.", never)


def test_a_required_count_is_a_least_number() -> None:
    two = machine(gpu(0), gpu(1), busy(2, TRAINING))
    assert indices(choose_gpus(two, {}, GpuRequest(count=1), Requirements(count=2))) == (0,)
    assert isinstance(choose_gpus(two, {}, GpuRequest(count=1), Requirements(count=3)), Unavailable)


# --- named GPUs


def test_named_gpus_are_taken_exactly_and_listed_in_ascending_order() -> None:
    four = machine(*(gpu(index) for index in range(4)))
    assert choose_gpus(four, {}, GpuRequest(ids=("3", "GPU-1")), ANYTHING) == Placement(
        ("GPU-1f3a", "GPU-3f3a"), (1, 3)
    )
    assert indices(choose_gpus(four, {}, GpuRequest(ids=("all",)), ANYTHING)) == (0, 1, 2, 3)
    assert choose_gpus(four, {}, GpuRequest(), ANYTHING) == Placement((), ())
    assert choose_gpus(four, {}, GpuRequest(ids=("1", "GPU-1")), ANYTHING) == Unavailable(
        "A GPU is named twice: 1, GPU-1.", never=True
    )


def test_named_gpus_that_are_not_available_are_refused_and_not_replaced() -> None:
    choice = choose_gpus(machine(busy(0, TRAINING), gpu(1), gpu(2)), {}, GpuRequest(ids=("0", "1")), ANYTHING)
    text = "2 GPUs requested, 1 available. 0: python train.py of anna uses 31,000 MiB (pid 4711); free: 1."
    assert refusal(choice) == text


# --- slots


def test_slots_are_given_from_the_lowest_number() -> None:
    holders = {"cpu-0": "a", "GPU-0f3a": "b"}
    assert choose_slots(3, holders, GpuRequest(cpu=2)) == Placement(("cpu-1", "cpu-2"), (1, 2))
    assert choose_slots(3, holders, GpuRequest(ids=("cpu-2",), cpu=1)) == Placement(("cpu-2",), (2,))
    assert choose_slots(3, holders, GpuRequest(cpu=3)) == Unavailable(
        "3 cpu slots requested, 2 available.", detail="cpu-0: leased by a; free: cpu-1 to cpu-2"
    )
    assert choose_slots(3, {}, GpuRequest(ids=("cpu-3",), cpu=1)) == Unavailable(
        "cpu-3 requested, and this machine has 3 cpu slots.", never=True
    )
    assert choose_slots(3, {}, GpuRequest(cpu=4)) == Unavailable(
        "4 cpu slots requested, and this machine has 3 cpu slots.", True
    )


def test_a_request_gets_gpus_or_slots_as_it_says() -> None:
    nothing: Mapping[str, str] = {}
    assert choose_devices(Snapshot(trouble="no_driver"), 1, nothing, GpuRequest(cpu=1), ANYTHING) == Placement(
        ("cpu-0",), (0,)
    )
    assert indices(choose_devices(machine(gpu(0)), 0, nothing, GpuRequest(count=1), ANYTHING)) == (0,)


# --- whatever the machine


@for_each(range(200))
def test_a_count_gets_fit_gpus_of_one_model_whenever_there_are_enough(seed: int) -> None:
    chance = random.Random(seed)
    gpus = [_any(chance, index) for index in range(chance.randint(1, 8))]
    holders = {each.uuid: "cfm-7kqz" for each in gpus if chance.random() < 0.2}
    count, requirements = chance.randint(1, 4), Requirements(free_memory_mib=chance.choice([None, 100_000]))
    choice = choose_gpus(machine(*gpus), holders, GpuRequest(count=count), requirements)
    fit = [each for each in gpus if not find_obstacles(each, holders.get(each.uuid), requirements)]
    models = [[each for each in fit if each.name == name] for name in ("H200", "T4")]
    if isinstance(choice, Unavailable):
        assert all(len(model) < count for model in models)
        assert choice.text
        return
    chosen = [each for each in fit if each.index in choice.indices]
    assert len(choice.uuids) == count == len(chosen)
    assert len({each.name for each in chosen}) == 1
    assert list(choice.indices) == sorted(choice.indices)
    assert tuple(each.uuid for each in sorted(chosen, key=lambda each: each.index)) == choice.uuids
    links = {frozenset((a.uuid, b.uuid)): (a.near or {}).get(b.uuid) for a, b in combinations(gpus, 2)}
    worst = [_worst(links, some) for model in models for some in combinations(model, count)]
    assert _worst(links, tuple(chosen)) == min(worst), "no set is closer"


def _worst(links: Mapping[frozenset[str], str | None], some: tuple[Gpu, ...]) -> int:
    order = ["nvlink", "pix", "pxb", "phb", "node", "sys"]
    return max((order.index(links[frozenset((a.uuid, b.uuid))] or "sys") for a, b in combinations(some, 2)), default=0)


def _any(chance: random.Random, index: int) -> Gpu:
    troubles: list[dict[str, Any]] = [
        {"lost": True},
        {"mig": True},
        {"failed": {"memory": "hangs"}},
        {"memory_used_mib": 60_000},
        {"processes": (TRAINING,), "memory_used_mib": 31_000},
        {"recovery_action": "reset"},
    ]
    facts = chance.choice(troubles) if chance.random() < 0.3 else {}
    links = ["nvlink", "pix", "node", "sys"]
    # The same for both ends.
    near = {gpu(o).uuid: links[(min(index, o) * 3 + max(index, o) * 5) % 4] for o in range(8) if o != index}
    return gpu(index, name=chance.choice(["H200", "H200", "T4"]), near=near, **facts)


def test_consecutive_numbers_are_joined_to_ranges() -> None:
    assert join_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert join_ranges([]) == ""
