"""Probes: the files of an environment, without starting its Python."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..checks import gpus as gpu_judge
from ..checks import surroundings
from ..checks.releases import Release, device_id_hangs, numbers
from ..checks.surroundings import list_names
from ..facts import libraries, origins
from ..fs.files import read_text
from .probe import Probe, judged, observation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..report.diagnosis import ObservedFinding
    from .machine import Machine

# A wheel of NVIDIA for one CUDA version: nvidia-nccl-cu12.
CUDA_WHEEL = re.compile(r"(nvidia-.+)-cu(\d+)$")
# Modules that most often break an environment's torch where another copy comes first.
FRAMEWORK = re.compile(r"torch|numpy|nvidia|triton")
DIST_INFO = re.compile(r"(.+?)-([^-]+)\.dist-info$")
# The first torch that was built for NumPy 2 (pytorch#135013).
NUMPY_2_TORCH = (2, 3)
# torch packages of the pytorch channel that call a function which MKL removed in 2024.1
# (pytorch#123097).
OLD_MKL_TORCH = (2, 4)
NEW_MKL = (2024, 1)


@dataclass(frozen=True)
class Torch:
    """An installed torch, as its own files describe it. cuda: None for a CPU build."""

    version: str
    cuda: str | None
    site_packages: Path
    file: Path

    @property
    def release(self) -> Release:
        return numbers(self.version)


def find_torch(machine: Machine) -> Torch | None:
    assert machine.prefix is not None
    for file in machine.glob(machine.prefix, "lib/python3*/site-packages/torch/version.py"):
        text = file.read_text(errors="replace")
        version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
        cuda = re.search(r"^cuda(?:: .*?)? = '([^']+)'", text, re.MULTILINE)
        if version:
            return Torch(version[1], cuda[1] if cuda else None, file.parent.parent, file)
    return None


@dataclass(frozen=True)
class DistInfo:
    """An installed distribution, as its name and dist-info describe it."""

    version: str
    folder: Path

    def library_names(self) -> set[str]:
        paths = [line.split(",")[0] for line in read_text(self.folder / "RECORD").splitlines()]
        return {os.path.basename(path) for path in paths if ".so" in os.path.basename(path)}

    def oldest_glibc(self) -> Release:
        """The oldest glibc that a wheel runs on (PEP 600); empty for wheels without libraries."""
        pairs = re.findall(r"manylinux_(\d+)_(\d+)_", read_text(self.folder / "WHEEL"))
        return min(((int(major), int(minor)) for major, minor in pairs), default=())


def distributions(site_packages: Path) -> dict[str, DistInfo]:
    """By normalized name."""
    result = {}
    for folder in sorted(site_packages.glob("*.dist-info")):
        match = DIST_INFO.match(folder.name)
        if match:
            name = re.sub(r"[-_.]+", "-", match[1]).lower()
            result[name] = DistInfo(match[2], folder)
    return result


def packages(machine: Machine) -> Iterator[ObservedFinding]:
    torch = find_torch(machine)
    if torch is None:
        return
    installed = distributions(torch.site_packages)
    yield from _mixed_wheels(machine, installed)
    yield from _old_nccl(machine, installed)
    yield from _old_abis(machine, torch, installed)
    source = machine.name(torch.file)
    if torch.cuda and device_id_hangs(torch.release):
        message = f"torch {torch.version}: init_process_group(device_id=...) can hang"
        yield observation("torch-known-bad", message, source, torch.version)
    if torch.cuda is None and libraries.pci_gpus(machine.root):
        message = f"torch {torch.version} is a CPU build, but this host has NVIDIA GPUs"
        yield observation("cpu-build", message, source, "cuda = None")


def _mixed_wheels(machine: Machine, installed: dict[str, DistInfo]) -> Iterator[ObservedFinding]:
    """Two families with a library of the same name: one has overwritten the other's."""
    families: dict[str, list[str]] = {}
    for name in installed:
        match = CUDA_WHEEL.match(name)
        if match:
            families.setdefault(match[1], []).append(name)
    for names in families.values():
        if len(names) < 2:
            continue
        shared = set.intersection(*(installed[name].library_names() for name in names))
        if shared:
            library = min(shared)
            message = f"{' and '.join(names)} both have {library}"
            source = machine.name(installed[names[0]].folder / "RECORD")
            command = f"pip uninstall {names[-1]}"
            yield observation("cuda-wheels-mixed", message, source, library, command)


