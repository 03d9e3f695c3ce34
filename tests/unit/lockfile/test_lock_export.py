"""Exports held against the readers of each format: packaging, rattler,
conda-lock's own renderer."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision import lockfile
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.sbom import Licenses
from tests.unit.lockfile.test_lock_verify import SHA, conda_entry, entry, sound, wheel_entry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def ugly() -> dict[str, Any]:
    """What real locks hold: local versions, underscores, epochs, tar.bz2, files of the disk, other
    categories and platforms."""
    content = sound()
    content["package"] += [
        {
            **wheel_entry("torchvision", "0.18.1", "torch"),
            "version": "0.18.1+cu121",
            "url": "https://files.invalid/w/torchvision-0.18.1%2Bcu121-py3-none-any.whl",
        },
        wheel_entry("typing-extensions", "4.12.2"),
        {**wheel_entry("mine", "1.0"), "url": "file:///home/me/mine-1.0-py3-none-any.whl"},
        conda_entry("_libgcc_mutex", "0.1", "conda_forge"),
        conda_entry("x264", "1!164.3095", "h166bdaf_2"),
        {**wheel_entry("pytest", "8.0"), "category": "dev"},
        {**wheel_entry("torch", "2.3.1"), "platform": "linux-aarch64"},
    ]
    mutex = entry(content, "_libgcc_mutex")
    mutex["url"] = mutex["url"].replace(".conda", ".tar.bz2")
    return content


@pytest.fixture
def contents(tmp_path: Path) -> lockfile.LockFile:
    return written(tmp_path, ugly())


def written(folder: Path, content: dict[str, Any]) -> lockfile.LockFile:
    path = folder / lockfile.FILE
    path.write_text(yaml.safe_dump(content))
    return lockfile.read_file(path)


def names(contents: lockfile.LockFile, *managers: str) -> set[str]:
    return {
        locked_entry.name
        for locked_entry in lockfile.main_entries(contents, "linux-64")
        if locked_entry.manager in managers
    }


def test_requirements_name_every_wheel_with_its_hash(contents: lockfile.LockFile) -> None:
    from packaging.requirements import Requirement

    text = lockfile.export_lock(contents, "lab", "requirements", "linux-64")
    lines = text.replace("\\\n", "").splitlines()[1:]
    parsed = [Requirement(line.partition(" --hash=")[0].strip()) for line in lines]
    assert {item.name for item in parsed} == names(contents, "pip")
    assert all(line.endswith(f"--hash=sha256:{SHA}") for line in lines)
    assert (
        str(next(item.specifier for item in parsed if item.name == "torchvision"))
        == "==0.18.1+cu121"
    )
    assert (
        next(item.url for item in parsed if item.name == "mine")
        == "file:///home/me/mine-1.0-py3-none-any.whl"
    )


@pytest.mark.parametrize(
    "kind,manager", [("requirements", "conda"), ("pylock", "conda"), ("explicit", "pip")]
)
def test_omitted_packages_are_reported(
    contents: lockfile.LockFile, kind: lockfile.ExportFormat, manager: str
) -> None:
    missing, notes = lockfile.omitted_entries(contents, kind, "linux-64")
    assert {package.name for package in missing} == names(contents, manager) | {"pytest"}
    assert next(iter(sorted(names(contents, manager)))) in notes[0]
    assert notes[1:] == ["left out, as of another category (dev): pytest 8.0"]


@pytest.mark.parametrize("kind,manager", [("requirements", "conda"), ("explicit", "pip")])
def test_empty_export_is_reported(
    tmp_path: Path, kind: lockfile.ExportFormat, manager: str
) -> None:
    content = sound()
    content["package"] = [
        locked_entry for locked_entry in content["package"] if locked_entry["manager"] == manager
    ]
    _, notes = lockfile.omitted_entries(written(tmp_path, content), kind, "linux-64")
    assert "the file installs nothing" in notes[1]


def test_pylock_follows_the_standard(contents: lockfile.LockFile) -> None:
    from packaging.pylock import Pylock

    read = Pylock.from_dict(
        tomllib.loads(lockfile.export_lock(contents, "lab", "pylock", "linux-64"))
    )
    read.validate()
    assert {package.name for package in read.packages} == names(contents, "pip")
    vision = next(package for package in read.packages if package.name == "torchvision")
    assert vision.wheels is not None
    assert (vision.wheels[0].name, vision.wheels[0].hashes) == (
        "torchvision-0.18.1+cu121-py3-none-any.whl",
        {"sha256": SHA},
    )
    assert vision.dependencies == [{"name": "torch"}]
    assert str(read.requires_python) == "==3.11.*"


def test_parts_of_an_sbom(contents: lockfile.LockFile) -> None:
    entries = lockfile.main_entries(contents, "linux-64")
    known: Licenses = {("conda", "numpy"): "bsd-3-clause"}
    parts = {part.name: part for part in lockfile.sbom_parts(entries, known)}
    assert parts.keys() == names(contents, "conda", "pip")
    assert (
        parts["numpy"].purl
        == "pkg:conda/numpy@1.26.4?build=py311_0&channel=conda-forge&subdir=linux-64&type=conda"
    )
    assert parts["_libgcc_mutex"].purl.endswith("&type=tar.bz2")
    assert parts["torchvision"].purl == "pkg:pypi/torchvision@0.18.1%2Bcu121"
    assert (parts["numpy"].license, parts["libz"].license) == ("bsd-3-clause", "")
    assert parts["mine"].url == "" and parts["torch"].sha256 == SHA
    assert set(parts["torch"].needs) == {parts["numpy"].key, parts["filelock"].key}


def test_explicit_has_conda_locks_lines(tmp_path: Path) -> None:
    content = ugly()
    result = written(tmp_path, content)
    text = lockfile.export_lock(result, "lab", "explicit", "linux-64")
    command = [
        sys.executable,
        "-m",
        "conda_lock",
        "render",
        "-k",
        "explicit",
        "-p",
        "linux-64",
        "--no-dev-dependencies",
        str(result.path),
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    expected = (tmp_path / "conda-linux-64.lock").read_text().splitlines()
    expected.remove("# Generated by conda-lock.")
    assert sorted(text.splitlines()) == sorted(line for line in expected if line != "#")
    assert f"/linux-64/x264-1!164.3095-h166bdaf_2.conda#{'b' * 32}" in text
    assert text.index("libz-") < text.index("python-")  # needed first


@pytest.mark.parametrize("kind", ["explicit", "requirements", "pylock", "pixi"])
def test_the_same_lock_gives_the_same_bytes(tmp_path: Path, kind: lockfile.ExportFormat) -> None:
    (tmp_path / "other").mkdir()
    texts = {
        lockfile.export_lock(written(folder, ugly()), "lab", kind, "linux-64")
        for folder in (tmp_path, tmp_path / "other")
    }
    assert len(texts) == 1
    assert texts.pop().endswith("\n")


def test_pixi_lock_is_what_rattler_reads(contents: lockfile.LockFile, tmp_path: Path) -> None:
    from rattler import LockFile
    from rattler.lock import PypiLockedPackage

    platforms = lockfile.export_platforms(contents, "pixi", None)
    assert platforms == ("linux-64", "linux-aarch64")
    path = tmp_path / "pixi.lock"
    path.write_text(lockfile.export_lock(contents, "lab", "pixi", *platforms))
    document = yaml.safe_load(path.read_text())
    assert document["version"] == 6
    environment = LockFile.from_path(path).default_environment()
    assert environment is not None
    assert {platform.name for platform in environment.platforms()} == set(platforms)
    for platform in environment.platforms():
        entries = {
            item.name.replace("_", "-") if item.manager == "pip" else item.name: item
            for item in lockfile.main_entries(contents, platform.name)
        }
        packages = environment.packages(platform) or []
        assert {package.name for package in packages} == set(entries)
        for package in packages:
            assert package.location in entries[package.name].url
            if isinstance(package, PypiLockedPackage):
                assert package.version == entries[package.name].version
        for record in environment.conda_repodata_records_for_platform(platform) or []:
            item = entries[record.name.normalized]
            assert (record.url, str(record.build)) == (item.url, item.build)
            assert record.sha256 == bytes.fromhex(SHA) and record.md5 == bytes.fromhex(
                item.md5 or ""
            )
            assert record.depends == list(item.depends)
    assert {row["sha256"] for row in document["packages"]} == {SHA}  # rattler shows no wheel's hash


def test_pixi_lock_names_the_folder_of_a_file_on_disk(
    contents: lockfile.LockFile, tmp_path: Path
) -> None:
    """As a lock has Python that comes from this machine: rattler reads it from no path."""
    from rattler import LockFile

    packages = [
        replace(item, url=item.url.replace("https://", "file:///"))
        if item.manager == "conda"
        else item
        for item in contents.entries
    ]
    path = tmp_path / "pixi.lock"
    path.write_text(
        lockfile.export_lock(replace(contents, entries=tuple(packages)), "lab", "pixi", "linux-64")
    )
    environment = LockFile.from_path(path).default_environment()
    assert environment is not None and environment.packages(environment.platforms()[0])


def test_several_platforms_need_the_option(contents: lockfile.LockFile, tmp_path: Path) -> None:
    assert lockfile.export_platforms(contents, "explicit", None) == ("linux-64",)
    assert lockfile.export_platforms(contents, "explicit", "linux-aarch64") == ("linux-aarch64",)
    with pytest.raises(
        InvalidSpec, match=r"not locked for osx-64.*linux-64, linux-aarch64"
    ) as caught:
        lockfile.export_platforms(contents, "explicit", "osx-64")
    assert "linux-aarch64" in caught.value.advice
    content = copy.deepcopy(sound())
    for locked_entry in content["package"]:
        locked_entry["platform"] = "osx-arm64"
    content["metadata"].update(platforms=["osx-arm64"])
    assert lockfile.export_platforms(written(tmp_path, content), "explicit", None) == ("osx-arm64",)


def test_wheel_without_a_hash_is_refused(tmp_path: Path) -> None:
    content = sound()
    entry(content, "torch")["hash"] = {"md5": "b" * 32}
    for kind in ("requirements", "pylock", "pixi"):
        with pytest.raises(IntegrityError, match="torch has no sha256"):
            lockfile.export_lock(written(tmp_path, content), "lab", kind, "linux-64")
