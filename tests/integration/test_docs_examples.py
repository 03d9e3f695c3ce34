"""The first example of docs/checkpoints.md and docs/training.md, run as printed, where provision has put its runtime package."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from provision.environment import runtime_package
from tests.conftest import ROOT

pytestmark = pytest.mark.torch

TIMEOUT_S = 180


def first_example(page: str) -> str:
    """The first Python block of a page."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    match = re.search(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert match, page
    return match[1]


def run_ranks(runtime_python: Path, folder: Path, script: str) -> str:
    """Standard output of a script on two ranks. No PYTHONPATH leads to our sources."""
    (folder / "train.py").write_text(script)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    completed = subprocess.run(
        [
            runtime_python,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "train.py",
        ],
        cwd=folder,
        env={**env, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.mark.exhaustive
def test_the_examples_run_in_one_folder(runtime_python: Path, tmp_path: Path) -> None:
    assert (
        run_ranks(runtime_python, tmp_path, first_example("training")) == "2 ranks saved step 10\n"
    )
    assert (tmp_path / "first-run" / "done.txt").read_text() == "10 steps\n"
    script = first_example("checkpoints")
    assert run_ranks(runtime_python, tmp_path, script) == "steps [5, 10] latest 10\n"
    assert run_ranks(runtime_python, tmp_path, script) == "steps [5, 10, 15, 20] latest 20\n"


def test_runtime_is_imported_from_site_packages(runtime_python: Path) -> None:
    script = "import provision_runtime; print(provision_runtime.__file__)"
    printed = subprocess.run(
        [runtime_python, "-I", "-c", script], capture_output=True, text=True, check=True
    ).stdout
    site = runtime_package.site_packages(runtime_python.parent.parent)
    assert Path(printed.strip()) == site / "provision_runtime" / "__init__.py"
