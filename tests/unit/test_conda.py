"""Where channels are, and what of that a lock may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import conda
from provision.errors import InvalidSpec
from provision.model import LockedPackage
from provision.pipeline import lock

CHANNEL = """{"info": {"subdir": "SUBDIR"}, "packages": {}, "packages.conda": {RECORDS}}"""
RECORD = (
    """"NAME-1-0.conda": {"name": "NAME", "version": "1", "build": "0", "build_number": 0, "depends": [DEPENDS], "subdir": "noarch","""
    f""" "md5": "{"a" * 32}", "sha256": "{"a" * 64}", "timestamp": TIMESTAMP}}"""
)


def record(name: str, *, depends: str = "", timestamp: int = 1_700_000_000_000) -> str:
    named = ", ".join(f'"{text}"' for text in depends.split(",") if text)
    return RECORD.replace("NAME", name).replace("DEPENDS", named).replace("TIMESTAMP", str(timestamp))


def make_channel(folder: Path, *records: str) -> Path:
    for subdir in ("linux-64", "noarch"):
        (folder / subdir).mkdir(parents=True)
        rows = ", ".join(records) if subdir == "noarch" else ""
        (folder / subdir / "repodata.json").write_text(CHANNEL.replace("SUBDIR", subdir).replace("RECORDS", rows))
    return folder


def request(*specs: str, channels: tuple[str, ...] = ("lab",), **more: str) -> conda.Request:
    return conda.Request(specs=specs, channels=channels, virtual_packages=(("__glibc", "2.28"),), **more)  # type: ignore[arg-type]


def test_a_lock_names_the_channel_not_the_mirror(tmp_path: Path) -> None:
    make_channel(tmp_path / "mirror of all" / "lab", record("six"))
    mirrors = conda.Alias(alias=(tmp_path / "mirror of all").as_uri())
    for spec in ("six", "lab::six"):
        (found,) = conda.solve(request(spec), mirrors)
        assert found.url == f"{conda.url_of('lab')}noarch/six-1-0.conda"
    (found,) = conda.solve(request("six", channels=((tmp_path / "mirror of all" / "lab").as_uri(),)))
    assert found.url.startswith("file:///")


def test_what_one_solver_read_serves_the_next(tmp_path: Path) -> None:
    folder = make_channel(tmp_path / "lab", record("six"), record("seven", depends="six"))
    solver = conda.Solver(conda.Alias(alias=tmp_path.as_uri()))
    assert [package.name for package in solver.solve(request("seven"))] == ["seven", "six"]
    (folder / "noarch" / "repodata.json").write_text("gone")
    assert [package.name for package in solver.solve(request("six"))] == ["six"]


@pytest.mark.parametrize("name", ["http://[", "a::b", "ht tp://x"])
def test_what_is_no_channel(name: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a channel"):
        conda.url_of(name)


def test_the_lock_file_is_what_conda_lock_itself_writes(tmp_path: Path) -> None:
    """Our emitter is libyaml, conda-lock's is PyYAML: on ugly values, too, they must agree."""
    from conda_lock.lockfile import parse_conda_lock_file, write_conda_lock_file

    ugly = ("six >=1,<2|3.*", "nothing", "long " + ",".join(f"!=1.{minor}.*" for minor in range(60)), "é >=1", "null ==0x1F", "b *")
    make_channel(tmp_path / "lab", record("six"))
    (found,) = conda.solve(request("six"), conda.Alias(alias=tmp_path.as_uri()))
    packages = [lock_package(found, "six", ()), lock_package(found, "ugly", ugly)]
    wanted = lock.inputs(
        "channels: [lab, nodefaults]\ndependencies: [six]\n", "subdirs: {linux-64: {packages: {__glibc: '2.28'}}}\n", Path("envs/lab")
    )
    ours, theirs = tmp_path / "conda-lock.yml", tmp_path / "again" / "conda-lock.yml"
    ours.write_text(lock.text(wanted, packages, python_from="channel"), encoding="utf-8")
    theirs.parent.mkdir()
    write_conda_lock_file(parse_conda_lock_file(ours), theirs, metadata_choices=None)
    assert ours.read_bytes() == theirs.read_bytes()


def lock_package(model: LockedPackage, name: str, depends: tuple[str, ...]) -> LockedPackage:
    import dataclasses

    return dataclasses.replace(model, name=name, depends=depends)