def _old_nccl(machine: Machine, installed: dict[str, DistInfo]) -> Iterator[ObservedFinding]:
    """An NCCL wheel that is older than the one that torch's wheel requires."""
    if "torch" not in installed:
        return
    metadata = installed["torch"].folder / "METADATA"
    text = read_text(metadata)
    required = re.search(r"^Requires-Dist: (nvidia-nccl-cu\d+) ?\(?==([\d.]+)", text, re.MULTILINE)
    if required is None or required[1] not in installed:
        return
    version = installed[required[1]].version
    if numbers(version) < numbers(required[2]):
        message = f"{required[1]} {version} is installed, but torch needs {required[2]}"
        source = machine.name(metadata)
        command = f"pip install {required[1]}=={required[2]}"
        yield observation("nccl-older", message, source, required[0], command)


def _old_abis(
    machine: Machine, torch: Torch, installed: dict[str, DistInfo]
) -> Iterator[ObservedFinding]:
    """A torch that was built for an older NumPy, or that calls what MKL no longer has."""
    numpy = installed.get("numpy")
    if numpy and torch.release < NUMPY_2_TORCH and numbers(numpy.version) >= (2,):
        message = f"torch {torch.version} was built for NumPy 1; NumPy {numpy.version} is installed"
        yield observation("numpy-abi", message, machine.name(numpy.folder), numpy.version)
    # Only conda packages link to a separate MKL.
    is_conda = machine.glob(str(machine.prefix), "conda-meta/pytorch-*.json")
    if not is_conda or torch.release >= OLD_MKL_TORCH:
        return
    for record in machine.glob(str(machine.prefix), "conda-meta/mkl-2*.json"):
        version = record.name.split("-")[1]
        if numbers(version) >= NEW_MKL:
            message = f"torch {torch.version} from conda with MKL {version}"
            yield observation("mkl-too-new", message, machine.name(record), version)


def driver(machine: Machine) -> Iterator[ObservedFinding]:
    torch = find_torch(machine)
    version = libraries.driver_version(machine.root)
    finding = gpu_judge.driver_finding(version, torch.cuda if torch else None)
    yield from judged(finding, "/proc/driver/nvidia/version", version)


def glibc(machine: Machine) -> Iterator[ObservedFinding]:
    """The wheel that needs the newest glibc, if this host's is older."""
    torch = find_torch(machine)
    output = machine.run("getconf", "GNU_LIBC_VERSION")
    match = re.search(r"glibc ([\d.]+)", output.text) if output else None
    if torch is None or match is None:
        return
    floors = []
    for name, distribution in distributions(torch.site_packages).items():
        floors.append((distribution.oldest_glibc(), name))
    needed, name = max(floors, default=((), ""))
    if needed > numbers(match[1]):
        message = f"{name} needs glibc {'.'.join(map(str, needed))}; this host has {match[1]}"
        yield observation("glibc-old", message, "getconf GNU_LIBC_VERSION", match[1])


def toolkit(machine: Machine) -> Iterator[ObservedFinding]:
    torch = find_torch(machine)
    if torch is None or torch.cuda is None:
        return
    home = machine.environment.get("CUDA_HOME") or machine.environment.get("CUDA_PATH")
    compiler = os.path.join(home, "bin", "nvcc") if home else machine.which("nvcc", True)
    output = machine.run(compiler, "--version") if compiler else None
    match = re.search(r"release ((\d+)\.\d+)", output.text) if output else None
    # torch's builder refuses another major version, and warns of another minor one.
    if match and match[2] != torch.cuda.split(".")[0]:
        message = f"nvcc is for CUDA {match[1]}, torch for {torch.cuda}"
        source = f"variable CUDA_HOME={home}" if home else "nvcc --version"
        yield observation("cuda-toolkit-other", message, source, match[1])


