"""environment.yml + virtual-packages.yml -> conda-lock.yml (v1), written with conda-lock's own models and content hash.

conda packages are solved by py-rattler, wheels by uv; the CUDA guard looks at the answer before anything is written. Reading a
lock does not import conda-lock (0.8 s): a build with nothing to do must stay quick.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from provision import conda, wheels
from provision.compat import DATA
from provision.errors import CheckFailed, IntegrityError, Unsolvable
from provision.model import PLATFORM, Lock, LockedPackage, Manager, Resolution

FILE = "conda-lock.yml"
# Keys of the lock's metadata.custom_metadata; conda-lock carries them along untouched.
PYTHON_FROM, PORTABLE, INPUTS = "provision_python_from", "provision_portable", "provision_inputs_sha256"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is locked: the two files as they are on disk, parsed."""

    folder: Path
    conda: tuple[str, ...]
    pip: tuple[str, ...]
    channels: tuple[str, ...]
    virtual_packages: tuple[tuple[str, str], ...]
    sha256: str


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """A local channel that takes the place of the request's channels, and the glibc that its binaries need."""

    channel: str
    glibc: str


def inputs(folder: Path, sha256: str) -> Inputs:
    """Read environment.yml and virtual-packages.yml as they are, edited by hand or not."""
    environment = _yaml(folder / "environment.yml")
    machine = _yaml(folder / "virtual-packages.yml")["subdirs"][PLATFORM]["packages"]
    plain = tuple(item for item in environment["dependencies"] if isinstance(item, str))
    pip = next((item["pip"] for item in environment["dependencies"] if isinstance(item, dict)), ())
    return Inputs(
        folder=folder,
        conda=plain,
        pip=tuple(pip),
        channels=tuple(name for name in environment["channels"] if name != "nodefaults"),
        virtual_packages=tuple(sorted(machine.items())),
        sha256=sha256,
    )


