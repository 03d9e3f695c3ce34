"""environment.yml + virtual-packages.yml -> conda-lock.yml (v1), written with conda-lock's own models and content hash.

conda packages are solved by py-rattler, wheels by uv; the CUDA guard looks at the answer before anything is written. Reading a
lock does not import conda-lock (0.8 s): a build with nothing to do must stay quick.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from provision import conda, wheels
from provision.compat import DATA, version_key
from provision.errors import CheckFailed, IntegrityError, InvalidSpec, Unsolvable
from provision.model import PLATFORM, Lock, LockedPackage, Manager, Resolution

FILE = "conda-lock.yml"
ENVIRONMENT = "environment.yml"
VIRTUAL_PACKAGES = "virtual-packages.yml"
T = TypeVar("T")

# Keys of the lock's metadata.custom_metadata; conda-lock carries them along untouched.
PYTHON_FROM, PORTABLE, INPUTS = "provision_python_from", "provision_portable", "provision_inputs_sha256"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is locked: the two files' texts as they stand, and what they say."""

    environment: str
    virtual_packages: str
    conda: tuple[str, ...]
    pip: tuple[str, ...]
    channels: tuple[str, ...]
    machine: tuple[tuple[str, str], ...]
    sha256: str  # of what they say: a comment or a reason does not make a lock stale


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """A local channel that takes the place of the request's channels, and the glibc that its binaries need."""

    channel: str
    glibc: str


def inputs(environment: str, virtual_packages: str, folder: Path) -> Inputs:
    """Read the two files' texts, edited by hand or not. Raises InvalidSpec with the file (in `folder`) and what is wrong."""
    said = _parse(environment, folder / ENVIRONMENT)
    machine = _parse(virtual_packages, folder / VIRTUAL_PACKAGES)
    dependencies = _entry(said, "dependencies", list, folder / ENVIRONMENT)
    sections = [item for item in dependencies if isinstance(item, dict)]
    pip = _entry(sections[0], "pip", list, folder / ENVIRONMENT) if sections else []
    subdir = _entry(_entry(machine, "subdirs", dict, folder / VIRTUAL_PACKAGES), PLATFORM, dict, folder / VIRTUAL_PACKAGES)
    packages = _entry(subdir, "packages", dict, folder / VIRTUAL_PACKAGES)
    found = Inputs(
        environment=environment,
        virtual_packages=virtual_packages,
        conda=tuple(str(item) for item in dependencies if not isinstance(item, dict)),
        pip=tuple(str(item) for item in pip),
        channels=tuple(str(name) for name in _entry(said, "channels", list, folder / ENVIRONMENT) if name != "nodefaults"),
        machine=tuple(sorted((str(name), str(version)) for name, version in packages.items())),
        sha256=hashlib.sha256(json.dumps([said, machine], sort_keys=True, default=str).encode()).hexdigest(),
    )
    if "__glibc" not in dict(found.machine):
        raise InvalidSpec(f"{folder / VIRTUAL_PACKAGES} names no __glibc.", advice=_BACK.format(name=folder.name))
    return found


_BACK = "Mend it, or bring back what spec.yml says: provision render {name} --force"


def _parse(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        said = getattr(error, "problem", None) or type(error).__name__
        raise InvalidSpec(f"{where}: this is not YAML: {said}.", advice=_BACK.format(name=path.parent.name)) from error


def _entry(content: Any, key: str, kind: type[T], path: Path) -> T:
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, kind):
        word = {"list": "list", "dict": "mapping"}[kind.__name__]
        raise InvalidSpec(f"{path} has no {word} `{key}`.", advice=_BACK.format(name=path.parent.name))
    return found


def check(wanted: Inputs, folder: Path) -> None:
    """Raise InvalidSpec for requirements that no solver would understand; only hand edits can bring such in."""
    from packaging.requirements import InvalidRequirement, Requirement

    mistakes = conda.check_specs(wanted.conda)
    for text in wanted.pip:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            mistakes.append(f"`{text}` is not a requirement: {str(error).splitlines()[0]}.")
    if mistakes:
        raise InvalidSpec(f"{folder / ENVIRONMENT}: {' '.join(mistakes)}", advice=_BACK.format(name=folder.name))


