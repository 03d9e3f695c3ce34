"""Whether a container still works, for an engine that asks once a minute: its GPUs answer, and there is room where ranks need some.

It starts nothing on a GPU, imports no torch and takes milliseconds. Runs alone: `python -I health.py`; it prints what is wrong, and
its exit code is 1 if anything is. Whether the environment is right is the smoke test's question.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# The driver's own library: the engine brings it along with the GPUs, so a container without it has none to lose.
NVML = "libnvidia-ml.so.1"
# Where a job dies when nothing is left: DataLoader's and NCCL's shared memory ends in SIGBUS, caches and checkpoints in errors.
PLACES = ("/dev/shm", "/tmp")
LEAST = 1 << 20


def main() -> int:
    found = [*_packages(), *_gpus(NVML), *_room(PLACES)]
    print("; ".join(found) or "healthy")
    return int(bool(found))


def _packages() -> Iterator[str]:
    if importlib.util.find_spec("torch") is None:
        yield "torch is not installed (any more)"


def _gpus(library: str) -> Iterator[str]:
    """A GPU that fell off the bus, and devices that were taken from the container under way (NVIDIA/nvidia-container-toolkit#48)."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return
    status = nvml.nvmlInit_v2()
    if status != 0:
        yield f"the NVIDIA driver does not answer (NVML error {status})"
        return
    count = ctypes.c_uint()
    status = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    if status != 0:
        yield f"GPUs cannot be counted (NVML error {status})"
    for index in range(count.value):
        handle = ctypes.c_void_p()
        status = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        if status != 0:
            yield f"GPU {index} does not answer (NVML error {status})"
    nvml.nvmlShutdown()


def _room(places: tuple[str, ...]) -> Iterator[str]:
    for place in places:
        try:
            status = os.statvfs(place)
        except OSError as error:
            yield f"{place}: {error.strerror}"
            continue
        if status.f_bavail * status.f_frsize < LEAST:
            yield f"{place} is full"


if __name__ == "__main__":
    sys.exit(main())
