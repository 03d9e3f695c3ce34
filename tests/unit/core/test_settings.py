"""settings.yml: folders of a user, a lab or a site."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from provision.core import settings
from provision.core.errors import InvalidSpec
from provision.core.paths import default_folders


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of settings; the site has none."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "site"))
    for name in (settings.CONFIG, "PROVISION_DATA", "PROVISION_CACHE", "PROVISION_ENVS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "config" / "provision"
    folder.mkdir(parents=True)
    return folder


def test_the_users_file_goes_before_the_labs_and_that_before_the_sites(
    configuration: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site" / "provision"
    site.mkdir(parents=True)
    (site / settings.FILE).write_text("data: /site\ncache: /site\ntmp: /site/{user}\n")
    (configuration / settings.JOINED).write_text("data: /lab\ncache: /lab\n")
    (configuration / settings.FILE).write_text("data: ~/mine\n")
    assert settings.folder_settings() == {
        "data": Path.home() / "mine",
        "cache": Path("/lab"),
        "tmp": Path("/site") / getpass.getuser(),
    }


def test_the_folders_of_the_lab(
    configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (configuration / settings.JOINED).write_text("data: /lab/data\nenvs: /lab/envs\n")
    folders = default_folders()
    assert (folders.data, folders.envs) == (Path("/lab/data"), Path("/lab/envs"))
    assert default_folders(Path("other")).envs == tmp_path / "other"
    (tmp_path / "envs").mkdir()
    monkeypatch.setenv("PROVISION_DATA", "/variable")
    folders = default_folders()
    assert (folders.data, folders.envs) == (Path("/variable"), tmp_path / "envs")


@pytest.mark.mounts
def test_the_folders_of_a_user_without_a_name(configuration: Path, tmp_path: Path) -> None:
    """As in a container with --user: no entry in the user database, and no variables."""
    (configuration / settings.FILE).write_text(f"data: {tmp_path}/{{user}}\n")
    nameless = ["unshare", "--user", "--map-user=12345", "env"]
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "PROVISION_DATA"):
        nameless += ["-u", name]
    command = [str(Path(sys.executable).parent / "provision"), "env", "list"]
    result = subprocess.run([*nameless, *command], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "text,message",
    [
        ("data: 3\n", "data: 3 is not"),
        ("tmp: '/scratch/{name}'\n", "{user} is the only name"),
        ("tmp: '/scratch/{'\n", "{user} is the only name"),
        ("tmp: '/scratch/{user.x}'\n", "{user} is the only name"),
        ("tmp: '~no-such-user/x'\n", "`~no-such-user/x`: "),
        ("scratch: /x\n", "'scratch' was unexpected"),
    ],
)
def test_a_folder_that_is_none(configuration: Path, text: str, message: str) -> None:
    (configuration / settings.FILE).write_text(text)
    with pytest.raises(InvalidSpec, match=message):
        settings.folder_settings()


def test_variables_for_temporary_files_and_uv(
    configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    (configuration / settings.JOINED).write_text(f"tmp: {tmp_path / 'tmp'}\ncache: /lab\n")
    for name in ("TMPDIR", "UV_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # so that what is set is taken back
    settings.apply_folders()
    assert (os.environ["TMPDIR"], os.environ["UV_CACHE_DIR"]) == ("", "/lab/uv")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("UV_CACHE_DIR", "/mine")
    settings.apply_folders()
    folders = (os.environ["TMPDIR"], os.environ["UV_CACHE_DIR"])
    assert folders == (str(tmp_path / "tmp"), "/mine")
