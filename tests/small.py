"""A package index of tiny wheels that a test can mirror quickly, and the text of a lock."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

from provision import lockfile
from provision.core.types import LockedPackage

# What `--torch 2.13 --cpu --no-companions` asks of an index.
WHEELS = {
    "torch": "2.13.0+cpu",
    "numpy": "2.4.0",
    "ipykernel": "7.0.0",
    "xxhash": "4.1.0",
    "setuptools": "80.0.0",
    "pip": "26.0",
}


def write_wheel(folder: Path, name: str, version: str, needs: Sequence[str] = ()) -> Path:
    """A wheel that installs one module."""
    info = f"{name}-{version}.dist-info"
    required = "".join(f"Requires-Dist: {text}\n" for text in needs)
    files = {
        f"{name}.py": f"__version__ = {version!r}\n"
        + "# padding, so that half of it is something\n" * 2000,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},{_digest(content)},{len(content)}\n" for path, content in files.items()
    )
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), content)
    return wheel


def _digest(content: str) -> str:
    return (
        "sha256="
        + base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
    )


def write_index(folder: Path, more: Sequence[tuple[str, str]] = ()) -> Path:
    """A package index (PEP 503) of the wheels above and more, each a name and a version; returns
    its `simple` folder."""
    for name, version in (*WHEELS.items(), *more):
        wheel = write_wheel(folder / "files", name, version)
        page = folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        with page.open("a") as file:
            file.write(
                f'<a href="../../files/{wheel.name.replace("+", "%2B")}#sha256={sha256}">{wheel.name}</a>\n'
            )
    return folder / "simple"


def lock_text(inputs: lockfile.LockInputs, packages: Sequence[LockedPackage]) -> str:
    """A lock file of these packages, with Python from a channel."""
    path = inputs.folder / lockfile.FILE
    return lockfile.compose(path, inputs, packages, python_from="channel")[0]
