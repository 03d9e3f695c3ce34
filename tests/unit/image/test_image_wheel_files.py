"""Which files of wheels get into an image, and what is changed in them."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from pathlib import Path

import pytest

from provision.core.errors import IntegrityError
from provision.core.types import Prefix
from provision.image import wheel_files
from provision.image.layers import LayerEntry
from tests.unit.image.test_image_conda_files import by_path
from tests.unit.image.test_image_layers import package

PYTHON = "3.11"


def record_hash(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip(
        "="
    )


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
        rows.append(
            [path, "", ""]
            if path.endswith(".pyc")
            else [path, record_hash(content), str(len(content))]
        )
    rows.append([f"{info.name}/RECORD", "", ""])
    with (info / "RECORD").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return info


def entries_of(info: Path, prefix: Prefix) -> list[LayerEntry]:
    wheel = wheel_files.InstalledWheel(
        package=package("greet"), folder=info, rows=wheel_files.read_record(info / "RECORD", prefix)
    )
    return wheel_files.wheel_entries(wheel, prefix)


def test_scripts_get_the_interpreter_of_the_image(prefix: Prefix) -> None:
    interpreter = f"{prefix.path}/bin/python3"
    first = (
        f"#!{interpreter}\n"
        if " " not in interpreter
        else f"#!/bin/sh\n'''exec' \"{interpreter}\" \"$0\" \"$@\"\n' '''\n"
    )
    script = f"{first}# -*- coding: utf-8 -*-\nimport greet\n".encode()
    info = install(prefix, "greet", {"greet.py": b"x", "../../../bin/greet": script})
    entries = by_path(entries_of(info, prefix))
    rewritten = entries["opt/env/bin/greet"].content
    assert rewritten == b"#!/opt/env/bin/python\n# -*- coding: utf-8 -*-\nimport greet\n"
    record = (
        entries[f"opt/env/lib/python{PYTHON}/site-packages/{info.name}/RECORD"].content or b""
    ).decode()
    assert f"../../../bin/greet,{record_hash(rewritten)},{len(rewritten)}\n" in record
    assert record.splitlines() == sorted(record.splitlines())


@pytest.mark.parametrize(
    "script",
    [b"\x7fELF binary", b"#!/usr/bin/env bash\necho\n", b"#!/usr/bin/python3\n", b"", b"#"],
)
def test_other_files_in_bin_are_unchanged(prefix: Prefix, script: bytes) -> None:
    info = install(prefix, "greet", {"../../../bin/greet": script})
    entry = by_path(entries_of(info, prefix))["opt/env/bin/greet"]
    assert entry.source is not None
    assert entry.content is None


def test_a_script_with_host_paths_in_its_body_is_refused(prefix: Prefix) -> None:
    script = f"#!{prefix.path}/bin/python\nsys.path.insert(0, '{prefix.path}/x')\n".encode()
    info = install(prefix, "greet", {"../../../bin/greet": script})
    with pytest.raises(IntegrityError, match="names this host's folder"):
        entries_of(info, prefix)


def test_files_of_installers_are_left_out(prefix: Prefix) -> None:
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
    entries = by_path(entries_of(info, prefix))
    site = f"opt/env/lib/python{PYTHON}/site-packages"
    names = ["greet-1.0.dist-info/INSTALLER", "greet-1.0.dist-info/RECORD", "greet.py"]
    assert sorted(entries) == [f"{site}/{name}" for name in names]
    record = (entries[f"{site}/greet-1.0.dist-info/RECORD"].content or b"").decode()
    assert [line.split(",")[0] for line in record.splitlines()] == names


def test_a_record_that_leads_out_of_the_prefix_is_refused(prefix: Prefix) -> None:
    info = install(prefix, "greet", {"../../../../outside": b"x"})
    with pytest.raises(IntegrityError, match="outside of it"):
        entries_of(info, prefix)


def test_a_link_or_a_pipe_in_the_place_of_a_file_is_refused(prefix: Prefix) -> None:
    info = install(prefix, "greet", {"greet.py": b"x", "data.pem": b"y"})
    site = info.parent
    (info / "RECORD").write_text("greet.py,,\n")
    (site / "greet.py").unlink()
    (site / "greet.py").symlink_to("/etc/hostname")
    with pytest.raises(IntegrityError, match="has a link where a wheel has a file"):
        entries_of(info, prefix)
    (site / "greet.py").unlink()
    os.mkfifo(site / "greet.py")
    with pytest.raises(IntegrityError, match="is not a file, but its package lists it"):
        entries_of(info, prefix)


def test_a_wheel_of_the_lock_that_is_not_installed_is_named(prefix: Prefix) -> None:
    with pytest.raises(IntegrityError, match=r"does not hold torch 2\.3\.1"):
        wheel_files.installed_wheels(prefix, [package("torch", version="2.3.1")], PYTHON)


def test_wheels_outside_the_lock_are_left_out(prefix: Prefix) -> None:
    install(prefix, "greet", {"greet.py": b"x"})
    install(prefix, "stray", {"stray.py": b"x"})
    wheels = wheel_files.installed_wheels(prefix, [package("greet")], PYTHON)
    assert [wheel.package.name for wheel in wheels] == ["greet"]
    assert not any("stray" in path for path in wheel_files.wheels_entries(wheels, {}, prefix))


def test_the_size_of_a_wheel_is_the_same_on_every_host(prefix: Prefix) -> None:
    install(
        prefix,
        "greet",
        {
            "greet.py": b"x" * 100,
            "../../../bin/greet": f"#!{prefix.path}".encode(),
            "__pycache__/x.pyc": b"code",
        },
    )
    (wheel,) = wheel_files.installed_wheels(prefix, [package("greet")], PYTHON)
    assert wheel.size == 100


@pytest.mark.parametrize("path", ["nvidia/__init__.py", "../../../bin/nvidia"])
@pytest.mark.parametrize("wheel_names", [("nvidia-a", "nvidia-b"), ("nvidia-a",)])
@pytest.mark.parametrize("order", [("nvidia-a", "nvidia-b"), ("nvidia-b", "nvidia-a")])
def test_a_shared_file_is_that_of_the_last_wheel_by_name(
    prefix: Prefix, order: tuple[str, ...], wheel_names: tuple[str, ...], path: str
) -> None:
    """Whichever was installed last, and also where the other wheel belongs to another layer."""
    for name in order:
        install(prefix, name, {path: name.encode(), f"nvidia/{name}.py": b"a"})
    wheels = wheel_files.installed_wheels(
        prefix, [package("nvidia-a"), package("nvidia-b")], PYTHON
    )
    selected = [wheel for wheel in wheels if wheel.package.name in wheel_names]
    clashing = wheel_files.shared_files(wheels)
    if order[-1] == "nvidia-a":
        with pytest.raises(
            IntegrityError,
            match=f"nvidia-a and nvidia-b have different content for the same file, {path}",
        ):
            wheel_files.wheels_entries(selected, clashing, prefix)
        (prefix.path / "lib" / f"python{PYTHON}" / "site-packages" / path).write_bytes(b"nvidia-b")
    (shared,) = [
        entry
        for file, entry in wheel_files.wheels_entries(selected, clashing, prefix).items()
        if file.endswith(path.lstrip("./"))
    ]
    assert shared.hashes == {hashlib.sha256(b"nvidia-b").hexdigest()}
    assert [package.name for package in wheel_files.co_owners(selected, clashing)] == (
        ["nvidia-b"] if len(wheel_names) == 1 else []
    )


@pytest.mark.parametrize("name", ["__init__.py", "py.typed"])
def test_identical_shared_files_are_accepted(prefix: Prefix, name: str) -> None:
    """Byte code of a source is compiled by itself if it has several owners."""
    for wheel in ("nvidia-b", "nvidia-a"):
        install(prefix, wheel, {f"nvidia/{name}": b"", "__pycache__/x.pyc": wheel.encode()})
    wheels = wheel_files.installed_wheels(
        prefix, [package("nvidia-a"), package("nvidia-b")], PYTHON
    )
    clashing = wheel_files.shared_files(wheels)
    others = [package("nvidia-b")] if name.endswith(".py") else []
    assert wheel_files.co_owners(wheels[:1], clashing) == others
    entries = wheel_files.wheels_entries(wheels, clashing, prefix)
    assert any(path.endswith(f"nvidia/{name}") for path in entries)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff,,\n",
        b"greet.py,sha256=!!!x,1\n",
        b"x" * 200_000 + b",,\n",
        b"greet.py,,\xc2\xb2\n",
        b"a\0b,,\n",
    ],
)
def test_an_invalid_record_is_refused(prefix: Prefix, content: bytes) -> None:
    info = install(prefix, "greet", {"greet.py": b"x"})
    (info / "RECORD").write_bytes(content)
    with pytest.raises(IntegrityError, match="RECORD"):
        wheel_files.read_record(info / "RECORD", prefix)


def test_byte_code_without_a_source_stays(prefix: Prefix) -> None:
    files = {
        "greet/__init__.py": b"",
        "greet/core.pyc": b"code",
        "greet/__init__.pyc": b"made",
        "greet/__pycache__/x.cpython-311.pyc": b"made",
    }
    info = install(prefix, "greet", files)
    names = [path.partition("site-packages/")[2] for path in by_path(entries_of(info, prefix))]
    assert sorted(names) == ["greet-1.0.dist-info/RECORD", "greet/__init__.py", "greet/core.pyc"]
