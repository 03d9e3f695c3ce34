"""A recorded run becomes its command at once, and never when something that decides has changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.cli import records, start
from provision.core.paths import default_folders
from provision.core.types import Prefix
from provision.environment import activation, marker
from provision.verbs.run import recorded

SITE = "lib/python3.11/site-packages"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prefix:
    """A project's environment of which a run is recorded."""
    for name in [name for name in os.environ if name.startswith(records.VARIABLES)]:
        monkeypatch.delenv(name)
    for name in ("HOME", "PROVISION_DATA", "PROVISION_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setattr(records, "START", dict(os.environ))
    monkeypatch.setattr(records, "SETTLED_NS", -(10**12))
    described = tmp_path / "project" / "envs" / "lab"
    described.mkdir(parents=True)
    for name in ("spec.yml", "conda-lock.yml"):
        (described / name).write_text("a: b\n")
    monkeypatch.chdir(tmp_path / "project")
    folders = default_folders()
    path = folders.prefixes / "lab"
    for folder in ("bin", "conda-meta", f"{SITE}/provision_runtime-1.dist-info"):
        (path / folder).mkdir(parents=True)
    (path / f"{SITE}/provision_runtime-1.dist-info/RECORD").touch()
    (path / "bin" / "python").symlink_to(sys.executable)
    marker.write(path, marker.Marker(name="lab", folder=str(described), lock_sha256="1"))
    prefix = Prefix(name="lab", path=path, lock_sha256="1")
    recorded.record_run(folders, prefix, ["true"], activation.run_variables(prefix, os.environ))
    return prefix


def commands(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[Any]:
    """What `provision ARGUMENTS` would become, without the command line."""
    calls: list[Any] = []

    def execute(*call: Any) -> None:
        calls.append(call)
        raise OSError

    monkeypatch.setattr(os, "execvpe", execute)
    start.command_of_run(list(arguments))
    return calls


@pytest.mark.parametrize("arguments", [["--", "true", "-x"], ["true", "-x"]])
def test_a_recorded_run_is_the_command(
    arguments: list[str], prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = activation.run_variables(prefix, records.START)
    assert commands(monkeypatch, "run", "lab", *arguments) == [("true", ["true", "-x"], variables)]


@pytest.mark.parametrize(
    "text",
    [
        "run lab",
        "run lab --",
        "run -q lab true",
        "run lab --sync true",
        "run other true",
        "-v run lab true",
        "shell lab true",
        "run lab torchrun train.py",
        "run lab -- /opt/bin/accelerate launch train.py",
        "run lab python -m torch.distributed.run train.py",
    ],
)
def test_other_command_lines_are_read_by_main(
    text: str, prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands(monkeypatch, *text.split()) == []


def make(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def replace_python(prefix: Path) -> None:
    (prefix / "bin" / "python").unlink()
    make(prefix / "bin" / "python")


def open_to_others(prefix: Path) -> None:
    for path in (prefix.parents[4] / "PROVISION_CACHE" / "runs").iterdir():
        path.chmod(0o666)


CHANGES: dict[str, Callable[[Path], object]] = {
    "lock": lambda prefix: make(Path("envs/lab/conda-lock.yml")),
    "spec": lambda prefix: make(Path("envs/lab/spec.yml")),
    "project file": lambda prefix: make(Path("provision.toml"), 'envs = "other"'),
    "settings": lambda prefix: make(Path.home() / ".config/provision/settings.yml"),
    "python": replace_python,
    "marker": lambda prefix: make(prefix / marker.MARKER),
    "wheel": lambda prefix: (prefix / SITE / "six-1.dist-info").mkdir(),
    "conda package": lambda prefix: make(prefix / "conda-meta/zlib-1-0.json"),
    "runtime": lambda prefix: make(prefix / SITE / "provision_runtime-1.dist-info/RECORD"),
    "activation": lambda prefix: make(prefix / "etc/conda/activate.d/a.sh"),
    "place": lambda prefix: make(prefix.parents[1] / "elsewhere.json"),
    "record": open_to_others,
    "folder": lambda prefix: os.chdir("envs"),
    "variable": lambda prefix: records.START.update(PROVISION_ENVS="other"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_is_judged_by_main(
    change: str, prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands(monkeypatch, "run", "lab", "true")
    CHANGES[change](prefix.path)
    assert commands(monkeypatch, "run", "lab", "true") == []


def test_what_was_written_a_moment_ago_is_not_recorded(
    prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be written again within the resolution of its times."""
    open_to_others(prefix.path)
    monkeypatch.undo()
    monkeypatch.chdir(prefix.path.parents[4] / "project")
    assert records.SETTLED_NS > 10**9
    file = Path("record")
    monkeypatch.setattr(records, "record_file", lambda key: str(file))
    folders = default_folders()
    recorded.record_run(folders, prefix, ["true"], {"PATH": f"bin:{records.START['PATH']}"})
    assert not file.exists()
