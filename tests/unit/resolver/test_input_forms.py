"""Other forms of versions and GPUs are taken, and said back."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision.cli.main import cli
from provision.resolver.input_forms import (
    CPU,
    TorchForm,
    cuda_form,
    gpu_form,
    python_form,
    torch_form,
)


@pytest.mark.parametrize(
    ("text", "release", "cuda"),
    [
        ("2.3", "2.3", None),
        ("v2.3", "2.3", None),
        ("torch==2.3", "2.3", None),
        ("torch 2.3", "2.3", None),
        ("pytorch=2.3.1", "2.3.1", None),
        ("torch>=2.3,<2.6", ">=2.3,<2.6", None),
        ("2.3.1+cu121", "2.3.1", "12.1"),
        ("torch==2.3.1+cu118", "2.3.1", "11.8"),
        ("2.3.1+cpu", "2.3.1", CPU),
        ("latest", "latest", None),
        ("==2.3.1", "==2.3.1", None),
        ("2.3+rocm6.0", "2.3+rocm6.0", None),
        ("torch", "torch", None),
    ],
)
def test_releases_of_torch(text: str, release: str, cuda: str | None) -> None:
    assert torch_form(text) == TorchForm(release=release, cuda=cuda)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("12.1", "12.1"),
        ("cu121", "12.1"),
        ("121", "12.1"),
        ("118", "11.8"),
        ("cu130", "13.0"),
        ("12.1.1", "12.1"),
        ("cuda12.1", "12.1"),
        ("CUDA 12.1", "12.1"),
        ("12", "12"),
        ("auto", "auto"),
        ("1211", "1211"),
        ("cuda", "cuda"),
    ],
)
def test_versions_of_cuda(text: str, version: str) -> None:
    assert cuda_form(text) == version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("3.11", "3.11"),
        ("3.11.7", "3.11"),
        ("3.11.*", "3.11"),
        ("py311", "3.11"),
        ("cp39", "3.9"),
        ("311", "3.11"),
        ("python3.11", "3.11"),
        ("python=3.11", "3.11"),
        ("3.13t", "3.13t"),
        ("3", "3"),
        ("pypy", "pypy"),
    ],
)
def test_versions_of_python(text: str, version: str) -> None:
    assert python_form(text) == version


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("a6000", "RTX A6000"),
        ("A100-80GB", "A100"),
        ("GRID A100-40C", "A100"),
        ("sm_90", "sm_90"),
        ("9.0", "9.0"),
        ("H100", "H100"),
        ("MI300X", "MI300X"),
    ],
)
def test_names_of_gpus(text: str, name: str) -> None:
    assert gpu_form(text) == name


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["matrix", "explain", *arguments])


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_commands_take_other_forms_and_say_them_back() -> None:
    result = explain("--torch", "v2.3", "--cuda", "cu121", "--python", "py311", "--gpu", "4090")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[:4] == [
        "  --torch v2.3: taken as 2.3",
        "  --cuda cu121: taken as 12.1",
        "  --python py311: taken as 3.11",
        "  --gpu 4090: taken as RTX 4090",
    ]
    plain = ("--torch", "2.3", "--cuda", "12.1", "--python", "3.11", "--gpu", "RTX 4090")
    assert explain(*plain).stdout == result.stdout
    assert "taken as" not in explain(*plain).stderr


def test_a_local_version_names_the_build() -> None:
    result = explain("--torch", "torch==2.3.1+cu121")
    assert result.exit_code == 0, result.output
    assert "--torch torch==2.3.1+cu121: taken as 2.3.1 with --cuda 12.1" in result.stderr
    assert explain("--torch", "2.3.1", "--cuda", "12.1").stdout == result.stdout
    cpu = explain("--torch", "2.3.1+cpu")
    assert "taken as 2.3.1 with --cpu" in cpu.stderr
    assert explain("--torch", "2.3.1", "--cpu").stdout == cpu.stdout


@pytest.mark.parametrize("order", [1, -1])
def test_a_local_version_must_agree_with_the_options(order: int) -> None:
    same = [("--torch", "2.3.1+cu121"), ("--cuda", "121")][::order]
    assert explain(*same[0], *same[1]).exit_code == 0
    other = [("--torch", "2.3.1+cu121"), ("--cuda", "11.8")][::order]
    result = explain(*other[0], *other[1])
    assert result.exit_code == 2
    assert "--torch 2.3.1+cu121 and --cuda 11.8 are different builds" in result.stderr
    assert explain("--torch", "2.3.1+cu121", "--cpu").exit_code == 2


def test_the_table_takes_them_too() -> None:
    result = CliRunner().invoke(cli, ["matrix", "--torch", "v2.3", "--cuda", "cu121"])
    assert result.exit_code == 0, result.output
    assert "2.3.1" in result.stdout and "12.1" in result.stdout


@pytest.mark.parametrize("pair", [("2.3+rocm6.0", "12.1"), ("2.3", "rocm6.0"), ("2.3", "hip")])
def test_rocm_is_for_other_gpus(pair: tuple[str, str], tmp_path: Path) -> None:
    torch, cuda = pair
    words = ["build", "lab", "--torch", torch, "--cuda", cuda, "--envs", str(tmp_path), "--dry-run"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 3, result.output
    assert "there are builds for NVIDIA GPUs only" in " ".join(result.stderr.split())
