"""Which shared libraries this process really loaded, the versions that NCCL and the CUDA driver
report, and the GPUs that kernel and driver show.

Owns /proc/self/maps, /sys and ctypes. A version that torch prints is the one that it was compiled
with; the file that is used at run time can be another one (LD_LIBRARY_PATH, a stray wheel), so we
ask the loaded file itself.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Callable

from ..fs.files import read_text
from .model import PciGpu

MAPS = Path("/proc/self/maps")
DRIVER_VERSION = Path("proc/driver/nvidia/version")
# The CUDA libraries that torch brings or depends on: they must be the environment's own. Names end
# at the dot or the dash, since plug-ins (libnccl-net.so, libnccl-tuner.so) and the driver's libcuda
# are rightly the host's.
OF_CUDA = re.compile(
    r"lib(nccl|cudart|cudnn(_\w+)?|cublas(Lt)?|cufft|curand|cusolver|cusparse(Lt)?|nvrtc(-builtins)?"
    r"|nvJitLink|cupti|nvToolsExt)(-[0-9a-f]{8})?\.so"
)
REPORTED_PREFIXES = (
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
# A Python there shares its prefix with the whole system, so a library below it may come from
# anywhere.
SYSTEM_PREFIXES = ("/", "/usr", "/usr/local")
DELETED = " (deleted)"
# In /sys: NVIDIA's vendor number, and the PCI classes VGA controller and 3D controller.
NVIDIA = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")


def loaded() -> list[str]:
    """The files that are mapped into this process now and that we report."""
    return parse_maps(read_text(MAPS))


def parse_maps(text: str) -> list[str]:
    paths = set()
    for line in text.splitlines():
        # address perms offset dev inode path: the path is the sixth field and may contain spaces.
        fields = line.split(None, 5)
        if len(fields) < 6:
            continue
        path = fields[5]
        if path.endswith(DELETED):
            path = path[: -len(DELETED)]
        name = Path(path).name
        if name.startswith(REPORTED_PREFIXES) or is_of_cuda(name):
            paths.add(path)
    return sorted(paths)


def nccl_file(files: list[str]) -> str | None:
    """The file that has torch's NCCL: its own library, or torch's if it is linked statically (older
    wheels, conda builds).

    If both are loaded, the linker knows: what is in the global scope (LD_PRELOAD) comes first, then
    what torch's library depends on.
    """
    torch_libraries = [path for path in files if Path(path).name.startswith("libtorch_cuda.so")]
    nccl_libraries = [path for path in files if NCCL.match(Path(path).name)]
    if nccl_libraries and torch_libraries:
        provider = _provider(None, "ncclGetVersion")
        provider = provider or _provider(torch_libraries[0], "ncclGetVersion")
        return provider or nccl_libraries[0]
    return next(iter(nccl_libraries + torch_libraries), None)


def foreign(files: list[str], prefix: str, site_packages: str, bundled: list[str]) -> list[str]:
    """Which loaded CUDA libraries are not this environment's: neither next to torch nor below the
    prefix.

    Below the prefix of a system's Python (/usr) a library is foreign if one of the same name is
    bundled with torch.
    """
    is_system = os.path.normpath(prefix) in SYSTEM_PREFIXES
    bundled_stems = {stem(path) for path in bundled}
    result = []
    for path in files:
        if not is_of_cuda(Path(path).name) or is_below(path, site_packages) or path in bundled:
            continue
        if not is_below(path, prefix) or (is_system and stem(path) in bundled_stems):
            result.append(path)
    return result


def bundled(site_packages: str) -> list[str]:
    """The CUDA libraries that came with torch: in its folder, or in those of NVIDIA's wheels."""
    files: list[Path] = []
    for pattern in ("torch/lib/lib*.so*", "nvidia/*/lib/lib*.so*"):
        files += Path(site_packages).glob(pattern)
    return sorted(str(path) for path in files if is_of_cuda(path.name))


def is_of_cuda(name: str) -> bool:
    return OF_CUDA.match(name) is not None


def stem(path: str) -> str:
    """libcudart-d0da41ae.so.11.0 and libcudart.so.12 are the same library."""
    match = OF_CUDA.match(Path(path).name)
    return match[1] if match else Path(path).name