def contamination(machine: Machine) -> Iterator[ObservedFinding]:
    """What comes before an environment's packages and libraries. Without an environment: what
    would come before those of any."""
    torch = find_torch(machine) if machine.prefix is not None else None
    if machine.prefix is not None and torch is None:
        return
    modules = _module_names(torch.site_packages) if torch else set()
    yield from _user_site(machine, torch, modules)
    value = machine.environment.get("PYTHONPATH", "")
    source, command = "variable PYTHONPATH", "unset PYTHONPATH"
    for entry in filter(os.path.isabs, value.split(os.pathsep)):
        if machine.prefix is not None and libraries.is_below(entry, machine.prefix):
            continue
        names = _module_names(machine.path(entry))
        if names & modules:
            hidden = list_names(sorted(names & modules))
            message = f"{hidden} in {entry} instead of the environment's"
            yield observation("pythonpath", message, source, value, command)
        elif names:
            message = f"{entry} has packages and comes before the environment's own"
            yield observation("pythonpath-on-path", message, source, value, command)
    value = machine.environment.get("LD_LIBRARY_PATH", "")
    folders = [str(machine.path(entry)) for entry in re.split("[:;]", value) if entry]
    loadable = origins.on_library_path(":".join(folders))
    if torch:
        site_packages = str(torch.site_packages)
        prefix = str(machine.path(str(machine.prefix)))
        bundled = libraries.bundled(site_packages)
        loadable = libraries.foreign(loadable, prefix, site_packages, bundled)
    if loadable and (torch is None or torch.cuda is not None):
        finding = surroundings.library_path_finding(loadable)
        source, command = "variable LD_LIBRARY_PATH", "unset LD_LIBRARY_PATH"
        if modules_loaded := machine.environment.get("LOADEDMODULES"):
            source += f" with the modules {modules_loaded.replace(':', ', ')}"
            command = "module purge"
        yield from judged(finding, source, value, command)


def _user_site(
    machine: Machine, torch: Torch | None, modules: set[str]
) -> Iterator[ObservedFinding]:
    """Modules in the home come before those of the environment, unless it is a venv that ignores
    them."""
    configuration = machine.read(f"{machine.prefix}/pyvenv.cfg") if torch else ""
    shares_packages = r"include-system-site-packages\s*=\s*true"
    is_closed_venv = bool(configuration) and not re.search(shares_packages, configuration)
    if machine.environment.get("PYTHONNOUSERSITE") or is_closed_venv:
        return
    base = machine.environment.get("PYTHONUSERBASE") or os.path.join(machine.home, ".local")
    python = torch.site_packages.parent.name if torch else "python3*"
    command = "export PYTHONNOUSERSITE=1"
    for path in machine.glob(base, f"lib/{python}/site-packages"):
        folder = machine.name(path)
        names = _module_names(path)
        if torch is None:  # only the most frequent faults
            names = set(filter(FRAMEWORK.fullmatch, names))
        if names & modules:
            hidden = list_names(sorted(names & modules))
            message = f"{hidden} in the user site {folder} instead of the environment's"
            yield observation("user-site", message, folder, hidden, command)
        elif names:
            packages = list_names(sorted(names))
            message = f"the user site {folder} has packages: {packages}"
            yield observation("user-site-on-path", message, folder, packages, command)


def _module_names(folder: Path) -> set[str]:
    """What can be imported from a folder: packages and plain modules."""
    names = set()
    for entry in origins.packages(str(folder)):
        if entry.endswith(".py"):
            names.add(entry[: -len(".py")])
        elif not entry.endswith((".dist-info", ".egg-info")) and (folder / entry).is_dir():
            names.add(entry)
    return names


PROBES = (
    Probe(
        "packages",
        (
            "cpu-build",
            "cuda-wheels-mixed",
            "mkl-too-new",
            "nccl-older",
            "numpy-abi",
            "torch-known-bad",
        ),
        packages,
        needs_prefix=True,
    ),
    Probe("driver", ("driver-old",), driver, needs_prefix=True),
    Probe("glibc", ("glibc-old",), glibc, needs_prefix=True),
    Probe("CUDA compiler", ("cuda-toolkit-other",), toolkit, needs_prefix=True),
    Probe(
        "origins",
        ("library-path", "pythonpath", "pythonpath-on-path", "user-site", "user-site-on-path"),
        contamination,
    ),
)
