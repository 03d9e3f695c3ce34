"""Prefixes and their drift. Installing one is tested in tests/integration."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from provision.adapters import installed_files
from provision.adapters.installed_files import interpreter_lines
from provision.core.atomic import replace_directory, staging_path
from provision.core.errors import IntegrityError, InUse, InvalidSpec
from provision.core.paths import Folders
from provision.core.types import Lock, LockedPackage, Prefix
from provision.environment import drift, install_record, marker, prefix, runtime_package
from provision.environment.marker import Marker
from provision_runtime.facts import freshness
from tests.programs import write_program
from tests.progress import Recorder


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
        f"six.py,{installed_files.record_hash(content)},{len(content)}\nsix-1.17.0.dist-info/RECORD,,\n"
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
    described = str(folder.parent / "envs" / "lab")
    marker.write(folder, Marker(name="lab", folder=described, lock_sha256=sha))
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
    environment = make(tmp_path / "lab")
    assert prefix.find("lab", tmp_path / "lab") == environment
    assert prefix.find("lab", tmp_path / "none") is None
    assert drift.is_current(environment, lock(("six", "1.17.0")))
    assert not drift.is_current(environment, lock(("six", "1.17.0"), sha="other"))
    assert not drift.is_current(environment, lock(("six", "1.16.0")))
    assert not drift.is_current(None, lock())


def kinds_and_names(
    environment: Prefix, same: Lock, *, files: bool = False
) -> set[tuple[str, str]]:
    drifts = drift.find_drift(environment, same, files=files)
    return {(each.kind, each.name) for each in drifts}


def test_drift_of_packages(tmp_path: Path) -> None:
    environment = make(tmp_path / "lab")
    assert kinds_and_names(environment, lock(("numpy", "1.0"))) == {
        ("missing", "numpy"),
        ("extra", "six"),
    }
    assert kinds_and_names(environment, lock(("six", "1.16.0"))) == {("version", "six")}


def test_an_incomplete_install_is_refused(tmp_path: Path) -> None:
    environment = make(tmp_path / "lab")
    prefix._check_complete(lock(("six", "1.17.0")), "lab", environment.path)
    with pytest.raises(IntegrityError, match=r"numpy: locked 1\.0, not installed; six: installed"):
        prefix._check_complete(lock(("numpy", "1.0")), "lab", environment.path)


def test_conda_takes_the_marker_for_no_package(tmp_path: Path) -> None:
    environment = make(tmp_path / "lab")
    assert [path.name for path in (environment.path / "conda-meta").glob("*.json")] == [
        "python-3.11.7-host_0.json"
    ]


def test_runtime_package_is_compared_with_this_provisions(tmp_path: Path) -> None:
    """No lock names it, so it is never `extra`."""
    environment, same = make(tmp_path / "lab"), lock(("six", "1.17.0"))
    assert kinds_and_names(environment, same, files=True) == set()
    runtime_package.install(environment.path, runtime_package.load(version="0.0.1"))
    assert kinds_and_names(environment, same) == {("version", "provision-runtime")}
    assert drift.is_current(environment, same)  # it is brought up to date in place
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "__init__.py").write_text("")
    runtime_package.install(environment.path, runtime_package.load(tmp_path / "code"))
    assert kinds_and_names(environment, same) == {("changed", "provision-runtime")}
    runtime_package.install(environment.path, runtime_package.load())
    code = runtime_package.site_packages(environment.path) / "provision_runtime" / "cli.py"
    code.write_text("x = 1\n")
    assert kinds_and_names(environment, same) == set()
    assert kinds_and_names(environment, same, files=True) == {("changed", "provision_runtime")}
    code.unlink()
    assert kinds_and_names(environment, same, files=True) == {("absent", "provision_runtime")}


def test_a_prefix_without_the_runtime_package_differs(tmp_path: Path) -> None:
    environment, same = make(tmp_path / "lab"), lock(("six", "1.17.0"))
    package = runtime_package.load()
    shutil.rmtree(runtime_package.site_packages(environment.path) / package.dist_info)
    assert kinds_and_names(environment, same) == {("missing", "provision-runtime")}


def test_a_wheel_reinstalled_with_the_same_version_is_drift(tmp_path: Path) -> None:
    environment, same = make(tmp_path / "lab"), lock(("six", "1.17.0"))
    install_record.write(environment.path)
    assert ("changed", "six") not in kinds_and_names(environment, same)
    (record,) = environment.path.glob("lib/python*/site-packages/six-*/RECORD")
    content = b"patched"
    (record.parent.parent / "six.py").write_bytes(content)
    record.write_text(
        f"six.py,{installed_files.record_hash(content)},{len(content)}\nsix-1.17.0.dist-info/RECORD,,\n"
    )
    assert ("changed", "six") in kinds_and_names(environment, same)


def test_local_versions_of_wheels_are_not_drift(tmp_path: Path) -> None:
    assert drift._is_same_version("2.3.1", "2.3.1+cu121")
    assert not drift._is_same_version("2.3.1+cpu", "2.3.1+cu121")
    assert not drift._is_same_version("2.3.1", "2.3.10")


def test_drift_of_files(tmp_path: Path) -> None:
    environment = make(tmp_path / "lab")
    same = lock(("six", "1.17.0"))
    assert drift.find_drift(environment, same, files=True) == []
    (environment.path / "lib" / "python3.11" / "site-packages" / "six.py").write_text("x = 2\n")
    (environment.path / "bin" / "python").unlink()
    assert kinds_and_names(environment, same, files=True) == {
        ("changed", "six"),
        ("absent", "python"),
    }


def test_scripts_name_the_final_path_and_record_agrees(tmp_path: Path) -> None:
    final = tmp_path / "lab with space"
    staging = staging_path(final)
    environment = make(staging)
    script = staging / "bin" / "tool"
    write_program(script, f"#!{staging}/bin/python\nprint(1)\n")
    binary = staging / "bin" / "binary"
    binary.write_bytes(b"\x7fELF" + bytes(str(staging), "utf-8"))
    record = next(environment.path.rglob("RECORD"))
    record.write_text(
        record.read_text() + "../../../bin/tool,sha256=x,1\n../../../bin/binary,sha256=y,1\n"
    )
    prefix._rewrite_scripts(staging, staging, final)
    first_lines = interpreter_lines(final / "bin" / "python").decode()
    assert script.read_text() == f"{first_lines}print(1)\n"
    assert script.stat().st_mode & 0o777 == 0o755
    assert (
        f"../../../bin/tool,{installed_files.record_hash(script.read_bytes())},{len(script.read_bytes())}"
        in record.read_text()
    )
    assert "../../../bin/binary,sha256=y,1" in record.read_text()


@pytest.mark.parametrize("replaces", [False, True])
def test_replacement_leaves_only_the_new_prefix(tmp_path: Path, replaces: bool) -> None:
    final = tmp_path / "lab"
    if replaces:
        make(final, sha="old")
    make(staging_path(final), sha="new")
    replace_directory(final)
    installed = prefix.find("lab", final)
    assert installed and installed.lock_sha256 == "new"
    assert not staging_path(final).exists()


def test_folder_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    prefix.check_location("lab", tmp_path / "envs" / "lab", folder)  # empty: free
    prefix.check_location("lab", tmp_path / "envs" / "lab", tmp_path / "new")
    (folder / "thesis.tex").write_text("x")
    with pytest.raises(InUse, match="is not an environment of provision"):
        prefix.check_location("lab", tmp_path / "envs" / "lab", folder)
    with pytest.raises(InUse, match="is a file"):
        prefix.check_location("lab", tmp_path / "envs" / "lab", folder / "thesis.tex")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with pytest.raises(InUse, match=f"link is a link to {tmp_path / 'new'}"):
        prefix.check_location("lab", tmp_path / "envs" / "lab", tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSpec, match="not the current folder"):
        prefix.check_location("lab", tmp_path / "envs" / "lab", tmp_path)


def test_two_environments_never_share_a_prefix(tmp_path: Path) -> None:
    environment = make(tmp_path / "lab")
    folder = tmp_path / "envs" / "lab"
    folder.mkdir(parents=True)
    prefix.check_location("lab", folder, environment.path)
    with pytest.raises(InUse, match=r"is the environment `lab` of .*, not `other`"):
        prefix.check_location("other", tmp_path / "envs" / "other", environment.path)
    with pytest.raises(InUse, match=r"is the environment `lab` of .*, not `lab` of .*elsewhere"):
        prefix.check_location("lab", tmp_path / "elsewhere" / "lab", environment.path)
    folder.rmdir()
    prefix.check_location(
        "lab", tmp_path / "elsewhere" / "lab", environment.path
    )  # the folder moved


@pytest.mark.parametrize(
    "damage", ["bin/python", "conda-meta/provision.state", "conda-meta/python-3.11.7-host_0.json"]
)
def test_a_damaged_prefix_is_not_current(tmp_path: Path, damage: str) -> None:
    environment = make(tmp_path / "lab")
    same = lock(("six", "1.17.0"))
    assert drift.is_current(prefix.find("lab", environment.path), same)
    (environment.path / damage).write_text("[]")
    if damage == "bin/python":
        (environment.path / damage).unlink()
    assert not drift.is_current(prefix.find("lab", environment.path), same)


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_nobody_else_may_write_to_an_environment(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        environment = make(tmp_path / "data" / "prefixes" / "lab")
        (environment.path / "bin" / "tool").touch(mode=0o777)
        (environment.path / "bin" / "dangling").symlink_to("nowhere")
        prefix._leave_writing_to_owner(environment.path)
    finally:
        os.umask(before)
    for path in (environment.path, *environment.path.rglob("*")):
        assert path.is_symlink() or not path.stat().st_mode & 0o022, path
    assert (environment.path / "bin" / "tool").stat().st_mode & 0o777 == 0o755


def test_wheels_added_by_hand_are_named(tmp_path: Path) -> None:
    environment = make(tmp_path / "lab")
    assert marker.added_by_hand(environment.path) == []  # not recorded
    present = marker.read(environment.path)
    assert present is not None
    recorded = tuple(freshness.package_records(str(environment.path)))
    marker.write(environment.path, dataclasses.replace(present, records=recorded))
    assert marker.added_by_hand(environment.path) == []
    site = runtime_package.site_packages(environment.path)
    (site / "einops-0.8.2.dist-info").mkdir()
    (site / "provision_runtime-9.9.dist-info").mkdir()
    assert marker.added_by_hand(environment.path) == ["einops 0.8.2"]


def test_conda_activates_without_user_packages_and_backups_take_a_prefix(tmp_path: Path) -> None:
    path = make(tmp_path / "lab").path
    (path / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55")  # of uv
    prefix._write_conda_state(path)
    state = json.loads((path / "conda-meta" / "state").read_text())
    assert state["env_vars"] == {"PYTHONNOUSERSITE": "1"}
    assert not (path / "CACHEDIR.TAG").exists()


def test_an_install_that_differs_from_its_lock_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv and rattler say that all went well; here something else was installed."""

    def install(lock: Lock, staging: Path, *_: object) -> None:
        make(staging)

    monkeypatch.setattr(prefix, "install_packages", install)
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    path = folders.prefixes / "lab"
    with pytest.raises(IntegrityError, match="What was installed is not what x locks: numpy"):
        prefix.create(lock(("numpy", "1.0")), "lab", tmp_path, path, folders, Recorder())
    assert list(folders.prefixes.iterdir()) == []
