"""Which GPUs a run gets, and why not the others: values in, values out."""

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from mcp_server.gpus.placement import NoRoom, Placed, offer, place, place_slots, spans, unfit
from mcp_server.gpus.request import Require, Wanted, compete, require, wanted
from mcp_server.gpus.snapshot import IDLE_MIB, Gpu, GpuProcess, Snapshot

ANYTHING = Require()
TRAINING = GpuProcess(4711, 31_000, user="anna", command="python train.py")
DESKTOP = GpuProcess(900, 300, graphics=True, user="anna", command="Xorg")


def gpu(index: int = 0, **facts: Any) -> Gpu:
    """An idle one."""
    known: dict[str, Any] = {"name": "H200", "memory_total_mib": 143_000, "memory_used_mib": 0}
    return Gpu(index, f"GPU-{index:x}f3a", **{**known, **facts})


def busy(index: int = 0, *processes: GpuProcess, **facts: Any) -> Gpu:
    """One on which these processes hold all the memory that is used."""
    used = sum(process.memory_mib or 0 for process in processes)
    return gpu(index, processes=processes, memory_used_mib=used, **facts)


def machine(*gpus: Gpu) -> Snapshot:
    return Snapshot("2026-11-21T14:00:00Z", "570.1", gpus)


def linked(count: int, *islands: tuple[int, ...]) -> Snapshot:
    """GPUs joined by NVLink within islands, and across the system otherwise."""

    def near(index: int) -> dict[str, str]:
        mine = next(island for island in islands if index in island)
        others = (other for other in range(count) if other != index)
        return {gpu(other).uuid: "nvlink" if other in mine else "sys" for other in others}

    return machine(*(gpu(index, near=near(index)) for index in range(count)))


def indices(found: Placed | NoRoom) -> tuple[int, ...]:
    assert isinstance(found, Placed), found
    return found.indices


def refusal(found: Placed | NoRoom) -> str:
    assert isinstance(found, NoRoom), found
    return found.text


# --- what a user writes


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, None),
        (2, Wanted(count=2)),
        ("2", Wanted(count=2)),
        (" 8 ", Wanted(count=8)),
        (0, Wanted()),
        ("none", Wanted()),
        ([], Wanted()),
        ("0", Wanted()),
        ([2], Wanted(ids=("2",))),
        ([4, 5], Wanted(ids=("4", "5"))),
        (("4", 5), Wanted(ids=("4", "5"))),
        ("4,5", Wanted(ids=("4", "5"))),
        ("4-7", Wanted(ids=("4", "5", "6", "7"))),
        ("0, 2-3", Wanted(ids=("0", "2", "3"))),
        (["007"], Wanted(ids=("7",))),
        (["GPU-8f3a"], Wanted(ids=("GPU-8f3a",))),
        ("GPU-8f3a", Wanted(ids=("GPU-8f3a",))),
        ("all", Wanted(ids=("all",))),
        ("cpu", Wanted(cpu=1)),
        ("cpu:2", Wanted(cpu=2)),
        (["cpu-0"], Wanted(ids=("cpu-0",), cpu=1)),
        ("cpu-0,cpu-3", Wanted(ids=("cpu-0", "cpu-3"), cpu=2)),
    ],
)
def test_what_is_written_is_understood(written: Any, meant: Wanted | None) -> None:
    assert wanted(written) == meant
    assert meant is None or bool(wanted(written)) == (meant != Wanted())


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (True, "not understood"),
        ([True], "not understood"),
        (2.0, "not understood"),
        ([1.5], "not understood"),
        (b"2", "not understood"),
        ({"count": 2}, "not understood"),
        (-1, "cannot be had"),
        ("-1", "names no GPU"),
        ("two", "names no GPU"),
        ("", "names no GPU"),
        ("4,", "names no GPU"),
        ("7-4", "names no GPU"),
        ("0-99999", "names no GPU"),
        ("cpu:0", "names no GPU"),
        (["all", 1], "names no GPU"),
        ("٤", "names no GPU"),
        (["GPU-../../x"], "names no GPU"),
        ([4, "4"], "4 named twice"),
        ("3,1-4", "3 named twice"),
        (["cpu-0", 1], "together"),
        (["MIG-8f3a"], "only whole GPUs"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_a_reason(written: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wanted(written)


def test_requirements_are_checked_by_name_and_value() -> None:
    assert require(None) == Require()
    facts = {
        "free_memory_mib": 40_000,
        "power_limit_w": 400,
        "max_sm_clock_mhz": 1400,
        "count": 2,
        "no_strangers": False,
    }
    assert require(facts) == Require(40_000, 400.0, 1400, 2, no_strangers=False)
    assert require({"count": None}) == Require()
    with pytest.raises(ValueError, match=r"'memory' is not known. There are free_memory_mib, power_limit_w"):
        require({"memory": 4})
    for bad in ({"count": 0}, {"count": True}, {"power_limit_w": "400"}, {"no_strangers": 1}, {"count": float("nan")}):
        with pytest.raises(ValueError, match="not "):
            require(bad)


def test_a_wish_is_the_same_after_json() -> None:
    assert Wanted.of({"count": 0, "ids": ["4", "5"], "cpu": 0}) == Wanted(ids=("4", "5"))
    others: list[object] = [None, [], {}, {"count": "2", "ids": [], "cpu": 0}]
    for other in others:
        assert Wanted.of(other) is None


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        (2, 1, True),
        (2, [4], True),
        ("all", [4], True),
        ([4], [5], False),
        ([4, 5], [5, 6], True),
        (["GPU-8f3a"], ["GPU-8f"], True),
        (["GPU-8f3a"], ["GPU-9"], False),
        (["GPU-8f3a"], [0], True),  # an index may be any of them
        (2, "cpu", False),
        ("cpu:2", ["cpu-0"], True),
        (["cpu-1"], ["cpu-10"], False),
        (0, 8, False),
    ],
)
def test_only_those_compete_who_could_get_the_same(one: Any, other: Any, answer: bool) -> None:
    a, b = wanted(one), wanted(other)
    assert a is not None
    assert b is not None
    assert compete(a, b) is compete(b, a) is answer


