from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.facts import environment, libraries

MAPS = """\
7f0000000000-7f0000001000 r--p 00000000 08:01 42  /prefix/lib/nvidia/nccl/lib/libnccl.so.2
7f0000001000-7f0000002000 r-xp 00001000 08:01 42  /prefix/lib/nvidia/nccl/lib/libnccl.so.2
7f0000002000-7f0000003000 r-xp 00000000 08:01 43  /with spaces/torch/lib/libtorch_cuda.so
7f0000003000-7f0000004000 r-xp 00000000 08:01 44  /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
7f0000005000-7f0000006000 rw-p 00000000 00:00 0   [heap]
"""


def test_relevant_libraries_are_listed_once() -> None:
    assert libraries.parse_maps(MAPS) == [
        "/prefix/lib/nvidia/nccl/lib/libnccl.so.2",
        "/with spaces/torch/lib/libtorch_cuda.so",
    ]


def test_nccl_is_a_library_or_linked_into_torch() -> None:
    files = libraries.parse_maps(MAPS)
    assert libraries.nccl_file(files) == "/prefix/lib/nvidia/nccl/lib/libnccl.so.2"
    assert libraries.nccl_file(files[1:]) == "/with spaces/torch/lib/libtorch_cuda.so"
    assert libraries.nccl_file([]) is None


@pytest.mark.parametrize(
    ("code", "version"), [(22005, "2.20.5"), (2708, "2.7.8"), (21003, "2.10.3"), (22707, "2.27.7")]
)
def test_nccl_version_codes(code: int, version: str) -> None:
    assert libraries.decode_nccl(code) == version


def test_a_file_without_nccl_has_no_nccl_version(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so").write_text("not a library")
    assert libraries.nccl_version(str(tmp_path / "libnccl.so")) is None
    assert libraries.nccl_version(str(tmp_path / "missing.so")) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n",
            "535.183.01",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n",
            "550.54.15",
        ),
        ("", None),
        ("GCC version:  gcc 12.2.0\n", None),
    ],
)
def test_driver_version(text: str, version: str | None) -> None:
    assert libraries.parse_driver(text) == version


def test_missing_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    facts = environment.collect()
    assert facts["torch"] is None
    assert str(facts["error"]).startswith("torch cannot be used: ")
    assert facts["python"]["prefix"] == sys.prefix


@pytest.mark.parametrize(
    "body", ["raise OSError('libcudart.so.12: cannot open shared object file')", "1 / 0"]
)
def test_torch_failing_at_import_is_reported(tmp_path: Path, body: str) -> None:
    facts = facts_of_child(tmp_path, body)
    assert facts["torch"] is None
    assert "torch cannot be used: " in facts["error"]


def test_torch_crashing_at_import_is_reported(tmp_path: Path) -> None:
    facts = facts_of_child(tmp_path, "import os\nos.kill(os.getpid(), 11)")
    assert facts["error"] == "importing torch ended the process with status -11"


def facts_of_child(folder: Path, torch_source: str) -> dict[str, Any]:
    (folder / "torch.py").write_text(torch_source)
    command = [sys.executable, str(Path(environment.__file__).parents[1]), "facts"]
    child = subprocess.run(
        command, env={"PYTHONPATH": str(folder)}, capture_output=True, check=False
    )
    assert child.returncode == 1
    return dict(json.loads(child.stdout))


def test_only_relevant_variables_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/foreign")
    monkeypatch.setenv("MY_PASSWORD", "secret")
    monkeypatch.setenv("PROVISION_LOCK_HASH", "abc")
    facts = environment.host_facts()
    assert facts["environment"]["LD_LIBRARY_PATH"] == "/foreign"
    assert facts["lock_hash"] == "abc"
    assert "secret" not in json.dumps(facts)
