"""The host: usable CPUs and memory, and nvidia-smi's answers (also the ugly ones: never a guess, and
a reason if nothing is known)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.core import host
from provision.core.types import HostGpus
from provision_runtime.facts import limits
from tests.paths import DATA
from tests.programs import write_program


def test_cpus_are_limited_by_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_affinity", lambda root: 8)
    for quota, cpus in ((None, 8), (1.5, 2), (0.2, 1)):
        monkeypatch.setattr(limits, "cpu_quota", lambda root, quota=quota: quota)
        assert host.usable_cpus() == cpus


def test_memory_is_limited_by_the_tightest_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemFree: 1 kB\nMemAvailable: {8 << 20} kB\n")
    groups = [{"limit": None, "usage": 1 << 30}, {"limit": 4 << 30, "usage": 2 << 30}]
    assert host.available_memory(tmp_path) == 8 << 30
    monkeypatch.setattr(limits, "memory_groups", lambda root: groups)
    assert host.available_memory(tmp_path) == 2 << 30


ANSWERS = DATA / "nvidia-smi"
PARSED = {
    "one": HostGpus(driver="550.90.07", gpus=("sm_90",)),
    "mixed": HostGpus(driver="535.183.01", gpus=("sm_70", "sm_80")),
    "old-driver": HostGpus(driver="470.57.02", gpus=("Tesla V100-SXM2-16GB",)),
    "not-available": HostGpus(driver="470.57.02", gpus=("Tesla V100-SXM2-16GB",)),
    "lost": HostGpus(driver="580.95.05", gpus=("sm_90",), lost=2),
    "all-lost": HostGpus(
        driver="580.95.05", why="nvidia-smi prints ERR! for every GPU: they are lost", lost=1
    ),
}
REASONS = {
    "unknown-field": "not a valid field",
    "no-devices": "No devices were found",
    "no-driver": "couldn't communicate with the NVIDIA driver",
    "mismatch": "version mismatch",
    "empty": "it printed: nothing",
}


@pytest.fixture(autouse=True)
def forget_machine() -> Iterator[None]:
    host.this_machine.cache_clear()
    yield
    host.this_machine.cache_clear()


def test_every_recorded_output_has_an_expectation() -> None:
    assert {path.stem for path in ANSWERS.glob("*.txt")} == PARSED.keys() | REASONS.keys()


@pytest.mark.parametrize("answer", PARSED)
def test_nvidia_smi_output_is_parsed(answer: str) -> None:
    assert host.parse_nvidia_smi((ANSWERS / f"{answer}.txt").read_text()) == PARSED[answer]


@pytest.mark.parametrize("answer", REASONS)
def test_missing_values_have_a_reason(answer: str) -> None:
    machine = host.parse_nvidia_smi((ANSWERS / f"{answer}.txt").read_text())
    assert (machine.driver, machine.gpus) == (None, ())
    assert REASONS[answer] in machine.why


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program named nvidia-smi, the only one that can be found."""
    program = folder / "nvidia-smi"
    write_program(program, f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", str(folder))


def test_old_driver_is_queried_with_its_field_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = 'echo "Field \\"compute_cap\\" is not a valid field to query."; exit 2'
    old = f'case "$*" in *compute_cap*) {refusal};; *) echo "470.57.02, Tesla K80";; esac'
    install(tmp_path, monkeypatch, old)
    assert host.this_machine() == HostGpus(driver="470.57.02", gpus=("Tesla K80",))


def test_nvidia_smi_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path, monkeypatch, f'echo x >> "{tmp_path}/asked"; echo "550.54.15, 8.0, NVIDIA A100"'
    )
    assert host.this_machine() is host.this_machine()
    assert (tmp_path / "asked").read_text() == "x\n"


def test_missing_nvidia_smi_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.this_machine() == HostGpus(why="there is no nvidia-smi on this machine")


def test_hanging_nvidia_smi_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "while :; do :; done")
    monkeypatch.setattr(host, "REPLY_TIMEOUT_S", 0.2)
    assert "did not respond within" in host.this_machine().why


def test_failing_nvidia_smi_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, 'echo "Failed to initialize NVML: Unknown Error" >&2; exit 255')
    assert "Unknown Error" in host.this_machine().why


MACHINE_ID = "3f2a1c" + "0" * 26


def machine_id(root: Path, text: str | None, boot_id: str = "boot-1", *marks: str) -> str:
    for name, content in (("etc/machine-id", text), ("proc/sys/kernel/random/boot_id", boot_id)):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(f"{content}\n")
    for mark in marks:
        (root / mark).parent.mkdir(parents=True, exist_ok=True)
        (root / mark).touch()
    return host.identity(root)["machine_id"]


def test_the_machine_id_lasts_and_is_not_told(tmp_path: Path) -> None:
    first = machine_id(tmp_path, MACHINE_ID)
    assert first == machine_id(tmp_path, MACHINE_ID, "boot-2")
    assert first != machine_id(tmp_path, "1" * 32) and MACHINE_ID not in first
    assert len(first) == 32


@pytest.mark.parametrize("text", [None, "", "uninitialized", "0"])
def test_without_a_machine_id_the_kernel_is_the_machine(tmp_path: Path, text: str | None) -> None:
    first = machine_id(tmp_path, text)
    assert first == machine_id(tmp_path, text)
    assert first != machine_id(tmp_path, text, "boot-2")
    assert machine_id(tmp_path, text, "") == host.UNKNOWN


@pytest.mark.parametrize("mark", host.CONTAINER_MARKS)
def test_containers_of_one_image_on_two_machines_differ(tmp_path: Path, mark: str) -> None:
    first = machine_id(tmp_path, MACHINE_ID, "boot-1", mark)
    assert first != machine_id(tmp_path, MACHINE_ID, "boot-2", mark)


def gpu_facts(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> tuple[str, str]:
    """What a machine with this nvidia-smi says of itself."""
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    (folder / "nvidia-smi").unlink(missing_ok=True)
    if script is not None:
        write_program(folder / "nvidia-smi", f"#!/bin/sh\n{script}\n")
    host._gpu_identity.cache_clear()
    identity = host.identity()
    host._gpu_identity.cache_clear()
    return identity["driver"], identity["gpus"]


def test_gpus_are_told_apart_by_name_and_uuid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "printf '550.1, GPU-a, H100\\n550.1, GPU-b, H100\\n'"
    driver, gpus = gpu_facts(tmp_path, monkeypatch, rows)
    assert driver == "550.1" and len(gpus) == 32
    swapped = "printf '550.1, GPU-b, H100\\n550.1, GPU-a, H100\\n'"
    assert gpu_facts(tmp_path, monkeypatch, swapped) == (driver, gpus)
    updated = rows.replace("550.1", "560.2")
    assert gpu_facts(tmp_path, monkeypatch, updated) == ("560.2", gpus)
    replaced = rows.replace("GPU-b", "GPU-c")
    assert gpu_facts(tmp_path, monkeypatch, replaced)[1] != gpus
    broken = "echo NVIDIA-SMI has failed; exit 9"
    assert gpu_facts(tmp_path, monkeypatch, broken) == ("", "")
    assert gpu_facts(tmp_path, monkeypatch, None) == ("", "")
    monkeypatch.setattr(host, "REPLY_TIMEOUT_S", 0.01)
    silent = gpu_facts(tmp_path, monkeypatch, "exec tail -f /dev/null")
    assert silent == (host.UNKNOWN, host.UNKNOWN)
