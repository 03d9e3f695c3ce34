"""Markers for what a test needs: run it, skip it with the reason, or fail if PROVISION_REQUIRE
(a comma-separated list of markers and commands) promised that the need is met.
"""

from __future__ import annotations

import functools
import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from provision import catalog
from provision.cli import console
from tests.results import check_result

# A busy machine is no counterexample. CI tries the same examples in each run, so that it judges the
# change alone; runs of developers try others, and those that failed become `@example`.
settings.register_profile(
    "untimed",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("untimed")

ROOT = Path(__file__).parent.parent
SHARED_RECORDS = ROOT.parent / "shared" / "repodata" / "channels"


# Reasons of skips that no machine of CI can prevent.
NOT_IN_CI = (
    "no NVIDIA driver",
    "there is a GPU here",
    "has a libnccl to shadow",  # one test for torch with it, one for torch without
    "has no libnccl of its own",
    "PROVISION_TEST_OTHER_PYTHON",  # a second release of torch
    "this torch cannot",  # CI has one release
    "cosign is not installed",  # no package of Debian 12
    "no Python 3.6",
    "no Python older than 3.8",
    "the conda records for development",
    "not root",
    "not a checkout",
    "root may write anywhere",
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of what the workers of this run share (tests/integration/shared_parts.py), one for
    a cache, without what other code made, and one for temporary files: in TMPDIR, which nox sets, a
    socket's path would be too long below many a clone. pytest's own folders stay there."""
    if hasattr(config, "workerinput"):
        return
    try:
        getpass.getuser()
    except (KeyError, OSError):  # no entry in the user database; `provision` does the same
        os.environ["LOGNAME"] = str(os.getuid())
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    places = {"PROVISION_TEST_SHARED": None, "PROVISION_CACHE": None, "TMPDIR": "/tmp"}
    for variable, place in places.items():
        folder = tempfile.mkdtemp(prefix="provision-test-", dir=place)
        Path(folder).chmod(0o755)  # tests also run as other users
        os.environ[variable] = folder
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
    tempfile.tempdir = None  # it is looked up anew


def pytest_sessionstart() -> None:
    """Run in the background of a script, we were started with Ctrl-C ignored, and so would be every child that a test interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The shipped facts decide, not those of the user who runs the tests.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROVISION_DATA", os.devnull)
        catalog.edition()


@pytest.fixture(autouse=True, scope="session")
def outside_of_projects(tmp_path_factory: pytest.TempPathFactory) -> None:
    """nox puts temporary folders below this checkout, whose environments are not the tests'."""
    (tmp_path_factory.getbasetemp() / ".git").mkdir(exist_ok=True)


@pytest.fixture(autouse=True)
def results_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test's own process prints with --json is valid by its schema."""
    make_object = console.json_object

    def checked_object(name: str, value: object) -> dict[str, Any]:
        document = make_object(name, value)
        check_result(document)
        return document

    monkeypatch.setattr(console, "json_object", checked_object)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="Rewrite the golden files with what is rendered now.",
    )
    parser.addoption(
        "--first-cases",
        action="store_true",
        help="Run only the first case of each parametrized test.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--first-cases"):
        return
    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    items[:] = first.values()
    items.reverse()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, absent in ABSENT.items():
        if item.get_closest_marker(name) and (reason := absent()):
            absence(name, reason)
    for command in (command for marker in item.iter_markers("needs") for command in marker.args):
        if shutil.which(command) is None:
            absence(command, f"{command} is not installed")
    _started.clear()


# Commands of a mark's part.
HOSTS = ("ip", "iptables", "unshare", "nsenter", "setpriv", "mknod", "hostname")
MOUNTS = ("mount", "umount", "unshare")
SLURM_CLIENTS = ("sinfo", "srun", "scontrol", "scancel", "squeue", "sbatch", "salloc")
COMMANDS = {
    "root": ("setpriv",),
    "mounts": MOUNTS,
    "loop": MOUNTS,
    "fuse": (*MOUNTS, "squashfuse", "squashfuse_ll"),
    "hosts": HOSTS,
    "slurm": (*HOSTS, "munged", "slurmctld", "slurmd", *SLURM_CLIENTS),
    "sshd": (*HOSTS, "sshd", "ssh", "ssh-keygen", "python3"),
    "browser": ("chromium",),
    "docker": ("docker",),
}
# What needs no mark.
EVERYWHERE = frozenset(
    (
        "bash",
        "cat",
        "chmod",
        "chown",
        "cp",
        "echo",
        "env",
        "false",
        "grep",
        "sh",
        "sleep",
        "tar",
        "touch",
        "true",
    )
)
# What provision uses where it is, and does without elsewhere.
OPTIONAL = frozenset(("dpkg-query", "fusermount", "fusermount3", "sinfo", "zstd"))
SYSTEM_FOLDERS = ("/usr/", "/bin/", "/sbin/")
# By the test that runs, itself or by functions that it calls.
_started: set[str] = set()


def _note_command(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen":
        return
    executable, _, _, environment = arguments
    path = (os.environ if environment is None else environment).get("PATH")
    command = shutil.which(os.fsdecode(executable), path=path)
    if command and command.startswith(SYSTEM_FOLDERS):
        _started.add(Path(command).name)


sys.addaudithook(_note_command)


def _marked_commands(item: pytest.Item) -> set[str]:
    commands = {command for mark in item.iter_markers("needs") for command in mark.args}
    for name, of_part in COMMANDS.items():
        if item.get_closest_marker(name):
            commands.update(of_part)
    return commands | EVERYWHERE | OPTIONAL


def _demanded() -> set[str]:
    return {name.strip() for name in os.environ.get("PROVISION_REQUIRE", "").split(",")}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A unit test that passes only because this machine has what its marks do not name has failed; of
    integration tests this is checked with PROVISION_TEST_MARKS. Where
    PROVISION_REQUIRE has `all`, so has one that was skipped, except for want of what CI cannot have.
    """
    report = yield
    is_checked = "unit" in item.path.parts or "PROVISION_TEST_MARKS" in os.environ
    unmarked = _started - _marked_commands(item)
    if is_checked and call.when == "call" and report.passed and unmarked:
        report.outcome = "failed"
        report.longrepr = (
            f"It runs {', '.join(sorted(unmarked))}, which a machine may lack, without a mark that "
            "says so: needs(COMMAND), or that of a part (tests/conftest.py)"
        )
    if "all" in _demanded() and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if not any(text in reason for text in NOT_IN_CI):
            report.outcome = "failed"
            report.longrepr = f"PROVISION_REQUIRE demands all parts, but: {reason}"
    return report


def absence(part: str, reason: str) -> None:
    """Skip for want of a part, or fail where PROVISION_REQUIRE promised it."""
    if part in _demanded():
        pytest.fail(f"PROVISION_REQUIRE demands {part}, but {reason}", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


@functools.cache
def no_docker() -> str | None:
    from provision.adapters.docker import connect_engine

    client, reason = connect_engine()
    if client is None:
        return f"no Docker engine answers: {reason}"
    client.close()
    return None


@functools.cache
def no_index() -> str | None:
    from provision.adapters import uv
    from provision.core.errors import ProvisionError

    try:
        uv.resolve_versions(uv.ResolveRequest(requirements=("six",), python="3.11", glibc="2.28"))
    except ProvisionError as error:
        return f"the package index does not answer: {error}"
    return None


@functools.cache
def no_torch() -> str | None:
    """torch is wanted in an interpreter: PROVISION_TEST_PYTHON or our own; the index can provide an environment that has it."""
    python = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
    result = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True)
    return (
        None
        if result.returncode == 0
        else f"{python} has no torch (name one that has in PROVISION_TEST_PYTHON)"
    )


# An interpreter that has the libraries; its torch is newer than the one that CI tests with.
LIBRARIES_PYTHON = os.environ.get("PROVISION_TEST_LIBRARIES_PYTHON", sys.executable)


@functools.cache
def no_libraries() -> str | None:
    command = [
        LIBRARIES_PYTHON,
        "-c",
        "import accelerate, lightning, peft, safetensors, torchdata, transformers",
    ]
    if subprocess.run(command, capture_output=True).returncode == 0:
        return None
    return (
        f"{LIBRARIES_PYTHON} lacks transformers, lightning, accelerate, peft, safetensors or torchdata "
        "(name one that has them in PROVISION_TEST_LIBRARIES_PYTHON)"
    )


@functools.cache
def no_records() -> str | None:
    return (
        None
        if SHARED_RECORDS.exists()
        else f"the conda records for development are not at {SHARED_RECORDS}"
    )


@functools.cache
def no_gpu() -> str | None:
    return None if Path("/dev/nvidiactl").exists() else "this machine has no NVIDIA driver"


@functools.cache
def no_browser() -> str | None:
    return (
        None
        if shutil.which("chromium")
        else "there is no chromium (Debian's package) to render pages with"
    )


@functools.cache
def no_root() -> str | None:
    return None if os.geteuid() == 0 else "not root"


@functools.cache
def no_mounts() -> str | None:
    """The root of a container may often not mount."""
    if os.geteuid() != 0:
        return "mounting needs root"
    mount = ["unshare", "--mount", "--net", "mount", "-t", "tmpfs", "none", "/tmp"]
    try:
        tried = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    return None if tried.returncode == 0 else f"nothing can be mounted here: {tried.stderr.strip()}"


@functools.cache
def no_loop() -> str | None:
    reason = no_mounts()
    if reason is None and not Path("/dev/loop-control").exists():
        reason = "there are no loop devices"
    return reason


@functools.cache
def no_fuse() -> str | None:
    reason = no_mounts()
    if reason is None:
        try:
            with Path("/dev/fuse").open("r+b", buffering=0) as file:
                is_fuse = os.fstat(file.fileno()).st_rdev == os.makedev(10, 229)
            reason = None if is_fuse else "/dev/fuse is another device"
        except OSError as error:
            reason = f"/dev/fuse cannot be opened: {error.strerror}"
    return reason


@functools.cache
def no_hosts() -> str | None:
    from tests.integration.virtual_hosts import why_impossible

    return why_impossible()


@functools.cache
def no_slurm() -> str | None:
    from tests.integration.virtual_hosts import why_impossible

    return why_impossible(*COMMANDS["slurm"])


@functools.cache
def no_sshd() -> str | None:
    from tests.integration.virtual_hosts import why_impossible

    return why_impossible(*COMMANDS["sshd"])


def no_kubernetes() -> str | None:
    program = os.environ.get("PROVISION_TEST_KUBE_APISERVER")
    return (
        None
        if program and Path(program).exists()
        else "no API server of Kubernetes (build one with tools/build_kube_apiserver.sh and name it "
        "in PROVISION_TEST_KUBE_APISERVER)"
    )


ABSENT: dict[str, Callable[[], str | None]] = {
    "browser": no_browser,
    "docker": no_docker,
    "index": no_index,
    "torch": no_torch,
    "libraries": no_libraries,
    "conda": no_records,
    "gpu": no_gpu,
    "root": no_root,
    "mounts": no_mounts,
    "loop": no_loop,
    "fuse": no_fuse,
    "hosts": no_hosts,
    "slurm": no_slurm,
    "sshd": no_sshd,
    "kubernetes": no_kubernetes,
}