# --- why a GPU cannot be had


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"lost": True}, "lost: it has fallen off the bus"),
        ({"failed": {"power": "hangs"}}, "hangs: the driver does not answer for it"),
        ({"mig": True}, "MIG is on: a person should type: sudo nvidia-smi -i 3 -mig 0"),
        (
            {"compute_mode": "prohibited"},
            "its compute mode is prohibited: a person should type: sudo nvidia-smi -i 3 -c",
        ),
        ({"recovery_action": "reset"}, "needs a reset: a person should type: sudo nvidia-smi -i 3 --gpu-reset"),
        ({"recovery_action": "reboot"}, "needs a reboot of the machine"),
        ({"remap_pending": True}, "needs a reset (bad memory waits to be set aside)"),
        ({"retirement_pending": True}, "needs a reset (bad memory"),
        ({"remap_failed": True}, "row remapping has failed"),
        ({"xids": (31, 79)}, "needs a reset (Xid 79)"),
        ({"memory_used_mib": 18_000}, "18,000 MiB are held by nobody visible"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_told_with_its_remedy(facts: dict[str, Any], said: str) -> None:
    (reason,) = unfit(gpu(3, **facts), None, ANYTHING)
    assert reason.startswith(said)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"memory_used_mib": IDLE_MIB},
        {"mig": False, "compute_mode": "exclusive_process", "recovery_action": "none"},
        {"xids": (13, 31)},
        {"recovery_action": "none", "xids": (79,)},  # the driver knows better
        {"failed": {"power": "unsupported"}},
        {"memory_total_mib": None, "memory_used_mib": None},
        {"processes": (DESKTOP,), "memory_used_mib": 300},
    ],
)
def test_what_is_harmless_takes_no_gpu_away(facts: dict[str, Any]) -> None:
    assert unfit(gpu(**facts), None, ANYTHING) == []


