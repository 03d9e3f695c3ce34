"""The command line: help without weight, one line per error, documented exit codes, the same result as JSON."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from provision.cli.main import cli
from provision.cli.other_tools import foreign_verbs
from provision.cli.shared_options import EXIT_CODES, SHARED_OPTIONS
from provision.core import errors
from tests.paths import ROOT


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PROVISION_DATA", "PROVISION_CACHE", "PROVISION_ENVS", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


VERBS = [(path, command) for path, command in commands(cli) if not isinstance(command, click.Group)]


@pytest.mark.parametrize("path,command", VERBS, ids=[" ".join(path) for path, _ in VERBS])
def test_every_command_has_help_and_json(path: tuple[str, ...], command: click.Command) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    assert command.help and command.help.split(".")[0] in " ".join(result.output.split())
    if path not in {("completion",), ("help",)}:
        assert set(SHARED_OPTIONS) <= set(command.get_params(click.Context(command)))


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
def test_output_may_be_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("report", "--output", output).output == invoke("report").output
    assert not (tmp_path / "-").exists()


CHANGING = """
activate
add
build
channel bootstrap
channel mirror
checkpoint prune
clean
env create
env remove
facts update
image build
image run
import
init
join
kernel add
kernel remove
launch
lock
matrix ci
pack
remove
render
rollback
run
ship
store remove
update
""".splitlines()


@pytest.mark.parametrize("path,command", VERBS, ids=[" ".join(path) for path, _ in VERBS])
def test_every_modifying_command_has_dry_run(path: tuple[str, ...], command: click.Command) -> None:
    assert (" ".join(path) in CHANGING) == (
        "dry_run" in {parameter.name for parameter in command.params}
    )


def test_help_has_the_summary_of_every_command() -> None:
    output = invoke("--help").output
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert f"  {name:12}{command.get_short_help_str(100)}\n" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("list",), "Did you mean `provision env list`?"),
        (("freeze",), "Did you mean `provision lock export`?"),
        (("pip", "install", "einops"), "Did you mean `provision add`?"),
        (("venv",), "Did you mean `provision build`?"),
        (("env", "sync", "lab"), "Did you mean `provision env create`?"),
        (("env", "rm", "lab"), "Did you mean `provision env remove`?"),
    ],
)
def test_words_of_conda_name_our_verbs(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code == 2
    assert message in result.output


def test_every_word_of_other_tools_names_a_verb() -> None:
    paths = {" ".join(path) for path, _ in VERBS}
    own_words = {*cli.list_commands(click.Context(cli)), *paths, "--version"}
    assert {*foreign_verbs().values(), *foreign_verbs("env").values()} <= own_words
    assert not foreign_verbs().keys() & own_words
    assert not {f"env {word}" for word in foreign_verbs("env")} & own_words


def test_unknown_command_suggests_similar_ones() -> None:
    result = invoke("buildx")
    assert result.exit_code == 2
    assert "build" in result.output


def test_help_loads_nothing_heavy() -> None:
    script = "import sys\nfrom provision.cli.main import cli\ntry: cli(['--help'])\nexcept SystemExit: print(sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert "'provision.verbs.build.command'" not in loaded
    for heavy in (
        "rattler",
        "docker",
        "jinja2",
        "yaml",
        "conda_lock",
        "rich",
        "jupyter_core",
        "asyncio",
    ):
        assert f"'{heavy}'" not in loaded


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        ("build --torch 9.9 --cuda 12.1", 4, "not in the table"),
        ("build --torch 2.3 --cuda 12.6", 4, "conda-forge has torch 2.3 with CUDA 11.8, 12.0 only"),
        ("build --torch 2.3 --cuda 12.1 --cpu", 3, "--cuda and --cpu"),
        ("build --torch 2.3", 3, "which CUDA? Give --cuda (for torch 2.3: 12.1, 12.0, 11.8)"),
        ("build --torch 2.3 --source conda-forge", 3, "(for torch 2.3: 12.0, 11.8)"),
        ("build --torch 9.9", 4, "torch 9.9 is not in the table of known releases"),
        ("build --torch 2.3 --cuda 12.1 --python 3.13", 4, "no build for Python 3.13"),
        (
            "build --torch 2.3 --cuda 12.1 --python 3.8 --python-from host",
            9,
            "would have to come from this machine",
        ),
        ("build ../evil --torch 2.3 --cuda 12.1", 3, "cannot be an environment's name"),
        ("build '{{ x }}' --torch 2.3 --cuda 12.1", 3, "cannot be an environment's name"),
        ("build nosuch", 3, "There is no environment `nosuch`"),
        ("build nosuch", 3, "Or describe the environment with --torch"),
        ("lock verify nosuch", 3, "There is no environment `nosuch`"),
        ("lock --all lab", 3, "cannot be combined with the name `lab`"),
        ("lock --all --torch 2.3 --no-jupyter", 3, "with --torch, --no-jupyter"),
        ("build --torch 2.3 --cuda 12.1 --python-from host --conda '[['", 3, "conda"),
        ("env diff nosuch", 9, "Environment `nosuch` is not installed on this machine"),
        (
            "env remove nosuch --yes",
            9,
            "`nosuch` has no prefix, kernel, image or pack on this machine",
        ),
        ("passport show nosuch", 3, "There is no environment `nosuch`"),
        ("kernel remove nosuch", 12, "Kernels that it created: none"),
        ("build --torch 2.9 --cuda 12.8 --python-from host --image", 9, "No Docker engine answers"),
        ("build --nonsense", 2, "No such option"),
    ],
)
def test_bad_input_gives_one_line_and_an_exit_code(arguments: str, code: int, message: str) -> None:
    result = invoke(*shlex.split(arguments))
    assert result.exit_code == code, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    if code > 2:
        assert len([line for line in result.output.splitlines() if line.startswith("error:")]) == 1


RENDER = ["render", "--torch", "2.3", "--cuda", "12.1", "--python-from", "channel"]


def test_render_writes_nothing_the_second_time(tmp_path: Path) -> None:
    request = [*RENDER, "--envs", str(tmp_path)]
    assert json.loads(invoke(*request, "--json").stdout)["written"] == [
        "spec.yml",
        "environment.yml",
        "virtual-packages.yml",
    ]
    assert "nothing to write" in invoke(*request).output
    assert (
        "nothing to write"
        in invoke("render", "torch2.3-cuda12.1-py311", "--envs", str(tmp_path)).output
    )


def test_dry_run_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.9 has builds for every Python that can run provision, so for this machine's."""
    monkeypatch.chdir(tmp_path)
    request = ["--torch", "2.9", "--cuda", "12.8", "--python-from", "host", "--envs", "e"]
    result = invoke("render", *request, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "torch==2.9.1" in result.output
    assert not (tmp_path / "e").exists()


def build_image(envs: Path, *arguments: str) -> Result:
    spec = envs / "toy" / "spec.yml"
    spec.parent.mkdir(parents=True)
    spec.write_text('torch: "2.9"\ncuda: "12.8"\npython_from: host\n')
    return invoke("image", "build", "toy", "--envs", str(envs), *arguments)


def test_dry_run_of_an_image_to_a_path_needs_no_engine(tmp_path: Path) -> None:
    output = f"oci:{tmp_path / 'toy'}"
    result = build_image(tmp_path / "e", "--output", output, "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"; write {output}\n")
    assert not re.search("load|engine", result.stdout)
    assert not (tmp_path / "toy").exists()


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_occupied_path_is_refused_before_the_build(
    tmp_path: Path, dry_run: tuple[str, ...]
) -> None:
    """The missing lock would be the next error."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years")
    result = build_image(tmp_path / "e", "--output", f"oci:{tmp_path / 'home'}", *dry_run)
    assert (result.exit_code, "is not an empty folder" in result.output) == (
        errors.InUse.exit_code,
        True,
    ), result.output
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]


def test_hand_edit_is_reported_and_kept(tmp_path: Path) -> None:
    request = [*RENDER, "--envs", str(tmp_path)]
    invoke(*request)
    path = tmp_path / "torch2.3-cuda12.1-py311" / "environment.yml"
    path.write_text(path.read_text().replace("numpy", "numpy<2"))
    result = invoke(*request)
    assert result.exit_code == 6
    assert "edited by hand" in result.output
    assert "numpy<2" in path.read_text()
    assert invoke(*request, "--force").exit_code == 0
    assert "numpy<2" not in path.read_text()


def test_debug_shows_the_cause() -> None:
    result = invoke("build", "--debug", "--torch", "9.9", "--cuda", "12.1")
    assert isinstance(result.exception, errors.NoSuchBuild)


def test_exit_codes_are_distinct_and_documented() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.ProvisionError)
        and "exit_code" in vars(kind)  # not that of its parent
    ]
    codes = {kind.__name__: kind.exit_code for kind in kinds if kind is not errors.ProvisionError}
    assert len(set(codes.values())) == len(codes)
    table = (ROOT / "docs" / "errors.md").read_text()
    documented = {
        name: int(code)
        for code, name in re.findall(r"^\| (\d+) \| `(\w+)`", table, flags=re.MULTILINE)
    }
    assert documented == codes
    in_help = {int(code) for code in re.findall(r"(\d+) [a-z]", EXIT_CODES)}
    assert in_help == {0, 2, 130, *codes.values()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0
    assert "_PROVISION_COMPLETE" in result.output


def test_reference_is_current() -> None:
    """docs/cli.md is made by `nox -s docs`."""
    check = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_cli.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_second_package_is_no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = ["render", "--torch", "2.3", "--cpu", "--pip", "einops", "numpy"]
    monkeypatch.setattr(sys, "argv", ["provision", *arguments])
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "write --pip einops --pip numpy" in result.output
    assert not list(tmp_path.iterdir())


def test_file_of_requirements_is_no_package() -> None:
    result = invoke("render", "--torch", "2.3", "--cpu", "--pip", "requirements.txt")
    assert result.exit_code == 3
    assert "Write `-r requirements.txt`" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("launch", "toy", "--set", "pull_secret=a\nspec: {}", "--on", "n1", "--", "true"),
        ("launch", "toy", "--image", "a\u2028b", "--on", "n1", "--", "true"),
        ("launch", "toy", "--mount", "/a:/b\n", "--on", "n1", "--", "true"),
        (
            "launch",
            "toy",
            "--set",
            "sbatch=--account=x\n#SBATCH --uid=0",
            "--on",
            "n1",
            "--",
            "true",
        ),
        ("render", "toy\r", "--envs", "e"),
        ("env", "list", "--envs", "e\x1b[2J"),
        ("image", "push", "toy", "host/a\nb"),
    ],
)
def test_a_control_character_is_refused_at_the_door(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, "control character" in result.output) == (3, True), result.output
    assert "\x1b" not in result.output


def test_a_command_may_have_several_lines(tmp_path: Path) -> None:
    result = invoke("run", "none", "--envs", str(tmp_path), "--", "python", "-c", "a\nb\r")
    assert "control character" not in result.output and result.exit_code != 0
