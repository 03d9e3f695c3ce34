"""Probes: the files of an environment, without starting its Python."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..checks import gpus as gpu_judge
from ..checks import surroundings
from ..checks.releases import Release, device_id_hangs, numbers
from ..facts import libraries, origins
from ..report.diagnosis import Evidence
from .probe import Observation, Probe, observation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


def distributions(site_packages: Path) -> dict[str, tuple[str, Path]]:
    """Version and dist-info of each installed distribution, by its normalized name."""
    result = {}
    for folder in sorted(site_packages.glob("*.dist-info")):
        match = DIST_INFO.match(folder.name)
        if match:
            name = re.sub(r"[-_.]+", "-", match[1]).lower()
            result[name] = (match[2], folder)
    return result


def packages(machine: Machine) -> Iterator[Observation]:
    torch = find_torch(machine)
    if torch is None:
        return
    installed = distributions(torch.site_packages)
    yield from _mixed_wheels(machine, installed)
    yield from _old_nccl(machine, torch, installed)
    yield from _numpy(machine, torch, installed)
    yield from _mkl(machine, torch)
    if torch.cuda and device_id_hangs(torch.release):
        message = f"torch {torch.version}: init_process_group(device_id=...) can hang"
        yield observation("torch-known-bad", message, machine.name(torch.file), torch.version)
    if torch.cuda is None and libraries.pci_gpus(machine.root):
        message = f"torch {torch.version} is a CPU build, but this host has NVIDIA GPUs"
        yield observation("cpu-build", message, machine.name(torch.file), "cuda = None")


def _mixed_wheels(
    machine: Machine, installed: dict[str, tuple[str, Path]]
) -> Iterator[Observation]:
    """Two families with a library of the same name: one has overwritten the other's."""
    families: dict[str, list[str]] = {}
    for name in installed:
        match = CUDA_WHEEL.match(name)
        if match:
            families.setdefault(match[1], []).append(name)
    for names in families.values():
        if len(names) < 2:
            continue
        libraries_of = [_library_names(installed[name][1]) for name in names]
        shared = set.intersection(*libraries_of)
        if shared:
            message = f"{' and '.join(names)} both have {sorted(shared)[0]}"
            source = machine.name(installed[names[0]][1] / "RECORD")
            command = f"pip uninstall {names[-1]}"
            yield observation("cuda-wheels-mixed", message, source, sorted(shared)[0], command)


def _library_names(dist_info: Path) -> set[str]:
    try:
        lines = (dist_info / "RECORD").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    names = {os.path.basename(line.split(",")[0]) for line in lines}
    return {name for name in names if ".so" in name}


def _old_nccl(
    machine: Machine, torch: Torch, installed: dict[str, tuple[str, Path]]
) -> Iterator[Observation]:
    """An NCCL wheel that is older than the one that torch's wheel requires."""
    if "torch" not in installed:
        return
    metadata = installed["torch"][1] / "METADATA"
    try:
        text = metadata.read_text(errors="replace")
    except OSError:
        return
    required = re.search(r"^Requires-Dist: (nvidia-nccl-cu\d+) ?\(?==([\d.]+)", text, re.MULTILINE)
    if required is None or required[1] not in installed:
        return
    version = installed[required[1]][0]
    if numbers(version) < numbers(required[2]):
        message = f"{required[1]} {version} is installed, but torch needs {required[2]}"
        command = f"pip install {required[1]}=={required[2]}"
        yield observation("nccl-older", message, machine.name(metadata), required[0], command)


def _numpy(
    machine: Machine, torch: Torch, installed: dict[str, tuple[str, Path]]
) -> Iterator[Observation]:
    version, folder = installed.get("numpy", ("0", torch.file))
    if torch.release < NUMPY_2_TORCH and numbers(version) >= (2,):
        message = f"torch {torch.version} was built for NumPy 1; NumPy {version} is installed"
        yield observation("numpy-abi", message, machine.name(folder), version)


def _mkl(machine: Machine, torch: Torch) -> Iterator[Observation]:
    """Only conda packages link to a separate MKL."""
    assert machine.prefix is not None
    if not machine.glob(machine.prefix, "conda-meta/pytorch-*.json"):
        return
    for record in machine.glob(machine.prefix, "conda-meta/mkl-2*.json"):
        version = record.name.split("-")[1]
        if torch.release < OLD_MKL_TORCH and numbers(version) >= NEW_MKL:
            message = f"torch {torch.version} from conda with MKL {version}"
            yield observation("mkl-too-new", message, machine.name(record), version)


def driver(machine: Machine) -> Iterator[Observation]:
    torch = find_torch(machine)
    version = libraries.driver_version(machine.root)
    finding = gpu_judge.driver_finding(version, torch.cuda if torch else None)
    if finding is not None:
        evidence = Evidence("/proc/driver/nvidia/version", str(version))
        yield Observation(finding, (evidence,))


def glibc(machine: Machine) -> Iterator[Observation]:
    """The wheel that needs the newest glibc, if this host's is older."""
    torch = find_torch(machine)
    version = _glibc_version(machine)
    if torch is None or version is None:
        return
    needed: tuple[int, ...] = ()
    name = ""
    for package, (_, folder) in distributions(torch.site_packages).items():
        floor = _wheel_glibc(folder)
        if floor is not None and floor > needed:
            needed, name = floor, package
    if needed > numbers(version):
        message = f"{name} needs glibc {'.'.join(map(str, needed))}; this host has {version}"
        yield observation("glibc-old", message, "getconf GNU_LIBC_VERSION", version)


