"""Probes: the files of an environment, without starting its Python."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from ..checks import gpus as gpu_judge
from ..checks import surroundings
from ..checks.releases import device_id_hangs, numbers
from ..checks.surroundings import list_names
from ..facts import libraries, origins
from ..fs.files import read_text
from .probe import Findings, Probes, judged, observation

if TYPE_CHECKING:
    from .machine import Machine

# In a prefix.
TORCH_FILE = "lib/python3*/site-packages/torch/version.py"
# A wheel of NVIDIA for one CUDA version: nvidia-nccl-cu12.
CUDA_WHEEL = re.compile(r"(nvidia-.+)-cu(\d+)$")
# The name of a shared library, in a RECORD.
LIBRARY = re.compile(r"(?m)^(?:[^,]*/)?([^,/]*\.so[^,/]*),")
# Modules that most often break an environment's torch where another copy comes first.
FRAMEWORK = re.compile(r"torch|numpy|nvidia|triton")
# What keeps the packages of such a folder out.
SHADOWED_BY = {
    "user-site": "export PYTHONNOUSERSITE=1",
    "pythonpath": "unset PYTHONPATH",
}
DIST_INFO = re.compile(r"(.+?)-([^-]+)\.dist-info$")
# The first torch that was built for NumPy 2 (pytorch#135013).
NUMPY_2_TORCH = (2, 3)
# torch packages of the pytorch channel that call a function which MKL removed in 2024.1
# (pytorch#123097).
OLD_MKL_TORCH = (2, 4)
NEW_MKL = (2024, 1)


class Torch(NamedTuple):
    """An installed torch, as its own files describe it. cuda: None for a CPU build."""

    version: str
    cuda: Optional[str]
    site_packages: Path
    source: str


class DistInfo(NamedTuple):
    version: str
    folder: Path


def find_torch(machine: Machine) -> Torch | None:
    if machine.prefix is None:
        return None
    for file in machine.glob(machine.prefix, TORCH_FILE):
        text = file.read_text(errors="replace")
        version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
        cuda = re.search(r"^cuda(?:: .*?)? = '([^']+)'", text, re.MULTILINE)
        if version:
            return Torch(version[1], cuda and cuda[1], file.parent.parent, machine.name(file))
    return None


def distributions(site_packages: Path) -> dict[str, DistInfo]:
    """By normalized name."""
    result = {}
    for folder in sorted(site_packages.glob("*.dist-info")):
        if match := DIST_INFO.match(folder.name):
            result[re.sub(r"[-_.]+", "-", match[1]).lower()] = DistInfo(match[2], folder)
    return result


def packages(machine: Machine) -> Findings:
    if (torch := find_torch(machine)) is None:
        return
    release = numbers(torch.version)
    installed = distributions(torch.site_packages)
    yield from _mixed_wheels(machine, installed)
    # An NCCL wheel that is older than the one that torch's wheel requires.
    metadata = installed["torch"].folder / "METADATA" if "torch" in installed else Path()
    for name, required in re.findall(
        r"(?m)^Requires-Dist: (nvidia-nccl-cu\d+) ?\(?==([\d.]+)", read_text(metadata)
    ):
        version = installed[name].version if name in installed else required
        if numbers(version) < numbers(required):
            yield observation(
                "nccl-older",
                f"{name} {version} is installed, but torch needs {required}",
                machine.name(metadata),
                f"{name}=={required}",
                f"pip install {name}=={required}",
            )
    numpy = installed.get("numpy")
    if numpy and release < NUMPY_2_TORCH and numbers(numpy.version) >= (2,):
        yield observation(
            "numpy-abi",
            f"torch {torch.version} was built for NumPy 1; NumPy {numpy.version} is installed",
            machine.name(numpy.folder),
            numpy.version,
        )
    # Only conda packages link to a separate MKL.
    is_conda = machine.glob(str(machine.prefix), "conda-meta/pytorch-*.json")
    if is_conda and release < OLD_MKL_TORCH:
        for record in machine.glob(str(machine.prefix), "conda-meta/mkl-2*.json"):
            version = record.name.split("-")[1]
            if numbers(version) >= NEW_MKL:
                yield observation(
                    "mkl-too-new",
                    f"torch {torch.version} from conda with MKL {version}",
                    machine.name(record),
                    version,
                )
    if torch.cuda and device_id_hangs(release):
        yield observation(
            "torch-known-bad",
            f"torch {torch.version}: init_process_group(device_id=...) can hang",
            torch.source,
            torch.version,
        )
    if torch.cuda is None and machine.gpus():
        yield observation(
            "cpu-build",
            f"torch {torch.version} is a CPU build, but this host has NVIDIA GPUs",
            torch.source,
            "cuda = None",
        )


def _mixed_wheels(machine: Machine, installed: dict[str, DistInfo]) -> Findings:
    """Two families with a library of the same name: one has overwritten the other's."""
    families: dict[str, list[str]] = {}
    for name in installed:
        if match := CUDA_WHEEL.match(name):
            families.setdefault(match[1], []).append(name)
    for names in families.values():
        records = [installed[name].folder / "RECORD" for name in names]
        shared = set.intersection(*(set(LIBRARY.findall(read_text(file))) for file in records))
        if len(names) > 1 and shared:
            yield observation(
                "cuda-wheels-mixed",
                f"{' and '.join(names)} both have {min(shared)}",
                machine.name(records[0]),
                min(shared),
                f"pip uninstall {names[-1]}",
            )


