"""What `nox -s release` refuses and writes, in a git repository; and the version where it is stated."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest
import release
import yaml

from provision.catalog.data_files import load
from tests.conftest import ROOT

CHANGELOG = """# Changelog

## Unreleased

## 1.2.0 (2026-11-26)

- **Nodes**: many.

### What breaks

- Everything.

## 1.1.0 (2026-10-01)

- Older.
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "provision").mkdir(parents=True)
    (root / "provision" / "__init__.py").write_text('"""A package."""\n\n__version__ = "1.2.0"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root: Path, *arguments: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@lab.invalid")
    subprocess.run(["git", "-C", str(root), *author, *arguments], check=True)


def commit(root: Path) -> None:
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "a change")


def replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


@pytest.mark.needs("git")
def test_a_clean_tree_whose_changelog_has_the_version_can_be_released(repository: Path) -> None:
    assert release.release_problems(repository) == []


@pytest.mark.needs("git")
def test_each_reason_against_a_release(repository: Path) -> None:
    changelog = repository / "CHANGELOG.md"
    (repository / "new.py").touch()
    (problem,) = release.release_problems(repository)
    assert "?? new.py" in problem
    (repository / "new.py").unlink()

    replace(changelog, "## Unreleased\n", "## Unreleased\n\n- A fix.\n")
    commit(repository)
    (problem,) = release.release_problems(repository)
    assert "Unreleased" in problem
    replace(changelog, "\n- A fix.\n", "")

    replace(changelog, "1.2.0 (2026-11-26)", "1.2.0")
    commit(repository)
    (problem,) = release.release_problems(repository)
    assert "newest section" in problem
    replace(changelog, "## 1.2.0", "## 1.2.0 (2026-11-26)")

    replace(repository / "provision" / "__init__.py", "1.2.0", "1.2.1")
    commit(repository)
    (problem,) = release.release_problems(repository)
    assert "states 1.2.1" in problem
    replace(repository / "provision" / "__init__.py", "1.2.1", "1.2.0")
    commit(repository)

    git(repository, "tag", "v1.2.0")
    (problem,) = release.release_problems(repository)
    assert "v1.2.0 exists" in problem


@pytest.mark.needs("git")
def test_release_files_describe_the_distributions(repository: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "provision_gpu-1.2.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    with pytest.raises(SystemExit, match=r"lacks provision_gpu-1\.2\.0\.tar\.gz"):
        release.write_release_files(repository, tmp_path)
    sdist = tmp_path / "provision_gpu-1.2.0.tar.gz"
    sdist.write_bytes(b"sdist")
    release.write_release_files(repository, tmp_path)
    assert (tmp_path / "tag.txt").read_text() == "provision 1.2.0\n\n- **Nodes**: many.\n"
    notes = (tmp_path / "notes.md").read_text()
    assert notes.endswith("### What breaks\n\n- Everything.\n")
    assert (tmp_path / "SHA256SUMS").read_text().splitlines() == [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in (wheel, sdist)
    ]


def test_generated_files_of_this_repository_state_its_version() -> None:
    version = release.package_version(ROOT)
    for path in (ROOT / "Dockerfile", ROOT / "examples" / "lab" / "envs" / "train" / "Dockerfile"):
        assert f"org.provision.tool={version} " in path.read_text(), path
    for path in (
        ROOT / "docs" / "ci.md",
        ROOT / "examples" / "lab" / ".github" / "workflows" / "provision.yml",
    ):
        wheels = re.findall(r"provision_gpu-(.+?)-py3", path.read_text())
        assert set(wheels) == {version}, path


def test_our_workflow_pins_the_actions_that_generated_workflows_pin() -> None:
    checkout = load("ci.yml")["actions"]["checkout"]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    pin = f"{checkout['uses']}@{checkout['commit']} # {checkout['version']}"
    assert pin in workflow
    assert yaml.safe_load(workflow)["permissions"] == {}
