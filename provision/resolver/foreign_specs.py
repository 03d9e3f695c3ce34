"""environment.yml, requirements.txt and pyproject.toml -> the keys of a spec.yml.

Pure: the caller reads the files. What is not taken is named with the reason, never dropped in
silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.utils import canonicalize_name

from provision.core.credentials import credential_problem, public_request, without_login

# conda packages that choose or belong to a build of PyTorch, which provision chooses itself.
_BUILD_PACKAGES = re.compile(
    r"pytorch|torch|pytorch-gpu|pytorch-cpu|pytorch-cuda|pytorch-mutex|cpuonly|cudatoolkit|"
    r"cuda-version|cuda|cuda-toolkit|torchtriton|triton|nvidia-.+-cu\d+|nvidia-nccl.*"
)
_COMPANIONS = ("torchvision", "torchaudio")
# Belong to conda itself, or come with every environment.
_COME_ANYWAY = ("pip", "setuptools", "wheel", "python_abi", "ipykernel", "xxhash", "python-xxhash")
# Channels that provision adds where a build needs them, or that are no channel.
_KNOWN_CHANNELS = ("defaults", "nodefaults", "pytorch", "nvidia", "conda-forge")
_CONDA = re.compile(r"(?:\S+::)?([A-Za-z0-9_][A-Za-z0-9._-]*)\s*(.*)")
_CUDA_IN_BUILD = re.compile(r"cuda_?(\d{2})\.?(\d)")
_CUDA_TAG = re.compile(r"\+cu(\d{2})(\d)\b|/cu(\d{2})(\d)/?$")
_CUDA_RUNTIME = re.compile(r"nvidia-cuda-runtime-cu\d+\s*==\s*(\d+\.\d+)")
# PyTorch's wheel index, or a mirror of it, has a folder for each build.
_TORCH_INDEX = re.compile(r"/whl/(cu\d+|cpu)/?$")
_ANY = ("", "*")


@dataclass
class ForeignSpec:
    """What a file requests, in keys of spec.yml.

    left_out: what it has beyond, with reasons. credentials: what was taken out of addresses, and
    where it belongs. unnamed: pip requirements without a package name
    (an address or a path), which spec.yml cannot hold; `provision add` reads the name.
    """

    name: str | None = None
    torch: str | None = None
    cuda: str | None = None
    cpu: bool = False
    python: str | None = None
    companions: bool = False
    conda: list[str] = field(default_factory=list)
    pip: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    credentials: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def options(self) -> dict[str, Any]:
        """The keys that the file decides."""
        options: dict[str, Any] = {
            "torch": self.torch,
            "cuda": None if self.cpu else self.cuda,
            "cpu": self.cpu,
            "python": self.python,
            "companions": self.companions,
            "conda": tuple(self.conda),
            "pip": tuple(self.pip),
            "channels": tuple(self.channels),
        }
        return {key: value for key, value in options.items() if value not in (None, ())}


def from_environment(document: Mapping[str, Any]) -> ForeignSpec:
    """An environment.yml, or what `conda env export` prints."""
    spec = ForeignSpec(name=str(document.get("name") or "") or None)
    dependencies = document.get("dependencies") or []
    conda_lines = [str(item) for item in dependencies if not isinstance(item, Mapping)]
    is_export = bool(conda_lines) and all(line.count("=") == 2 for line in conda_lines)
    dropped = []
    for line in conda_lines:
        line = _public(spec, line)
        match = _CONDA.fullmatch(line.strip())
        if match is None:
            spec.left_out.append(f"`{line}`: it is not understood")
            continue
        name, constraint = match[1].lower(), match[2].strip()
        if _takes_build_package(spec, name, constraint) or name in _COME_ANYWAY:
            continue
        if is_export:
            dropped.append(name)
        else:
            spec.conda.append(_conda_requirement(name, constraint))
    if dropped:
        spec.left_out.append(
            f"{len(dropped)} conda packages of a full export, which does not say which were "
            "requested and which came with others; `conda env export --from-history` does"
        )
    for item in dependencies:
        if isinstance(item, Mapping):
            lines = [str(line) for line in item.get("pip") or ()]
            _take_requirements(spec, lines)
    for channel in document.get("channels") or ():
        if str(channel) not in _KNOWN_CHANNELS:
            spec.channels.append(_public(spec, str(channel)))
    if spec.channels:
        spec.channels.append("conda-forge")
    return spec


def from_requirements(lines: Iterable[str]) -> ForeignSpec:
    """The lines of a requirements.txt, pip's options among them."""
    spec = ForeignSpec()
    _take_requirements(spec, lines)
    return spec


