"""The files in the root of the repository are this tool's own output for one environment, locked from real records.

`pytest tests/integration/test_root_files.py --update-golden` makes them anew.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, SHARED_RECORDS
from tests.integration.conftest import make_home

NAME = "torch2.3-cuda12.1-py311-pytorch"
IN_THE_ROOT = ("environment.yml", "conda-lock.yml", "Dockerfile")


@pytest.fixture(scope="module")
def locked_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = make_home(tmp_path_factory.mktemp("root"))
    folder = home.envs / NAME
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "envs" / NAME / "spec.yml", folder)
    result = home.run("lock", NAME, PROVISION_MIRRORS=f"*={SHARED_RECORDS.as_uri()}")
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.conda
def test_root_environment_is_rendered_from_its_spec(
    locked_folder: Path, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--update-golden"):
        for path in locked_folder.iterdir():
            shutil.copy(path, ROOT / "envs" / NAME)
        for name in IN_THE_ROOT:
            shutil.copy(locked_folder / name, ROOT)
    assert {path.name: path.read_text() for path in locked_folder.iterdir()} == {
        path.name: path.read_text() for path in (ROOT / "envs" / NAME).iterdir()
    }


@pytest.mark.parametrize("name", IN_THE_ROOT)
def test_root_file_is_identical(name: str) -> None:
    assert (ROOT / name).read_bytes() == (ROOT / "envs" / NAME / name).read_bytes()
