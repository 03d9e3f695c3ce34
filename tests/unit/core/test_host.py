"""The host: usable CPUs by prepared cgroups, processes by identity, and nvidia-smi's answers (also
the ugly ones: never a guess, and a reason if nothing is known)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.core import host
from provision.core.types import HostGpus
from tests.paths import DATA
from tests.programs import write_program


def lay_out(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "cpus"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),  # a container sees its own as the top
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, 4),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "50000 100000\n"}, 1),
        (
            "4:cpu,cpuacct:/job\n3:memory:/job\n",
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("0::/\n", {"cpu.max": "nonsense"}, 8),
        ("0::/\n", {}, 8),
    ],
)
def test_cpus_are_limited_by_the_tightest_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cgroup: str,
    files: dict[str, str],
    cpus: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert host.usable_cpus(lay_out(tmp_path, cgroup, files)) == cpus


@pytest.mark.parametrize(
    ("cgroup", "files", "gib"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"memory.max": "max", "memory.current": "1", "memory.stat": ""}, 8),
        (
            "0::/job\n",
            {
                "job/memory.max": f"{4 << 30}\n",
                "job/memory.current": f"{3 << 30}\n",
                "job/memory.stat": f"anon {2 << 30}\ninactive_file {1 << 30}\n",
            },
            2,
        ),
        (
            "3:memory:/job\n",
            {
                "memory/job/memory.limit_in_bytes": f"{4 << 30}\n",
                "memory/job/memory.usage_in_bytes": f"{1 << 30}\n",
                "memory/job/memory.stat": "inactive_file 0\n",
            },
            3,
        ),
    ],
)
def test_memory_is_limited_by_the_tightest_group(
    tmp_path: Path, cgroup: str, files: dict[str, str], gib: int
) -> None:
    root = lay_out(tmp_path, cgroup, files)
    (root / "proc/meminfo").write_text(f"MemFree: 1 kB\nMemAvailable: {8 << 20} kB\n")
    assert host.available_memory(root) == gib << 30


def test_affinity_is_used_without_proc(tmp_path: Path) -> None:
    assert host.usable_cpus(tmp_path) == len(os.sched_getaffinity(0))


def test_changed_start_time_means_the_process_ended() -> None:
    space, number, start_time = host.process_identity()
    assert not host.has_ended([space, number, start_time])
    assert host.has_ended([space, number, str(int(start_time) + 1)])
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        assert host.has_ended([space, str(child.pid), start_time])


@pytest.mark.parametrize("identity", [[], ["?"], ["a", "b", "c"], ["other-boot/1", "1", "1"]])
def test_invisible_process_has_not_ended(identity: list[str]) -> None:
    assert not host.has_ended(identity)


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
