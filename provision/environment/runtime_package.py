"""The runtime package that we install into environments: `provision_runtime` with its own
dist-info, as the wheel of provision-runtime has it.

No lock names it, because nothing downloads it: its files come from the running provision. The same
version of provision always installs the same bytes, in prefixes and in images, and pip and
importlib.metadata see an ordinary package.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
from importlib.resources import files
from pathlib import Path

from provision.adapters.installed_files import record_hash, record_text
from provision.core.atomic import atomic_write, replace_directory, staging_path
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, SystemRefused
from provision.core.system_errors import from_system
from provision_runtime import __version__
from provision_runtime.facts.freshness import PACKAGE_SUFFIXES

NAME = "provision_runtime"
FOLDER = Path(str(files(NAME)))
# Starts the hook in ranks. Python reads it only at the top of site-packages.
PTH = f"{NAME}.pth"
# What runtime/pyproject.toml says; a test compares them.
_METADATA = """\
Metadata-Version: 2.1
Name: provision-runtime
Version: {version}
Summary: Checkpoints that are complete or absent, steps that all ranks take together, and a smoke \
test for distributed PyTorch.
License: Apache-2.0
Requires-Python: >=3.8
"""
_WHEEL = """\
Wheel-Version: 1.0
Generator: provision {version}
Root-Is-Purelib: true
Tag: py3-none-any
"""


@frozen
class InstalledRuntime:
    """The runtime package that an environment holds."""

    version: str
    sha256: str  # of its RECORD, which has the hash of every file


@frozen
class RuntimePackage:
    """One version of the runtime package. files: their content by their path below site-packages."""

    version: str
    files: dict[str, bytes]

    @property
    def dist_info(self) -> str:
        return f"{NAME}-{self.version}.dist-info"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.files[f"{self.dist_info}/RECORD"]).hexdigest()


def load(folder: Path = FOLDER, version: str = __version__) -> RuntimePackage:
    contents = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in relative.parts)
        if path.suffix in PACKAGE_SUFFIXES and path.is_file() and not is_hidden:
            contents[f"{NAME}/{relative.as_posix()}"] = path.read_bytes()
    for path in folder.glob(f"hang/{PTH}"):
        contents[PTH] = path.read_bytes()
    dist_info = f"{NAME}-{version}.dist-info"
    contents[f"{dist_info}/INSTALLER"] = b"provision\n"
    contents[f"{dist_info}/METADATA"] = _METADATA.format(version=version).encode()
    contents[f"{dist_info}/WHEEL"] = _WHEEL.format(version=version).encode()
    rows = [(path, record_hash(text), str(len(text))) for path, text in contents.items()]
    # A RECORD has no hash of itself (PEP 376, PEP 427).
    rows.append((f"{dist_info}/RECORD", "", ""))
    contents[f"{dist_info}/RECORD"] = record_text(sorted(rows))
    return RuntimePackage(version=version, files=dict(sorted(contents.items())))


def site_packages(prefix: Path) -> Path:
    """The folder of Python packages in a prefix. Raises IntegrityError if it has no Python.

    conda's Python 3.10 and later come with a link `lib/python3.1` to the real folder.
    """
    for folder in sorted(prefix.glob("lib/python3*/site-packages")):
        if not folder.parent.is_symlink():
            return folder
    raise IntegrityError(
        f"{prefix} has no lib/python3.*/site-packages.",
        advice="`provision env remove` the environment and build it again.",
    )


def installed(prefix: Path) -> InstalledRuntime | None:
    """The runtime package of a prefix, by its dist-info."""
    for record in sorted(prefix.glob(f"lib/python3*/site-packages/{NAME}-*.dist-info/RECORD")):
        version = record.parent.name.removesuffix(".dist-info").removeprefix(f"{NAME}-")
        return InstalledRuntime(
            version=version, sha256=hashlib.sha256(record.read_bytes()).hexdigest()
        )
    return None


def is_current(prefix: Path, package: RuntimePackage) -> bool:
    """Whether a prefix holds exactly this package: only this version, and every file the same."""
    site = site_packages(prefix)
    if [path.name for path in site.glob(f"{NAME}-*.dist-info")] != [package.dist_info]:
        return False
    try:
        return all((site / path).read_bytes() == package.files[path] for path in package.files)
    except OSError:
        return False


def install(prefix: Path, package: RuntimePackage) -> None:
    """Install the package into a prefix, replacing any other version. The caller holds the
    environment's lock.

    The old dist-info is removed first and the new one is added last: after a kill in between, the
    package counts as not installed, and the next call repairs it. The package's own folder changes
    in one step, for jobs that import it at that moment.
    """
    site = site_packages(prefix)
    package_folder, dist_info = site / NAME, site / package.dist_info
    try:
        _remove_leftovers(site)
        for path, content in package.files.items():
            folder_name, _, relative = path.partition("/")
            if not relative:  # the .pth file, which is written last
                continue
            target = staging_path(site / folder_name) / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(0o644)
        for outdated in site.glob(f"{NAME}-*.dist-info"):
            shutil.rmtree(outdated)
        replace_directory(package_folder)
        if PTH in package.files:
            atomic_write(site / PTH, package.files[PTH])
        replace_directory(dist_info)
        _remove_leftovers(site)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise SystemRefused(
                f"{prefix} has no current {NAME}, and you may not write there: {error.strerror}.",
                advice="Ask the owner of the prefix to run `provision env create` with your version of "
                "provision.",
            ) from error
        raise from_system(error, prefix) from error


def _remove_leftovers(site: Path) -> None:
    """Remove staging directories and backups, also those of other versions."""
    for leftover in site.glob(f".{NAME}*.provision-*"):
        shutil.rmtree(leftover)