def is_below(path: str, folder: str) -> bool:
    """Whether the file is in the folder, by name or with links resolved: a prefix may be a link."""
    if not os.path.isabs(path):
        return False
    normal, real = os.path.normpath(folder), os.path.realpath(folder)
    if os.path.commonpath((os.path.normpath(path), normal)) == normal:
        return True
    return os.path.commonpath((os.path.realpath(path), real)) == real


class _Symbol(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _provider(path: str | None, function: str) -> str | None:
    """The file whose function a loaded library would call; for None, that of the global scope."""
    symbol = _Symbol()
    try:
        address = ctypes.cast(getattr(ctypes.CDLL(path), function), ctypes.c_void_p)
        status = ctypes.CDLL(None).dladdr(address, ctypes.byref(symbol))
    except (OSError, AttributeError):
        return None
    if status == 0 or not symbol.file:
        return None
    # The real name, as in /proc/self/maps: the linker keeps the path that it took ($ORIGIN/../..).
    return os.path.realpath(os.fsdecode(symbol.file))


def nccl_version(path: str) -> str | None:
    """The version that the loaded NCCL reports; None if the file does not export the function
    (static, hidden)."""
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


def driver_version(root: Path = Path("/")) -> str | None:
    return parse_driver(read_text(root / DRIVER_VERSION))


def parse_driver(text: str) -> str | None:
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 ..." and, for the open
    # module, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release ...".
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return match.group(1) if match else None


def device_nodes(root: Path = Path("/")) -> list[str]:
    """The GPUs that the kernel exposes, whether torch sees them or not."""
    return sorted(str(path) for path in (root / "dev").glob("nvidia[0-9]*"))


def usable_gpus() -> int:
    """The GPUs whose device files this process may open."""
    return sum(os.access(node, os.R_OK | os.W_OK) for node in device_nodes())


def visible_gpus(variables: Mapping[str, str]) -> int:
    """How many GPUs programs may use: those in CUDA_VISIBLE_DEVICES, which schedulers set, else
    those whose device files may be opened."""
    listed = variables.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return usable_gpus()
    entries = [entry.strip() for entry in listed.split(",")]
    # CUDA stops at the first invalid entry; Slurm sets NoDevFiles where it gives none.
    invalid = ("", "-1", "NoDevFiles")
    return len(list(itertools.takewhile(lambda entry: entry not in invalid, entries)))


def pci_gpus(root: Path = Path("/")) -> list[PciGpu]:
    gpus: list[PciGpu] = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        is_nvidia = read_text(folder / "vendor").strip() == NVIDIA
        if is_nvidia and read_text(folder / "class").startswith(GPU_CLASSES):
            iommu = read_text(folder / "iommu_group/type").strip() or None
            gpus.append({"address": folder.name, "iommu": iommu})
    return gpus


def gpu_models(root: Path = Path("/")) -> list[str]:
    """The distinct models of this machine's GPUs, as the driver names them; empty without it."""
    models = set()
    for file in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        for line in read_text(file).splitlines():
            label, _, model = line.partition(":")
            if label.strip() == "Model":
                models.add(model.strip())
    return sorted(models)


def gpu_pci_address(ordinal: int) -> str | None:
    """The address of a visible GPU as in /sys, `0000:1b:00.0`, from the driver."""
    text = ctypes.create_string_buffer(32)

    def query(driver: ctypes.CDLL, device: ctypes.c_int) -> int:
        return int(driver.cuDeviceGetPCIBusId(text, len(text), device))

    return text.value.decode().lower() if _ask_driver(ordinal, query) else None


def gpu_uuid(ordinal: int) -> str | None:
    """The UUID of a visible GPU, from the driver: only newer releases of torch have it."""
    raw = (ctypes.c_ubyte * 16)()

    def query(driver: ctypes.CDLL, device: ctypes.c_int) -> int:
        # The second version distinguishes the instances of a partitioned GPU (MIG); drivers before
        # 11.4 have only the first.
        get_uuid = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
        return int(get_uuid(ctypes.byref(raw), device))

    return f"GPU-{uuid.UUID(bytes=bytes(raw))}" if _ask_driver(ordinal, query) else None


def _ask_driver(ordinal: int, query: Callable[[ctypes.CDLL, ctypes.c_int], int]) -> bool:
    """Whether the CUDA driver has this device and the query succeeds."""
    device = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        statuses = (
            driver.cuInit(0),
            driver.cuDeviceGet(ctypes.byref(device), ordinal),
            query(driver, device),
        )
    except (OSError, AttributeError):
        return False
    return not any(statuses)
