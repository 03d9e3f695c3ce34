"""The health check: what it says of GPUs, by a driver library with the answers of one that works or does not; and of full places."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provision_runtime.facts import health

DRIVER = """
int nvmlInit_v2(void) {{ return {init}; }}
int nvmlDeviceGetCount_v2(unsigned *count) {{ *count = 2; return {count}; }}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {{ *handle = 0; return index == 1 ? {second} : 0; }}
int nvmlShutdown(void) {{ return 0; }}
"""


@pytest.mark.needs("cc")
@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"init": 0, "count": 0, "second": 0}, []),
        (
            {"init": 999, "count": 0, "second": 0},
            ["the NVIDIA driver does not answer (NVML error 999)"],
        ),  # the devices were taken away
        (
            {"init": 0, "count": 0, "second": 15},
            ["GPU 1 does not answer (NVML error 15)"],
        ),  # GPU is lost
        ({"init": 0, "count": 999, "second": 0}, ["GPUs cannot be counted (NVML error 999)"]),
    ],
)
def test_driver_messages(tmp_path: Path, answers: dict[str, int], expected: list[str]) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library],
        input=DRIVER.format(**answers),
        text=True,
        check=True,
    )
    assert list(health._gpu_problems(str(library))) == expected


def test_no_driver_means_no_lost_gpu(tmp_path: Path) -> None:
    assert list(health._gpu_problems(str(tmp_path / "none.so"))) == []


def test_full_folders(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    # /sys has no blocks, so none is free.
    assert list(health._space_problems((str(tmp_path), "/sys", gone))) == [
        "/sys is full",
        f"{gone}: No such file or directory",
    ]
