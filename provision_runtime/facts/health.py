"""The health check of a container, which its engine runs once a minute: the GPUs respond, and the
folders that ranks need have space.

Does not use the GPUs or import torch, and takes milliseconds. If there are problems, prints them
and exits with 1. The smoke test checks the environment itself.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator

# The driver's library, which the engine adds with the GPUs: a container without it has no GPUs.
NVML = "libnvidia-ml.so.1"
# If one of these is full, jobs die: by SIGBUS in the shared memory of DataLoader and NCCL, by
# errors of caches and checkpoints.
FOLDERS = ("/dev/shm", "/tmp")
LEAST_BYTES = 1 << 20


def main() -> int:
    problems = [*_package_problems(), *_gpu_problems(NVML), *_space_problems(FOLDERS)]
    print("; ".join(problems) or "healthy")
    return 1 if problems else 0


def _package_problems() -> Iterator[str]:
    if importlib.util.find_spec("torch") is None:
        yield "torch is no longer installed"


def _gpu_problems(library: str) -> Iterator[str]:
    """Finds GPUs that fell off the bus, and devices that the running container lost
    (NVIDIA/nvidia-container-toolkit#48)."""
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


def _space_problems(folders: tuple[str, ...]) -> Iterator[str]:
    for folder in folders:
        try:
            status = os.statvfs(folder)
        except OSError as error:
            yield f"{folder}: {error.strerror}"
            continue
        if status.f_bavail * status.f_frsize < LEAST_BYTES:
            yield f"{folder} is full"


if __name__ == "__main__":
    sys.exit(main())
