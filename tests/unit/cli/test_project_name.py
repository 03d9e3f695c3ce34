"""NAME may be left out in a project: what stands for it, what is refused."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from provision.cli.main import cli
from provision.cli.project_name import with_name
from provision.core.errors import SystemRefused
from tests.unit.cli.test_cli import VERBS, invoke


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two environments, `dev` the default; and a folder `notes`."""
    monkeypatch.delenv("PROVISION_ENVS", raising=False)
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    for name in ("dev", "lab"):
        (tmp_path / "envs" / name).mkdir(parents=True)
        (tmp_path / "envs" / name / "spec.yml").write_text('torch: "2.3"\ncpu: true\n')
    (tmp_path / "envs" / "dev" / "conda-lock.yml").touch()
    (tmp_path / "provision.toml").write_text('default = "dev"\n')
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(line: str) -> list[str]:
    """The arguments of a verb with its NAME."""
    path, words = [], line.split()
    command: click.Command = cli
    context = click.Context(cli, info_name="provision")
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        if found is None:
            break
        path.append(words.pop(0))
        command = found
    command = getattr(command, "default", command)
    return with_name(command, " ".join(path), click.Context(command, parent=context), words)


@pytest.mark.parametrize(
    "line",
    [
        "run -- python x.py",
        "run python -c x",
        "run --dry-run python",
        "add einops",
        "add -r requirements.txt",
        "add --conda einops numpy<2",
        "remove einops",
        "update",
        "update einops",
        "update -- lab",
        "build",
        "build --relock",
        "render --force",
        "shell",
        "smoke --quick",
        "pack",
        "notebook",
        "notebook notes",
        "env diff",
        "env remove --yes",
        "env tree einops",
        "env tree nosuch",
        "kernel add",
        "image push host/a:1",
        "image run -- python",
        "launch --on slurm:gpu -- train.py",
        "lock export --format pylock",
        "channel mirror /mnt/usb",
        "ship --on slurm:gpu",
        "passport show",
        "matrix explain",
    ],
)
def test_the_default_stands_for_a_name_left_out(project: Path, line: str) -> None:
    after = completed(line)
    assert after[0] == "dev"
    verb = line.split()
    assert verb[-len(after) + 1 :] == after[1:] or len(after) == 1


@pytest.mark.parametrize(
    "line",
    [
        "run lab -- python",
        "run lab python",
        "run --prefix /x other python",
        "run other -- python",
        "add lab einops",
        "add lab -r requirements.txt",
        "update dev",
        "update lab",
        "add lab",
        "run lab",
        "update lab --",
        "build new --torch 2.3",
        "build --torch 2.3 --cuda 12.1",
        "lock --all",
        "notebook lab notes",
        "notebook nosuch",
        "env tree nosuch einops",
        "image push nosuch host/a:1",
        "image push lab host/a:1",
        "channel mirror lab /mnt/usb",
        "nodes check",
        "doctor",
        "doctor script x.sh",
        "smoke nosuch",
        "run --help",
    ],
)
def test_what_names_an_environment_or_goes_without_stays(project: Path, line: str) -> None:
    after = completed(line)
    assert after == line.split()[-len(after) :] if after else True
    assert not after or after[0] != "dev" or line == "update dev"


@pytest.mark.parametrize(
    ("line", "forms"),
    [
        ("add lba einops", ["provision add lab einops", "provision add dev lba einops"]),
        ("run lba x.py", ["provision run lab x.py", "provision run dev lba x.py"]),
    ],
)
def test_what_can_be_either_is_refused_with_both_forms(
    project: Path, line: str, forms: list[str]
) -> None:
    with pytest.raises(click.UsageError) as refused:
        completed(line)
    assert [text.strip() for text in refused.value.message.splitlines()[1:]] == forms


def test_several_environments_without_a_default_are_listed(project: Path) -> None:
    (project / "provision.toml").unlink()
    for line in ("run -- python", "add einops", "build", "env diff"):
        with pytest.raises(click.UsageError, match="several environments: dev, lab"):
            completed(line)
    # What is no environment may still be a mistyped one.
    assert completed("add einops numpy") == ["einops", "numpy"]
    (project / "provision.toml").write_text('default = "deva"\n')
    with pytest.raises(click.UsageError, match="Did you mean `dev`"):
        completed("run -- python")
    (project / "pyproject.toml").write_text('[tool.provision]\ndefault = "lab"\n')
    (project / "provision.toml").unlink()
    assert completed("update") == ["lab"]


def test_the_only_environment_is_the_default(project: Path) -> None:
    (project / "provision.toml").unlink()
    (project / "envs" / "lab" / "spec.yml").unlink()
    assert completed("update") == ["dev"]
    (project / "envs" / "dev" / "conda-lock.yml").unlink()
    (project / "envs" / "dev" / "spec.yml").unlink()
    assert completed("build") == []
    with pytest.raises(click.UsageError, match="has no environment"):
        completed("run -- python")


def test_a_folder_that_the_system_refuses_is_an_error() -> None:
    result = invoke("passport", "show", "--envs", "x" * 5000)
    assert result.exit_code == SystemRefused.exit_code, result.output


def test_help_shows_that_a_name_may_be_left_out() -> None:
    for path, command in VERBS:
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        if arguments and arguments[0].name == "name":
            assert "[NAME]" in invoke(*path, "--help").output, path
