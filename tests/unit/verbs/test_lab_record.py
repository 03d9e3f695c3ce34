"""The record of a joined lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.verbs.join.record import (
    FILE,
    lab_folder,
    labs_folder,
    read_source,
    sources,
    write_source,
)

SOURCE = "https://git.example/vision.git"


def test_a_record_reads_back(tmp_path: Path) -> None:
    write_source(tmp_path / "vision", SOURCE)
    assert read_source(tmp_path / "vision") == SOURCE
    assert sources(tmp_path) == [SOURCE]
    before = (tmp_path / "vision" / FILE).stat()
    write_source(tmp_path / "vision", SOURCE)
    assert (tmp_path / "vision" / FILE).stat().st_ino == before.st_ino


def test_a_record_of_an_earlier_provision(tmp_path: Path) -> None:
    text = '{"schema": 1, "source": "/srv/lab", "lab": "vision", "tests": {}}'
    (tmp_path / FILE).write_text(text)
    assert read_source(tmp_path) == "/srv/lab"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "source": 3}'])
def test_a_damaged_record_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_source(tmp_path) is None
    assert sources(tmp_path.parent / "none") == []


def test_each_address_has_a_folder_of_its_own(tmp_path: Path) -> None:
    addresses = [
        "https://git.example/ml/vision.git",
        "git@git.example:ml/vision.git",
        "/srv/vision",
        "https://git.example/ml/..",
    ]
    folders = [lab_folder(tmp_path, address) for address in addresses]
    assert len(set(folders)) == len(addresses)
    assert [folder.name[:7] for folder in folders[:3]] == ["vision-"] * 3
    assert {folder.parent for folder in folders} == {tmp_path}
    assert folders[3].name.startswith("lab-")


def test_variables_move_the_labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path))
    assert labs_folder() == tmp_path / "labs"
