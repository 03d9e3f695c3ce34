"""Facts of a node from laid-out /proc, /sys and /etc, in the words of real drivers and kernels."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.node import drift_facts
from provision_runtime.node.drift_facts import distributions, nccl_settings, node_facts
from tests.simulated_nodes import add_conda_python, add_wheel, write

GPU = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 142\nVideo BIOS: \t {}\nBus Type: PCIe\n"


def lay_out(root: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        write(root / name, text)
    return root


def facts(root: Path, **arguments: Any) -> dict[str, Any]:
    answer = node_facts("/nonexistent", "train", root=str(root), **arguments)
    assert json.loads(json.dumps(answer)) == answer
    values: dict[str, Any] = answer["facts"]
    return values


def test_gpus_by_model_and_vbios(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
            "  550.54.15  Release Build\n",
            "proc/driver/nvidia/gpus/0000:18:00.0/information": GPU.format("96.00.89.00.01"),
            "proc/driver/nvidia/gpus/0000:2a:00.0/information": GPU.format("96.00.89.00.01"),
            "proc/driver/nvidia/gpus/0000:3a:00.0/information": GPU.format("96.00.5E.00.01"),
        },
    )
    values = facts(root)
    assert values["driver"] == "550.54.15"
    assert values["gpus"] == "3 x NVIDIA H100 80GB HBM3"
    assert values["vbios"] == "1 x 96.00.5E.00.01, 2 x 96.00.89.00.01"


def test_a_port_that_is_down_or_slow_is_seen(tmp_path: Path) -> None:
    texts = {}
    for number, state, rate in (
        (0, "4: ACTIVE", "400 Gb/sec (4X NDR)"),
        (1, "4: ACTIVE", "400 Gb/sec (4X NDR)"),
        (2, "4: ACTIVE", "100 Gb/sec (4X EDR)"),
        (3, "1: DOWN", "10 Gb/sec (4X SDR)"),
    ):
        folder = f"sys/class/infiniband/mlx5_{number}"
        texts[f"{folder}/hca_type"] = "MT4129\n"
        texts[f"{folder}/fw_ver"] = "28.39.1002\n"
        texts[f"{folder}/ports/1/state"] = f"{state}\n"
        texts[f"{folder}/ports/1/rate"] = f"{rate}\n"
    texts["sys/module/mlx5_core/version"] = "24.10-0.7.0\n"
    texts["sys/module/nvidia_peermem/refcnt"] = "0\n"
    values = facts(lay_out(tmp_path, texts))
    assert values["adapters"] == "4 x MT4129 firmware 28.39.1002"
    assert values["ports"] == (
        "1 x ACTIVE 100 Gb/sec (4X EDR), 2 x ACTIVE 400 Gb/sec (4X NDR), "
        "1 x DOWN 10 Gb/sec (4X SDR)"
    )
    assert values["kernel_modules"] == "mlx5_core 24.10-0.7.0, nvidia_peermem"


def test_system(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n',
            "proc/meminfo": "MemTotal:       2113477636 kB\nMemFree:        1 kB\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        },
    )
    values = facts(root)
    assert (values["os"], values["memory"]) == ("Ubuntu 22.04.4 LTS", 2113477636 * 1024)
    assert (values["governor"], values["huge_pages"]) == ("powersave", "madvise")


def test_what_a_node_lacks_is_none(tmp_path: Path) -> None:
    values = facts(tmp_path)
    for name in ("driver", "gpus", "iommu", "adapters", "ports", "libfabric", "aws_ofi_nccl"):
        assert values[name] is None
    assert values["environment"] is None and "lock" not in values and "files" not in values


def test_what_cannot_be_read_is_unread(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").mkdir()
    answer = node_facts("/nonexistent", "train", root=str(tmp_path))
    assert "driver" not in answer["facts"]
    assert "directory" in answer["unread"]["driver"]


def test_libraries_that_hang_are_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe without a writer never ends, as a file of a dead file server."""
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc" / "ld.so.conf")
    monkeypatch.setattr(drift_facts, "FACT_DEADLINE_S", 0.2)
    result = node_facts("/nonexistent", "train", root=str(tmp_path))
    assert "no answer" in result["unread"]["libfabric"]
    assert "libfabric" not in result["facts"] and "kernel" in result["facts"]


def test_settings_with_their_sources(tmp_path: Path) -> None:
    write(tmp_path / "etc/nccl.conf", "NCCL_IB_HCA=mlx5\nNCCL_DEBUG=WARN\n# NCCL_P2P_DISABLE=1\n")
    environment = {"NCCL_DEBUG": "INFO", "FI_PROVIDER": "efa", "HOME": "/root", "PATH": "/bin"}
    assert nccl_settings(tmp_path, environment) == {
        "FI_PROVIDER": "efa (environment)",
        "NCCL_DEBUG": "INFO (environment)",
        "NCCL_IB_HCA": "mlx5 (/etc/nccl.conf)",
    }


def test_environment_of_a_store(tmp_path: Path) -> None:
    folder = tmp_path / "envs" / "train-0123456789ab"
    add_conda_python(folder)
    add_wheel(folder, "einops", "0.8")
    (tmp_path / "train").symlink_to("envs/train-0123456789ab")
    answer = node_facts(str(tmp_path), "train", root=str(tmp_path / "empty"))
    values = answer["facts"]
    assert values["environment"] == "train-0123456789ab"
    assert values["lock"] == "a" * 64
    details = distributions(str(tmp_path), "train")
    assert details["files"] == values["files"]
    assert details["environment"] == values["environment"]
    assert details["distributions"]["einops"][0] == "0.8"


def test_a_mount_that_a_reboot_ended_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "envs" / "train-0123456789ab").mkdir(parents=True)
    (tmp_path / "train").symlink_to("envs/train-0123456789ab")
    assert node_facts(str(tmp_path), "train")["facts"]["environment"] is None