def driver(machine: Machine) -> Findings:
    torch = find_torch(machine)
    version = libraries.driver_version(machine.root)
    yield from judged(
        gpu_judge.driver_finding(version, torch.cuda if torch else None),
        "/proc/driver/nvidia/version",
        version,
    )


def glibc(machine: Machine) -> Findings:
    """The wheel that needs the newest glibc, if this host's is older."""
    torch = find_torch(machine)
    match = re.search(r"glibc ([\d.]+)", machine.text("getconf", "GNU_LIBC_VERSION"))
    if torch is None or match is None:
        return
    floors = []
    for name, distribution in distributions(torch.site_packages).items():
        # A wheel runs on the oldest glibc that it names (PEP 600); one without libraries names none.
        if tags := re.findall(r"manylinux_(\d+)_(\d+)_", read_text(distribution.folder / "WHEEL")):
            floors.append((min((int(major), int(minor)) for major, minor in tags), name))
    needed, name = max(floors, default=((0, 0), ""))
    if needed > numbers(match[1]):
        yield observation(
            "glibc-old",
            f"{name} needs glibc {'.'.join(map(str, needed))}; this host has {match[1]}",
            "getconf GNU_LIBC_VERSION",
            match[1],
        )


def toolkit(machine: Machine) -> Findings:
    if (torch := find_torch(machine)) is None or torch.cuda is None:
        return
    home = machine.variable("CUDA_HOME") or machine.variable("CUDA_PATH")
    compiler = os.path.join(home, "bin", "nvcc") if home else machine.which("nvcc", True)
    version = machine.text(compiler, "--version") if compiler else ""
    match = re.search(r"release ((\d+)\.\d+)", version)
    # torch's builder refuses another major version, and warns of another minor one.
    if match and match[2] != torch.cuda.split(".")[0]:
        yield observation(
            "cuda-toolkit-other",
            f"nvcc is for CUDA {match[1]}, torch for {torch.cuda}",
            f"{compiler} --version",
            match[1],
        )


def contamination(machine: Machine) -> Findings:
    """What comes before an environment's packages and libraries. Without an environment: what
    would come before those of any."""
    torch = find_torch(machine)
    if machine.prefix is not None and torch is None:
        return
    modules = _module_names(torch.site_packages) if torch else set()
    for path in _user_sites(machine, torch):
        names = _module_names(path)
        if torch is None:  # only the most frequent faults
            names = set(filter(FRAMEWORK.fullmatch, names))
        yield from _shadowing("user-site", machine.name(path), names, modules)
    for entry in machine.variable("PYTHONPATH").split(os.pathsep):
        is_of_prefix = machine.prefix is not None and libraries.is_below(entry, machine.prefix)
        if os.path.isabs(entry) and not is_of_prefix:
            yield from _shadowing("pythonpath", entry, _module_names(machine.path(entry)), modules)
    value = machine.variable("LD_LIBRARY_PATH")
    folders = [str(machine.path(entry)) for entry in machine.library_path()]
    loadable = origins.on_library_path(":".join(folders))
    if torch:
        site_packages = str(torch.site_packages)
        prefix = str(machine.path(str(machine.prefix)))
        loadable = libraries.foreign(
            loadable, prefix, site_packages, libraries.bundled(site_packages)
        )
    if loadable and (torch is None or torch.cuda is not None):
        finding = surroundings.library_path_finding(loadable)
        source, command = "variable LD_LIBRARY_PATH", "unset LD_LIBRARY_PATH"
        if machine.variable("LOADEDMODULES"):
            source += f" with the modules {machine.variable('LOADEDMODULES')}"
            command = "module purge"
        yield from judged(finding, source, value, command)


def _shadowing(id: str, folder: str, names: set[str], modules: set[str]) -> Findings:
    """A folder whose modules come before those of the environment."""
    hiding = sorted(names & modules)
    present = list_names(hiding or sorted(names))
    for finding in surroundings.shadowing(id, folder, hiding, present):
        yield from judged(finding, folder, present, SHADOWED_BY[id])


def _user_sites(machine: Machine, torch: Torch | None) -> list[Path]:
    """The folders of packages in the home, unless the environment is a venv that ignores them."""
    configuration = machine.read(f"{machine.prefix}/pyvenv.cfg") if torch else ""
    shares_packages = r"include-system-site-packages\s*=\s*true"
    is_closed_venv = bool(configuration) and not re.search(shares_packages, configuration)
    if machine.variable("PYTHONNOUSERSITE") or is_closed_venv:
        return []
    base = machine.variable("PYTHONUSERBASE") or os.path.join(machine.home, ".local")
    python = torch.site_packages.parent.name if torch else "python3*"
    return machine.glob(base, f"lib/{python}/site-packages")


def _module_names(folder: Path) -> set[str]:
    """What can be imported from a folder: packages and plain modules."""
    names = set()
    for entry in origins.packages(str(folder)):
        if entry.endswith(".py"):
            names.add(entry[: -len(".py")])
        elif not entry.endswith((".dist-info", ".egg-info")) and (folder / entry).is_dir():
            names.add(entry)
    return names


PROBES: Probes = {
    "packages": packages,
    "driver": driver,
    "glibc": glibc,
    "CUDA compiler": toolkit,
    "origins": contamination,
}