def text(wanted: Inputs, packages: Sequence[LockedPackage], *, python_from: Literal["channel", "host"]) -> str:
    """The lock file of these packages, by conda-lock's models and writer."""
    with tempfile.TemporaryDirectory(prefix="provision-") as scratch:
        folder = Path(scratch)
        (folder / ENVIRONMENT).write_text(wanted.environment, encoding="utf-8")
        (folder / VIRTUAL_PACKAGES).write_text(wanted.virtual_packages, encoding="utf-8")
        return _text(wanted, packages, folder, python_from)


def content_hash(wanted: Inputs) -> str:
    """conda-lock's hash of the inputs: tells whether a lock that another tool made is theirs."""
    with tempfile.TemporaryDirectory(prefix="provision-") as scratch:
        folder = Path(scratch)
        (folder / ENVIRONMENT).write_text(wanted.environment, encoding="utf-8")
        (folder / VIRTUAL_PACKAGES).write_text(wanted.virtual_packages, encoding="utf-8")
        return _lock_specification(folder)[1][PLATFORM]


def solve(wanted: Inputs, resolution: Resolution, *, stand_in: StandIn | None, alias: str | None = None) -> tuple[LockedPackage, ...]:
    """Every package of the environment, guarded: conda's by py-rattler, then wheels by uv around what conda already provides.

    stand_in: a local channel with this machine's Python, used instead of the request's channels; such a lock is not portable.
    """
    virtual = dict(wanted.machine)
    if stand_in:  # its Python runs on this machine's glibc or newer, whatever the request assumes of others
        virtual["__glibc"] = max(virtual["__glibc"], stand_in.glibc, key=version_key)
    channels = (stand_in.channel,) if stand_in else wanted.channels

    def from_conda(bounds: Sequence[str]) -> tuple[LockedPackage, ...]:
        return conda.solve(wanted.conda, channels, tuple(virtual.items()), bounds=bounds, alias=alias)

    packages = _solve_both(wanted.pip, from_conda, resolution, virtual["__glibc"])
    guard(packages, resolution)
    return packages


def _solve_both(
    requirements: Sequence[str], from_conda: Callable[[Sequence[str]], tuple[LockedPackage, ...]], resolution: Resolution, glibc: str
) -> tuple[LockedPackage, ...]:
    """Wheels for what conda does not provide. A Python package that both have is conda's and binds the wheels; where the wheels
    cannot live with conda's choice (its pip brings the newest setuptools, which some torch releases refuse), conda takes theirs."""
    bounds = _conda_bounds(requirements)
    base = from_conda(bounds)
    if not requirements:
        return base
    build_path = resolution.local_version.partition("+")[2] if resolution.needs_local_build else None
    resolve = functools.partial(wheels.resolve, requirements, python=resolution.python, glibc=glibc, build_path=build_path)
    free = {package.name: package for package in _explained(resolve, resolution, build_path)}
    shared = sorted({package.name for package in base if package.name not in ("python", "pip")} & free.keys())
    if not shared:
        return base + tuple(free.values())
    try:
        return base + _around(resolve, base, shared)
    except Unsolvable:
        lower = [bound for name in shared if _can_be(from_conda, bound := f"{name} <={free[name].version}")]
        base = from_conda([*bounds, *lower])
        return base + _around(resolve, base, shared)


def _can_be(from_conda: Callable[[Sequence[str]], tuple[LockedPackage, ...]], bound: str) -> bool:
    """Whether conda has an answer within this bound alone; versions of one name need not be counted alike (tzdata 2026.2, 2026b)."""
    try:
        from_conda([bound])
    except Unsolvable:
        return False
    return True


def _around(
    resolve: Callable[..., tuple[LockedPackage, ...]], base: Sequence[LockedPackage], shared: Sequence[str]
) -> tuple[LockedPackage, ...]:
    versions = {package.name: package.version for package in base}
    found = resolve(constraints=[f"{name}=={versions[name]}" for name in shared], leave_out=shared)
    return tuple(package for package in found if package.name not in shared)


