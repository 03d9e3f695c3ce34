"""The lock: read strictly, guarded against the wrong build. Making one is tested with real solves in tests/integration."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from provision.errors import CheckFailed, IntegrityError
from provision.model import LockedPackage, Resolution
from provision.pipeline import lock, matrix, spec

LOCK = """\
version: 1
metadata:
  content_hash: {linux-64: abc}
  custom_metadata: {provision_python_from: host, provision_portable: 'false', provision_inputs_sha256: feed}
package:
- name: python
  version: 3.11.7
  manager: conda
  platform: linux-64
  dependencies: {__glibc: '>=2.36'}
  url: file:///channel/linux-64/python-3.11.7-host_0.conda
  hash: {md5: d41d8cd98f00b204e9800998ecf8427e, sha256: SHA}
- name: six
  version: 1.17.0
  manager: pip
  platform: linux-64
  url: https://index.invalid/six-1.17.0-py2.py3-none-any.whl
  hash: {sha256: SHA}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "conda-lock.yml"
    path.write_text(text)
    return path


def test_read(tmp_path: Path) -> None:
    found = lock.read(write(tmp_path, LOCK.replace("SHA", "a" * 64)))
    assert (found.python_from, found.portable, found.inputs_sha256, found.content_hash) == ("host", False, "feed", "abc")
    python = found.find("python")
    assert python and (python.build, python.depends, python.filename) == ("host_0", ("__glibc >=2.36",), "python-3.11.7-host_0.conda")
    assert [package.name for package in found.by("pip")] == ["six"]


@pytest.mark.parametrize("sha", ["", "abc", "g" * 64, "A" * 64])
def test_a_hash_that_is_none_is_refused(tmp_path: Path, sha: str) -> None:
    with pytest.raises(IntegrityError, match="python has no well-formed sha256"):
        lock.read(write(tmp_path, LOCK.replace("SHA", f"'{sha}'")))


@pytest.mark.parametrize(
    "text", ["", "version: 1\n", "[", "- a\n", "version: 2\nmetadata: {}\npackage: []\n", LOCK.replace("package:", "packages:")]
)
def test_what_is_not_a_lock_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(IntegrityError, match=r"conda-lock\.yml"):
        lock.read(write(tmp_path, text))


def resolution(**asked: object) -> Resolution:
    return matrix.resolve(spec.combine({}, asked, name=""))


def package(name: str, version: str, build: str = "") -> LockedPackage:
    manager = "conda" if build else "pip"
    return LockedPackage(manager=manager, name=name, version=version, build=build, url=f"https://x.invalid/{name}", sha256="a" * 64)  # type: ignore[arg-type]


def test_guard_accepts_the_build_asked_for() -> None:
    cuda = resolution(torch="2.3", cuda="12.1")
    lock.guard([package("torch", "2.3.1"), package("nvidia-nccl-cu12", "2.20.5")], cuda)
    cpu = resolution(torch="2.13", cpu=True)
    lock.guard([package("torch", "2.13.0+cpu")], cpu)
    channel = resolution(torch="2.3", cuda="12.1", source="pytorch")
    lock.guard([package("pytorch", "2.3.1", "py3.11_cuda12.1_cudnn8.9.2_0")], channel)
    forge = resolution(torch="2.6", cuda="12.6")
    lock.guard([package("pytorch", "2.6.0", "cuda126_generic_py311_h1_200")], forge)


@pytest.mark.parametrize(
    "asked,packages,words",
    [
        ({"torch": "2.3", "cuda": "12.1"}, [("six", "1")], "holds no torch"),
        ({"torch": "2.3", "cuda": "12.1"}, [("torch", "2.3.0")], "is 2.3.0, not 2.3.1"),
        ({"torch": "2.3", "cuda": "12.1"}, [("torch", "2.3.1+cpu")], "not the cu121 build"),
        ({"torch": "2.3", "cuda": "12.1"}, [("torch", "2.3.1"), ("nvidia-nccl-cu12", "2.21.5")], "locked NCCL is 2.21.5"),
        ({"torch": "2.3", "cuda": "12.1"}, [("torch", "2.3.1"), ("nvidia-nccl-cu12", "2.20.5"), ("nvidia-nccl-cu13", "2.28.9")], "mixes"),
        ({"torch": "2.13", "cpu": True}, [("torch", "2.13.0")], "not the cpu build"),
        ({"torch": "2.13", "cpu": True}, [("torch", "2.13.0+cpu"), ("nvidia-nccl-cu13", "2.29.7")], "CPU environment was asked for"),
        ({"torch": "2.9", "cuda": "13.0"}, [("torch", "2.9.1")], "not the cu130 build"),
        ({"torch": "2.3", "cuda": "12.1", "source": "pytorch"}, [("pytorch", "2.3.1", "py3.11_cpu_0")], "locked build is another one"),
        ({"torch": "2.6", "cuda": "12.6"}, [("pytorch", "2.6.0", "cpu_generic_py311_0")], "locked build is another one"),
    ],
)
def test_guard_refuses_and_names_the_record(asked: dict[str, object], packages: list[tuple[str, ...]], words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        lock.guard([package(*row) for row in packages], resolution(**asked))


def test_locked_package_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        package("torch", "1").version = "2"  # type: ignore[misc]
