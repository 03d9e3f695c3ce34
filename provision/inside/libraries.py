"""Which shared libraries this process really loaded, and what NCCL and the CUDA driver say through them.

Owns /proc/self/maps and ctypes. A version printed by torch is what it was compiled with; the file that answers at run
time can be another one (LD_LIBRARY_PATH, a stray wheel), so the loaded file itself is asked.
"""

from __future__ import annotations

import ctypes
import re
import uuid
from pathlib import Path

MAPS = Path("/proc/self/maps")
DRIVER_VERSION = Path("/proc/driver/nvidia/version")
# The libraries whose origin decides whether a CUDA environment is its own.
OF_INTEREST = ("libnccl", "libcudart", "libcudnn", "libcublas", "libcuda", "libtorch_cuda", "libtorch_cpu", "libgomp")


def loaded() -> list[str]:
    """Files of interest that are mapped into this process now."""
    try:
        return parse_maps(MAPS.read_text(errors="replace"))
    except OSError:
        return []


def parse_maps(text: str) -> list[str]:
    # address perms offset dev inode path: the path is the sixth field and may hold spaces.
    paths = {fields[5] for fields in (line.split(None, 5) for line in text.splitlines()) if len(fields) == 6}
    return sorted(path for path in paths if Path(path).name.startswith(OF_INTEREST))


def nccl_file(files: list[str]) -> str | None:
    """The file that holds NCCL: its own library, or torch's where it is linked statically (conda builds)."""
    for prefix in ("libnccl.so", "libtorch_cuda.so"):
        for path in files:
            if Path(path).name.startswith(prefix):
                return path
    return None


def nccl_version(path: str) -> str | None:
    """What the loaded NCCL says its version is. None when the file does not show the function (static, hidden)."""
    code = ctypes.c_int(0)
    try:
        status = ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError):
        return None
    return None if status else decode_nccl(code.value)


def decode_nccl(code: int) -> str:
    # nccl.h: NCCL_VERSION(X,Y,Z) is X*1000+Y*100+Z up to 2.8 and X*10000+Y*100+Z since.
    unit = 1000 if code < 10000 else 10000
    return f"{code // unit}.{code % unit // 100}.{code % 100}"


def driver_version() -> str | None:
    try:
        return parse_driver(DRIVER_VERSION.read_text())
    except OSError:
        return None


def parse_driver(text: str) -> str | None:
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 ..." and, for the open module,
    # "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build ...".
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return match.group(1) if match else None


def device_nodes() -> list[str]:
    """GPUs the kernel shows, whatever torch thinks."""
    return sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))


def gpu_uuid(ordinal: int) -> str | None:
    """The UUID of a visible GPU. torch tells it only in newer releases, the driver in all."""
    raw = (ctypes.c_ubyte * 16)()
    device = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        statuses = (
            driver.cuInit(0),
            driver.cuDeviceGet(ctypes.byref(device), ordinal),
            driver.cuDeviceGetUuid(ctypes.byref(raw), device),
        )
    except (OSError, AttributeError):
        return None
    return None if any(statuses) else f"GPU-{uuid.UUID(bytes=bytes(raw))}"
