"""Which shared libraries this process really loaded, and what NCCL and the CUDA driver say through them.

Owns /proc/self/maps and ctypes. A version printed by torch is what it was compiled with; the file that answers at run
time can be another one (LD_LIBRARY_PATH, a stray wheel), so the loaded file itself is asked.
"""

from __future__ import annotations

import ctypes
import os
import re
import uuid
from pathlib import Path

MAPS = Path("/proc/self/maps")
DRIVER_VERSION = Path("/proc/driver/nvidia/version")
# The libraries of CUDA that torch brings or pulls in: theirs must be the environment's own. Names end at the dot or the
# dash, since plug-ins (libnccl-net.so, libnccl-tuner.so) and the driver's libcuda are rightly the host's.
OF_CUDA = re.compile(
    r"lib(nccl|cudart|cudnn(_\w+)?|cublas(Lt)?|cufft|curand|cusolver|cusparse(Lt)?|nvrtc(-builtins)?|nvJitLink|cupti|nvToolsExt)"
    r"(-[0-9a-f]{8})?\.so"
)
OF_INTEREST = (
    "libnccl",
    "libcudart",
    "libcudnn",
    "libcublas",
    "libcuda",
    "libtorch_cuda",
    "libtorch_cpu",
    "libgomp",
)
NCCL = re.compile(r"libnccl\.so")
# A Python there shares its prefix with the whole system: being below it says nothing of a library's origin.
SYSTEM_PREFIXES = ("/", "/usr", "/usr/local")
DELETED = " (deleted)"


def loaded() -> list[str]:
    """Files of interest that are mapped into this process now."""
    try:
        return parse_maps(MAPS.read_text(errors="replace"))
    except OSError:
        return []


def parse_maps(text: str) -> list[str]:
    # address perms offset dev inode path: the path is the sixth field and may hold spaces.
    paths = {
        fields[5]
        for fields in (line.split(None, 5) for line in text.splitlines())
        if len(fields) == 6
    }
    real = {path[: -len(DELETED)] if path.endswith(DELETED) else path for path in paths}
    return sorted(
        path
        for path in real
        if Path(path).name.startswith(OF_INTEREST) or is_of_cuda(Path(path).name)
    )


def nccl_file(files: list[str]) -> str | None:
    """The file that holds torch's NCCL: its own library, or torch's where it is linked statically (older wheels, conda builds).

    Where both are loaded, the linker knows: what is in everybody's scope (LD_PRELOAD) comes first, then what torch's library names.
    """
    holders = [path for path in files if Path(path).name.startswith("libtorch_cuda.so")]
    libraries = [path for path in files if NCCL.match(Path(path).name)]
    if libraries and holders:
        return (
            _provider(None, "ncclGetVersion")
            or _provider(holders[0], "ncclGetVersion")
            or libraries[0]
        )
    return next(iter(libraries + holders), None)


def foreign(files: list[str], prefix: str, site_packages: str, own: list[str]) -> list[str]:
    """Which loaded libraries of CUDA are not this environment's: neither beside torch nor below the prefix.

    own: the libraries of CUDA that the environment holds. Below the prefix of a system's own Python (/usr) a library is
    foreign where the environment has one of the same name.
    """
    is_system = os.path.normpath(prefix) in SYSTEM_PREFIXES
    held = {stem(path) for path in own}
    found = []
    for path in files:
        if not is_of_cuda(Path(path).name) or is_below(path, site_packages) or path in own:
            continue
        if not is_below(path, prefix) or (is_system and stem(path) in held):
            found.append(path)
    return found


def own(site_packages: str) -> list[str]:
    """The libraries of CUDA that came with torch: in its own folder, or in those of NVIDIA's wheels."""
    folders = [Path(site_packages) / "torch" / "lib", *Path(site_packages).glob("nvidia/*/lib")]
    return sorted(
        str(path) for folder in folders for path in folder.glob("lib*.so*") if is_of_cuda(path.name)
    )


def is_of_cuda(name: str) -> bool:
    return OF_CUDA.match(name) is not None


def stem(path: str) -> str:
    """libcudart-d0da41ae.so.11.0 and libcudart.so.12 are one library."""
    found = OF_CUDA.match(Path(path).name)
    return found[1] if found else Path(path).name


def is_below(path: str, folder: str) -> bool:
    """Whether the file lies in the folder, by the names as they are or with links followed: a prefix may be a link."""
    return any(
        os.path.commonpath((way(path), way(folder))) == way(folder)
        for way in (os.path.normpath, os.path.realpath)
        if os.path.isabs(path)
    )


class _Symbol(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _provider(path: str | None, function: str) -> str | None:
    """The file whose function is found by a loaded library, or by everybody (None)."""
    found = _Symbol()
    try:
        address = ctypes.cast(getattr(ctypes.CDLL(path), function), ctypes.c_void_p)
        known = ctypes.CDLL(None).dladdr(address, ctypes.byref(found))
    except (OSError, AttributeError):
        return None
    # By its real name, as /proc/self/maps has it: the linker keeps the way it came ($ORIGIN/../..).
    return os.path.realpath(os.fsdecode(found.file)) if known and found.file else None


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
        # The second version tells the instances of a partitioned GPU (MIG) apart; drivers before 11.4 have only the first.
        ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
        statuses = (
            driver.cuInit(0),
            driver.cuDeviceGet(ctypes.byref(device), ordinal),
            ask(ctypes.byref(raw), device),
        )
    except (OSError, AttributeError):
        return None
    return None if any(statuses) else f"GPU-{uuid.UUID(bytes=bytes(raw))}"
