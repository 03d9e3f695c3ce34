"""The libraries that carry NCCL's traffic: NCCL, its plug-ins, and what those load.

NCCL loads a plug-in by name at run time, so no lock and no image names its version. Each file is
read, never loaded. Two builds of one version differ by their hash.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import mmap
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .commands import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .results import Texts


# Where vendors put what no linker configuration names: AWS's EFA installer, NVIDIA's HPC-X and
# MLNX_OFED, Google's images.
VENDOR_FOLDERS = (
    "opt/amazon/*/lib*",
    "opt/amazon/*/lib*/*-linux-gnu",
    "opt/aws-ofi-nccl*/lib*",
    "opt/aws-ofi-nccl*/install/lib*",
    "opt/hpcx*/*/lib*",
    "opt/mellanox/*/lib*",
    "usr/local/gib/lib*",
    "usr/local/nvidia/lib*",
)
# ld.so(8), after what ld.so.conf names.
DEFAULT_FOLDERS = (
    "lib64",
    "usr/lib64",
    "usr/lib/*-linux-gnu",
    "lib",
    "usr/lib",
    "usr/local/lib",
    "usr/local/lib64",
)
# ldconfig(8); every distribution includes the folder.
LINKER_CONFIGURATION = ("etc/ld.so.conf", "etc/ld.so.conf.d/*.conf")
BUILD_DIGITS = 8
ELF = b"\x7fELF"


PLUGIN_FILES = r"libnccl[-_][-\w]+\.so"  # of every kind: net, tuner, profiler, ...
# By kind (a library, or the plug-ins of one origin): the pattern of its file names, and what its bytes
# hold, with its version if they state it. The first that fits counts.
KINDS = {
    # It logs "Initializing aws-ofi-nccl 1.13.2-aws", or git-6e504db where it was built from git.
    "aws_ofi_nccl": (PLUGIN_FILES, rb"aws-ofi-nccl (git-\w+|\d+\.\d[\w.+-]*)"),
    # Its constants hold its name, but not its version.
    "nccl_rdma_sharp": (PLUGIN_FILES, b"NCCL RDMA Plugin"),
    # The names of these files end with their versions.
    "host_nccl": (r"libnccl\.so", b""),
    "sharp": (r"libsharp_coll\.so", b""),
    "libfabric": (r"libfabric\.so", b""),
    "rdma_core": (r"libibverbs\.so", b""),
    "other_plugins": (PLUGIN_FILES, b""),
}


def host_libraries(root: Path, environment: Texts) -> dict[str, str | None]:
    """By kind, what the host offers: each file once, however many links name it, with its version (if
    its bytes state it), build and path. environment: of the process, for LD_LIBRARY_PATH."""
    real_root = os.path.realpath(root)
    paths: dict[str, str] = {}
    for folder in map(os.path.realpath, host_folders(root, environment)):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            if any(re.match(files, name) for files, _ in KINDS.values()):
                paths.setdefault(os.path.realpath(os.path.join(folder, name)), name)
    texts: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in filter(os.path.isfile, sorted(paths)):
        printed = "/" + os.path.relpath(path, real_root)
        with contextlib.suppress(OSError, ValueError):  # it cannot be read, or is empty
            with open(path, "rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with content:
                kind, build = _kind_and_build(paths[path], content)
            if kind:
                texts[kind].append(f"{build} {printed}")
    return {kind: "; ".join(files) or None for kind, files in texts.items()}


def _kind_and_build(name: str, content: mmap.mmap) -> tuple[str, str]:
    """Empty for a file that is no library (a linker script). The hash tells two builds of one version
    apart."""
    for kind, (files, mark) in KINDS.items():
        match = re.match(files, name) and re.search(mark, content)
        if match and content[: len(ELF)] == ELF:
            version = f"{match[1].decode('ascii')} " if match.lastindex else ""
            return kind, f"{version}(build {hashlib.sha256(content).hexdigest()[:BUILD_DIGITS]})"
    return "", ""


def host_folders(root: Path, environment: Texts) -> list[Path]:
    """The folders in which the linker would look, and those of vendors."""
    names = environment.get("LD_LIBRARY_PATH", "").split(":")
    for file in _matching(root, LINKER_CONFIGURATION):
        for line in (read_text(file) or "").splitlines():
            names.append(line.partition("#")[0].strip())
    folders = [root / name.lstrip("/") for name in names if os.path.isabs(name)]
    return [*folders, *_matching(root, DEFAULT_FOLDERS), *_matching(root, VENDOR_FOLDERS)]


def _matching(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        for name in sorted(glob.glob(os.path.join(glob.escape(str(folder)), pattern))):
            yield Path(name)
