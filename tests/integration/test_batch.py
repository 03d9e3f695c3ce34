"""Many environments in one process, solved against real records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import SHARED_RECORDS
from tests.integration.conftest import Home, make_home
from tests.results import parse_result

pytestmark = pytest.mark.conda


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A lab with three environments from the channels, and one that no channel has."""
    shelf_home = make_home(tmp_path_factory.mktemp("shelf"))
    home = Home(
        root=shelf_home.root,
        env={**shelf_home.env, "PROVISION_MIRRORS": f"*={SHARED_RECORDS.as_uri()}"},
    )
    for arguments_ in (
        ("--torch", "2.6", "--cuda", "12.6", "--source", "conda-forge"),
        ("--torch", "2.3.1", "--cuda", "12.1", "--source", "pytorch", "--no-companions"),
        ("--torch", "2.0.1", "--cuda", "11.8", "--source", "pytorch"),
    ):
        assert home.run("render", *arguments_).returncode == 0
    return home


def rows(home: Home, *arguments: str) -> dict[str, dict[str, object]]:
    result = home.run(*arguments, "--json")
    assert result.returncode in (0, 1), result.stderr
    return {row["name"]: row for row in parse_result(result.stdout)["environments"]}


def write_spec(home: Home, name: str, text: str) -> Path:
    path = home.envs / name / "spec.yml"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_failure_does_not_stop_the_batch(shelf: Home) -> None:
    spec = write_spec(shelf, "wrong", 'torch: "2.1"\ncuda: "12.9"\n')
    try:
        result = shelf.run("lock", "--all")
        assert result.returncode == 1
        assert (
            "1 of 4 failed" in result.stdout
            and "There is no build for torch 2.1, CUDA 12.9" in result.stdout
        )
        assert len(list(shelf.envs.glob("*/conda-lock.yml"))) == 3
    finally:
        spec.unlink()
    again = rows(shelf, "lock", "--all")
    assert {row["status"] for row in again.values()} == {"kept"}


@pytest.mark.exhaustive
def test_batch_lock_equals_single_lock(shelf: Home) -> None:
    assert shelf.run("lock", "--all").returncode == 0
    for path in shelf.envs.glob("*/conda-lock.yml"):
        among = path.read_bytes()
        assert shelf.run("lock", path.parent.name, "--relock").returncode == 0
        assert path.read_bytes() == among


def test_all_excludes_other_selectors(shelf: Home) -> None:
    result = shelf.run("lock", "--all", "--torch", "2.6")
    assert result.returncode == 3
    assert "--all" in result.stderr and "torch" in result.stderr


def test_an_empty_folder_has_nothing_to_lock(shelf: Home, tmp_path: Path) -> None:
    result = shelf.run("lock", "--all", "--envs", str(tmp_path))
    assert result.returncode == 3
    assert os.fspath(tmp_path) in result.stderr
