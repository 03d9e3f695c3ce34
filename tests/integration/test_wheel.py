"""The wheel holds all that provision reads at run time, and works in the folder of a clone, whose templates/ are our own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from provision.adapters.uv import uv_executable
from tests.conftest import ROOT

pytestmark = pytest.mark.index  # the build backend comes from there


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the content of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [uv_executable(), "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], check=True
    )
    # `provision` on package indexes is another project's: whoever installs by name gets ours or nothing.
    (wheel,) = folder.glob("provision_gpu-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "content")
    return folder / "content"


def relative_files(folder: Path, pattern: str) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob(pattern)
        if path.is_file() and not {"__pycache__", "_bundled"} & {*path.relative_to(folder).parts}
    }


@pytest.mark.parametrize(
    "source, packaged, pattern",
    [
        ("templates", "provision/templates", "*.j2"),
        ("provision/schemas", "provision/schemas", "*.json"),
        ("provision/catalog/data", "provision/catalog/data", "*"),
        ("provision", "provision", "*.py"),
        ("provision_runtime", "provision/_bundled/provision_runtime", "*.py"),
        ("provision_runtime", "provision/_bundled/provision_runtime", "*.json"),
    ],
)
def test_wheel_has_the_same_files(unpacked: Path, source: str, packaged: str, pattern: str) -> None:
    files = relative_files(ROOT / source, pattern)
    assert files and relative_files(unpacked / packaged, pattern) == files


def test_clone_renders_with_packaged_templates(unpacked: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import provision.cli.main as cli\nprint(cli.__file__)\ncli.main()\n")
    options = ["--torch", "2.3", "--cuda", "12.1", "--python", "3.11", "--python-from", "channel"]
    rendered = subprocess.run(
        [sys.executable, program, "render", *options, "--envs", tmp_path / "envs"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(unpacked), "PROVISION_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert rendered.returncode == 0, rendered.stderr
    assert rendered.stdout.startswith(str(unpacked))
    assert "is rendered from" not in rendered.stderr
    (environment,) = (tmp_path / "envs").glob("*/environment.yml")
    assert "from spec.yml; remake" in environment.read_text().splitlines()[0]
