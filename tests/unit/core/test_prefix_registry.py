"""Where provision keeps its files, and prefixes that were made elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.core.paths import Folders, default_folders
from provision.core.prefix_registry import (
    forget_prefix,
    list_prefixes,
    prefix_path,
    prefix_paths,
    record_prefix,
)
from provision.core.project import described_names, project_folder


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(data=tmp_path, cache=tmp_path, envs=tmp_path)


def test_prefixes_elsewhere_are_recorded_and_forgotten(folders: Folders, tmp_path: Path) -> None:
    (folders.prefixes / "usual").mkdir(parents=True)
    first, second = tmp_path / "scratch" / "lab", tmp_path / "other" / "lab"
    record_prefix(folders, "usual", folders.prefixes / "usual")
    record_prefix(folders, "lab", first)
    record_prefix(folders, "lab", second)
    assert prefix_path(folders, "lab") == second
    assert prefix_paths(folders, "lab") == [folders.prefixes / "lab", first, second]
    assert set(list_prefixes(folders)) == {"usual", "lab"}
    forget_prefix(folders, "lab")
    assert prefix_path(folders, "lab") == folders.prefixes / "lab"


@pytest.mark.parametrize("content", ["", "[]", '{"lab": 3}', '{"lab": [3]}', "{", "[" * 10**5])
def test_a_damaged_record_counts_as_empty(folders: Folders, content: str) -> None:
    (folders.data / "elsewhere.json").write_text(content)
    assert prefix_path(folders, "lab") == folders.prefixes / "lab"
    assert list_prefixes(folders) == {}


def test_variables_move_the_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "d"))
    monkeypatch.setenv("PROVISION_ENVS", str(tmp_path / "e"))
    folders = default_folders()
    assert (folders.data, folders.envs) == (tmp_path / "d", tmp_path / "e")
    assert default_folders(tmp_path / "f").envs == tmp_path / "f"


def test_a_projects_products_stay_where_they_were_made(tmp_path: Path) -> None:
    """Also of one that was moved; and another at its former place gets a folder of its own."""
    data, envs, moved = tmp_path / "data", tmp_path / "lab" / "envs", tmp_path / "lab2" / "envs"
    usual = project_folder(data, envs)
    record = data / usual / "project"
    record.parent.mkdir(parents=True)
    for other in range(3):
        (data / "projects" / f"a{other}").mkdir()
        (data / "projects" / f"a{other}" / "project").write_text(f"/srv/{other}/envs")
    record.write_text(str(envs))
    assert project_folder(data, envs) == usual
    record.write_text(str(moved))
    assert project_folder(data, moved) == usual
    assert project_folder(data, envs) == usual.with_name(f"{usual.name}-new")
    assert project_folder(data, Path("/srv/2/envs")) == Path("projects/a2")


def test_described_are_folders_with_a_spec_or_a_lock(tmp_path: Path) -> None:
    assert described_names(tmp_path / "absent") == []
    for name in ("b/spec.yml", "a/conda-lock.yml", "c/pyvenv.cfg", ".d/spec.yml"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert described_names(tmp_path / "file") == described_names(tmp_path / "loop") == []
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "spec.yml").symlink_to("absent")
    assert described_names(tmp_path) == [".d", "a", "b"]
