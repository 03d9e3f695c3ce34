"""Wheel metadata from servers with and without metadata files and range requests."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.adapters import http, uv
from provision.core.errors import Unreachable
from tests.faulty import Fault, Server, served
from tests.small import write_wheel

NEEDS = ("numpy>=1.26", "sympy; extra == 'all'")
LAB = uv.WheelMetadata(name="lab", version="1.0", requires_python="", requires=NEEDS)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(http.TIMEOUT_VARIABLE, "0.3")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_wheel(tmp_path / "files", "lab", "1.0", needs=NEEDS)


@pytest.fixture
def server(wheel: Path) -> Iterator[Server]:
    with served(wheel.parent) as running:
        yield running


def ask(url: str) -> uv.WheelMetadata:
    with http.HttpClient() as web:
        return uv.fetch_metadata(web, url)


def test_metadata_file_next_to_the_wheel_is_enough(server: Server, wheel: Path) -> None:
    text = "Metadata-Version: 2.1\nName: Lab\nVersion: 1.0\nRequires-Python: >=3.9\nSummary: caf\xe9\nRequires-Dist: torch (==2.3.1)\n"
    Path(f"{wheel}.metadata").write_bytes(text.encode("latin-1"))
    result = ask(f"{server.url}/{wheel.name}#sha256=00")
    assert result == uv.WheelMetadata(
        name="Lab", version="1.0", requires_python=">=3.9", requires=("torch (==2.3.1)",)
    )
    assert server.log == [f"/{wheel.name}.metadata"]


@pytest.mark.parametrize("stored", [True, False], ids=["small", "large"])
def test_metadata_from_ranges_of_the_wheel(server: Server, wheel: Path, stored: bool) -> None:
    if not stored:
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr("lab-1.0.data/data/weights", bytes(3_000_000))
    assert ask(f"{server.url}/{wheel.name}") == LAB
    assert len(server.ranges) > 1
    assert (
        sum(
            1 + int(end) - int(begin)
            for begin, end in (text.removeprefix("bytes=").split("-") for text in server.ranges)
        )
        < 400_000
    )


def test_local_wheel(wheel: Path) -> None:
    assert ask(wheel.as_uri()) == LAB


@pytest.mark.parametrize(
    "faults,reason",
    [
        ([(".whl", "no-range")], "the server does not support range requests"),
        ([(".whl", 403)], "the server answers HTTP 403"),
        ([(".metadata", 404), (".whl", "wrong")], "BadZipFile"),
        ([(".metadata", "drop"), (".whl", "truncate")], "ended before the file did"),
    ],
)
def test_reason_for_a_failure_is_named(
    server: Server, wheel: Path, faults: list[tuple[str, Fault]], reason: str
) -> None:
    for part, kind in faults:
        server.fault(part, kind)
    with pytest.raises(Unreachable) as failed:
        ask(f"{server.url}/{wheel.name}")
    assert reason in failed.value.message.rpartition(": ")[2]


def test_login_page_is_not_metadata(server: Server, wheel: Path) -> None:
    Path(f"{wheel}.metadata").write_text("<html>Please log in: <a href=/>here</a></html>")
    with pytest.raises(Unreachable, match="sends something else"):
        ask(f"{server.url}/{wheel.name}")


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive at all" * 100])
def test_file_that_is_not_a_wheel(wheel: Path, content: bytes) -> None:
    wheel.write_bytes(content)
    with pytest.raises(Unreachable, match=r"has no readable metadata: \w+"):
        ask(wheel.as_uri())
