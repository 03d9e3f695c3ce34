"""Byte code in images: that of the prefix, in the layer of its source, listed by conda's records."""

from __future__ import annotations

import hashlib
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from provision.adapters.installed_files import INSTALL_RECORD
from provision.core.errors import IntegrityError
from provision.core.types import Image
from provision.image import oci_layout
from provision.image.build import build_image
from provision.image.cache_key import Recipe
from tests.unit.image.test_image_build import BASE, LOCK, PYTHON, RESOLUTION, Quiet
from tests.unit.image.test_image_layer_build import _locked
from tests.unit.image.test_image_tree_files import install

SITE = "lib/python3.11/site-packages"
GREET = f"{SITE}/__pycache__/greet.cpython-311.pyc"
CODECS = "lib/python3.11/__pycache__/codecs.cpython-311.pyc"
PATHS = "lib/python3.11/__pycache__/_paths.cpython-311.pyc"
SOURCES = {"lib/python3.11/codecs.py": b"x = 1\n", "lib/python3.11/_paths.py": b"p = '/opt/env'\n"}


def make_prefix(folder: Path) -> Path:
    (folder / SITE).mkdir(parents=True)
    hashes = {}
    for file in (GREET, CODECS, PATHS):
        content = f"byte code {file}".encode()
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(content)
        hashes[file] = hashlib.sha256(content).hexdigest()
    (folder / INSTALL_RECORD).parent.mkdir()
    (folder / INSTALL_RECORD).write_text(
        json.dumps({"schema": 1, "distributions": {}, "byte_code": hashes})
    )
    (folder / SITE / "__pycache__" / "greet.cpython-311.opt-1.pyc").write_text("of a run with -O")
    return folder


def install_packages(staging: Path) -> None:
    """A wheel, and a conda package that brought byte code, and has a source whose text names the
    prefix."""
    install(staging, "greet", {"greet.py": b"y = 1\n"}, "1.0")
    rows = []
    for path, content in SOURCES.items():
        (staging / path).parent.mkdir(parents=True, exist_ok=True)
        (staging / path).write_bytes(content)
        row = {
            "_path": path,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        rows.append(row)
    rows[1]["prefix_placeholder"] = "/placeholder"
    rows.append({"_path": CODECS, "path_type": "hardlink", "sha256": "0" * 64})
    (staging / "conda-meta").mkdir()
    record = {
        "name": "python",
        "files": [row["_path"] for row in rows],
        "paths_data": {"paths": rows},
    }
    (staging / "conda-meta" / "python-3.11.7-0.json").write_text(json.dumps(record))


def build(prefix: Path, layout: Path) -> Image:
    lock = replace(LOCK, packages=(PYTHON, _locked("greet", "1.0")))
    return build_image(
        Recipe(resolution=RESOLUTION, lock=lock, base=BASE, runtime={}),
        layout=layout,
        install=install_packages,
        byte_code=prefix,
        progress=Quiet(),
    )


def files(built: Image, group: str) -> dict[str, bytes]:
    (layer,) = (layer for layer in built.layers if layer.group == group)
    contents = {}
    with tarfile.open(oci_layout.blob(built.layout, layer.digest)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                contents[member.name.removeprefix("opt/env/")] = file.read()
    return contents


def test_byte_code_lies_in_the_layer_of_its_source(tmp_path: Path) -> None:
    built = build(make_prefix(tmp_path / "prefix"), tmp_path / "image")
    wheels, python = files(built, "rest"), files(built, "python")
    assert wheels[GREET] == f"byte code {GREET}".encode()
    assert python[CODECS] == f"byte code {CODECS}".encode()
    names = [name for name in (*wheels, *python) if name.endswith(".pyc")]
    assert sorted(names) == sorted([GREET, CODECS])


def test_condas_record_lists_what_the_image_has(tmp_path: Path) -> None:
    built = build(make_prefix(tmp_path / "prefix"), tmp_path / "image")
    record = json.loads(files(built, "python")["conda-meta/python-3.11.7-0.json"])
    types = {row["_path"]: row["path_type"] for row in record["paths_data"]["paths"]}
    assert types == {**dict.fromkeys(SOURCES, "hardlink"), CODECS: "pyc_file"}
    assert record["files"] == [*SOURCES, CODECS]


@pytest.mark.parametrize("damage", ["changed", "removed"])
def test_damaged_byte_code_gets_into_no_image(tmp_path: Path, damage: str) -> None:
    prefix = make_prefix(tmp_path / "prefix")
    if damage == "removed":
        (prefix / GREET).unlink()
    else:
        content = bytearray((prefix / GREET).read_bytes())
        content[-1] ^= 1
        (prefix / GREET).write_bytes(content)
    with pytest.raises(IntegrityError, match=r"greet\.cpython-311\.pyc"):
        build(prefix, tmp_path / "image")
    assert not (tmp_path / "image").exists()
