"""What a lock was made from, as far as it lies beside it: the machine that the solver assumed, and the inputs' content hash."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.catalog import DATA
from provision.core.errors import NOT_YAML, InvalidSpec
from provision.lockfile.conda_lock_v1_contents import LockFile
from provision.lockfile.conda_lock_v1_writer import INPUTS
from provision.lockfile.content_hash import load_conda_lock, ours
from provision.lockfile.input_files import ENVIRONMENT, VIRTUAL_PACKAGES, read_inputs
from provision.lockfile.verify.model import LockFinding


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the solver assumed of the machine, by platform. complete: it assumed no more than this."""

    offers: Mapping[str, Mapping[str, str]]
    complete: bool

    def knows(self, platform: str, name: str) -> bool:
        return platform in self.offers and (self.complete or name in self.offers[platform])


def machine(lock: LockFile) -> Machine | None:
    """By the file beside the lock; for a lock of conda-lock's own, by its default, but for CUDA, which is an option of its command."""
    import yaml

    beside = lock.path.parent / VIRTUAL_PACKAGES
    if not beside.is_file() and INPUTS in lock.custom:
        return None
    path = beside if beside.is_file() else _conda_locks_default()
    with contextlib.suppress(
        yaml.YAMLError, OSError, AttributeError, TypeError, KeyError, RecursionError
    ):
        subdirs = yaml.safe_load(path.read_text(encoding="utf-8"))["subdirs"]
        said = {
            name: {str(key): str(value) for key, value in row["packages"].items()}
            for name, row in subdirs.items()
        }
        if path == beside:
            return Machine(offers=said, complete=True)
        return Machine(
            offers={
                name: {key: row[key] for key in row if key != "__cuda"}
                for name, row in said.items()
            },
            complete=False,
        )
    return None


def _conda_locks_default() -> Path:
    load_conda_lock()
    import conda_lock

    return Path(conda_lock.__file__).parent / "default-virtual-packages.yaml"


def compared(lock: LockFile, hashes: Mapping[str, set[str]] | None) -> Iterator[LockFinding]:
    """Whether the lock was made from what `content_hashes` read."""
    for platform, known in sorted(lock.content_hash.items()):
        if hashes is not None and platform in hashes and known not in hashes[platform]:
            message = f"was not locked from {', '.join(lock.sources)} as it stands beside it: the content hash differs"
            yield LockFinding(
                platform=platform, package=lock.path.name, kind="inputs", message=message
            )


def pip(lock: LockFile) -> tuple[str, ...]:
    """The pip requirements of the environment.yml beside the lock; none if there is no such file, or it is of another kind."""
    import yaml

    path = lock.path.parent / ENVIRONMENT
    if ENVIRONMENT not in lock.sources or not path.is_file():
        return ()
    with contextlib.suppress(yaml.YAMLError, OSError, *NOT_YAML):
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))["dependencies"]
        return tuple(str(text) for row in rows if isinstance(row, dict) for text in row["pip"])
    return ()


def content_hashes(lock: LockFile) -> Mapping[str, set[str]] | None:
    """conda-lock's content hashes of the inputs beside the lock, by platform: with the virtual packages beside it and with
    conda-lock's defaults, since a lock does not say which were used. None: the inputs are not there to be read."""
    sources = [lock.path.parent / source for source in lock.sources]
    if not sources or not all(
        source.is_file() and source.suffix in (".yml", ".yaml") for source in sources
    ):
        return None
    if INPUTS in lock.custom and not (lock.path.parent / VIRTUAL_PACKAGES).is_file():
        return None  # ours are always of such a file, and the hash is of it too
    if (quick := _quick(lock, sources)) is not None:
        return quick
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(Exception),
    ):  # conda-lock's parsers raise many things
        return _conda_locks_hashes(lock, sources)
    return None


def _quick(lock: LockFile, sources: Sequence[Path]) -> Mapping[str, set[str]] | None:
    """Ours, if they are what the lock says: without importing conda-lock (0.5 s)."""
    beside = lock.path.parent / VIRTUAL_PACKAGES
    if [source.name for source in sources] != [ENVIRONMENT] or not beside.is_file():
        return None
    with contextlib.suppress(InvalidSpec, OSError, UnicodeDecodeError):
        hashes = (
            ours(
                read_inputs(
                    sources[0].read_text(encoding="utf-8"),
                    beside.read_text(encoding="utf-8"),
                    lock.path.parent,
                )
            )
            or {}
        )
        if dict(lock.content_hash) == hashes:
            return {platform: {value} for platform, value in lock.content_hash.items()}
    return None


def _conda_locks_hashes(lock: LockFile, sources: Sequence[Path]) -> Mapping[str, set[str]]:
    load_conda_lock()
    from conda_lock.content_hash import backwards_compatible_content_hashes
    from conda_lock.src_parser import make_lock_spec
    from conda_lock.virtual_package import (
        default_virtual_package_repodata,
        virtual_package_repo_from_specification,
    )

    names = (DATA / "pypi-conda-names.yml").absolute().as_uri()
    spec = make_lock_spec(
        src_files=list(sources), platform_overrides=list(lock.platforms), mapping_url=names
    )
    beside = lock.path.parent / VIRTUAL_PACKAGES
    machines: list[Any] = (
        [virtual_package_repo_from_specification(beside)] if beside.is_file() else []
    )
    machines += [
        default_virtual_package_repodata(),
        default_virtual_package_repodata(cuda_version=""),
    ]
    try:
        return {
            platform: set().union(
                *(
                    backwards_compatible_content_hashes(spec, machine, platform)
                    for machine in machines
                )
            )
            for platform in lock.platforms
        }
    finally:
        for machine in machines:
            shutil.rmtree(
                machine.base_path
            )  # conda-lock leaves it to an exit handler, which need not run
