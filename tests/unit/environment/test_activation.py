"""Entering a prefix: scripts in real shells, and commands without one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from provision.cli.main import cli
from provision.core.errors import IntegrityError, ToolMissing
from provision.core.paths import Folders, default_folders
from provision.core.types import Prefix
from provision.environment import activation
from provision.environment.marker import Marker
from provision.environment.marker import write as write_marker
from provision.verbs.run import run as runs
from provision.workflow.project import require_prefix

PRINT = 'echo "$PATH|${CONDA_PREFIX-}|${PYTHONNOUSERSITE-}|${PYTHONPATH-unset}|${LD_LIBRARY_PATH-unset}|${HOOK-}"'
PRINT_FISH = 'echo (string join : $PATH)"|$CONDA_PREFIX|$PYTHONNOUSERSITE|$PYTHONPATH|$LD_LIBRARY_PATH|$HOOK"'


@pytest.fixture(params=["lab", "a lab's"])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> Prefix:
    path = tmp_path / "data" / "prefixes" / request.param
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(sys.executable)
    write_marker(path, Marker(name="lab", folder=str(tmp_path / "envs"), lock_sha256="abc"))
    for kind, extension, text in (
        ("activate", "sh", "export HOOK=in"),
        ("activate", "fish", "set -gx HOOK in"),
        ("deactivate", "sh", "unset HOOK"),
        ("deactivate", "fish", "set -e HOOK"),
    ):
        script = path / "etc" / "conda" / f"{kind}.d" / f"toy.{extension}"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text + "\n")
    activation.write_scripts(path)
    return Prefix(name="lab", path=path, lock_sha256="abc")


def shell_output(home: Path, argv: list[str], script: str) -> list[str]:
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": "/mine",
        "LD_LIBRARY_PATH": "/libraries",
    }
    result = subprocess.run(
        [*argv, script], capture_output=True, text=True, env=variables, check=True
    )
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(["bash", "-uc"], id="bash"),
        pytest.param(["zsh", "-fuc"], id="zsh", marks=pytest.mark.needs("zsh")),
    ],
)
def test_activation_in_a_shell_and_back(prefix: Prefix, argv: list[str]) -> None:
    script = f'. "{prefix.path}/bin/activate"; {PRINT}; deactivate; {PRINT}'
    inside, outside = shell_output(prefix.path.parent, argv, script)
    path = os.environ["PATH"]
    assert inside == f"{prefix.path}/bin:{path}|{prefix.path}|1|unset|unset|in"
    assert outside.endswith("|/mine|/libraries|")
    assert outside.startswith(f"{path}|")


def test_activation_twice_is_activation_once(prefix: Prefix) -> None:
    activate = f'. "{prefix.path}/bin/activate"'
    script = (
        f"{activate}; {activate}; {PRINT}; deactivate; echo $PATH; type -t deactivate || echo none"
    )
    inside, outside, function = shell_output(prefix.path.parent, ["bash", "-c"], script)
    assert inside.startswith(f"{prefix.path}/bin:{os.environ['PATH']}|")
    assert outside == os.environ["PATH"]
    assert function != "function"


@pytest.mark.needs("fish")
def test_activation_in_fish_and_back(prefix: Prefix) -> None:
    source = f'source "{prefix.path}/bin/activate.fish"'
    script = f"{source}; {source}; {PRINT_FISH}; deactivate; {PRINT_FISH}"
    inside, outside = shell_output(prefix.path.parent, ["fish", "--no-config", "-c"], script)
    path = os.environ["PATH"]
    assert inside == f"{prefix.path}/bin:{path}|{prefix.path}|1|||in"
    assert outside == f"{path}|||/mine|/libraries|"


def test_script_of_a_package_stays(prefix: Prefix) -> None:
    path = prefix.path / "bin" / "activate"
    path.write_text("conda's own\n")
    activation.write_scripts(prefix.path)
    assert path.read_text() == "conda's own\n"


def test_command_gets_the_environment_and_its_exit_code(prefix: Prefix) -> None:
    """In a process of its own, as `provision run` becomes the command."""
    code = (
        "import os, sys; print(os.environ['PATH'], os.environ['HOOK'], os.environ['CONDA_PREFIX'], "
        "'PYTHONPATH' in os.environ, sep='|'); sys.exit(7)"
    )
    argv = activation.run_argv(prefix, ["python", "-c", code])
    variables = activation.run_variables(prefix, {**os.environ, "PYTHONPATH": "/mine"})
    result = subprocess.run(argv, env=variables, capture_output=True, text=True)
    path = f"{prefix.path}/bin:{os.environ['PATH']}"
    assert result.stdout == f"{path}|in|{prefix.path}|False\n"
    assert result.returncode == 7


def test_command_without_scripts_is_started_directly(tmp_path: Path) -> None:
    prefix = Prefix(name="lab", path=tmp_path, lock_sha256="abc")
    assert activation.run_argv(prefix, ["python", "-V"]) == ["python", "-V"]


@pytest.mark.parametrize(
    "shell",
    [
        "bash",
        *(pytest.param(name, marks=pytest.mark.needs(name)) for name in ("zsh", "fish")),
        "tcsh",
    ],
)
def test_shell_starts_in_the_environment(prefix: Prefix, shell: str, tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("export MINE=yes\n")
    (tmp_path / ".zshrc").write_text("export MINE=yes\n")
    (tmp_path / ".config" / "fish").mkdir(parents=True)
    (tmp_path / ".config" / "fish" / "config.fish").write_text("set -gx MINE yes\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb"}
    argv = activation.shell_argv(prefix, shell)
    variables = activation.shell_variables(prefix, shell, environ)
    result = subprocess.run(
        argv,
        input='echo "<$MINE $CONDA_PREFIX $PROVISION_SHELL_PREFIX$ZDOTDIR>"\nexit 3\n',
        env=variables,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert f"<yes {prefix.path} >" in result.stdout, result
    assert result.returncode == 3


def folders(tmp_path: Path) -> Folders:
    return Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")


def test_prefix_is_found_by_name_or_refused(prefix: Prefix, tmp_path: Path) -> None:
    assert require_prefix(folders(tmp_path), "lab", prefix.path).path == prefix.path
    with pytest.raises(ToolMissing, match=r"`nosuch` is not installed.*`provision build nosuch`"):
        require_prefix(folders(tmp_path), "nosuch")
    (prefix.path / "bin" / "python").unlink()
    with pytest.raises(IntegrityError, match="no bin/python"):
        require_prefix(folders(tmp_path), "lab", prefix.path)


def test_missing_program_is_named(prefix: Prefix) -> None:
    with pytest.raises(ToolMissing, match="There is no `nosuch` in"):
        runs.run_launch(prefix, ["nosuch"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["lab", "--dry-run", "python", "-c", "x", "--json"],
        ["lab", "--dry-run", "--", "python", "-c", "x", "--json"],
        ["--dry-run", "lab", "python", "-c", "x", "--json"],
        ["--dry-run", "--", "python", "-c", "x", "--json"],
        ["--envs", "envs", "lab", "--dry-run", "python", "-c", "x", "--json"],
    ],
)
def test_options_end_where_the_command_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "envs" / "lab").mkdir(parents=True)
    (tmp_path / "envs" / "lab" / "spec.yml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path))
    path = default_folders().prefixes / "lab"
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(sys.executable)
    write_marker(path, Marker(name="lab", folder="x", lock_sha256="abc"))
    result = CliRunner().invoke(cli, ["run", *arguments])
    assert result.output == "python -c x --json\n"


@pytest.mark.parametrize(
    "options,exit_code,is_noticed",
    [([], 0, True), (["-q"], 0, False), (["--locked"], 6, True), (["--sync"], 0, True)],
)
def test_an_environment_that_is_not_up_to_date_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    exit_code: int,
    is_noticed: bool,
) -> None:
    """A dry run brings nothing up to date. Looking needs nothing that takes long to import."""
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path))
    folder = tmp_path / "envs" / "lab"
    path = default_folders(folder.parent).prefixes / "lab"
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(sys.executable)
    folder.mkdir(parents=True)
    (folder / "conda-lock.yml").write_text("another lock")
    write_marker(path, Marker(name="lab", folder=str(folder), lock_sha256="abc"))
    command = ["run", "lab", *options, "--dry-run", "python"]
    script = "import sys; from provision.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script, *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == exit_code, done.stderr
    assert ("another lock than the present one" in done.stderr) is is_noticed
    for heavy in ("rattler", "yaml", "provision.catalog", "provision.adapters"):
        assert re.search(rf"\| +{heavy}$", done.stderr, re.M) is None or options == ["--sync"]


def test_command_is_required(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["run", "lab"])
    assert result.exit_code == 2
    assert "COMMAND" in result.output


def test_run_imports_no_solver(tmp_path: Path) -> None:
    """`provision run` must start at once."""
    script = (
        "import sys\nfrom provision.cli.main import cli\n"
        "try: cli(['run', 'nosuch', 'true'])\nexcept SystemExit: print(sorted(sys.modules))"
    )
    variables = {**os.environ, "PROVISION_DATA": str(tmp_path)}
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=variables
    ).stdout
    assert "'provision.verbs.run.run'" in loaded
    for heavy in ("rattler", "yaml", "requests", "provision.catalog", "provision.adapters"):
        assert f"'{heavy}'" not in loaded
