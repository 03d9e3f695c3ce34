"""How a passport reports pins and the versions chosen for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision.core.errors import IntegrityError
from provision.core.types import Lock, LockedPackage, Manager, Pin
from provision.environment import passport


def package(manager: Manager, name: str, version: str) -> LockedPackage:
    return LockedPackage(
        manager=manager, name=name, version=version, url="file:///x", sha256="0" * 64
    )


LOCK = Lock(
    path=Path("conda-lock.yml"),
    sha256="0" * 64,
    content_hash="0" * 64,
    inputs_sha256="0" * 64,
    packages=(
        package("conda", "pytorch", "2.3.1"),
        package("conda", "numpy", "1.26.4"),
        package("pip", "nvidia-nccl-cu12", "2.20.5"),
    ),
    python_from="channel",
    portable=True,
)


@pytest.mark.parametrize("requirement, version", [
    ("pytorch::pytorch=2.3.1=py3.11_cuda12.1*", "2.3.1"),
    ("numpy", "1.26.4"),
    ("numpy<2", "1.26.4"),
    ("nvidia_nccl.cu12==2.20.5", "2.20.5"),
    ("Numpy[extra]~=1.0", "1.26.4"),
    ("setuptools<82", None),
    ("pytorch-cuda=12.1", None),
])  # fmt: skip
def test_version_chosen_for_a_pin(requirement: str, version: str | None) -> None:
    assert (
        passport.locked_version(
            Pin(manager="conda", requirement=requirement, reason="", source=""), LOCK
        )
        == version
    )


VERDICT = {
    "schema": 1,
    "place": "image",
    "verdict": "pass",
    "measured_on": {"host": "node1"},
    "report": {"started_at": "2026-01-01T00:00:00Z"},
}


def test_attached_verdict_is_read() -> None:
    assert passport.read_smoke_attachment(json.dumps(VERDICT).encode()) == VERDICT


@pytest.mark.parametrize("change,place", [
    ({"schema": 2}, "schema"),
    ({"place": "cloud"}, "place"),
    ({"verdict": "splendid"}, "verdict"),
    ({"measured_on": {}}, "measured_on"),
    ({"report": []}, "report"),
    ({"report": {"started_at": 1}}, r"report\.started_at"),
])  # fmt: skip
def test_refused_verdict_names_the_field(change: dict[str, Any], place: str) -> None:
    content = json.dumps({**VERDICT, **change}).encode()
    with pytest.raises(IntegrityError, match=f"of schema 1: at {place}: "):
        passport.read_smoke_attachment(content)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 10**5])
def test_attachment_that_is_no_verdict_is_refused(content: bytes) -> None:
    with pytest.raises(IntegrityError):
        passport.read_smoke_attachment(content)
