"""A spec.yml from what a repository has already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from provision.adapters import conda
from provision.cli.main import cli
from provision.core.errors import InUse, InvalidSpec, NoSuchBuild
from provision.core.paths import Folders
from provision.core.types import HostGpus
from provision.resolver import spec as specs
from provision.resolver.foreign_specs import (
    from_environment,
    from_pyproject,
    from_requirements,
)
from provision.verbs.init import init
from provision.workflow.context import Context
from tests.progress import Recorder

NO_GPU = HostGpus(why="there is no nvidia-smi on this machine")
GPU = HostGpus(driver="535.129.03", gpus=("sm_80",))

# `conda env export` of conda 24.5, shortened: every package, with version and build.
EXPORT = {
    "name": "dl",
    "channels": ["pytorch", "nvidia", "defaults"],
    "dependencies": [
        "_libgcc_mutex=0.1=main",
        "blas=1.0=mkl",
        "cuda-cudart=12.1.105=0",
        "numpy=1.26.4=py310h5f9d8c6_0",
        "python=3.10.14=h955ad1f_1",
        "pytorch=2.3.1=py3.10_cuda12.1_cudnn8.9.2_0",
        "pytorch-cuda=12.1=ha16c6d3_5",
        "pytorch-mutex=1.0=cuda",
        "torchvision=0.18.1=py310_cu121",
        {"pip": ["einops==0.8.0", "wandb==0.17.0"]},
    ],
    "prefix": "/home/me/miniconda3/envs/dl",
}


@pytest.mark.parametrize(
    "document,options",
    [
        (
            EXPORT,
            {
                "torch": "2.3.1",
                "cuda": "12.1",
                "python": "3.10",
                "companions": True,
                "pip": ("einops==0.8.0", "wandb==0.17.0"),
            },
        ),
        (
            {
                "channels": ["my-lab", "conda-forge"],
                "dependencies": [
                    "python>=3.11",
                    "conda-forge::pytorch 2.3.*",
                    "cudatoolkit=11.8",
                    "ffmpeg >=5",
                    "pip",
                    "scipy=1.11",
                ],
            },
            {
                "torch": "2.3",
                "cuda": "11.8",
                "conda": ("ffmpeg>=5", "scipy=1.11"),
                "channels": ("my-lab", "conda-forge"),
                "companions": False,
                "python": "3.11",
            },
        ),
        (
            {"dependencies": ["pytorch", "cpuonly", {"pip": ["torchaudio", "x"]}]},
            {"cpu": True, "companions": True, "pip": ("x",)},
        ),
        (
            {"dependencies": ["pytorch=1.12.1=py3.9_cuda11.3_cudnn8.3.2_0", "python=3.9"]},
            {"torch": "1.12.1", "cuda": "11.3", "python": "3.9", "companions": False},
        ),
    ],
)
def test_environment_yml(document: dict[str, Any], options: dict[str, Any]) -> None:
    taken = {
        key: value for key, value in from_environment(document).options().items() if value != ()
    }
    if not taken.get("cpu"):
        taken.pop("cpu")
    assert taken == options


def test_full_export_says_what_it_leaves_out() -> None:
    (reason,) = from_environment(EXPORT).left_out
    assert reason.startswith("4 conda packages of a full export")


@pytest.mark.parametrize(
    "lines,torch,cuda,cpu,pip,left_out",
    [
        (["torch==2.3.1+cu121", "einops"], "2.3.1", "12.1", False, ["einops"], 0),
        (["--index-url https://wheels.example.org/whl/cu118", "torch"], None, "11.8", False, [], 0),
        (["--extra-index-url https://wheels.example.org/whl/cpu", "torch>=2.1"], ">=2.1", None, True, [], 0),
        (["torch==2.3.1", "nvidia-cuda-runtime-cu12==12.1.105"], "2.3.1", "12.1", False, [], 0),
        (["-f links", "./x", "a; python_version < '3.9'"], None, None, False, ["a; python_version < '3.9'"], 2),
        (["torch >= 2.1, < 2.4"], "<2.4,>=2.1", None, False, [], 0),
    ],
)  # fmt: skip
def test_requirements(
    lines: list[str], torch: str, cuda: str, cpu: bool, pip: list[str], left_out: int
) -> None:
    spec = from_requirements(lines)
    assert (spec.torch, spec.cuda, spec.cpu, spec.pip) == (torch, cuda, cpu, pip)
    assert len(spec.left_out) + len(spec.unnamed) == left_out


def test_pyproject() -> None:
    document = {
        "project": {
            "dependencies": ["torch~=2.3.0", "einops"],
            "optional-dependencies": {"dev": ["pytest"]},
        }
    }
    spec = from_pyproject(document)
    assert (spec.torch, spec.pip) == ("~=2.3.0", ["einops"])
    assert spec.left_out == ["the optional dependencies dev"]


def context(tmp_path: Path) -> Context:
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    return Context(folders=folders, progress=Recorder(), solver=conda.Solver())


def test_first_file_decides_and_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text(json.dumps(EXPORT))
    (tmp_path / "requirements.txt").write_text("torch==1.13\n")
    proposal = init.propose(context(tmp_path), tmp_path, NO_GPU)
    assert (proposal.name, proposal.source, proposal.unread_files) == (
        "dl",
        "environment.yml",
        ("requirements.txt",),
    )
    assert proposal.resolution.torch == "2.3.1" and proposal.resolution.cuda == "12.1"
    init.write(proposal)
    content = specs.read(proposal.path)
    assert content["pip"] == ["einops==0.8.0", "wandb==0.17.0"]
    with pytest.raises(InUse, match="exists"):
        init.write(proposal)


@pytest.mark.parametrize(
    "machine,cuda,note", [(NO_GPU, None, "nvidia-smi"), (GPU, "12.2", "sm_80")]
)
def test_machine_decides_what_no_file_says(
    tmp_path: Path, machine: HostGpus, cuda: str | None, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from provision.core import host

    monkeypatch.setattr(host, "this_machine", lambda: machine)
    monkeypatch.delenv("CONDA_DEFAULT_ENV", raising=False)
    proposal = init.propose(context(tmp_path), tmp_path / "My Repo", machine)
    assert proposal.name == "my-repo" and proposal.source == "nothing"
    assert (proposal.resolution.cuda is None) == (cuda is None)
    assert any(note in text for text in proposal.notes)
    assert specs.parse(proposal.text.encode(), proposal.path)  # no `cuda: auto` in the file


def test_requirement_without_a_name_is_named_with_its_command(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.3.1+cu121\n./my package\n")
    proposal = init.propose(context(tmp_path), tmp_path, NO_GPU, name="lab")
    path = tmp_path / "my package"
    assert f"left out: `{path}`: `provision add lab '{path}'` adds it" in proposal.notes


def test_build_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.3.1+cu126\n")
    with pytest.raises(NoSuchBuild):
        init.propose(context(tmp_path), tmp_path, NO_GPU)


@pytest.mark.parametrize(
    "text",
    [
        "- a\n- b\n",
        "a: [",
        "name: x\n",
        "dependencies: 1\n",
        "dependencies: [python]\nchannels: 5\n",
        "dependencies: [{pip: 5}]\n",
        "dependencies: [[python]]\n",
        "name: [a]\ndependencies: [python]\n",
    ],
)
def test_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some.yml"
    path.write_text(text)
    with pytest.raises(InvalidSpec):
        init.read_file(path)


@pytest.mark.parametrize(
    "text",
    [
        "project = []",
        "[project]\ndependencies = 5",
        "[project]\ndependencies = [5]",
        "[project]\noptional-dependencies = 5",
        "dependency-groups = 5",
        "tool = 5",
    ],
)
def test_pyproject_of_other_types_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidSpec, match=r"nor a pyproject.toml: "):
        init.read_file(tmp_path / "pyproject.toml")


def invoke(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--envs", str(tmp_path / "envs")])


def test_nothing_is_written_unless_somebody_agrees(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.3.1+cu121\neinops\n")
    result = invoke(tmp_path, "import", str(path), "--name", "lab", "--dry-run")
    assert result.exit_code == 0 and 'torch: "2.3.1"' in result.output
    result = invoke(tmp_path, "import", str(path), "--name", "lab")
    assert result.exit_code == 3 and "--yes writes it" in result.output
    assert not (tmp_path / "envs").exists()
    result = invoke(tmp_path, "import", str(path), "--name", "lab", "--yes")
    assert result.exit_code == 0 and "next: provision build lab" in result.output
    written = tmp_path / "envs" / "lab" / "spec.yml"
    assert specs.parse(written.read_bytes(), written)
    assert invoke(tmp_path, "import", str(path), "--name", "lab", "--yes").exit_code == 12
