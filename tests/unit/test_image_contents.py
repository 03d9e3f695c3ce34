"""Which files go into an image, and what is taken out of them."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from pathlib import Path

import pytest

from provision.errors import IntegrityError
from provision.model import LockedPackage, Manager, Prefix
from provision.pipeline.image import contents
from provision.pipeline.image.contents import Entry

PYTHON = "3.11"


def package(name: str, manager: Manager = "pip", version: str = "1.0") -> LockedPackage:
    return LockedPackage(manager=manager, name=name, version=version, url=f"https://example.org/{name}", sha256="0" * 64)


def record_hash(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


@pytest.fixture(params=["env", "a prefix with 'quotes' and spaces"])
def prefix(tmp_path: Path, request: pytest.FixtureRequest) -> Prefix:
    path = tmp_path / request.param
    (path / "lib" / f"python{PYTHON}" / "site-packages").mkdir(parents=True)
    (path / "bin").mkdir()
    return Prefix(name="env", path=path, lock_sha256="1" * 64)


def install(prefix: Prefix, name: str, files: dict[str, bytes], version: str = "1.0") -> Path:
    """A wheel as uv leaves it: files by their path from site-packages, and a RECORD of them."""
    site = prefix.path / "lib" / f"python{PYTHON}" / "site-packages"
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    rows = []
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
        rows.append([path, "", ""] if path.endswith(".pyc") else [path, record_hash(content), str(len(content))])
    rows.append([f"{info.name}/RECORD", "", ""])
    with (info / "RECORD").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return info


def by_path(entries: list[Entry]) -> dict[str, Entry]:
    return {entry.path: entry for entry in entries}


@pytest.mark.parametrize(
    ("manager", "name", "group"),
    [
        ("conda", "python", "python"),
        ("conda", "nvidia-something", "python"),
        ("pip", "nvidia-nccl-cu12", "cuda"),
        ("pip", "nvidia_cublas_cu12", "cuda"),
        ("pip", "cuda-bindings", "cuda"),
        ("pip", "torch", "torch"),
        ("pip", "triton", "torch"),
        ("pip", "torchvision", "rest"),
        ("pip", "Jinja2", "rest"),
    ],
)
def test_group_by_the_table(manager: Manager, name: str, group: str) -> None:
    assert contents.group_of(package(name, manager)) == group


def test_a_script_names_the_interpreter_of_the_image_and_record_says_so(prefix: Prefix) -> None:
    interpreter = f"{prefix.path}/bin/python3"
    first = f"#!{interpreter}\n" if " " not in interpreter else f"#!/bin/sh\n'''exec' \"{interpreter}\" \"$0\" \"$@\"\n' '''\n"
    script = f"{first}# -*- coding: utf-8 -*-\nimport greet\n".encode()
    info = install(prefix, "greet", {"greet.py": b"x", "../../../bin/greet": script})
    entries = by_path(contents.wheel_entries(info, prefix))
    rewritten = entries["opt/env/bin/greet"].content
    assert rewritten == b"#!/opt/env/bin/python\n# -*- coding: utf-8 -*-\nimport greet\n"
    record = (entries[f"opt/env/lib/python{PYTHON}/site-packages/{info.name}/RECORD"].content or b"").decode()
    assert f"../../../bin/greet,{record_hash(rewritten)},{len(rewritten)}\n" in record
    assert record.splitlines() == sorted(record.splitlines())


@pytest.mark.parametrize("script", [b"\x7fELF binary", b"#!/usr/bin/env bash\necho\n", b"#!/usr/bin/python3\n", b"", b"#"])
def test_other_files_of_bin_stay_as_they_are(prefix: Prefix, script: bytes) -> None:
    info = install(prefix, "greet", {"../../../bin/greet": script})
    entry = by_path(contents.wheel_entries(info, prefix))["opt/env/bin/greet"]
    assert entry.source is not None
    assert entry.content is None


def test_a_script_that_names_the_host_further_down_is_refused(prefix: Prefix) -> None:
    script = f"#!{prefix.path}/bin/python\nsys.path.insert(0, '{prefix.path}/x')\n".encode()
    info = install(prefix, "greet", {"../../../bin/greet": script})
    with pytest.raises(IntegrityError, match="names this host's folder"):
        contents.wheel_entries(info, prefix)


def test_droppings_of_installers_are_left_out_of_files_and_record(prefix: Prefix) -> None:
    info = install(
        prefix,
        "greet",
        {
            "greet.py": b"x",
            "__pycache__/greet.cpython-311.pyc": b"code",
            "greet-1.0.dist-info/direct_url.json": b"{}",
            "greet-1.0.dist-info/uv_cache.json": b"{}",
            "greet-1.0.dist-info/INSTALLER": b"uv",
        },
    )
    entries = by_path(contents.wheel_entries(info, prefix))
    site = f"opt/env/lib/python{PYTHON}/site-packages"
    names = ["greet-1.0.dist-info/INSTALLER", "greet-1.0.dist-info/RECORD", "greet.py"]
    assert sorted(entries) == [f"{site}/{name}" for name in names]
    record = (entries[f"{site}/greet-1.0.dist-info/RECORD"].content or b"").decode()
    assert [line.split(",")[0] for line in record.splitlines()] == names


def test_a_record_that_leads_out_of_the_prefix_is_refused(prefix: Prefix) -> None:
    info = install(prefix, "greet", {"../../../../outside": b"x"})
    with pytest.raises(IntegrityError, match="outside of it"):
        contents.wheel_entries(info, prefix)


def test_a_wheel_of_the_lock_that_is_not_installed_is_named(prefix: Prefix, tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    with pytest.raises(IntegrityError, match=r"does not hold torch 2\.3\.1"):
        contents.gather(tmp_path / "staging", prefix, [package("torch", version="2.3.1")], PYTHON, [])


def test_what_the_lock_does_not_name_stays_out(prefix: Prefix, tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    install(prefix, "greet", {"greet.py": b"x"})
    install(prefix, "stray", {"stray.py": b"x"})
    groups = contents.gather(tmp_path / "staging", prefix, [package("greet")], PYTHON, [])
    assert list(groups) == ["rest"]
    assert not any("stray" in entry.path for entry in groups["rest"])


def test_a_file_of_two_wheels_is_there_once_and_may_be_what_either_says(prefix: Prefix, tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    install(prefix, "nvidia-a", {"nvidia/__init__.py": b"first", "nvidia/a.py": b"a"})
    install(prefix, "nvidia-b", {"nvidia/__init__.py": b"second one", "nvidia/b.py": b"b"})
    groups = contents.gather(tmp_path / "staging", prefix, [package("nvidia-a"), package("nvidia-b")], PYTHON, [])
    shared = [entry for entry in groups["cuda"] if entry.path.endswith("nvidia/__init__.py")]
    assert len(shared) == 1
    contents.verify(shared[0], hashlib.sha256(b"second one").hexdigest())
    with pytest.raises(IntegrityError):
        contents.verify(shared[0], hashlib.sha256(b"third").hexdigest())


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
    text = contents.without_host_paths(json.dumps(record))
    assert json.loads(text) == {
        "name": "python",
        "url": "file:///local-channel/linux-64/python-3.11.7-h_0.conda",
        "channel": "file:///local-channel",
        "files": ["bin/python"],
    }
    remote = {"url": "https://conda.example.org/c/linux-64/x.conda", "channel": "c"}
    assert json.loads(contents.without_host_paths(json.dumps(remote))) == remote


def test_conda_files_and_links(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "lib" / "__pycache__").mkdir(parents=True)
    (tmp_path / "lib" / "__pycache__" / "x.pyc").write_text("x")
    (tmp_path / "CACHEDIR.TAG").write_text("x")
    (tmp_path / "bin" / "python3.11").write_text("x")
    (tmp_path / "bin" / "python3.11").chmod(0o700)
    (tmp_path / "bin" / "python").symlink_to("python3.11")
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "conda-meta" / "history").write_text("")
    entries = by_path(list(contents.conda_entries(tmp_path)))
    assert sorted(entries) == ["opt/env/bin/python", "opt/env/bin/python3.11", "opt/env/conda-meta/history", "opt/env/lib64"]
    assert entries["opt/env/bin/python3.11"].mode == 0o755
    assert (entries["opt/env/bin/python"].kind, entries["opt/env/bin/python"].target) == ("link", "python3.11")
    assert (entries["opt/env/lib64"].kind, entries["opt/env/lib64"].target) == ("link", "lib")


def test_a_conda_link_to_the_host_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("/etc/passwd")
    with pytest.raises(IntegrityError, match="/etc/passwd"):
        list(contents.conda_entries(tmp_path))


def test_own_part(tmp_path: Path) -> None:
    (tmp_path / "inside" / "smoke").mkdir(parents=True)
    (tmp_path / "inside" / "__main__.py").write_text("x")
    (tmp_path / "inside" / "smoke" / "worker.py").write_text("y")
    entries = by_path(contents.own_entries(tmp_path / "inside"))
    assert sorted(entries) == [
        "opt/provision/inside/__main__.py",
        "opt/provision/inside/smoke/worker.py",
        "usr/local/bin/provision-smoke",
        "workspace",
    ]
    assert entries["usr/local/bin/provision-smoke"].mode == 0o755
    assert (entries["workspace"].kind, entries["workspace"].mode) == ("folder", 0o1777)
