"""Solving with another executable through conda-lock: its input, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from provision import lockfile
from provision.adapters import conda
from provision.core.errors import InvalidSpec, ToolFailed, ToolMissing
from provision.core.mirrors import NO_MIRRORS
from provision.lockfile import external_solver
from tests.records import alias

REQUEST = conda.SolveRequest(
    specs=("python=3.11", "pytorch::pytorch=2.3.1=py3.11_cuda12.1*"),
    channels=("pytorch", "conda-forge"),
    virtual_packages=(("__cuda", "12.1"), ("__glibc", "2.28")),
)


def test_files_for_conda_lock() -> None:
    files = external_solver.solver_files(REQUEST, alias(Path("/srv/mirror")))
    assert json.loads(files["environment.yml"]) == {
        "channels": ["file:///srv/mirror/pytorch/", "file:///srv/mirror/conda-forge/"],
        "dependencies": ["python=3.11", "pytorch=2.3.1=py3.11_cuda12.1*"],
    }
    direct = json.loads(external_solver.solver_files(REQUEST, NO_MIRRORS)["environment.yml"])
    assert direct["channels"][0] == conda.channel_url("pytorch") and direct["dependencies"] == list(
        REQUEST.specs
    )
    assert json.loads(files["virtual-packages.yml"]) == {
        "subdirs": {"linux-64": {"packages": {"__cuda": "12.1", "__glibc": "2.28"}}}
    }


@pytest.mark.parametrize(
    "name,flags",
    [
        ("conda", ["--no-mamba", "--no-micromamba"]),
        ("mamba", ["--mamba", "--no-micromamba"]),
        ("micromamba", ["--no-mamba", "--micromamba"]),
    ],
)
def test_the_command(name: lockfile.SolverName, flags: list[str]) -> None:
    argv = external_solver.solver_command(name, Path("/opt/bin") / name, REQUEST, Path("/tmp/a b"))
    message = [str(argument) for argument in argv]
    assert message[:4] == [sys.executable, "-m", "conda_lock", "lock"]
    assert message[message.index("--conda") + 1] == f"/opt/bin/{name}" and message[8:10] == flags
    assert message[message.index("--platform") + 1] == "linux-64"
    assert message[message.index("--virtual-package-spec") + 1] == "/tmp/a b/virtual-packages.yml"
    assert Path(message[message.index("--pypi_to_conda_lookup_file") + 1]).is_file()


def test_missing_executable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ToolMissing,
        match=r"needs the executable `mamba`, which is not on PATH.*own solver needs no executable",
    ):
        lockfile.find_solver("mamba", NO_MIRRORS)


def test_executable_that_is_not_a_solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "conda"
    program.write_text("#!/bin/sh\necho nonsense; exit 3\n")
    program.chmod(0o755)
    with pytest.raises(ToolFailed, match="Leave out --solver"):
        external_solver.ExternalSolver("conda", program).solve(
            dataclasses.replace(REQUEST, specs=("python=3.11",), channels=("file:///nowhere",))
        )


def test_options_only_our_solver_supports() -> None:
    other = external_solver.ExternalSolver("conda", Path("/opt/bin/conda"))
    with pytest.raises(InvalidSpec, match="--as-of is for provision's own solver"):
        other.solve(dataclasses.replace(REQUEST, as_of="2025-01-01"))
