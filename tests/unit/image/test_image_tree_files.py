"""Which files of installed packages get into which layer of an image, and what is changed in them."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from provision.adapters.installed_files import without_host_paths
from provision.core.errors import IntegrityError
from provision.core.types import LockedPackage
from provision.image import own_files, tree_files
from provision.image.layers import LayerEntry
from tests.unit.image.test_image_build import LOCK, PYTHON
from tests.unit.image.test_image_layers import package

SITE = "lib/python3.11/site-packages"


def record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + digest.decode().rstrip("=")


def install(tree: Path, name: str, files: dict[str, bytes], version: str = "1.0") -> Path:
    """A wheel as uv leaves it: files by their path from site-packages, and a RECORD of them."""
    info = tree / SITE / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    rows = []
    for path, content in files.items():
        (info.parent / path).parent.mkdir(parents=True, exist_ok=True)
        (info.parent / path).write_bytes(content)
        has_hash = not path.endswith(".pyc")
        rows.append([path, record_hash(content), str(len(content))] if has_hash else [path, "", ""])
    rows.append([f"{info.name}/RECORD", "", ""])
    with (info / "RECORD").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return info


def entries_of(tree: Path, *packages: LockedPackage) -> dict[str, dict[str, LayerEntry]]:
    """By group, and by path from the environment."""
    lock = replace(LOCK, packages=packages)
    groups = tree_files.package_entries(tree, lock, None, None)
    return {
        group: {entry.path.removeprefix("opt/env/"): entry for entry in entries}
        for group, entries in groups.items()
    }


def test_files_of_installers_are_left_out(tmp_path: Path) -> None:
    files = {
        "greet.py": b"x",
        "__pycache__/greet.cpython-311.pyc": b"code",
        "greet-1.0.dist-info/direct_url.json": b"{}",
        "greet-1.0.dist-info/uv_cache.json": b"{}",
        "greet-1.0.dist-info/INSTALLER": b"uv",
        "../../../bin/greet": b"#!/opt/env/bin/python\n",
    }
    install(tmp_path, "greet", files)
    (tmp_path / ".lock").touch()
    entries = entries_of(tmp_path, package("greet"))["rest"]
    info = f"{SITE}/greet-1.0.dist-info"
    names = ["bin/greet", f"{info}/INSTALLER", f"{info}/RECORD", f"{SITE}/greet.py"]
    assert list(entries) == names
    record = (entries[f"{info}/RECORD"].content or b"").decode().splitlines()
    assert record == sorted(record)
    listed = ["../../../bin/greet", "greet-1.0.dist-info/INSTALLER", "greet-1.0.dist-info/RECORD"]
    assert [line.split(",")[0] for line in record] == [*listed, "greet.py"]


def test_a_record_that_leads_out_of_the_environment_is_refused(tmp_path: Path) -> None:
    install(tmp_path / "tree", "greet", {"../../../../outside": b"x"})
    with pytest.raises(IntegrityError, match=r"greet lists .*outside, which is not in"):
        entries_of(tmp_path / "tree", package("greet"))


def test_what_is_missing_or_no_file_is_refused(tmp_path: Path) -> None:
    info = install(tmp_path, "greet", {"greet.py": b"x"})
    (info.parent / "greet.py").unlink()
    with pytest.raises(IntegrityError, match=r"greet lists .*greet\.py, which is not in"):
        entries_of(tmp_path, package("greet"))
    os.mkfifo(info.parent / "greet.py")
    with pytest.raises(IntegrityError, match="is not a file, but its package lists it"):
        entries_of(tmp_path, package("greet"))


@pytest.mark.parametrize("path", ["nvidia/__init__.py", "../../../bin/nvidia"])
def test_a_shared_file_is_that_of_the_last_wheel_by_name_in_each_layer(
    tmp_path: Path, path: str
) -> None:
    for name in ("Torch", "nvidia-a"):
        install(tmp_path, name, {path: name.encode()})
    groups = entries_of(tmp_path, package("torch"), package("nvidia-a"))
    file = os.path.normpath(f"{SITE}/{path}")
    expected = hashlib.sha256(b"Torch").hexdigest()
    assert [groups[group][file].sha256 for group in ("cuda", "torch")] == [expected, expected]


@pytest.mark.parametrize(
    "content", [b"\xff,,\n", b"greet.py,sha256=!!!x,1\n", b"greet.py,\n", b"x" * 200_000 + b",,\n"]
)
def test_an_invalid_record_is_refused(tmp_path: Path, content: bytes) -> None:
    info = install(tmp_path, "greet", {"greet.py": b"x"})
    (info / "RECORD").write_bytes(content)
    with pytest.raises(IntegrityError, match="RECORD"):
        entries_of(tmp_path, package("greet"))


def test_byte_code_without_a_source_stays(tmp_path: Path) -> None:
    files = {
        "greet/__init__.py": b"",
        "greet/core.pyc": b"code",
        "greet/__init__.pyc": b"made",
        "greet/__pycache__/x.cpython-311.pyc": b"made",
    }
    install(tmp_path, "greet", files)
    names = [
        name.removeprefix(f"{SITE}/") for name in entries_of(tmp_path, package("greet"))["rest"]
    ]
    assert names == ["greet-1.0.dist-info/RECORD", "greet/__init__.py", "greet/core.pyc"]


def test_conda_records_lose_their_host_paths_and_nothing_else() -> None:
    record = {
        "name": "python",
        "url": "file:///home/me/channel/linux-64/python-3.11.7-h_0.conda",
        "channel": "file:///home/me/channel",
        "extracted_package_dir": "/home/me/cache/python",
        "package_tarball_full_path": "/home/me/cache/python.conda",
        "link": {"source": "/home/me/cache/python", "type": 1},
        "files": ["bin/python"],
    }
    assert json.loads(without_host_paths(json.dumps(record))) == {
        "name": "python",
        "url": "file:///local-channel/linux-64/python-3.11.7-h_0.conda",
        "channel": "file:///local-channel",
        "files": ["bin/python"],
    }
    remote = {"url": "https://conda.example.org/c/linux-64/x.conda", "channel": "c"}
    assert json.loads(without_host_paths(json.dumps(remote))) == remote


def test_conda_files_and_links(tmp_path: Path) -> None:
    for folder in ("bin", "conda-meta", "lib/__pycache__", "__clobbers__"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("lib/__pycache__/x.pyc", "CACHEDIR.TAG", "bin/python3.11", "__clobbers__/x"):
        (tmp_path / name).write_text("x")
    (tmp_path / "bin" / "python3.11").chmod(0o700)
    (tmp_path / "bin" / "python").symlink_to("python3.11")
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "conda-meta" / "history").write_text("")
    entries = entries_of(tmp_path, PYTHON)["python"]
    rows = {path: (entry.kind, entry.mode, entry.target) for path, entry in entries.items()}
    assert rows == {
        "bin/python": ("link", 0o777, "python3.11"),
        "bin/python3.11": ("file", 0o755, ""),
        "lib64": ("link", 0o777, "lib"),
    }


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../etc/passwd"])
def test_a_link_out_of_the_environment_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "x").symlink_to(target)
    with pytest.raises(IntegrityError, match="/etc/passwd"):
        entries_of(tmp_path, PYTHON)


def test_files_of_conda_packages_have_the_hashes_of_their_records(tmp_path: Path) -> None:
    """As they were written, and where two packages have a file, that which is there."""
    for folder in ("bin", "conda-meta"):
        (tmp_path / folder).mkdir()
    packages: dict[str, list[tuple[str, str, str | None]]] = {
        "python": [("tool", "a" * 64, "b" * 64), ("both", "c" * 64, None)],
        "cudnn": [("both", "d" * 64, None)],
    }
    for name, files in packages.items():
        rows = []
        for file, sha256, changed in files:
            (tmp_path / "bin" / file).write_text(file)
            row = {"_path": f"bin/{file}", "path_type": "hardlink", "sha256": sha256}
            rows.append(row | ({"sha256_in_prefix": changed} if changed else {}))
        record = {"name": name, "paths_data": {"paths": rows}}
        (tmp_path / "conda-meta" / f"{name}-1.0-0.json").write_text(json.dumps(record))
    groups = entries_of(tmp_path, PYTHON, replace(PYTHON, name="cudnn"))
    there = hashlib.sha256(b"both").hexdigest()
    assert groups["python"]["bin/tool"].sha256 == "b" * 64
    assert [groups[group]["bin/both"].sha256 for group in ("python", "cuda")] == [there, there]
    assert list(groups["cuda"]) == ["bin/both", "conda-meta/cudnn-1.0-0.json"]


def test_own_entries() -> None:
    rows = own_files.provision_entries({"provision_runtime/__main__.py": b"x"}, "3.11")
    entries = {entry.path: entry for entry in rows}
    assert sorted(entries) == [
        "opt/env/conda-meta/history",
        "opt/env/lib/python3.11/site-packages/provision_runtime/__main__.py",
        "usr/local/bin/provision-smoke",
        "workspace",
    ]
    assert entries["usr/local/bin/provision-smoke"].mode == 0o755
    assert (entries["workspace"].kind, entries["workspace"].mode) == ("folder", 0o1777)


def test_an_environment_for_older_drivers_is_found_by_the_container_toolkit() -> None:
    rows = own_files.provision_entries({}, "3.11", [replace(PYTHON, name="cuda-compat")])
    (link,) = (entry for entry in rows if entry.kind == "link")
    assert (link.path, link.target) == ("usr/local/cuda/compat", "/opt/env/cuda-compat")
