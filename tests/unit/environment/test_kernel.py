"""Kernelspecs: ours are exact, others' are never touched. Starting one is tested in tests/integration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision import resolver
from provision.core.errors import InUse
from provision.core.types import Prefix
from provision.environment import kernel as kernels
from provision.resolver import spec
from tests.damage import NOTHING, changed


@pytest.fixture(autouse=True)
def jupyter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    return tmp_path / "jupyter" / "kernels"


PREFIX = Prefix(name="lab", path=Path("/data/lab with space"), lock_sha256="abc")


def test_kernel_imports_only_from_its_prefix() -> None:
    kernel = kernels.kernel_spec(PREFIX, "Python (lab)")
    assert kernel.argv[0] == "/data/lab with space/bin/python"
    assert kernel.env["PYTHONNOUSERSITE"] == "1"
    assert kernel.env["PATH"].startswith("/data/lab with space/bin:")
    assert kernel.env["PYTHONPATH"] == kernel.env["LD_LIBRARY_PATH"] == ""


def test_jupyter_starts_prefixes_with_ipykernel(tmp_path: Path) -> None:
    prefix = Prefix(name="lab", path=tmp_path, lock_sha256="abc")
    assert not kernels.has_launcher(prefix)
    (tmp_path / "lib/python3.12/site-packages/ipykernel-7.0.0.dist-info").mkdir(parents=True)
    assert kernels.has_launcher(prefix)


def test_add_list_current_remove(jupyter: Path) -> None:
    kernel, is_new = kernels.install(PREFIX, "Python (lab)")
    assert (kernel.path, is_new) == (jupyter / "lab", True)
    assert kernels.install(PREFIX, "Python (lab)") == (kernel, False)
    assert kernels.is_current(PREFIX, "Python (lab)")
    assert not kernels.is_current(PREFIX, "Python (other)")
    assert [(kernel.name, kernel.prefix) for kernel in kernels.list_kernels()] == [
        ("lab", PREFIX.path)
    ]
    assert kernels.remove("lab") == jupyter / "lab"
    assert kernels.list_kernels() == []


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"argv": [], "display_name": "x", "language": "python"}),
        "not json",
        "",
        "[" * 10**5,
    ],
)
def test_name_of_a_foreign_kernel_is_refused(jupyter: Path, content: str) -> None:
    (jupyter / "lab").mkdir(parents=True)
    (jupyter / "lab" / "kernel.json").write_text(content)
    with pytest.raises(InUse, match="was not created by provision"):
        kernels.install(PREFIX, "Python (lab)")
    with pytest.raises(InUse, match="provision created no Jupyter kernel `lab`"):
        kernels.remove("lab")
    assert (jupyter / "lab" / "kernel.json").read_text() == content


@pytest.mark.parametrize("value", [NOTHING, None, 5, [], {}])
@pytest.mark.parametrize("path", [("env",), ("env", "CONDA_PREFIX"), ("display_name",)])
def test_a_damaged_kernel_is_not_ours(jupyter: Path, path: tuple[str, ...], value: Any) -> None:
    kernels.install(PREFIX, "Python (lab)")
    file = jupyter / "lab" / "kernel.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))
    assert kernels.list_kernels() == []
    with pytest.raises(InUse, match="was not created by provision"):
        kernels.install(PREFIX, "Python (lab)")


def test_leftovers_of_a_killed_add_do_not_block(jupyter: Path) -> None:
    (jupyter / "lab").mkdir(parents=True)
    (jupyter / "lab" / ".kernel.json.x1y2").write_text('{"argv"')
    kernels.install(PREFIX, "Python (lab)")
    assert kernels.is_current(PREFIX, "Python (lab)")


def test_a_display_name_says_build_and_environment() -> None:
    cuda = resolver.resolve(spec.combine({}, {"torch": "2.3", "cuda": "12.1"}, name="lab"))
    cpu = resolver.resolve(spec.combine({}, {"torch": "2.13", "cpu": True}, name="lab2"))
    assert kernels.display_name(cuda, "repo") == "Python (torch 2.3, CUDA 12.1, repo/lab)"
    assert kernels.display_name(cpu, "repo") == "Python (torch 2.13, CPU, repo/lab2)"


def test_kernel_without_a_launcher_is_removed_alone(jupyter: Path, tmp_path: Path) -> None:
    kernels.install(Prefix(name="lab", path=tmp_path / "other", lock_sha256="abc"), "Python (lab)")
    assert not kernels.remove_kernel_of(PREFIX)
    kernels.install(PREFIX, "Python (lab)")
    assert kernels.remove_kernel_of(PREFIX)
    assert kernels.list_kernels() == []
