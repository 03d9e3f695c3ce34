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


ANSWERS = Path(__file__).parent.parent / "data" / "nvidia-smi"
PARSED = {
    "one": HostGpus(driver="550.90.07", gpus=("sm_90",)),
    "mixed": HostGpus(driver="535.183.01", gpus=("sm_70", "sm_80")),
    "old-driver": HostGpus(driver="470.57.02", gpus=("Tesla V100-SXM2-16GB",)),
    "not-available": HostGpus(driver="470.57.02", gpus=("Tesla V100-SXM2-16GB",)),
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
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
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
    monkeypatch.setattr(host, "ANSWER_TIMEOUT_S", 0.2)
    assert "did not answer within" in host.this_machine().why


def test_failing_nvidia_smi_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, 'echo "Failed to initialize NVML: Unknown Error" >&2; exit 255')
    assert "Unknown Error" in host.this_machine().why
