"""Which files of conda packages get into an image, and what is removed from them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from provision.adapters.installed_files import without_host_paths
from provision.core.errors import IntegrityError
from provision.image import conda_files, layers
from provision.image.layers import LayerEntry


def by_path(entries: list[LayerEntry]) -> dict[str, LayerEntry]:
    return {entry.path: entry for entry in entries}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
    text = without_host_paths(json.dumps(record))
    assert json.loads(text) == {
        "name": "python",
        "url": "file:///local-channel/linux-64/python-3.11.7-h_0.conda",
        "channel": "file:///local-channel",
        "files": ["bin/python"],
    }
    remote = {"url": "https://conda.example.org/c/linux-64/x.conda", "channel": "c"}
    assert json.loads(without_host_paths(json.dumps(remote))) == remote


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
    entries = by_path(list(conda_files.conda_entries(tmp_path)))
    assert sorted(entries) == ["opt/env/bin/python", "opt/env/bin/python3.11", "opt/env/lib64"]
    assert entries["opt/env/bin/python3.11"].mode == 0o755
    assert (entries["opt/env/bin/python"].kind, entries["opt/env/bin/python"].target) == (
        "link",
        "python3.11",
    )
    assert (entries["opt/env/lib64"].kind, entries["opt/env/lib64"].target) == ("link", "lib")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../etc/passwd"])
def test_a_conda_link_out_of_the_environment_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "x").symlink_to(target)
    with pytest.raises(IntegrityError, match="/etc/passwd"):
        list(conda_files.conda_entries(tmp_path))


def test_files_of_conda_packages_have_their_owner_and_hashes(tmp_path: Path) -> None:
    """But for those whose paths were rewritten, and of those that two packages have either may be there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "conda-meta").mkdir()
    for name in ("tool", "plain", "both"):
        (tmp_path / "bin" / name).write_text(name)
    for package, files in (
        ("one", {"tool": "/built/in", "plain": "", "both": ""}),
        ("two", {"both": ""}),
    ):
        rows = [
            {
                "_path": f"bin/{name}",
                "path_type": "hardlink",
                "sha256": sha256(f"{name} of {package}".encode()),
                "prefix_placeholder": built,
            }
            for name, built in files.items()
        ]
        (tmp_path / "conda-meta" / f"{package}-1.0-0.json").write_text(
            json.dumps({"name": package, "paths_data": {"paths": rows}})
        )
    entries = by_path(list(conda_files.conda_entries(tmp_path)))
    assert {path: entry.conda for path, entry in entries.items()} == {
        "opt/env/bin/tool": "one", "opt/env/bin/plain": "one", "opt/env/bin/both": "two",
        "opt/env/conda-meta/one-1.0-0.json": "one", "opt/env/conda-meta/two-1.0-0.json": "two",
    }  # fmt: skip
    assert not entries["opt/env/bin/tool"].hashes
    assert entries["opt/env/bin/both"].hashes == {sha256(b"both of one"), sha256(b"both of two")}
    layers.verify(entries["opt/env/bin/plain"], sha256(b"plain of one"))
    with pytest.raises(
        IntegrityError, match="bin/plain of the conda package one does not match the package"
    ):
        layers.verify(entries["opt/env/bin/plain"], sha256(b"another"))


def test_own_entries() -> None:
    entries = by_path(
        conda_files.provision_entries({"provision_runtime/__main__.py": b"x"}, "3.11")
    )
    assert sorted(entries) == [
        "opt/env/conda-meta/history",
        "opt/env/lib/python3.11/site-packages/provision_runtime/__main__.py",
        "usr/local/bin/provision-smoke",
        "workspace",
    ]
    assert entries["usr/local/bin/provision-smoke"].mode == 0o755
    assert (entries["workspace"].kind, entries["workspace"].mode) == ("folder", 0o1777)