def _explained(
    resolve: Callable[..., tuple[LockedPackage, ...]], resolution: Resolution, build_path: str | None
) -> tuple[LockedPackage, ...]:
    try:
        return resolve()
    except Unsolvable as error:
        if build_path:
            error.advice = (
                f"{resolution.local_version} is on PyTorch's own wheel index: name that index (its address up to, without, the folder "
                f"{build_path}) in the environment variable {wheels.TORCH_INDEX}. {error.advice}"
            ).strip()
        raise


def _conda_bounds(requirements: Sequence[str]) -> tuple[str, ...]:
    """Versions that the wheels' requirements allow, as bounds on conda: its pip brings setuptools along, which they may limit."""
    from packaging.requirements import Requirement

    parsed = (Requirement(text) for text in requirements)
    bounded = [f"{wanted.name} {wanted.specifier}" for wanted in parsed if wanted.specifier and not wanted.marker]
    return tuple(bound for bound in bounded if not conda.check_specs([bound]))


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


def _text(wanted: Inputs, packages: Sequence[LockedPackage], folder: Path, python_from: str) -> str:
    from conda_lock.lockfile import write_conda_lock_file
    from conda_lock.lockfile.v1.models import DependencySource, HashModel, LockMeta
    from conda_lock.lockfile.v2prelim.models import LockedDependency, Lockfile

    spec, hashes = _lock_specification(folder)
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
            source=DependencySource(type="url", url=package.url) if package.direct else None,
            categories={"main"},
        )
        for package in packages
    ]
    portable = python_from == "channel" and not any(package.url.startswith("file:") for package in packages)
    custom = {PYTHON_FROM: python_from, PORTABLE: str(portable).lower(), INPUTS: wanted.sha256}
    meta = LockMeta(
        content_hash=hashes, channels=spec.channels, platforms=spec.platforms, sources=["environment.yml"], custom_metadata=custom
    )
    write_conda_lock_file(Lockfile(package=entries, metadata=meta), folder / FILE, metadata_choices=None)
    return (folder / FILE).read_text(encoding="utf-8")


def _dependencies(package: LockedPackage) -> dict[str, str]:
    """Name -> constraint, as conda-lock holds them. Wheels' constraints are uv's business; the edge is what is kept."""
    split = (text.partition(" ") for text in package.depends)
    return {name: (bound if package.manager == "conda" else "*") for name, _, bound in split if name}


def _lock_specification(folder: Path) -> tuple[Any, dict[str, str]]:
    """conda-lock's reading of our files, and its content hash: what `conda-lock lock --check-input-hash` compares."""
    from conda_lock.content_hash import compute_content_hashes
    from conda_lock.src_parser import make_lock_spec
    from conda_lock.virtual_package import virtual_package_repo_from_specification

    names = DATA / "pypi-conda-names.yml"
    with contextlib.redirect_stderr(io.StringIO()):
        spec = make_lock_spec(src_files=[folder / ENVIRONMENT], platform_overrides=[PLATFORM], mapping_url=names.absolute().as_uri())
        machine = virtual_package_repo_from_specification(folder / VIRTUAL_PACKAGES)
        with machine:
            return spec, compute_content_hashes(spec, machine)


def read(path: Path) -> Lock:
    """Parse a conda-lock.yml (v1). Raises IntegrityError for one that cannot be trusted as a lock."""
    import yaml

    raw = path.read_bytes()
    try:
        content = yaml.load(raw, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _lock(path, raw, content)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError, RecursionError) as error:
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
        direct=bool(entry.get("source")),
        depends=tuple(f"{name} {bound}".strip() for name, bound in entry.get("dependencies", {}).items()),
    )


def _build_of(url: str, entry: Mapping[str, Any]) -> str:
    """Locks of other tools may lack the build string; the file name holds it: name-version-build.conda."""
    stem = url.rsplit("/", 1)[-1].removesuffix(".conda").removesuffix(".tar.bz2")
    return stem.removeprefix(f"{entry['name']}-{entry['version']}-")
