"""GPUs in few words, and what they cost."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcp_server.gpus.deviations import UsageFigures
from mcp_server.gpus.snapshot import Gpu, GpuProcess, Snapshot
from mcp_server.record.events import RecordEvent
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.views import gpu_report
from mcp_server.views.gpu_report import GpusUnknown, describe_devices

UUIDS = tuple(f"GPU-{n * 0x11111111:08x}-8d3b-4c5e-9f60-{n:012x}" for n in range(1, 9))


def gpu(index: int, **facts: Any) -> Gpu:
    common = {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_total_mib": 81559,
        "memory_used_mib": 3,
        "memory_reserved_mib": 500,
        "utilisation": 0,
        "temperature_c": 31,
        "power_w": 68.4,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 345,
        "sm_clock_max_mhz": 1980,
        "sm_clock_cap_mhz": 1980,
    }
    return Gpu(index=index, **{"uuid": UUIDS[index], **common, **facts})


def machine(*gpus: Gpu) -> Snapshot:
    return Snapshot("2026-11-21T15:30:45.123Z", "550.54.15", gpus)


def run(*uuids: str, events: tuple[RecordEvent, ...] = (), **progress: Any) -> Run:
    return Run(RunSpec(run_id="cfm-7kqz"), "running", events=events, gpus=uuids, progress=progress)


def test_eight_healthy_gpus_cost_less_than_300_tokens() -> None:
    openai = pytest.importorskip("rs_bpe", reason="rs-bpe counts tokens").openai
    for seed in range(20):
        chance = random.Random(seed)
        gpus = [
            gpu(
                index,
                uuid=f"GPU-{uuid.UUID(int=chance.getrandbits(128))}",
                memory_used_mib=chance.choice([1, 3, 4, 27]),
                temperature_c=chance.randint(26, 45),
                power_w=chance.uniform(60, 120),
                sm_clock_mhz=chance.choice([210, 345, 1980]),
            )
            for index in range(8)
        ]
        answer = gpu_report.report_machine(machine(*gpus), {}).model_dump(mode="json")
        for text in (json.dumps(answer), json.dumps(answer, separators=(",", ":"))):
            assert openai.o200k_base().count(text) <= 300, text


def test_few_gpus_have_whole_uuids_and_their_common_values_once() -> None:
    report = gpu_report.report_machine(machine(gpu(0), gpu(1)), {})
    assert (report.ok, report.reasons, report.free) == (True, [], list(UUIDS[:2]))
    assert (report.header, report.driver) == ("2 NVIDIA H100 80GB HBM3, 81559 MiB, 700 W", "550.54.15")
    assert report.gpus[1] == f"1 {UUIDS[1]} 3MiB 0% 31C 68W 345MHz"


def test_many_gpus_have_unique_uuid_prefixes() -> None:
    report = gpu_report.report_machine(machine(*(gpu(index) for index in range(8))), {})
    assert report.free == [f"GPU-{n}{n}{n}" for n in range(1, 9)]
    assert report.gpus[7] == "7 GPU-888 3MiB 0% 31C 68W 345MHz"
    assert gpu_report.name_gpus(["GPU-12345-a", "GPU-12345-b"], 8) == {u: u for u in ("GPU-12345-a", "GPU-12345-b")}


def test_values_that_differ_are_on_each_line() -> None:
    other = gpu(1, name="NVIDIA A100", memory_total_mib=40960, power_limit_w=400.0)
    report = gpu_report.report_machine(machine(gpu(0), other), {})
    assert report.header == "2 GPUs"
    assert report.gpus[1] == f"1 {UUIDS[1]} (NVIDIA A100) 3/40960MiB 0% 31C 68/400W 345MHz"


def test_unknown_values_are_left_out() -> None:
    report = gpu_report.report_machine(machine(Gpu(0, UUIDS[0])), {})
    assert (report.header, report.gpus) == ("1 GPUs", [f"0 {UUIDS[0]}"])


def test_processes_and_unusual_states_are_on_the_line_of_their_gpu() -> None:
    busy = gpu(
        0,
        memory_used_mib=41003,
        throttle=("power_cap",),
        sm_clock_cap_mhz=1500,
        ecc_uncorrected=2,
        xids=(79, 31),
        recovery_action="reset",
        processes=(
            GpuProcess(7, 40000, user="mz", command="python train.py", run_id="cfm-7kqz"),
            GpuProcess(8, 1000),
            GpuProcess(9, 3, graphics=True, user="mz", command="Xorg"),
        ),
    )
    (line,) = gpu_report.report_machine(machine(busy), {UUIDS[0]: "cfm-7kqz (mz)"}).gpus
    assert line.split("; ")[1:] == [
        "throttled: power_cap",
        "SM clock capped at 1500 of 1980 MHz",
        "ECC errors: 2 uncorrected",
        "Xid 79 31",
        "needs: reset",
        "mz: python train.py pid 7 40000 MiB of run cfm-7kqz",
        "a process not visible here pid 8 1000 MiB",
        "leased by cfm-7kqz (mz)",
    ]
    crowd = tuple(GpuProcess(pid, 1, user="mz") for pid in range(9))
    assert gpu_report.list_processes(gpu(0, processes=crowd))[-1] == "5 more processes"


def test_no_driver_is_an_error_that_says_what_is_still_true_and_what_to_do() -> None:
    absent = Snapshot(trouble="no_driver", text="The NVIDIA driver is not loaded.")
    with pytest.raises(GpusUnknown, match=r"No NVIDIA driver: The NVIDIA driver is not loaded\. Nothing was changed"):
        gpu_report.report_machine(absent, {})
    with pytest.raises(GpusUnknown, match="Next: launch_run without gpus"):
        gpu_report.report_run(run(UUIDS[0]), absent, {})
    empty = gpu_report.report_machine(machine(), {})
    assert (empty.ok, empty.gpus, empty.free, empty.header) == (False, [], [], None)


# --- a run's own GPUs


def test_the_report_of_a_run_has_its_gpus_with_their_usage_and_imbalance() -> None:
    use = {
        UUIDS[0]: UsageFigures(95.0, 70123, 612.4, 71),
        UUIDS[1]: UsageFigures(93.0, 70000),
        UUIDS[2]: UsageFigures(20.0),
    }
    now = machine(*(gpu(index, utilisation=90) for index in range(5)))
    report = gpu_report.report_run(run(*UUIDS[:3]), now, use)
    assert report.ok is False
    assert report.reasons == [f"{UUIDS[2]}: imbalance: it worked at 20%, the median of the run's 3 GPUs is 93%."]
    line = f"0 {UUIDS[0]} (NVIDIA H100 80GB HBM3) 3/81559MiB 90% 31C 68/700W 345MHz; "
    assert report.gpus[0] == line + "mean 95%, peak 70123 MiB, mean 612 W, max 71 C"
    assert len(report.gpus) == 3


def test_balanced_idle_and_single_gpus_are_not_an_imbalance() -> None:
    assert gpu_report.describe_imbalance({"a": UsageFigures(90.0), "b": UsageFigures(70.0)}) == {}
    assert gpu_report.describe_imbalance({"a": UsageFigures(10.0), "b": UsageFigures(1.0)}) == {}
    assert gpu_report.describe_imbalance({"a": UsageFigures(90.0), "b": UsageFigures(None)}) == {}


def test_the_report_of_a_run_has_faults_deviations_and_missing_gpus() -> None:
    deviation: RecordEvent = {
        "seq": 3,
        "kind": "gpu_deviation",
        "at": "2026-11-21T15:30:45Z",
        "text": "GPU 0 worked at 3 %.",
    }
    report = gpu_report.report_run(run(*UUIDS[:2], events=(deviation,)), machine(gpu(0, ecc_uncorrected=1)), {})
    assert report.ok is False
    assert report.reasons[0].startswith(f"{UUIDS[0]}: 1 uncorrected ECC errors")
    assert report.reasons[1:] == [
        f"{UUIDS[1]}: the driver does not report it.",
        "2026-11-21T15:30:45Z: GPU 0 worked at 3 %.",
    ]
    assert report.gpus[1] == UUIDS[1]
    none = gpu_report.report_run(run(), machine(gpu(0)), {})
    assert (none.ok, none.reasons) == (False, ["cfm-7kqz has no GPUs: it was launched without."])


def test_the_usage_of_a_run_is_reported_without_a_driver() -> None:
    report = gpu_report.report_run(
        run(UUIDS[0]), Snapshot(trouble="hangs", text="It hangs."), {UUIDS[0]: UsageFigures(95.0)}
    )
    assert (report.ok, report.reasons, report.gpus) == (False, ["It hangs."], [f"{UUIDS[0]}; mean 95%"])


def test_usage_is_that_of_the_attempt_or_of_the_last_minutes(tmp_path: Path) -> None:
    now_s = time.time()
    record = tmp_path / "gpus.jsonl"
    minutes = [(300, [10.0, 90000, 100.0, 90]), (90, [90.0, 70000, None, 70]), (30, [80.0, 71000, 600.0, 71])]
    lines = [
        json.dumps({"at": datetime.fromtimestamp(now_s - age_s, UTC).isoformat(), "gpus": {UUIDS[0]: figures}})
        for age_s, figures in minutes
    ]
    record.write_text("\n".join([*lines, "7", '{"at": 3}', '{"gpus": {}}', '{"at": "2026-11-2']))
    its = run(UUIDS[0], gpus={UUIDS[0]: {"mean_util": 85.0, "peak_mib": 71000, "later": 1}, "b": 3})
    assert gpu_report.read_usage(its, record, now_s) == {UUIDS[0]: UsageFigures(85.0, 71000)}
    assert gpu_report.read_usage(its, record, now_s, 120.0) == {UUIDS[0]: UsageFigures(85.0, 71000, 600.0, 71)}
    assert gpu_report.read_usage(its, tmp_path / "none", now_s, 120.0) == {}
    assert gpu_report.read_usage(run(), record, now_s) == {}


def test_devices_are_named_by_what_they_are() -> None:
    def run(gpus: tuple[str, ...], indices: tuple[int, ...]) -> Sequence[int | str]:
        return Run(RunSpec(), "running", gpus=gpus, gpu_indices=indices).gpu_names

    assert describe_devices(run(("GPU-a", "GPU-b", "GPU-c"), (0, 1, 3))) == "GPU 0-1, 3"
    assert describe_devices(run(("cpu-1",), (1,))) == "cpu-1"
    assert describe_devices(run(("GPU-a",), ())) == "GPU-a", "records of former layouts have no indices"
    assert describe_devices(run((), ())) == ""
