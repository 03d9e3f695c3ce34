"""The wheels of provision-gpu and of provision-runtime: what is in them, also when built from their sdists."""

from __future__ import annotations

import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import hatchling.build
import pytest

import provision_runtime
from provision.environment import runtime_package
from tests.conftest import ROOT

PROJECTS = {"provision": ROOT, "provision_runtime": ROOT / "runtime"}
BUNDLED = "provision/_bundled/"


def build_wheel(project: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> zipfile.ZipFile:
    """PEP 517's functions build the project in the working directory."""
    monkeypatch.chdir(project)
    folder.mkdir()
    return zipfile.ZipFile(folder / hatchling.build.build_wheel(str(folder)))


def build_wheel_from_sdist(
    project: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> zipfile.ZipFile:
    monkeypatch.chdir(project)
    folder.mkdir()
    with tarfile.open(folder / hatchling.build.build_sdist(str(folder))) as archive:
        archive.extractall(folder, filter="data")
    [unpacked] = [path for path in folder.iterdir() if path.is_dir()]
    return build_wheel(unpacked, folder / "wheel", monkeypatch)


def code(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    return {name: wheel.read(name) for name in names}


def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return HeaderParser().parsestr(wheel.read(name).decode())


def test_no_file_is_in_both_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one would overwrite the other's, and its removal would take them away."""
    host, runtime = (
        build_wheel(project, tmp_path / name, monkeypatch) for name, project in PROJECTS.items()
    )
    assert not set(host.namelist()) & set(runtime.namelist())
    in_host, in_runtime = code(host), code(runtime)
    assert {name.split("/")[0] for name in in_host} == {"provision"}
    # provision's copy has the same files, which are those that it installs into environments.
    installed = {
        name: content
        for name, content in runtime_package.load().files.items()
        if ".dist-info/" not in name
    }
    assert in_runtime == installed
    assert {
        name[len(BUNDLED) :]: content
        for name, content in in_host.items()
        if name.startswith(BUNDLED)
    } == {
        # provision installs it at the top of site-packages.
        f"provision_runtime/hang/{name}" if name == runtime_package.PTH else name: content
        for name, content in installed.items()
    }
    assert {"provision/py.typed", "provision/templates/Dockerfile.j2"} <= in_host.keys()
    assert "provision_runtime/py.typed" in installed


@pytest.mark.parametrize("name", PROJECTS)
def test_sdist_builds_the_same_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    wheel = build_wheel(PROJECTS[name], tmp_path / "wheel", monkeypatch)
    again = build_wheel_from_sdist(PROJECTS[name], tmp_path / "sdist", monkeypatch)
    assert {name: wheel.read(name) for name in wheel.namelist()} == {
        name: again.read(name) for name in again.namelist()
    }


def test_environments_get_the_metadata_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = metadata(build_wheel(ROOT / "runtime", tmp_path / "wheel", monkeypatch))
    package = runtime_package.load()
    installed = HeaderParser().parsestr(package.files[f"{package.dist_info}/METADATA"].decode())
    for field in ("Name", "Version", "Summary", "Requires-Python"):
        assert installed[field] == built[field]
    assert installed["License"] == built["License-Expression"]
    assert built["Version"] == provision_runtime.__version__ == package.version
    extras = {"extra == 'fast'"}
    needs = built.get_all("Requires-Dist", [])
    assert {need.partition("; ")[2] for need in needs} == extras, "it depends on nothing"


def test_both_have_the_same_license() -> None:
    assert (ROOT / "runtime" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
