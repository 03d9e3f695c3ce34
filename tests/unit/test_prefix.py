"""Prefixes: scripts name the final place, the swap is whole, drift is seen. Realizing one is tested in tests/integration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from provision.adapters import uv
from provision.core.atomic import replace_directory, staging_path
from provision.core.errors import InUse, InvalidSpec
from provision.core.types import Lock, LockedPackage, Prefix
from provision.environment import drift, prefix, runtime_package


def make(folder: Path, sha: str = "lock") -> Prefix:
    """The skeleton of a prefix with one conda package and one wheel."""
    site = folder / "lib" / "python3.11" / "site-packages"
    info = site / "six-1.17.0.dist-info"
    info.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text("")
    (site / "six.py").write_text("x = 1\n")
    content = (site / "six.py").read_bytes()
    (info / "RECORD").write_text(
        f"six.py,{runtime_package.record_hash(content)},{len(content)}\nsix-1.17.0.dist-info/RECORD,,\n"
    )
    meta = folder / "conda-meta"
    meta.mkdir()
    paths = {
        "paths": [
            {
                "_path": "bin/python",
                "path_type": "hardlink",
                "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            }
        ]
    }
    (meta / "python-3.11.7-host_0.json").write_text(
        json.dumps({"name": "python", "version": "3.11.7", "build": "host_0", "paths_data": paths})
    )
    (folder / prefix.MARKER).write_text(
        json.dumps(
            {"name": "lab", "folder": str(folder.parent / "envs" / "lab"), "lock_sha256": sha}
        )
    )
    runtime_package.install(folder, runtime_package.load())
    return Prefix(name="lab", path=folder, lock_sha256=sha)


def lock(*wheels: tuple[str, str], sha: str = "lock") -> Lock:
    rows = [
        LockedPackage(
            manager="conda", name="python", version="3.11.7", build="host_0", url="x", sha256="a"
        )
    ]
    rows += [
        LockedPackage(manager="pip", name=name, version=version, url="x", sha256="a")
        for name, version in wheels
    ]
    return Lock(
        path=Path("x"),
        sha256=sha,
        inputs_sha256="",
        content_hash="",
        packages=tuple(rows),
        python_from="host",
        portable=False,
    )


def test_find_and_current(tmp_path: Path) -> None:
    made = make(tmp_path / "lab")
    assert prefix.find("lab", tmp_path / "lab") == made
    assert prefix.find("lab", tmp_path / "none") is None
    assert drift.is_current(made, lock(("six", "1.17.0")))
    assert not drift.is_current(made, lock(("six", "1.17.0"), sha="other"))
    assert not drift.is_current(made, lock(("six", "1.16.0")))
    assert not drift.is_current(None, lock())


def test_drift_of_packages(tmp_path: Path) -> None:
    made = make(tmp_path / "lab")
    found = {
        (one.kind, one.name)
        for one in drift.find_drift(
            made,
            lock(
                ("numpy", "1.0"),
            ),
            files=False,
        )
    }
    assert found == {("missing", "numpy"), ("extra", "six")}
    assert [one.kind for one in drift.find_drift(made, lock(("six", "1.16.0")), files=False)] == [
        "version"
    ]


def runtime_drift(made: Prefix, *, files: bool = False) -> list[tuple[str, str]]:
    drifts = drift.find_drift(made, lock(("six", "1.17.0")), files=files)
    return [(drift.kind, drift.name) for drift in drifts]


def test_the_runtime_package_is_compared_with_the_one_of_this_provision(tmp_path: Path) -> None:
    """No lock names it, so it is never `extra`."""
    made = make(tmp_path / "lab")
    assert runtime_drift(made, files=True) == []
    runtime_package.install(made.path, runtime_package.load(version="0.0.1"))
    assert runtime_drift(made) == [("version", "provision-runtime")]
    assert drift.is_current(made, lock(("six", "1.17.0")))  # it is brought up to date in place
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "__init__.py").write_text("")
    runtime_package.install(made.path, runtime_package.load(tmp_path / "code"))
    assert runtime_drift(made) == [("changed", "provision-runtime")]
    runtime_package.install(made.path, runtime_package.load())
    code = runtime_package.site_packages(made.path) / "provision_runtime" / "cli.py"
    code.write_text("x = 1\n")
    assert runtime_drift(made) == []
    assert runtime_drift(made, files=True) == [("changed", "provision_runtime")]
    code.unlink()
    assert runtime_drift(made, files=True) == [("absent", "provision_runtime")]


def test_a_prefix_of_an_earlier_provision_lacks_the_runtime_package(tmp_path: Path) -> None:
    made = make(tmp_path / "lab")
    package = runtime_package.load()
    shutil.rmtree(runtime_package.site_packages(made.path) / package.dist_info)
    assert runtime_drift(made) == [("missing", "provision-runtime")]


def test_a_wheel_of_the_same_version_that_was_put_in_since_is_drift(tmp_path: Path) -> None:
    made = make(tmp_path / "lab")
    known = json.loads((made.path / prefix.MARKER).read_text())
    (made.path / prefix.MARKER).write_text(
        json.dumps({**known, "wheels": uv.fingerprints(made.path)})
    )
    found = prefix.find("lab", made.path)
    assert found is not None
    assert "changed" not in {
        one.kind
        for one in drift.find_drift(found, lock(("six", "1.17.0")), files=True)
        if one.name == "six"
    }
    (record,) = made.path.glob("lib/python*/site-packages/six-*/RECORD")
    content = b"patched"
    (record.parent.parent / "six.py").write_bytes(content)
    record.write_text(
        f"six.py,{runtime_package.record_hash(content)},{len(content)}\nsix-1.17.0.dist-info/RECORD,,\n"
    )
    drifts = [
        one
        for one in drift.find_drift(found, lock(("six", "1.17.0")), files=True)
        if one.name == "six"
    ]
    assert [one.kind for one in drifts] == ["changed"]


def test_local_versions_of_wheels_are_not_drift(tmp_path: Path) -> None:
    assert drift._is_same_version("2.3.1", "2.3.1+cu121")
    assert not drift._is_same_version("2.3.1+cpu", "2.3.1+cu121")
    assert not drift._is_same_version("2.3.1", "2.3.10")


def test_drift_of_files(tmp_path: Path) -> None:
    made = make(tmp_path / "lab")
    same = lock(("six", "1.17.0"))
    assert drift.find_drift(made, same, files=True) == []
    (made.path / "lib" / "python3.11" / "site-packages" / "six.py").write_text("x = 2\n")
    (made.path / "bin" / "python").unlink()
    assert {(one.kind, one.name) for one in drift.find_drift(made, same, files=True)} == {
        ("changed", "six"),
        ("absent", "python"),
    }


def test_scripts_name_the_final_place_and_record_agrees(tmp_path: Path) -> None:
    final = tmp_path / "lab with space"
    building = staging_path(final)
    made = make(building)
    script = building / "bin" / "tool"
    script.write_text(f"#!{building}/bin/python\nprint(1)\n")
    script.chmod(0o755)
    binary = building / "bin" / "binary"
    binary.write_bytes(b"\x7fELF" + bytes(str(building), "utf-8"))
    record = next(made.path.rglob("RECORD"))
    record.write_text(
        record.read_text() + "../../../bin/tool,sha256=x,1\n../../../bin/binary,sha256=y,1\n"
    )
    prefix._rewrite_scripts(building, final)
    assert script.read_text() == f"#!{final}/bin/python\nprint(1)\n"
    assert script.stat().st_mode & 0o777 == 0o755
    assert (
        f"../../../bin/tool,{runtime_package.record_hash(script.read_bytes())},{len(script.read_bytes())}"
        in record.read_text()
    )
    assert "../../../bin/binary,sha256=y,1" in record.read_text()


@pytest.mark.parametrize("there", [False, True])
def test_swap_leaves_the_new_one_whole(tmp_path: Path, there: bool) -> None:
    final = tmp_path / "lab"
    if there:
        make(final, sha="old")
    make(staging_path(final), sha="new")
    replace_directory(final)
    found = prefix.find("lab", final)
    assert found and found.lock_sha256 == "new"
    assert not staging_path(final).exists()


def test_a_place_that_is_not_this_environments_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    prefix.check_location("lab", tmp_path / "envs" / "lab", mine)  # empty: free
    prefix.check_location("lab", tmp_path / "envs" / "lab", tmp_path / "new")
    (mine / "thesis.tex").write_text("x")
    with pytest.raises(InUse, match="is not an environment of provision"):
        prefix.check_location("lab", tmp_path / "envs" / "lab", mine)
    with pytest.raises(InUse, match="is a file"):
        prefix.check_location("lab", tmp_path / "envs" / "lab", mine / "thesis.tex")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSpec, match="not the current folder"):
        prefix.check_location("lab", tmp_path / "envs" / "lab", tmp_path)


def test_two_environments_never_share_a_prefix(tmp_path: Path) -> None:
    made = make(tmp_path / "lab")
    folder = tmp_path / "envs" / "lab"
    folder.mkdir(parents=True)
    prefix.check_location("lab", folder, made.path)
    with pytest.raises(InUse, match="is the environment `lab`, not `other`"):
        prefix.check_location("other", tmp_path / "envs" / "other", made.path)
    with pytest.raises(InUse, match="belongs to"):
        prefix.check_location("lab", tmp_path / "elsewhere" / "lab", made.path)
    folder.rmdir()
    prefix.check_location("lab", tmp_path / "elsewhere" / "lab", made.path)  # the folder moved


@pytest.mark.parametrize(
    "damage", ["bin/python", "conda-meta/provision.json", "conda-meta/python-3.11.7-host_0.json"]
)
def test_a_damaged_prefix_is_not_current(tmp_path: Path, damage: str) -> None:
    made = make(tmp_path / "lab")
    same = lock(("six", "1.17.0"))
    assert drift.is_current(prefix.find("lab", made.path), same)
    (made.path / damage).write_text("[]")
    if damage == "bin/python":
        (made.path / damage).unlink()
    assert not drift.is_current(prefix.find("lab", made.path), same)
