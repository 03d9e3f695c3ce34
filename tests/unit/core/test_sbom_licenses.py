from __future__ import annotations

import json
from pathlib import Path

import pytest

from provision.core import sbom
from provision.core.sbom import Licenses, read_licenses


def prefix_licenses(prefix: Path) -> Licenses:
    files = sorted(path for path in prefix.rglob("*") if path.is_file())
    return read_licenses((str(path), path.read_bytes()) for path in files)


def wheel(prefix: Path, name: str, *headers: str) -> None:
    folder = prefix / "lib" / "python3.11" / "site-packages" / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(
        "\n".join(
            ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *headers, "", "License: no"]
        )
    )


@pytest.mark.parametrize(
    "headers,expected",
    [
        (["License-Expression: MIT OR Apache-2.0", "License: whatever"], "MIT OR Apache-2.0"),
        (["License: BSD-3-Clause"], "BSD-3-Clause"),
        (["License: UNKNOWN", "Classifier: License :: OSI Approved :: MIT License"], "MIT License"),
        (
            [
                "License: Permission is hereby granted\n        to anyone\n        who asks",
                "Classifier: License :: Other",
            ],
            "Other",
        ),
        (["Classifier: Programming Language :: Python"], None),
    ],
)
def test_license_of_a_wheel(tmp_path: Path, headers: list[str], expected: str | None) -> None:
    wheel(tmp_path, "Some_Name", *headers)
    assert prefix_licenses(tmp_path).get(("pip", "some-name")) == expected


def test_license_of_a_conda_package_and_unreadable_metadata(tmp_path: Path) -> None:
    meta = tmp_path / "conda-meta"
    meta.mkdir()
    (meta / "a.json").write_text(json.dumps({"name": "python", "license": "Python-2.0"}))
    (meta / "b.json").write_text(json.dumps({"name": "pip", "license": None}))
    (meta / "c.json").write_text("{")
    (meta / "d.json").write_text("[]")
    (meta / "e.json").write_text(json.dumps({"license": "MIT"}))
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    (site / "broken-1.0.dist-info").mkdir(parents=True)
    (site / "nameless-1.0.dist-info").mkdir()
    (site / "nameless-1.0.dist-info" / "METADATA").write_text("License: MIT\n")
    (site / "binary-1.0.dist-info").mkdir()
    (site / "binary-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe")
    assert prefix_licenses(tmp_path) == {("conda", "python"): "Python-2.0"}


def test_a_bug_in_reading_licenses_stays_loud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(content: bytes) -> tuple[str, str]:
        raise KeyError("license")

    monkeypatch.setattr(sbom, "_read_metadata", fail)
    wheel(tmp_path, "Some_Name", "License: MIT")
    with pytest.raises(KeyError):
        prefix_licenses(tmp_path)
