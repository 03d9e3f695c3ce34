"""The libraries that carry NCCL's traffic: NCCL, its plug-ins, and what those load.

NCCL loads a plug-in by name at run time, so no lock and no image names its version. Each file is
read, never loaded. Two builds of one version differ by their hash.
"""

from __future__ import annotations

import glob
import hashlib
import mmap
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..dataclass import frozen
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


@frozen
class LibraryKind:
    """A library, or the plug-ins of one origin.

    files: the pattern of its file names. mark: what its bytes hold, with its version if they state it.
    """

    name: str
    files: str
    mark: bytes = b""


PLUGIN_FILES = r"libnccl[-_][-\w]+\.so"  # of every kind: net, tuner, profiler, ...
KINDS = (
    # It logs "Initializing aws-ofi-nccl 1.13.2-aws", or git-6e504db where it was built from git.
    LibraryKind("aws_ofi_nccl", PLUGIN_FILES, rb"aws-ofi-nccl (git-\w+|\d+\.\d[\w.+-]*)"),
    # Its constants hold its name, but not its version.
    LibraryKind("nccl_rdma_sharp", PLUGIN_FILES, b"NCCL RDMA Plugin"),
    # The names of these files end with their versions.
    LibraryKind("host_nccl", r"libnccl\.so"),
    LibraryKind("sharp", r"libsharp_coll\.so"),
    LibraryKind("libfabric", r"libfabric\.so"),
    LibraryKind("rdma_core", r"libibverbs\.so"),
    LibraryKind("other_plugins", PLUGIN_FILES),
)


@frozen
class LibraryFile:
    """version: empty if its bytes do not state it. build: tells two files of one version apart."""

    kind: str
    path: str
    version: str
    build: str


def host_libraries(root: Path, environment: Texts) -> list[LibraryFile]:
    """Those that the host offers, each once, however many links name it, sorted by path. environment:
    of the process, for LD_LIBRARY_PATH."""
    real_root = os.path.realpath(root)
    libraries = {}
    for folder in dict.fromkeys(map(os.path.realpath, host_folders(root, environment))):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            kinds = [kind for kind in KINDS if re.match(kind.files, name)]
            path = Path(os.path.realpath(os.path.join(folder, name)))
            if kinds and path not in libraries and path.is_file():
                printed = "/" + os.path.relpath(path, real_root)
                libraries[path] = _library(path, kinds, printed)
    readable = [library for library in libraries.values() if library is not None]
    return sorted(readable, key=lambda library: library.path)


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


def _library(path: Path, kinds: list[LibraryKind], printed: str) -> LibraryFile | None:
    """None for a file that is no library (a linker script), or none of these kinds."""
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # it cannot be read, or is empty
        return None
    with content:
        if content[: len(ELF)] != ELF:
            return None
        for kind in kinds:
            match = re.search(kind.mark, content)
            if match is not None:
                version = match[1].decode("ascii") if match.lastindex else ""
                build = hashlib.sha256(content).hexdigest()[:BUILD_DIGITS]
                return LibraryFile(kind.name, printed, version, build)
    return None