def test_a_lease_and_a_strangers_process_are_told() -> None:
    held = "cfm-7kqz (mz) since 14:02 UTC"
    training = "python train.py of anna uses 31,000 MiB (pid 4711)"
    assert unfit(busy(0, TRAINING), held, ANYTHING) == [f"leased by {held}", training]
    hidden = GpuProcess(5)
    assert unfit(gpu(processes=(hidden,)), None, ANYTHING) == ["a process of somebody not visible here uses it (pid 5)"]
    assert unfit(busy(0, GpuProcess(5, 10), TRAINING), None, ANYTHING) == [f"{training} and 1 more"]


def test_the_runs_own_processes_are_no_strangers() -> None:
    own = busy(0, replace(TRAINING, run_id="cfm-7kqz"))
    assert unfit(own, None, ANYTHING, "cfm-7kqz") == []
    assert unfit(own, None, Require(free_memory_mib=140_000), "cfm-7kqz") == []
    assert unfit(own, None, ANYTHING, "other") != []
    assert unfit(busy(0, TRAINING), None, ANYTHING, "") != []


def test_sharing_allows_strangers_but_no_leases() -> None:
    shared = Require(no_strangers=False)
    assert unfit(busy(0, TRAINING), None, shared) == []
    assert unfit(gpu(memory_used_mib=18_000), None, shared) == []
    assert unfit(gpu(), "cfm-7kqz", shared) == ["leased by cfm-7kqz"]
    (reason,) = unfit(busy(0, TRAINING, compute_mode="exclusive_process"), None, shared)
    assert reason.startswith("its compute mode lets in one process only")


@pytest.mark.parametrize(
    ("facts", "needs", "said"),
    [
        ({"memory_used_mib": 500}, {"free_memory_mib": 142_501}, "142,500 MiB free, 142,501 MiB required"),
        ({"memory_used_mib": None}, {"free_memory_mib": 1}, "free memory is not told, 1 MiB required"),
        (
            {"power_limit_w": 700.0},
            {"power_limit_w": 400},
            "power limit 700 W, at most 400 W required: a person should type: sudo nvidia-smi -i 3 -pl 400",
        ),
        (
            {},
            {"power_limit_w": 400},
            "power limit not told, at most 400 W required: a person should type: sudo nvidia-smi -i 3 -pl 400",
        ),
        (
            {"sm_clock_cap_mhz": 1700, "sm_clock_max_mhz": 1980, "sm_clock_mhz": 210},
            {"max_sm_clock_mhz": 1400},
            "SM clock 1,700 MHz, at most 1,400 MHz required: a person should type: sudo nvidia-smi -i 3 -lgc 0,1400",
        ),
        (
            {"sm_clock_mhz": 1755},
            {"max_sm_clock_mhz": 1400},
            "SM clock 1,755 MHz, at most 1,400 MHz required: a person should type: sudo nvidia-smi -i 3 -lgc 0,1400",
        ),
    ],
)
def test_an_unmet_requirement_is_told_with_its_remedy(
    facts: dict[str, Any], needs: dict[str, object], said: str
) -> None:
    assert unfit(gpu(3, **facts), None, require(needs)) == [said]


@pytest.mark.parametrize(
    ("facts", "needs"),
    [
        ({"memory_used_mib": 500}, {"free_memory_mib": 142_500}),
        ({"power_limit_w": 400.2}, {"power_limit_w": 400}),
        ({"sm_clock_cap_mhz": 1400, "sm_clock_max_mhz": 1980}, {"max_sm_clock_mhz": 1400}),
        ({"sm_clock_mhz": 210}, {"max_sm_clock_mhz": 1400}),
        ({"sm_clock_mhz": 210, "sm_clock_cap_mhz": 1980, "sm_clock_max_mhz": 1980}, {"max_sm_clock_mhz": 1400}),
        ({}, {"max_sm_clock_mhz": 1400}),
    ],
)
def test_a_requirement_that_is_met_or_shows_only_under_load_takes_no_gpu_away(
    facts: dict[str, Any], needs: dict[str, object]
) -> None:
    assert unfit(gpu(**facts), None, require(needs)) == []


# --- a count


def test_a_count_takes_the_lowest_free_indices_where_nothing_else_differs() -> None:
    eight = machine(*(gpu(index) for index in reversed(range(8))))
    assert place(eight, {}, Wanted(count=3), ANYTHING) == Placed(("GPU-0f3a", "GPU-1f3a", "GPU-2f3a"), (0, 1, 2))
    assert indices(place(eight, {gpu(1).uuid: "cfm-7kqz"}, Wanted(count=2), ANYTHING)) == (0, 2)