def from_pyproject(document: Mapping[str, Any]) -> ForeignSpec:
    """The dependencies of the project in a pyproject.toml."""
    spec = ForeignSpec()
    project = document.get("project") or {}
    _take_requirements(spec, project.get("dependencies") or ())
    groups = [
        *(project.get("optional-dependencies") or {}),
        *(document.get("dependency-groups") or {}),
    ]
    if groups:
        spec.left_out.append(f"the optional dependencies {', '.join(groups)}")
    if "poetry" in (document.get("tool") or {}) and not project.get("dependencies"):
        spec.left_out.append("Poetry's own tables; `poetry export` writes a requirements.txt")
    return spec


def _take_requirements(spec: ForeignSpec, lines: Iterable[str]) -> None:
    """Requirements of pip; torch and its CUDA become keys."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in lines:
        line = _public(spec, text)
        spec.cuda = spec.cuda or _cuda_tag(line) or _runtime_version(line)
        spec.cpu = spec.cpu or line.rstrip("/").endswith("/whl/cpu")
        if line.startswith("-"):
            if not _TORCH_INDEX.search(line):
                spec.left_out.append(f"`{line}`: an option of pip, which belongs in its settings")
            continue
        if line != text and without_login(text) == text:  # a file, which the token opens
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            spec.unnamed.append(line)
            continue
        name = canonicalize_name(requirement.name)
        constraint = str(requirement.specifier)
        if _takes_build_package(spec, name, constraint) or name in _COME_ANYWAY:
            continue
        spec.pip.append(line)


def _public(spec: ForeignSpec, text: str) -> str:
    """A requirement or channel as it may be recorded; the spec says what was taken out."""
    problem = credential_problem(text)
    if problem:
        spec.credentials.append(problem)
    return public_request(text)


def _takes_build_package(spec: ForeignSpec, name: str, constraint: str) -> bool:
    """Read the version of Python, PyTorch or CUDA from a package; False for any other package."""
    version, _, build = constraint.lstrip("=").strip().partition("=")
    if name == "python":
        minor = re.match(r"[=\s~>]*(3\.\d+)", constraint)
        spec.python = minor[1] if minor else None
        return True
    if name in _COMPANIONS:
        spec.companions = True
        return True
    if not _BUILD_PACKAGES.fullmatch(name):
        return False
    if name in ("pytorch", "torch", "pytorch-gpu", "pytorch-cpu"):
        spec.torch = _release(constraint)
        in_build = _CUDA_IN_BUILD.search(build)
        if in_build:
            spec.cuda = spec.cuda or f"{in_build[1]}.{in_build[2]}"
        if "cpu" in build or name == "pytorch-cpu" or "+cpu" in constraint:
            spec.cpu = True
    elif name in ("pytorch-cuda", "cudatoolkit", "cuda-version"):
        numbers = re.match(r"\d+\.\d+", version)
        spec.cuda = numbers[0] if numbers else spec.cuda
    elif name == "cpuonly":
        spec.cpu = True
    return True


def _release(constraint: str) -> str | None:
    """A version or range of PyTorch in the words of spec.yml."""
    text = re.sub(r"\+(cu\d+|cpu)", "", constraint).strip()
    exact = re.fullmatch(r"={0,3}\s*(\d+(?:\.\d+){0,2})(\.\*)?(=.*)?", text)
    if exact:
        return exact[1]
    return text.replace(" ", "") or None


def _conda_requirement(name: str, constraint: str) -> str:
    if re.fullmatch(r"=*[\d.]+=[^=]*", constraint):  # name=version=build
        return f"{name}={constraint.strip('=').partition('=')[0]}"
    if constraint in _ANY:
        return name
    return f"{name}{constraint}" if constraint[0] in "=<>!~" else f"{name} {constraint}"


def _cuda_tag(line: str) -> str | None:
    match = _CUDA_TAG.search(line.split(";")[0].strip())
    if match is None:
        return None
    digits: Sequence[str] = [group for group in match.groups() if group]
    return f"{digits[0]}.{digits[1]}"


def _runtime_version(line: str) -> str | None:
    match = _CUDA_RUNTIME.match(line)
    return match[1] if match else None