def _yaml(path: Path) -> Any:
    import yaml

    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def make(wanted: Inputs, resolution: Resolution, *, stand_in: StandIn | None, alias: str | None = None) -> Lock:
    """Solve, guard, write. The old lock is replaced only by a whole new one.

    stand_in: a local channel with this machine's Python, used instead of the request's channels; such a lock is not portable.
    """
    packages = solve(wanted, resolution, stand_in=stand_in, alias=alias)
    guard(packages, resolution)
    text = _text(wanted, packages, python_from="host" if stand_in else "channel")
    path = wanted.folder / FILE
    temporary = path.with_name(f".{FILE}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return read(path)


def solve(wanted: Inputs, resolution: Resolution, *, stand_in: StandIn | None, alias: str | None = None) -> tuple[LockedPackage, ...]:
    """Every package of the environment: conda's by py-rattler, then wheels by uv around what conda already provides."""
    virtual = dict(wanted.virtual_packages)
    if stand_in:  # its Python runs on this machine's glibc or newer, whatever the request assumes of others
        virtual["__glibc"] = max(virtual["__glibc"], stand_in.glibc, key=_numbers)
    channels = (stand_in.channel,) if stand_in else wanted.channels
    from_conda = conda.solve(wanted.conda, channels, tuple(virtual.items()), alias=alias)
    if not wanted.pip:
        return from_conda
    return from_conda + _solve_wheels(wanted.pip, from_conda, resolution, virtual["__glibc"])


def _solve_wheels(
    requirements: Sequence[str], from_conda: Sequence[LockedPackage], resolution: Resolution, glibc: str
) -> tuple[LockedPackage, ...]:
    """Wheels for what conda does not provide. A Python package that both could provide is conda's, and binds the wheels."""
    build_path = resolution.local_version.partition("+")[2] if resolution.needs_local_build else None
    resolve = functools.partial(wheels.resolve, requirements, python=resolution.python, glibc=glibc, build_path=build_path)
    try:
        found = resolve()
    except Unsolvable as error:
        if resolution.needs_local_build:
            error.advice = (
                f"{resolution.local_version} is on PyTorch's own wheel index: name that index (its address up to, without, the folder "
                f"{build_path}) in the environment variable {wheels.TORCH_INDEX}. {error.advice}"
            ).strip()
        raise
    provided = {package.name: package for package in from_conda if package.name not in ("python", "pip")}
    both = sorted({package.name for package in found} & set(provided))
    if both:
        bounds = [f"{name}=={provided[name].version}" for name in both]
        found = resolve(constraints=bounds, leave_out=both)
    return tuple(package for package in found if package.name not in provided)


def guard(packages: Sequence[LockedPackage], resolution: Resolution) -> None:
    """A CUDA environment never silently becomes a CPU one: the locked torch must be the build that was asked for."""
    name = "torch" if resolution.source == "wheels" else "pytorch"
    torch = next((package for package in packages if package.name == name), None)
    if torch is None:
        raise CheckFailed(f"The solver's answer holds no {name}.", advice="Was it removed from environment.yml by hand?")
    problem = _wheel_problem(packages, torch, resolution) if resolution.source == "wheels" else _build_problem(torch, resolution)
    if problem:
        raise CheckFailed(
            f"{problem} The solver chose {torch.name} {torch.version} {torch.build} ({torch.filename}).",
            advice="Nothing was written. Compare environment.yml with `provision render`.",
        )


def _wheel_problem(packages: Sequence[LockedPackage], torch: LockedPackage, resolution: Resolution) -> str | None:
    version, _, local = torch.version.partition("+")
    if version != resolution.torch:
        return f"The locked torch is {torch.version}, not {resolution.torch}."
    wanted = resolution.local_version.partition("+")[2]
    if (local or not resolution.needs_local_build) and local in ("", wanted):
        return _nccl_problem(packages, resolution)
    return f"The locked torch is not the {wanted} build."


def _nccl_problem(packages: Sequence[LockedPackage], resolution: Resolution) -> str | None:
    """The NVIDIA wheels show which CUDA a wheel without a local version was built for."""
    locked = [package for package in packages if re.fullmatch(r"nvidia-nccl-cu\d+", package.name)]
    if resolution.cuda is None:
        return "A CPU environment was asked for, but the lock holds NCCL." if locked else None
    families = {package.name.rpartition("-")[2] for package in locked}
    if len(families) > 1:
        return f"The lock mixes NVIDIA wheel families: {', '.join(sorted(families))}."
    if locked and resolution.nccl and locked[0].version != resolution.nccl:
        return f"The locked NCCL is {locked[0].version}, not {resolution.nccl}."
    return None


def _build_problem(torch: LockedPackage, resolution: Resolution) -> str | None:
    if torch.version != resolution.torch:
        return f"The locked pytorch is {torch.version}, not {resolution.torch}."
    if resolution.cuda is None:
        return "A CPU environment was asked for." if "cuda" in torch.build else None
    wanted = f"cuda{resolution.cuda}" if resolution.source == "pytorch" else f"cuda{resolution.cuda.replace('.', '')}"
    return None if wanted in torch.build else f"CUDA {resolution.cuda} was asked for, but the locked build is another one."


def _text(wanted: Inputs, packages: Sequence[LockedPackage], *, python_from: str) -> str:
    """The lock file's text, by conda-lock's models and writer."""
    from conda_lock.lockfile import write_conda_lock_file
    from conda_lock.lockfile.v1.models import HashModel, LockMeta
    from conda_lock.lockfile.v2prelim.models import LockedDependency, Lockfile

    spec, hashes = _lock_specification(wanted)
    entries = [
        LockedDependency(
            name=package.name,
            version=package.version,
            manager=package.manager,
            platform=PLATFORM,
            dependencies=_dependencies(package),
            url=package.url,
            hash=HashModel(md5=package.md5, sha256=package.sha256),
            build=package.build or None,
            categories={"main"},
        )
        for package in packages
    ]
    portable = python_from == "channel" and not any(package.url.startswith("file:") for package in packages)
    custom = {PYTHON_FROM: python_from, PORTABLE: str(portable).lower(), INPUTS: wanted.sha256}
    meta = LockMeta(
        content_hash=hashes, channels=spec.channels, platforms=spec.platforms, sources=["environment.yml"], custom_metadata=custom
    )
    with tempfile.TemporaryDirectory(prefix="provision-") as scratch:
        path = Path(scratch) / FILE
        write_conda_lock_file(Lockfile(package=entries, metadata=meta), path, metadata_choices=None)
        return path.read_text(encoding="utf-8")


def _dependencies(package: LockedPackage) -> dict[str, str]:
    """Name -> constraint, as conda-lock holds them. Wheels' constraints are uv's business; the edge is what is kept."""
    split = (text.partition(" ") for text in package.depends)
    return {name: (bound if package.manager == "conda" else "*") for name, _, bound in split if name}


def _lock_specification(wanted: Inputs) -> tuple[Any, dict[str, str]]:
    """conda-lock's reading of our files, and its content hash: what `conda-lock lock --check-input-hash` compares."""
    from conda_lock.content_hash import compute_content_hashes
    from conda_lock.src_parser import make_lock_spec
    from conda_lock.virtual_package import virtual_package_repo_from_specification

    names = DATA / "pypi-conda-names.yml"
    with contextlib.redirect_stderr(io.StringIO()):
        spec = make_lock_spec(
            src_files=[wanted.folder / "environment.yml"], platform_overrides=[PLATFORM], mapping_url=names.absolute().as_uri()
        )
        machine = virtual_package_repo_from_specification(wanted.folder / "virtual-packages.yml")
        with machine:
            return spec, compute_content_hashes(spec, machine)


def read(path: Path) -> Lock:
    """Parse a conda-lock.yml (v1). Raises IntegrityError for one that cannot be trusted as a lock."""
    import yaml

    raw = path.read_bytes()
    try:
        content = yaml.load(raw, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _lock(path, raw, content)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise IntegrityError(f"{path} is not a lock file: {reason}.", advice="Run `provision lock --relock`.") from error


def _lock(path: Path, raw: bytes, content: Mapping[str, Any]) -> Lock:
    if content["version"] != 1:
        raise IntegrityError(f"{path} is version {content['version']} of the lock format; this reads version 1.")
    meta = content["metadata"]
    custom = meta.get("custom_metadata") or {}
    packages = tuple(_read_package(path, entry) for entry in content["package"] if entry["platform"] == PLATFORM)
    python_from: Literal["channel", "host"] = "host" if custom.get(PYTHON_FROM) == "host" else "channel"
    return Lock(
        path=path,
        sha256=hashlib.sha256(raw).hexdigest(),
        inputs_sha256=custom.get(INPUTS, ""),
        content_hash=meta["content_hash"][PLATFORM],
        packages=packages,
        python_from=python_from,
        portable=custom.get(PORTABLE) != "false",
    )


def _read_package(path: Path, entry: Mapping[str, Any]) -> LockedPackage:
    sha256 = entry["hash"].get("sha256") or ""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise IntegrityError(
            f"{path}: {entry['name']} has no well-formed sha256.", advice="Restore the file or run `provision lock --relock`."
        )
    manager: Manager = "conda" if entry["manager"] == "conda" else "pip"
    url = entry["url"]
    return LockedPackage(
        manager=manager,
        name=entry["name"],
        version=entry["version"],
        url=url,
        sha256=sha256,
        md5=entry["hash"].get("md5"),
        build=entry.get("build") or _build_of(url, entry) if manager == "conda" else "",
        depends=tuple(f"{name} {bound}".strip() for name, bound in entry.get("dependencies", {}).items()),
    )


def _build_of(url: str, entry: Mapping[str, Any]) -> str:
    """Locks of other tools may lack the build string; the file name holds it: name-version-build.conda."""
    stem = url.rsplit("/", 1)[-1].removesuffix(".conda").removesuffix(".tar.bz2")
    return stem.removeprefix(f"{entry['name']}-{entry['version']}-")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