def _glibc_version(machine: Machine) -> str | None:
    output = machine.run("getconf", "GNU_LIBC_VERSION")
    match = re.search(r"glibc ([\d.]+)", output.text) if output else None
    return match[1] if match else None


def _wheel_glibc(dist_info: Path) -> tuple[int, ...] | None:
    """The oldest glibc that a wheel runs on (PEP 600); None for wheels without libraries."""
    try:
        text = (dist_info / "WHEEL").read_text(errors="replace")
    except OSError:
        return None
    floors = [tuple(map(int, pair)) for pair in re.findall(r"manylinux_(\d+)_(\d+)_", text)]
    return min(floors, default=None)


def toolkit(machine: Machine) -> Iterator[Observation]:
    torch = find_torch(machine)
    if torch is None or torch.cuda is None:
        return
    home = machine.environment.get("CUDA_HOME") or machine.environment.get("CUDA_PATH")
    compiler = os.path.join(home, "bin", "nvcc") if home else machine.which("nvcc", True)
    output = machine.run(compiler, "--version") if compiler else None
    match = re.search(r"release (\d+)\.(\d+)", output.text) if output else None
    # torch's builder refuses another major version, and warns of another minor one.
    if match and match[1] != torch.cuda.split(".")[0]:
        version = f"{match[1]}.{match[2]}"
        message = f"nvcc is for CUDA {version}, torch for {torch.cuda}"
        source = f"variable CUDA_HOME={home}" if home else "nvcc --version"
        yield observation("cuda-toolkit-other", message, source, version)


def contamination(machine: Machine) -> Iterator[Observation]:
    """What comes before an environment's own packages and libraries. Without an environment: what
    would come before those of any."""
    torch = find_torch(machine) if machine.prefix is not None else None
    if machine.prefix is not None and torch is None:
        return
    modules = _module_names(torch.site_packages) if torch else set()
    yield from _user_site(machine, torch, modules)
    yield from _pythonpath(machine, modules)
    yield from _library_path(machine, torch)


def _user_site(machine: Machine, torch: Torch | None, own: set[str]) -> Iterator[Observation]:
    """Modules in the home come before those of the environment, unless it is a venv."""
    if machine.environment.get("PYTHONNOUSERSITE") or (torch and _is_closed_venv(machine)):
        return
    base = machine.environment.get("PYTHONUSERBASE") or os.path.join(machine.home, ".local")
    python = torch.site_packages.parent.name if torch else "python3*"
    for path in machine.glob(base, f"lib/{python}/site-packages"):
        folder = machine.name(path)
        names = _module_names(path)
        hidden = sorted(names & own)
        # Without an environment, only the most frequent faults.
        shown = sorted(names if torch else filter(FRAMEWORK.fullmatch, names))
        command = "export PYTHONNOUSERSITE=1"
        if hidden:
            message = f"{_first(hidden)} in the user site {folder} instead of the environment's"
            yield observation("user-site", message, folder, _first(hidden), command)
        elif shown:
            message = f"the user site {folder} has packages: {_first(shown)}"
            yield observation("user-site-on-path", message, folder, _first(shown), command)


def _is_closed_venv(machine: Machine) -> bool:
    """Whether the environment is a venv that ignores packages of the home."""
    configuration = machine.read(f"{machine.prefix}/pyvenv.cfg")
    return configuration is not None and not re.search(
        r"include-system-site-packages\s*=\s*true", configuration
    )


def _pythonpath(machine: Machine, own: set[str]) -> Iterator[Observation]:
    value = machine.environment.get("PYTHONPATH", "")
    for entry in filter(None, value.split(os.pathsep)):
        is_own = machine.prefix is not None and libraries.is_below(entry, machine.prefix)
        if not os.path.isabs(entry) or is_own:
            continue
        names = _module_names(machine.path(entry))
        hidden = sorted(names & own)
        source = "variable PYTHONPATH"
        if hidden:
            message = f"{_first(hidden)} in {entry} instead of the environment's"
            yield observation("pythonpath", message, source, value, "unset PYTHONPATH")
        elif names:
            message = f"{entry} has packages and comes before the environment's own"
            yield observation("pythonpath-on-path", message, source, value, "unset PYTHONPATH")


def _library_path(machine: Machine, torch: Torch | None) -> Iterator[Observation]:
    value = machine.environment.get("LD_LIBRARY_PATH", "")
    folders = [str(machine.path(entry)) for entry in re.split("[:;]", value) if entry]
    loadable = origins.on_library_path(":".join(folders))
    if torch:
        site_packages = str(torch.site_packages)
        own = libraries.own(site_packages)
        prefix = str(machine.path(str(machine.prefix)))
        loadable = libraries.foreign(loadable, prefix, site_packages, own)
    if not loadable or (torch and torch.cuda is None):
        return
    finding = surroundings.library_path_finding(loadable)
    evidence = (Evidence("variable LD_LIBRARY_PATH", value),)
    yield Observation(finding, evidence, "unset LD_LIBRARY_PATH")


def _module_names(folder: Path) -> set[str]:
    """What can be imported from a folder: packages and plain modules."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return set()
    names = set()
    for entry in entries:
        if entry in origins.NO_PACKAGES or entry.endswith((".dist-info", ".egg-info", ".pth")):
            continue
        if entry.endswith(".py") or os.path.isdir(os.path.join(folder, entry)):
            names.add(entry[:-3] if entry.endswith(".py") else entry)
    return names


def _first(names: list[str]) -> str:
    more = len(names) - surroundings.MAX_NAMES
    text = ", ".join(names[: surroundings.MAX_NAMES])
    return f"{text} and {more} more" if more > 0 else text


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
