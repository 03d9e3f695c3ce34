"""Writing conda-lock.yml (v1), with conda-lock's own models, header and content hash."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from provision.compat import DATA
from provision.model import LockedPackage, Platform
from provision.pipeline.lock.asked import ENVIRONMENT, VIRTUAL_PACKAGES, Inputs

FILE = "conda-lock.yml"

# Keys of the lock's metadata.custom_metadata; conda-lock carries them along untouched.
PYTHON_FROM, PORTABLE, INPUTS = "provision_python_from", "provision_portable", "provision_inputs_sha256"
AS_OF, SOLVER = "provision_as_of", "provision_solver"


_importing = threading.Lock()


def preload() -> None:
    """Begin to import conda-lock (0.5 s) while a solver's threads work."""
    threading.Thread(target=_import, daemon=True).start()


def _import() -> None:
    """conda-lock's modules import each other in a circle: two threads that begin at different ones see half of them (tried). So
    whoever needs one of them comes through here first."""
    with _importing:
        import conda_lock  # noqa: F401 - for the import alone


def text(wanted: Inputs, packages: Sequence[LockedPackage], *, python_from: Literal["channel", "host"], solver: str | None = None) -> str:
    """The lock file of these packages, of all platforms. solver: the executable that solved, if it was not ours."""
    _import()
    from conda_lock.lockfile.v1.models import LockMeta
    from conda_lock.lockfile.v2prelim.models import Lockfile

    portable = python_from == "channel" and not any(package.url.startswith("file:") for package in packages)
    custom = {PYTHON_FROM: python_from, PORTABLE: str(portable).lower(), INPUTS: wanted.sha256}
    custom |= {AS_OF: wanted.as_of} if wanted.as_of else {}
    custom |= {SOLVER: solver} if solver else {}
    with _specification(wanted) as (spec, hashes):
        meta = LockMeta(
            content_hash=hashes, channels=spec.channels, platforms=spec.platforms, sources=[ENVIRONMENT], custom_metadata=custom
        )
    return _document(Lockfile(package=[_entry(package) for package in packages], metadata=meta))


def content_hashes(wanted: Inputs) -> dict[Platform, str]:
    """conda-lock's hashes of the inputs: they tell whether a lock that another tool made is theirs."""
    with _specification(wanted) as (_, hashes):
        return hashes


@contextmanager
def _specification(wanted: Inputs) -> Iterator[tuple[Any, dict[Platform, str]]]:
    """conda-lock's reading of our files, and its content hashes: what `conda-lock lock --check-input-hash` compares."""
    _import()
    from conda_lock.content_hash import compute_content_hashes
    from conda_lock.src_parser import make_lock_spec
    from conda_lock.virtual_package import virtual_package_repo_from_specification

    names = (DATA / "pypi-conda-names.yml").absolute().as_uri()
    with written(wanted) as folder:
        spec = make_lock_spec(src_files=[folder / ENVIRONMENT], platform_overrides=list(wanted.machines), mapping_url=names)
        machines = virtual_package_repo_from_specification(folder / VIRTUAL_PACKAGES)
        try:
            yield spec, compute_content_hashes(spec, machines)
        finally:
            shutil.rmtree(machines.base_path)  # conda-lock leaves it to an exit handler, which need not run


@contextmanager
def written(wanted: Inputs) -> Iterator[Path]:
    """A folder, for as long as it is needed, with the two files as they are locked."""
    with tempfile.TemporaryDirectory(prefix="provision-") as scratch:
        folder = Path(scratch)
        (folder / ENVIRONMENT).write_text(wanted.environment, encoding="utf-8")
        (folder / VIRTUAL_PACKAGES).write_text(wanted.virtual_packages, encoding="utf-8")
        yield folder


def _entry(package: LockedPackage) -> Any:
    from conda_lock.lockfile.v1.models import DependencySource, HashModel
    from conda_lock.lockfile.v2prelim.models import LockedDependency

    return LockedDependency(
        name=package.name,
        version=package.version,
        manager=package.manager,
        platform=package.platform,
        dependencies=_dependencies(package),
        url=package.url,
        hash=HashModel(md5=package.md5, sha256=package.sha256),
        build=package.build or None,
        source=DependencySource(type="url", url=package.url) if package.direct else None,
        categories={"main"},
    )


def _dependencies(package: LockedPackage) -> dict[str, str]:
    """Name -> constraint, as conda-lock holds them. Wheels' constraints are uv's business; the edge is what is kept."""
    found: dict[str, str] = {}
    for text in package.depends:
        name, _, bound = text.partition(" ")
        found[name] = _both(found.get(name, ""), bound) if package.manager == "conda" else "*"
    return {name: bound for name, bound in found.items() if name}


def _both(one: str, other: str) -> str:
    """Two constraints of one package in one; one with a build string says more than any without, and cannot be joined."""
    if not one or not other or one == other:
        return one or other
    return max(one, other, key=lambda bound: bound.count(" ")) if " " in one + other else f"{one},{other}"


def _document(lock: Any) -> str:
    """As conda-lock's own writer has it (a test compares them), by libyaml: 5 times as fast, which counts where locks are many."""
    import yaml

    lock.alphasort_inplace()
    lock.filter_virtual_packages_inplace()
    content: Mapping[str, Any] = lock.to_v1().dict_for_output()
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return _header(lock) + str(yaml.dump(content, Dumper=dumper, sort_keys=False))


def _header(lock: Any) -> str:
    """conda-lock's comment on what the file is and what to do with it."""
    from conda_lock.lockfile import write_conda_lock_file

    with tempfile.TemporaryDirectory(prefix="provision-") as scratch:
        path = Path(scratch) / FILE
        write_conda_lock_file(lock.model_copy(update={"package": lock.package[:1]}), path, metadata_choices=None)
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("#"))
