"""A spec.yml from what a repository has already."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from provision.adapters import conda
from provision.cli.account import account_lines
from provision.cli.main import cli
from provision.core.errors import InUse, InvalidSpec, NoSuchBuild
from provision.core.paths import Folders
from provision.core.types import HostGpus
from provision.core.yaml_text import parse_yaml
from provision.project_files.account import Entry
from provision.project_files.request import Choices
from provision.project_files.toml_file import Selection
from provision.resolver import spec as specs
from provision.verbs.init import init
from provision.workflow.context import Context
from tests.progress import Recorder
from tests.records import alias, make_channel, record

NO_CHOICES = Choices()
NO_GPU = HostGpus(why="there is no nvidia-smi on this machine")
GPU = HostGpus(driver="535.129.03", gpus=("sm_80",))


def context(tmp_path: Path) -> Context:
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    return Context(folders=folders, progress=Recorder(), get_solver=lambda: conda.Solver())


def propose(
    tmp_path: Path, machine: HostGpus, *, name: str | None = None, choices: Choices = NO_CHOICES
) -> init.Proposal:
    reading = init.read_repository(tmp_path, choices, Selection())
    init.require_decided(reading)
    here = context(tmp_path)
    choice = init.choose_cuda(here, reading.request, machine)
    return init.propose(here, reading, machine, name=name, choice=choice)


def test_proposal_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.3.1+cu121\neinops==0.8.0\n")
    proposal = propose(tmp_path, NO_GPU, name="dl")
    init.write(proposal)
    assert specs.read(proposal.path)["pip"] == ["einops==0.8.0"]
    with pytest.raises(InUse, match="exists"):
        init.write(proposal)


@pytest.mark.parametrize(
    "text,machine,lab,cuda",
    [
        ("torch==2.3.1\n", NO_GPU, "", "12.1"),  # the index's wheel of it is for this CUDA
        ("torch==2.3.1\n", NO_GPU, "11.8", "11.8"),
        ("torch>=2.1,<2.4\n", NO_GPU, "11.8", "11.8"),
        ("torch>=2.1,<2.4\n", NO_GPU, "cpu", "cpu"),
        ("torch>=2.1,<2.4\n", NO_GPU, "", None),
        ("torch>=2.1,<2.4\n", GPU, "11.8", "auto"),
        ("torch==2.3.1+cu118\n", GPU, "", "stated"),
    ],
)
def test_cuda_that_no_file_states(
    tmp_path: Path, text: str, machine: HostGpus, lab: str, cuda: str | None
) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    if lab:
        (tmp_path / "lab.yml").write_text(f'schema: 1\nname: x\ncontact: y\ncuda: "{lab}"\n')
    reading = init.read_repository(tmp_path, NO_CHOICES, Selection())
    choice = init.choose_cuda(context(tmp_path), reading.request, machine)
    assert (choice.cuda if choice else "stated") == cuda
    if choice and cuda is None:
        error = init.no_cuda(reading.request, choice.note)
        assert "`--cuda 12.1`" in error.advice and "`--cpu`" in error.advice


@pytest.mark.parametrize("driver,cuda", [("535.129.03", "12.1"), ("450.80.02", "11.8")])
def test_of_the_allowed_cudas_this_machine_gets_one_that_it_runs(
    tmp_path: Path, driver: str, cuda: str
) -> None:
    (tmp_path / "environment.yml").write_text("dependencies: [pytorch-gpu=2.3]\n")
    machine = HostGpus(driver=driver, gpus=("sm_80",))
    assert propose(tmp_path, machine).resolution.cuda == cuda


@pytest.mark.parametrize(
    "torch,machine,verdict,known",
    [
        ("torch==2.4.0", HostGpus(driver="580.65.06", gpus=("sm_120",)), "may not run", "12.8"),
        ("torch==2.4.0+cu121", HostGpus(driver="580.65.06", gpus=("sm_120",)), "does not", "12.8"),
        ("torch==2.4.0+cu121", HostGpus(driver="470.82.01", gpus=("sm_80",)), "does not", "11.8"),
        ("torch==2.4.0+cu121", GPU, None, None),
        ("torch==2.4.0+cu121", HostGpus(driver="550.54.14", gpus=("X900",)), None, None),
    ],
)
def test_build_that_this_machine_cannot_run_is_noted_with_one_that_it_can(
    torch: str,
    machine: HostGpus,
    verdict: str | None,
    known: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from provision.core import host

    monkeypatch.setattr(host, "this_machine", lambda: machine)
    (tmp_path / "requirements.txt").write_text(f"{torch}\n")
    notes = " ".join(propose(tmp_path, machine).notes)
    if verdict is None:
        assert "this build" not in notes
    else:
        assert f"this build {verdict}" in notes
        assert re.search(rf"nearest that is known to: `--torch [\d.]+ --cuda {known}", notes)


REPOSITORIES: list[dict[str, Any]] = parse_yaml(
    (Path(__file__).parent.parent / "project_files" / "repositories.yml").read_bytes()
)


@pytest.mark.parametrize("repository", REPOSITORIES, ids=lambda row: row["repository"])
def test_typical_repositories(
    repository: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in repository["files"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    reading = init.read_repository(tmp_path, NO_CHOICES, Selection())
    init.require_decided(reading)
    silent = dataclasses.replace(
        context(tmp_path), get_solver=lambda: conda.Solver(alias(tmp_path / "nothing"))
    )
    choice = init.choose_cuda(silent, reading.request, NO_GPU)
    proposal = init.propose(silent, reading, NO_GPU, choice=choice)
    assert specs.parse(proposal.text.encode(), proposal.path) == repository["right"]


def test_conda_package_that_brings_its_own_torch_becomes_a_wheel(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text(
        "dependencies: [pytorch=2.3.1, pytorch-cuda=12.1, timm=0.9, ffmpeg]\n"
    )
    timm = record("timm", "0.9.16", depends=["pytorch >=1.7", "python >=3.8"])
    records = [record("python", "3.11.1"), record("ffmpeg", "6.1"), timm]
    make_channel(tmp_path / "channels" / "conda-forge", {"linux-64": records})
    reading = init.read_repository(tmp_path, NO_CHOICES, Selection())
    here = context(tmp_path)
    silent = dataclasses.replace(here, get_solver=lambda: conda.Solver(alias(tmp_path / "nothing")))
    offline = init.propose(silent, reading, NO_GPU)
    assert specs.parse(offline.text.encode(), offline.path)["conda"] == ["timm=0.9", "ffmpeg"]
    assert any("not known" in note for note in offline.notes)
    online = dataclasses.replace(
        here, get_solver=lambda: conda.Solver(alias(tmp_path / "channels"))
    )
    proposal = init.propose(online, reading, NO_GPU)
    content = specs.parse(proposal.text.encode(), proposal.path)
    assert (content["conda"], content["pip"]) == (["ffmpeg"], ["timm==0.9.*"])
    (entry,) = (entry for entry in proposal.account if entry.text == "timm=0.9")
    assert (entry.outcome, entry.became) == ("translated", "pip: timm==0.9.*")


# Lines whose next steps are printed, with the options that lead to each of them.
STEPS = """\
name: t
channels: [pytorch-nightly, conda-forge]
platforms: [linux-64, linux-aarch64]
dependencies:
- python=3.10
- pytorch=2.3.1
- pytorch-cuda=12.1
- cudnn=8.9
- nccl=2.20
- pip:
  - libs/pointops
  - .[train]
  - git+https://git.example/a/noname.git
  - -e ./sub
  - -c limits.txt
  - -f https://w.example/links
  - --extra-index-url https://i.example/simple
