"""SBOMs of images: the packages of the lock, valid by CycloneDX's schema."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from provision import lockfile as locks
from provision.cli.main import cli
from provision.core.errors import IntegrityError
from provision.core.paths import default_folders
from provision.core.types import Layer
from provision.environment import runtime_package
from provision.image import config, oci_layout
from provision.image.contents import read_files
from provision.image.sbom import RECORDS
from tests import evidence
from tests.conftest import ROOT
from tests.unit.image.test_image_base import with_link
from tests.unit.image.test_image_layers import archive
from tests.unit.lockfile.test_lock_verify import sound

RELEASE = ("usr/lib/os-release", b'NAME="Debian GNU/Linux"\nVERSION_ID="12"\nID=debian\n')
DEBIAN = archive(RELEASE)
LINKED = with_link("etc/os-release", "../usr/lib/os-release")
RUNTIME = runtime_package.load()
OWN = archive(
    (
        "opt/env/conda-meta/numpy-1.26.4-py311_0.json",
        json.dumps({"name": "numpy", "license": "BSD-3-Clause"}).encode(),
    ),
    (
        "opt/env/lib/python3.11/site-packages/torch-2.3.1.dist-info/METADATA",
        b"Name: torch\nLicense-Expression: LicenseRef-Lab-Own\n\n",
    ),
    ("opt/env/lib/python3.11/site-packages/big.so", b"x" * 5000),
    (
        f"opt/env/lib/python3.11/site-packages/{RUNTIME.dist_info}/METADATA",
        RUNTIME.files[f"{RUNTIME.dist_info}/METADATA"],
    ),
)


def test_records_of_unlimited_size_are_refused(tmp_path: Path) -> None:
    """However many files they are in: 80 files of 1 MiB each."""
    names = (f"opt/env/conda-meta/{number}.json" for number in range(80))
    layer = tmp_path / "layer"
    layer.write_bytes(archive(*((name, bytes(1 << 20)) for name in names)))
    with pytest.raises(IntegrityError, match="more than 64 MiB"):
        read_files([layer], RECORDS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an environment whose image is in a layout, as `image build` leaves them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    layout = default_folders(tmp_path / "envs").images / "lab"
    oci_layout.blobs(layout).mkdir(parents=True)
    layers = []
    for group, content in (("base", DEBIAN), ("base", LINKED), ("rest", OWN)):
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        oci_layout.blob(layout, digest).write_bytes(content)
        layers.append(Layer(group=group, digest=digest, size=len(content)))
    folder = tmp_path / "envs" / "lab"
    folder.mkdir(parents=True)
    (folder / locks.FILE).write_text(yaml.safe_dump(sound()))
    labels = {
        config.LOCK_LABEL: locks.read_file(folder / locks.FILE).sha256,
        config.BASE_NAME: "debian:12",
        config.BASE_ID: "sha256:0",
    }
    settings = config.image_config({}, {}, layers, 1_700_000_000)
    oci_layout.write(layout, settings, layers, labels, "provision/lab:1")
    passport = json.loads((ROOT / "tests" / "data" / "passport.json").read_text())
    passport["name"] = "lab"
    evidence.write(default_folders(folder.parent).passport("lab") / "passport.json", passport)
    return folder


def sbom(*options: str) -> Result:
    return CliRunner().invoke(cli, ["image", "sbom", "lab", *options])


def test_cyclonedx_of_an_image(folder: Path) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    from cyclonedx.schema import SchemaVersion

    result = sbom()
    assert result.exit_code == 0, result.output
    sbom_document: dict[str, Any] = json.loads(result.stdout)
    assert (
        validation.JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(sbom_document))
        is None
    )
    subject = sbom_document["metadata"]["component"]
    (index,) = (folder.parents[1] / "data").rglob("index.json")
    digest = json.loads(index.read_text())["manifests"][0]["digest"]
    assert (subject["type"], subject["version"], subject["hashes"][0]["content"]) == (
        "container",
        digest,
        digest.partition(":")[2],
    )
    assert sbom_document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    parts = {part["name"]: part for part in sbom_document["components"]}
    assert {"numpy", "torch"} <= parts.keys() and len(parts) == len(sound()["package"]) + 1
    assert parts["provision-runtime"]["version"] == RUNTIME.version  # no lock names it
    assert parts["provision-runtime"]["purl"].startswith("pkg:generic/provision")
    assert parts["numpy"]["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert parts["torch"]["licenses"] == [{"expression": "LicenseRef-Lab-Own"}]
    assert sbom_document["compositions"][0]["aggregate"] == "incomplete"  # the base is not listed


def test_the_output_is_a_file_too(folder: Path) -> None:
    assert sbom("-o", "lab.cdx.json").exit_code == 0
    assert sbom().stdout == Path("lab.cdx.json").read_text()


def test_an_sbom_for_another_lock_is_refused(folder: Path) -> None:
    with (folder / locks.FILE).open("a") as file:
        file.write("# edited\n")
    result = sbom()
    assert (result.exit_code, "of another lock than" in result.stderr) == (6, True), result.stderr


def test_a_missing_image_is_refused(folder: Path, tmp_path: Path) -> None:
    (default_folders().images / "lab").rename(tmp_path / "elsewhere")
    result = sbom()
    assert (result.exit_code, "has no image" in result.stderr) == (9, True)
