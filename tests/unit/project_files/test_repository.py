"""Which files of a repository are read, and what one adds to those before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.core.errors import InvalidSpec
from provision.lockfile import conda_lock_v1
from provision.lockfile.export import export_lock
from provision.project_files.request import Choices
from provision.project_files.toml_file import Selection
from provision.verbs.init.init import Reading, read_one, read_repository

ENVIRONMENT = "name: dl\ndependencies: [python<3.12, pytorch=2.1, pytorch-cuda=12.1, numpy]\n"
SETUP = "from setuptools import setup\nsetup(name='toy', install_requires=['einops', 'torch'])\n"
GROUP = "[project]\nname = 'toy'\n[dependency-groups]\ntest = ['pytest']\n"


def read(folder: Path, files: dict[str, str], *groups: str) -> Reading:
    for name, text in files.items():
        (folder / name).write_text(text)
    return read_repository(folder, Choices(), Selection(groups=frozenset(groups)))


@pytest.mark.parametrize(
    "files,content",
    [
        ({"requirements.txt": "numpy==1.26\neinops\n"}, {"pip": ["einops"]}),
        ({"requirements.txt": "torch==2.1.2\n"}, {"torch": "2.1.2"}),
        ({"setup.py": SETUP}, {"pip": ["einops"]}),
        ({".python-version": "3.10\n"}, {"python": "3.10"}),
        ({".tool-versions": "nodejs 20.1\npython 3.9.1\n"}, {"python": "3.9"}),
        ({"setup.py": "print 'python 2'\n"}, {}),
        ({"Dockerfile": "FROM pytorch/pytorch:2.4.0-cuda12.4\nRUN pip install rich\n"}, {}),
        ({"pyproject.toml": "[tool.ruff]\nline-length = 100\n"}, {}),
    ],
)
def test_further_files_add_what_the_leading_one_leaves_open(
    tmp_path: Path, files: dict[str, str], content: dict[str, object]
) -> None:
    alone = read(tmp_path, {"environment.yml": ENVIRONMENT}).request.content
    assert read(tmp_path, files).request.content == {**alone, **content}


def test_exact_versions_lead_before_ranges(tmp_path: Path) -> None:
    project = "[project]\nname = 'toy'\ndependencies = ['numpy', 'rich>=13', 'torch>=2']\n"
    files = {"pyproject.toml": project, "requirements.txt": "torch==2.3.1+cu121\nnumpy==1.26\n"}
    reading = read(tmp_path, files)
    assert reading.source == "requirements.txt, pyproject.toml"
    assert reading.request.content["torch"] == "2.3.1"
    assert reading.request.content["pip"] == ["numpy==1.26", "rich>=13"]


def test_unread_files_are_named(tmp_path: Path) -> None:
    files = {
        "environment.yml": ENVIRONMENT,
        "requirements-dev.txt": "",
        "uv.lock": "",
        "notes.txt": "",
    }
    assert read(tmp_path, files).unread_files == ("requirements-dev.txt", "uv.lock")


def test_lock_leads_where_nothing_else_does(tmp_path: Path) -> None:
    lock = "version = 1\nrequires-python = '==3.10.*'\n[[package]]\nname = 'toy'\nsource = {virtual = '.'}\n"
    assert read(tmp_path, {"uv.lock": lock}).request.content == {"python": "3.10"}


def test_group_of_a_file_that_does_not_lead(tmp_path: Path) -> None:
    files = {"environment.yml": ENVIRONMENT, "pyproject.toml": GROUP}
    assert read(tmp_path, files, "test").request.content["pip"] == ["pytest"]
    with pytest.raises(InvalidSpec, match="no group `docs`"):
        read(tmp_path, files, "docs")


def test_exported_pylock_comes_back_with_its_build(tmp_path: Path) -> None:
    lock = conda_lock_v1.read_file(Path(__file__).parents[3] / "conda-lock.yml")
    path = tmp_path / "pylock.toml"
    path.write_text(export_lock(lock, "lab", "pylock", "linux-64"))
    content = read_one(path, Choices()).request.content
    stated = {key: content.get(key) for key in ("torch", "cuda", "python")}
    build = {entry.name: entry for entry in lock.for_platform("linux-64")}
    assert stated == {
        "torch": (build.get("pytorch") or build["torch"]).version,
        "cuda": "12.1",
        "python": ".".join(build["python"].version.split(".")[:2]),
    }
