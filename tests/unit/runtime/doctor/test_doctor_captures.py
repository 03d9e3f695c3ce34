"""Captured machines: the healthy one gives no finding, each other one exactly its own.

tests/captures/README.md says what the folders are.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from provision_runtime.doctor import catalog, disks
from provision_runtime.doctor.machine import Machine, captured_machine
from provision_runtime.doctor.probe import observe
from provision_runtime.report.diagnosis import ObservedFinding
from provision_runtime.report.findings import BY_AREA
from tests.paths import ROOT

CAPTURES = ROOT / "tests" / "captures"
HEALTHY = CAPTURES / "healthy-8gpu"
CASES = sorted(path.parent.name for path in CAPTURES.glob("*/case.json"))


def machine_of(case: str, folder: Path) -> Machine:
    """The healthy machine with the fault of a case."""
    root = folder / "root"
    shutil.copytree(HEALTHY, root, copy_function=os.symlink)
    document = json.loads((CAPTURES / case / "case.json").read_text())
    for file in (CAPTURES / case).rglob("*"):
        if file.is_file() and file.name != "case.json":
            path = root / file.relative_to(CAPTURES / case)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(file)
    for pattern in document.get("remove", ()):
        for path in list(root.glob(pattern)):
            path.unlink()
    for name, changes in document.get("replace", {}).items():
        path = root / name
        for old, new, count in changes:
            text = path.read_text()
            assert text.count(old) >= count, (name, old)
            write_own(path, text.replace(old, new, count))
    for name, lines in document.get("append", {}).items():
        write_own(root / name, (root / name).read_text() + "".join(f"{line}\n" for line in lines))
    for name, last in document.get("cut", {}).items():
        before, last, _ = (root / name).read_text().partition(last)
        write_own(root / name, before + last)
    environ = root / "proc/self/environ"
    added = "".join(f"{entry}\n" for entry in document.get("environment", ()))
    write_own(environ, environ.read_text() + added)
    return captured_machine(root, "/opt/env", has_peers=True)


def write_own(path: Path, text: str) -> None:
    """Write a file in the place of a link to the capture's."""
    mode = path.stat().st_mode
    path.unlink()
    path.write_text(text)
    path.chmod(mode)


def findings_on(machine: Machine) -> list[ObservedFinding]:
    findings = []
    for probe in catalog.select(machine):
        # The disk of the machine that runs the test is no part of the capture.
        if probe.name != "disks":
            findings += observe(probe, machine)["findings"]
    return findings


def test_a_healthy_machine_gives_no_finding() -> None:
    assert findings_on(captured_machine(HEALTHY, "/opt/env", has_peers=True)) == []


@pytest.mark.parametrize("case", CASES)
def test_a_fault_gives_its_finding_and_no_other(case: str, tmp_path: Path) -> None:
    expected = json.loads((CAPTURES / case / "case.json").read_text())
    findings = findings_on(machine_of(case, tmp_path))
    assert {finding["id"] for finding in findings} == {expected["finding"]}
    shown = [evidence["value"] for finding in findings for evidence in finding["evidence"]]
    assert shown == expected["evidence"]


def test_every_finding_about_gpus_has_a_capture() -> None:
    cases = [json.loads((CAPTURES / case / "case.json").read_text()) for case in CASES]
    assert {*BY_AREA["GPUs"], *BY_AREA["driver and containers"]} - {
        case["finding"] for case in cases
    } == set()


def test_a_finding_has_evidence_command_and_source(tmp_path: Path) -> None:
    [probe] = [probe for probe in catalog.PROBES if probe.name == "GPUs"]
    [finding] = observe(probe, machine_of("gpu-row-failed", tmp_path))["findings"]
    assert finding["message"] == "GPU 00000000:1B:00.0 failed to remap a row of its memory"
    assert finding["evidence"] == [{"source": "nvidia-smi -q -x", "value": finding["message"]}]
    assert finding["command"] == "nvidia-smi -q -d ROW_REMAPPER,ECC"
    assert finding["source"].startswith("https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt")


def test_one_gpu_needs_no_imex_channel(tmp_path: Path) -> None:
    """As on an H100 of its own, whose driver (580) lists the device."""
    machine = machine_of("imex-channel", tmp_path)
    for address in ("43", "52", "61", "9d", "c3", "d1", "df"):
        shutil.rmtree(machine.root / f"sys/bus/pci/devices/0000:{address}:00.0")
    [probe] = [probe for probe in catalog.PROBES if probe.name == "IMEX channels"]
    assert observe(probe, machine)["findings"] == []


def test_the_kernel_log_is_said_to_need_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(HEALTHY, root)
    (root / "bin/dmesg").write_text(
        "#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted'\nexit 1\n"
    )
    probe = next(probe for probe in catalog.PROBES if probe.name == "logs")
    answer = observe(probe, captured_machine(root, None, has_peers=False))
    assert answer["findings"] == []
    assert answer["notes"][0][1] == "sudo dmesg -T | grep -i xid"


@pytest.mark.parametrize(
    ("probe", "has_gpus", "subject"),
    [("GPUs", False, "no NVIDIA GPU"), ("ports", True, "no InfiniBand or RoCE adapter")],
)
def test_hardware_that_is_absent_is_named(
    probe: str, has_gpus: bool, subject: str, tmp_path: Path
) -> None:
    devices = tmp_path / "root" / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    if has_gpus:
        shutil.copytree(HEALTHY / "sys/bus/pci/devices", devices, dirs_exist_ok=True)
    [selected] = [each for each in catalog.PROBES if each.name == probe]
    answer = observe(selected, captured_machine(tmp_path / "root", None, has_peers=False))
    assert answer["findings"] == []
    assert answer["notes"][0][0].startswith(subject)


@pytest.mark.parametrize(
    ("free", "inodes", "id"),
    [(0, 10**6, "cache-full"), (10**12, 0, "cache-full"), (10**12, 10, "cache-space-low")],
)
def test_no_inodes_are_a_full_disk(free: int, inodes: int, id: str) -> None:
    shortage = disks.shortage(free, inodes)
    assert shortage is not None and shortage[0] == id
    assert disks.shortage(10**12, None) is None