variables: {OMP_NUM_THREADS: 1}
"""


def test_every_printed_command_is_accepted_by_our_parser(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text(STEPS)
    (tmp_path / "limits.txt").write_text("scipy<1.14\n")
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(name='t')\n")
    proposal = propose(tmp_path, NO_GPU)
    texts = [entry.next_step for entry in proposal.account]
    texts += [step for note in proposal.notes for step in re.findall(r"`(provision [^`]+)`", note)]
    commands = [shlex.split(text) for text in texts if text.startswith("provision ")]
    assert len(commands) >= 7
    for _, *words in commands:
        assert "NAME" not in words
        command: click.Command = cli
        while isinstance(command, click.Group) and words:
            subcommand = command.get_command(click.Context(command), words[0])
            if subcommand is None:  # `provision lock NAME`
                break
            command, words = subcommand, words[1:]
        command.make_context(command.name, words)


def test_packages_of_an_export_are_added_by_one_command(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d")
    lines = [f"- {name}=1.{number}.0=py310h0" for number, name in enumerate(names)]
    path = tmp_path / "environment.yml"
    path.write_text(
        "\n".join(["dependencies:", "- pytorch=2.3.1=py3.10_cuda12.1_cudnn8_0", *lines, ""])
    )
    result = invoke(tmp_path, "import", str(path), "--name", "lab", "--dry-run")
    assert "left out 4" in result.output and "and 1 more" in result.output
    assert "\n      provision add lab --conda a=1.0 b=1.1 c=1.2 d=1.3\n" in result.output


def test_steps_of_one_reason_are_merged_by_command() -> None:
    steps = ["rich", "--conda ffmpeg", "rich", "--conda mamba"]
    entries = [
        Entry(
            file="a", line=1, text=step, outcome="left out", next_step=f"provision add lab {step}"
        )
        for step in steps
    ]
    assert [line.strip() for line in account_lines(entries) if line.startswith(" " * 6)] == [
        "provision add lab rich",
        "provision add lab --conda ffmpeg mamba",
    ]


def test_build_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.3.1+cu126\n")
    with pytest.raises(NoSuchBuild):
        propose(tmp_path, NO_GPU)


def invoke(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--envs", str(tmp_path / "envs")])


@pytest.mark.parametrize("options", [("--python", "x"), ("--python", "3"), ("--torch", "auto")])
def test_options_that_are_no_versions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(tmp_path, "init", *options, "--cpu", "--dry-run")
    assert result.exit_code == InvalidSpec.exit_code, result.output
    assert f"`{options[0][2:]}` must be like" in result.output


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
