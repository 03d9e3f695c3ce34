"""`doctor --deep` on a real torch: what its import loads from elsewhere, or fails on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.smoke_process import PYTHON
from tests.integration.test_doctor_causes import DOCTOR
from tests.programs import write_program

pytestmark = pytest.mark.torch
PREFIX = Path(PYTHON).parent.parent


def examine(folder: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    environment = {"PATH": os.defpath, "HOME": str(folder), **variables}
    child = subprocess.run(
        [*DOCTOR, "--deep", "--prefix", str(PREFIX), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    document: dict[str, Any] = json.loads(child.stdout)
    return document


def ids(document: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in document["findings"]]


def copied_library(folder: Path, pattern: str) -> Path:
    """A copy, outside of the environment, of one of its libraries."""
    libraries = sorted(PREFIX.glob(f"lib/python3*/site-packages/nvidia/*/lib/{pattern}"))
    if not libraries:
        pytest.skip(f"the torch of {PYTHON} has no {pattern}")
    return Path(shutil.copy(libraries[0], folder))


def test_an_environment_as_it_was_installed(tmp_path: Path) -> None:
    assert ids(examine(tmp_path)) == []


def test_nccl_and_another_cuda_library_from_elsewhere(short_path: Path) -> None:
    nccl = copied_library(short_path, "libnccl.so.*")
    runtime = copied_library(short_path, "libcudart.so.*")
    document = examine(short_path, LD_PRELOAD=f"{nccl}:{runtime}")
    messages = {finding["id"]: finding["message"] for finding in document["findings"]}
    assert sorted(messages) == ["foreign-library", "nccl-shadowed"]
    assert f"{runtime.name} loaded from {short_path}" in messages["foreign-library"]
    assert str(nccl) in messages["nccl-shadowed"]


@pytest.mark.needs("gcc")
def test_a_libstdcxx_that_lacks_symbols(tmp_path: Path) -> None:
    (tmp_path / "empty.c").write_text("int nothing;\n")
    library = tmp_path / "libstdc++.so.6"
    command = ["gcc", "-shared", "-Wl,-soname,libstdc++.so.6", "-o", str(library)]
    subprocess.run([*command, str(tmp_path / "empty.c")], check=True)
    document = examine(tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert ids(document) == ["torch-broken"]
    assert "libstdc++" in document["findings"][0]["advice"]


@pytest.mark.exhaustive
def test_a_gpu_that_this_torch_has_no_code_for(tmp_path: Path) -> None:
    """The capability is made up; the architectures are those of the real build."""
    tool = tmp_path / "nvidia-smi"
    write_program(tool, "#!/bin/sh\necho 99.0\n")
    [version] = PREFIX.glob("lib/python3*/site-packages/torch/version.py")
    if not re.search(r"^cuda\b.* = '", version.read_text(), re.MULTILINE):
        pytest.skip(f"the torch of {PYTHON} has no code for GPUs")
    path = f"{tmp_path}:{os.defpath}"
    document = examine(tmp_path, "--only", "arch-unsupported", PATH=path)
    assert ids(document) == ["arch-unsupported"]
    assert "sm_990" in document["findings"][0]["message"]