def test_more_free_memory_comes_before_a_lower_index_but_a_few_mib_do_not() -> None:
    some = machine(gpu(0, memory_used_mib=3), gpu(1), busy(2, replace(DESKTOP, memory_mib=2_000)))
    assert indices(place(some, {}, Wanted(count=1), ANYTHING)) == (0,)
    assert indices(
        place(machine(busy(0, replace(DESKTOP, memory_mib=2_000)), gpu(1)), {}, Wanted(count=1), ANYTHING)
    ) == (1,)


def test_gpus_of_one_model_stay_together() -> None:
    mixed = machine(gpu(0, name="T4"), gpu(1), gpu(2, name="T4"), gpu(3))
    assert indices(place(mixed, {gpu(0).uuid: "a"}, Wanted(count=2), ANYTHING)) == (1, 3)
    found = place(mixed, {gpu(0).uuid: "a", gpu(1).uuid: "b"}, Wanted(count=2), ANYTHING)
    text = "2 GPUs of one model asked for, fewer can be had. 0: leased by a; 1: leased by b; free: 2-3."
    assert found == NoRoom(text)
    too_many = place(mixed, {}, Wanted(count=3), ANYTHING)
    assert too_many == NoRoom(
        "3 GPUs of one model asked for, and this machine has 2: name those to use together.", True
    )


def test_neighbours_are_preferred_where_the_links_are_known() -> None:
    assert indices(place(linked(8, (0, 2, 4, 6), (1, 3, 5, 7)), {}, Wanted(count=4), ANYTHING)) == (0, 2, 4, 6)
    held = {gpu(0).uuid: "a"}
    assert indices(place(linked(8, (0, 1), (2, 3), (4, 5), (6, 7)), held, Wanted(count=2), ANYTHING)) == (2, 3)


def test_neighbours_are_found_among_more_than_can_be_enumerated() -> None:
    islands = [tuple(range(first, first + 8)) for first in (0, 8, 16, 24)]
    many = linked(32, *islands)
    held = {gpu(index).uuid: "a" for index in (1, 9, 17)}
    assert indices(place(many, held, Wanted(count=8), ANYTHING)) == tuple(range(24, 32))


def test_a_refusal_tells_of_every_gpu_once_and_compactly() -> None:
    held = {gpu(index).uuid: "cfm-7kqz (mz)" for index in (0, 1, 2, 6)}
    some = machine(*(gpu(index) for index in range(5)), gpu(5, lost=True), gpu(6), busy(7, TRAINING))
    assert refusal(place(some, held, Wanted(count=4), ANYTHING)) == (
        "4 GPUs asked for, 2 can be had. 0-2, 6: leased by cfm-7kqz (mz); "
        "5: lost: it has fallen off the bus, and a person should reset it or reboot; "
        "7: python train.py of anna uses 31,000 MiB (pid 4711); free: 3-4."
    )


def test_waiting_cannot_help_where_the_machine_has_no_more() -> None:
    one = machine(gpu(0))
    assert place(one, {}, Wanted(count=2), ANYTHING) == NoRoom("2 GPUs asked for, and this machine has 1.", never=True)
    assert place(machine(), {}, Wanted(ids=("all",)), ANYTHING) == NoRoom(
        "1 GPU asked for, and this machine has 0.", True
    )
    unknown = place(one, {}, Wanted(ids=("0", "7")), ANYTHING)
    assert unknown == NoRoom("No GPU, or more than one, is 7. There are 0.", never=True)
    assert isinstance(busy_now := place(machine(busy(0, TRAINING)), {}, Wanted(count=1), ANYTHING), NoRoom)
    assert not busy_now.never


@pytest.mark.parametrize(("trouble", "never"), [("no_driver", True), ("no_permission", True), ("hangs", False)])
def test_no_driver_is_not_no_gpus(trouble: Any, never: bool) -> None:
    found = place(Snapshot(trouble=trouble, text="The driver is not loaded."), {}, Wanted(count=1), ANYTHING)
    assert found == NoRoom("The driver is not loaded.", never)


