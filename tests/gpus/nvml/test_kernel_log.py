"""Xid errors in the kernel's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.gpus.nvml.__main__ import Driver
from mcp_server.gpus.nvml.device import Device
from mcp_server.gpus.xid import KernelLog, parse_pci_address, parse_xid_records

LOG = """\
6,339,5140900,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module
4,1203,90000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
4,1204,95000000,-;NVRM: Xid (0000:3C:00): 31, Ch 00000008
 SUBSYSTEM=pci
4,1205,96000000,-;NVRM: Xid (PCI:0000:c1:00 GPU-I:02): 94, Contained
4,1206,97000000,-;a program wrote: Xid (PCI:0000:3b:00): 13
"""


def test_xids_are_read_from_the_kernels_log() -> None:
    assert [(xid.address, xid.number, xid.at_s) for xid in parse_xid_records(LOG)] == [
        ((0, 0x3B, 0), 79, 90.0),
        ((0, 0x3C, 0), 31, 95.0),
        ((0, 0xC1, 0), 94, 96.0),
    ]
    assert parse_pci_address("00000000:3B:00.0") == (0, 0x3B, 0)
    assert parse_pci_address("") is None


def test_xids_are_returned_up_to_an_age_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kmsg"
    path.write_text(LOG)
    monkeypatch.setattr("mcp_server.gpus.xid.time.monotonic", lambda: 100.0)
    log = KernelLog(path)
    assert [xid.number for xid in log.read_xids(5.0)] == [31, 94]
    assert log.read_xids() == []
    assert KernelLog(path, only_new=True).read_xids() == []
    assert KernelLog(tmp_path / "none").read_xids() == []


def test_an_xid_belongs_to_the_gpu_at_its_address_unless_events_report_it(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(LOG)
    driver = Driver(None, [])
    driver.devices = [Device(0, facts={"pci": "00000000:3B:00.0"}), Device(1, facts={"pci": "00000000:3C:00.0"})]
    driver.devices += [Device(2), Device(3, facts={"pci": "00000000:C1:00.0"}, events=True)]
    driver.read_log(KernelLog(tmp_path / "kmsg"), None)
    assert [device.xids for device in driver.devices] == [[79], [31], [], []]
    assert [gpu.xids for gpu in driver.snapshot().gpus] == [(79,), (31,), (), ()]
    assert [gpu.xids for gpu in driver.snapshot().gpus] == [(), (), (), ()], "each once"
