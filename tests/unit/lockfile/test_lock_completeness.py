"""A lock from which packages were taken out is refused before anything is made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import lockfile
from provision.core.errors import IntegrityError
from provision.core.types import Lock, LockedPackage, Pin


def package(manager: str, name: str, *depends: str) -> LockedPackage:
    return LockedPackage(
        manager="conda" if manager == "conda" else "pip",
        name=name,
        version="1.0",
        url="x",
        sha256="a",
        depends=depends,
    )


def lock(*packages: LockedPackage) -> Lock:
    return Lock(
        path=Path("conda-lock.yml"),
        sha256="",
        inputs_sha256="",
        content_hash="",
        packages=packages,
        python_from="channel",
        portable=True,
    )


PYTHON = package("conda", "python", "__glibc >=2.17", "openssl >=3")
OPENSSL = package("conda", "openssl")
TORCH = package("pip", "torch", "Typing_Extensions", "numpy")
PINS = (
    Pin(manager="pip", requirement="torch==2.3.1", reason="", source=""),
    Pin(manager="conda", requirement="conda-forge::python=3.11", reason="", source=""),
    Pin(manager="pip", requirement="numpy<3", reason="", source=""),
)
NUMPY = package("conda", "numpy", "python >=3.11,<3.12.0a0")


def test_a_closed_lock_is_complete() -> None:
    typing = package("pip", "typing-extensions")
    lockfile.require_complete(lock(PYTHON, OPENSSL, TORCH, typing, NUMPY), PINS)


@pytest.mark.parametrize(
    "packages,problem",
    [
        ((PYTHON, OPENSSL, NUMPY), "it has no torch, which the request needs"),
        ((PYTHON, OPENSSL, package("conda", "numpy")), "it has no numpy, which the request needs"),
        (
            (PYTHON, TORCH, NUMPY),
            "python needs openssl, which is not in it; torch needs Typing_Ext",
        ),
        ((PYTHON, OPENSSL, TORCH, NUMPY), "torch needs Typing_Extensions, which is not in it"),
        ((OPENSSL, NUMPY), "it has no torch, which the request needs; it has no python"),
    ],
)
def test_a_lock_without_a_required_package_is_refused(
    packages: tuple[LockedPackage, ...], problem: str
) -> None:
    with pytest.raises(IntegrityError) as refused:
        lockfile.require_complete(lock(*packages), PINS)
    assert problem in refused.value.message