def test_a_required_count_is_a_least_number() -> None:
    two = machine(gpu(0), gpu(1), busy(2, TRAINING))
    assert indices(place(two, {}, Wanted(count=1), Require(count=2))) == (0,)
    assert isinstance(place(two, {}, Wanted(count=1), Require(count=3)), NoRoom)


# --- named ones


def test_named_gpus_are_taken_exactly_and_told_in_ascending_order() -> None:
    four = machine(*(gpu(index) for index in range(4)))
    assert place(four, {}, Wanted(ids=("3", "GPU-1")), ANYTHING) == Placed(("GPU-1f3a", "GPU-3f3a"), (1, 3))
    assert indices(place(four, {}, Wanted(ids=("all",)), ANYTHING)) == (0, 1, 2, 3)
    assert place(four, {}, Wanted(), ANYTHING) == Placed((), ())
    assert place(four, {}, Wanted(ids=("1", "GPU-1")), ANYTHING) == NoRoom(
        "A GPU is named twice: 1, GPU-1.", never=True
    )


def test_named_gpus_that_cannot_be_had_are_refused_and_not_replaced() -> None:
    found = place(machine(busy(0, TRAINING), gpu(1), gpu(2)), {}, Wanted(ids=("0", "1")), ANYTHING)
    text = "2 GPUs asked for, 1 can be had. 0: python train.py of anna uses 31,000 MiB (pid 4711); free: 1."
    assert found == NoRoom(text)


# --- slots


def test_slots_are_given_from_the_lowest_number() -> None:
    held = {"cpu-0": "a", "GPU-0f3a": "b"}
    assert place_slots(3, held, Wanted(cpu=2)) == Placed(("cpu-1", "cpu-2"), (1, 2))
    assert place_slots(3, held, Wanted(ids=("cpu-2",), cpu=1)) == Placed(("cpu-2",), (2,))
    assert place_slots(3, held, Wanted(cpu=3)) == NoRoom(
        "3 cpu slots asked for, 2 can be had. 0: leased by a; free: 1-2."
    )
    assert place_slots(3, {}, Wanted(ids=("cpu-3",), cpu=1)) == NoRoom(
        "cpu-3 asked for, and this machine has 3 cpu slots.", never=True
    )
    assert place_slots(3, {}, Wanted(cpu=4)) == NoRoom("4 cpu slots asked for, and this machine has 3 cpu slots.", True)


def test_an_offer_is_of_what_is_wanted() -> None:
    nothing: Mapping[str, str] = {}
    assert offer(Snapshot(trouble="no_driver"), 1, nothing, Wanted(cpu=1), ANYTHING) == Placed(("cpu-0",), (0,))
    assert indices(offer(machine(gpu(0)), 0, nothing, Wanted(count=1), ANYTHING)) == (0,)


# --- whatever the machine


@pytest.mark.parametrize("seed", range(200))
def test_a_count_gets_fit_gpus_of_one_model_whenever_there_are_enough(seed: int) -> None:
    chance = random.Random(seed)
    gpus = [_any(chance, index) for index in range(chance.randint(1, 8))]
    held = {each.uuid: "cfm-7kqz" for each in gpus if chance.random() < 0.2}
    count, needs = chance.randint(1, 4), Require(free_memory_mib=chance.choice([None, 100_000]))
    found = place(machine(*gpus), held, Wanted(count=count), needs)
    fit = [each for each in gpus if not unfit(each, held.get(each.uuid), needs)]
    models = [[each for each in fit if each.name == name] for name in ("H200", "T4")]
    if isinstance(found, NoRoom):
        assert all(len(model) < count for model in models)
        assert found.text
        return
    chosen = [each for each in fit if each.index in found.indices]
    assert len(found.uuids) == count == len(chosen)
    assert len({each.name for each in chosen}) == 1
    assert list(found.indices) == sorted(found.indices)
    assert tuple(each.uuid for each in sorted(chosen, key=lambda each: each.index)) == found.uuids
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


def test_spans_are_short() -> None:
    assert spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert spans([]) == ""
