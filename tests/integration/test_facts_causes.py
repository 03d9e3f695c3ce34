"""The phase facts on a real torch: what its import loads from elsewhere, or fails on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import provision_runtime
from tests.integration.smoke_process import PYTHON

pytestmark = pytest.mark.torch
PREFIX = Path(PYTHON).parent.parent
RUNTIME = Path(provision_runtime.__file__).parent
OF_TORCH = ("torch-broken", "nccl-shadowed", "foreign-library")


def examine(folder: Path, **variables: str) -> dict[str, str]:
    """What the phase facts finds and advises, by id, but for what is wrong with this machine."""
    out = folder / "out"
    subprocess.run(
        [PYTHON, RUNTIME, "smoke", "--only", "facts", "--ranks", "1", "--out", out],
        env={"PATH": os.defpath, "HOME": str(folder), **variables},
        capture_output=True,
        check=False,
    )
    [phase] = json.loads((out / "report.json").read_text())["phases"]
    return {
        item["id"]: f"{item['message']}: {item['advice']}"
        for item in phase["findings"]
        if item["id"] in OF_TORCH
    }


def copied_library(folder: Path, pattern: str) -> Path:
    """A copy, outside of the environment, of one of its libraries."""
    libraries = sorted(PREFIX.glob(f"lib/python3*/site-packages/nvidia/*/lib/{pattern}"))
    if not libraries:
        pytest.skip(f"the torch of {PYTHON} has no {pattern}")
    return Path(shutil.copy(libraries[0], folder))


def test_an_environment_as_it_was_installed(tmp_path: Path) -> None:
    assert examine(tmp_path) == {}


def test_nccl_and_another_cuda_library_from_elsewhere(short_path: Path) -> None:
    nccl = copied_library(short_path, "libnccl.so.*")
    runtime = copied_library(short_path, "libcudart.so.*")
    messages = examine(short_path, LD_PRELOAD=f"{nccl}:{runtime}")
    assert sorted(messages) == ["foreign-library", "nccl-shadowed"]
    assert f"{runtime.name} loaded from {short_path}" in messages["foreign-library"]
    assert str(nccl) in messages["nccl-shadowed"]


@pytest.mark.needs("gcc")
def test_a_libstdcxx_that_lacks_symbols(tmp_path: Path) -> None:
    (tmp_path / "empty.c").write_text("int nothing;\n")
    library = tmp_path / "libstdc++.so.6"
    command = ["gcc", "-shared", "-Wl,-soname,libstdc++.so.6", "-o", str(library)]
    subprocess.run([*command, str(tmp_path / "empty.c")], check=True)
    messages = examine(tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert list(messages) == ["torch-broken"]
    assert "an old libstdc++ was loaded first" in messages["torch-broken"]
