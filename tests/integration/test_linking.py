"""conda packages of a few bytes linked from a server at fault, without a command around it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.adapters import conda, http
from provision.adapters.http import sha256_of
from provision.channel.conda_package import write_conda_package
from provision.core.errors import IntegrityError, ProvisionError, Unreachable
from provision.core.mirrors import Mirrors, parse_mirror
from provision.core.types import LockedPackage
from tests.faulty import Fault, Server, served
from tests.integration.test_image import Watching

OWN = "https://channels.invalid/lab"


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two packages of one file each."""
    folder = tmp_path_factory.mktemp("channel")
    (folder / "linux-64").mkdir()
    for name in ("alpha", "beta"):
        stage = tmp_path_factory.mktemp("stage")
        (stage / f"{name}.txt").write_text("".join(f"line {number}\n" for number in range(20_000)))
        index: dict[str, object] = {
            "name": name,
            "version": "1.0",
            "build": "h0_0",
            "build_number": 0,
            "depends": [],
            "subdir": "linux-64",
        }
        write_conda_package(folder / "linux-64" / f"{name}-1.0-h0_0.conda", stage, index)
    return folder


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(http.TIMEOUT_VARIABLE, "1")


@pytest.fixture
def server(channel: Path) -> Iterator[Server]:
    with served(channel) as running:
        yield running


def package(channel: Path, name: str) -> LockedPackage:
    path = channel / "linux-64" / f"{name}-1.0-h0_0.conda"
    url = f"{OWN}/linux-64/{path.name}"
    return LockedPackage(
        manager="conda",
        name=name,
        version="1.0",
        build="h0_0",
        url=url,
        sha256=sha256_of(path),
    )


def link(server: Server, channel: Path, folder: Path, *packages: LockedPackage) -> None:
    mirrors = Mirrors([parse_mirror(f"{OWN}={server.url}", Path())])
    packages_ = packages or (package(channel, "alpha"), package(channel, "beta"))
    conda.install_packages(
        packages_,
        folder / "prefix",
        final=Path("/opt/env"),
        cache=folder / "cache",
        progress=Watching(),
        mirrors=mirrors,
    )


def test_record_names_the_channel(server: Server, channel: Path, tmp_path: Path) -> None:
    link(server, channel, tmp_path)
    record = json.loads((tmp_path / "prefix" / "conda-meta" / "alpha-1.0-h0_0.json").read_text())
    assert (record["url"], record["channel"]) == (f"{OWN}/linux-64/alpha-1.0-h0_0.conda", OWN)
    assert (tmp_path / "prefix" / "beta.txt").exists()


def test_records_are_as_readable_as_the_prefix(
    server: Server, channel: Path, tmp_path: Path
) -> None:
    link(server, channel, tmp_path)
    assert {
        path.stat().st_mode & 0o444 for path in (tmp_path / "prefix" / "conda-meta").iterdir()
    } == {(tmp_path / "prefix" / "beta.txt").stat().st_mode & 0o444}


@pytest.mark.parametrize("kind", [503, "truncate", "drop"])
def test_temporary_faults_are_retried(
    server: Server, channel: Path, tmp_path: Path, kind: Fault
) -> None:
    server.fault("alpha", kind, times=3)
    link(server, channel, tmp_path)
    assert (tmp_path / "prefix" / "alpha.txt").exists()


def test_slow_server_is_waited_for(server: Server, channel: Path, tmp_path: Path) -> None:
    server.fault("alpha", "slow")
    link(server, channel, tmp_path)


@pytest.mark.parametrize(
    "kind,error,message",
    [
        (404, Unreachable, "alpha-1.0-h0_0.conda .*404"),
        (403, Unreachable, "alpha-1.0-h0_0.conda .*403"),
        ("wrong", IntegrityError, "not the conda package that the lock names"),
    ],
)
def test_lasting_faults_are_reported(
    server: Server,
    channel: Path,
    tmp_path: Path,
    kind: Fault,
    error: type[ProvisionError],
    message: str,
) -> None:
    server.fault("alpha", kind)
    with pytest.raises(error, match=message):
        link(server, channel, tmp_path)
    assert server.log.count("/linux-64/alpha-1.0-h0_0.conda") == 1  # another try would not help


def test_wrong_package_is_refused(server: Server, channel: Path, tmp_path: Path) -> None:
    """A package that is whole and valid, and not the one that is locked."""
    with pytest.raises(IntegrityError, match=r"alpha-1\.0-h0_0\.conda .*hash mismatch"):
        link(
            server,
            channel,
            tmp_path,
            dataclasses.replace(package(channel, "alpha"), sha256="0" * 64),
        )


def test_unreachable_server(channel: Path, tmp_path: Path) -> None:
    with served(channel) as server:
        pass
    with pytest.raises(Unreachable, match=r"alpha|beta"):
        link(server, channel, tmp_path)


def test_local_file_must_match_the_lock(channel: Path, tmp_path: Path) -> None:
    mirrors = Mirrors([parse_mirror(f"{OWN}={channel}", Path())])
    alpha = package(channel, "alpha")

    def place(item: LockedPackage, name: str) -> None:
        final, cache = Path("/opt/env"), tmp_path / "cache"
        conda.install_packages(
            [item], tmp_path / name, final=final, cache=cache, progress=Watching(), mirrors=mirrors
        )

    place(alpha, "prefix")
    with pytest.raises(IntegrityError, match="sha256 differs"):
        place(dataclasses.replace(alpha, sha256="0" * 64), "none")
    with pytest.raises(Unreachable, match="gone from"):
        place(dataclasses.replace(alpha, url=alpha.url.replace("alpha", "gamma")), "none")
    assert not (tmp_path / "none").exists()
