"""Real parts shared by a test run: a home folder, the `provision` command, a base image, and the
main environment (torch 2.3, CUDA 12.1).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provision.core.project import project_folder
from tests.conftest import absence
from tests.integration import shared_parts
from tests.integration.shared_parts import exclusively
from tests.integration.short_folders import short_path  # noqa: F401
from tests.integration.slurm_cluster import slurm_cluster, slurm_session  # noqa: F401
from tests.integration.ssh_hosts import ssh_hosts  # noqa: F401
from tests.results import parse_result

BASE = "provision-test-base:bookworm"
MAIN = "torch2.3-cuda12.1-py311"
MAIN_REQUEST = ("--torch", "2.3", "--cuda", "12.1")


# Files that take more than half a minute, the longest first, so that no worker ends with one of them;
# among those that keep the processors busy, those that mostly wait.
LONG = (
    "test_main_job",
    "test_faults",
    "test_smoke_nodes",
    "test_image",
    "test_change",
    "test_launch_slurm",
    "test_pack",
    "test_join",
    "test_smoke_faults",
    "test_image_run",
    "test_mirrors",
    "test_ship_hosts",
    "test_lock_records",
    "test_image_dockerfile",
    "test_smoke_run",
    "test_join_cluster",
    "test_smoke_hosts",
    "test_ship_simulated",
    "test_checkpoint_objects",
    "test_job_nodes",
    "test_docs_examples",
    "test_smoke_folder",
    "test_doctor_causes",
    "test_image_without_engine",
    "test_smoke_start",
    "test_drift",
    "test_smoke_facts",
)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """CI runs one case of each test, the first that is not marked as exhaustive. Long files first;
    without an effect where xdist reorders them."""
    in_ci = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in in_ci:
            item.add_marker(pytest.mark.exhaustive)
        elif not item.get_closest_marker("exhaustive"):
            in_ci.add(test)
    ranks = {name: rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


# Starts a command from a small process: to Linux, what a process had before exec counts as its own.
MEASURED = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[2:])
_, status, used = os.wait4(child.pid, 0)
open(sys.argv[1], "w").write(str(used.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


# Whatever this machine's pip is told, a test knows no index but its own.
NO_INDEXES = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}


@dataclass(frozen=True, kw_only=True)
class Home:
    """A user of one test session: folders, and the command run in them."""

    root: Path
    env: Mapping[str, str]

    @property
    def envs(self) -> Path:
        return self.root / "work" / "envs"

    @property
    def project(self) -> Path:
        """What the data folder has of the project in `work`."""
        return self.project_in(self.root / "data")

    def project_in(self, data: Path) -> Path:
        return data / project_folder(data, self.envs)

    def run(
        self, *arguments: str, timeout_s: float = 900, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `provision ...` to its end."""
        with self.start(*arguments, **variables) as child:
            try:
                out, err = child.communicate(timeout=timeout_s)
            except BaseException:
                child.kill()
                raise
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        command = [str(Path(sys.executable).parent / "provision"), *arguments]
        env = {**self.env, **variables}
        return subprocess.Popen(
            command,
            cwd=self.root / "work",
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def most_memory(self, *arguments: str) -> tuple[subprocess.CompletedProcess[str], int]:
        """Run `provision ...`; with the most bytes that it, or a process of it, had at once."""
        used = self.root / "most-memory"
        command = [str(Path(sys.executable).parent / "provision"), *arguments]
        result = subprocess.run(
            [sys.executable, "-c", MEASURED, used, *command],
            cwd=self.root / "work",
            env=self.env,
            text=True,
            capture_output=True,
        )
        return result, int(used.read_text()) << 10

    def json(self, *arguments: str) -> dict[str, Any]:
        result = self.run(*arguments, "--json")
        assert result.returncode in (0, 1), result.stderr
        return parse_result(result.stdout)


def environment_folder(prefix: Path) -> Path:
    """The folder with spec.yml and the lock of an installed environment, as its marker says."""
    marker = json.loads((prefix / "conda-meta" / "provision.state").read_text())
    return Path(marker["folder"])


def on_terminal(home: Home, *arguments: str) -> tuple[int, str]:
    """Run `provision ...` with a terminal for standard error; its status and all that was shown."""
    import pty

    reader, writer = pty.openpty()
    command = [str(Path(sys.executable).parent / "provision"), *arguments]
    child = subprocess.Popen(
        command,
        cwd=home.root / "work",
        env={**home.env, "TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=writer,
    )
    os.close(writer)
    output = b""
    while True:
        try:
            output += os.read(reader, 65536)
        except OSError:  # the terminal's other side is closed
            break
    os.close(reader)
    return child.wait(), output.decode(errors="replace")


def make_home(root: Path, *, shares_packages: bool = False) -> Home:
    """A new user's folders. What packages are compiled to is shared with the users of all tests.

    shares_packages: so are the conda packages that were unpacked.
    """
    (root / "work").mkdir(parents=True)
    (root / "cache").mkdir()
    (root / "cache" / "byte-code").symlink_to(shared_parts.byte_code())
    if shares_packages:
        (root / "cache" / "conda-packages").symlink_to(shared_parts.conda_packages())
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PROVISION_", "JUPYTER_")) and key != "PYTHONPATH"
    }
    env |= {
        "PROVISION_DATA": str(root / "data"),
        "PROVISION_CACHE": str(root / "cache"),
        "JUPYTER_DATA_DIR": str(root / "jupyter"),
    }
    return Home(root=root, env=env)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, packaged_python: Path) -> Iterator[Home]:
    """The user of the whole session; 10 GB with prefix and image, which go when it ends. This
    machine's Python is packaged already."""
    test_home = make_home(tmp_path_factory.mktemp("home"))
    channels = test_home.root / "data" / "channels"
    shutil.copytree(packaged_python, channels, symlinks=True)
    yield test_home
    test_home.run("env", "remove", MAIN, "--yes")
    shutil.rmtree(test_home.root, ignore_errors=True)


@pytest.fixture(scope="session")
def runtime_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the runtime package, over the test environment's torch."""
    from provision.environment import runtime_package

    prefix = tmp_path_factory.mktemp("prefix")
    python = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
    subprocess.run(
        [python, "-m", "venv", "--without-pip", "--system-site-packages", prefix], check=True
    )
    runtime_package.install(prefix, runtime_package.load())
    return prefix / "bin" / "python"


@pytest.fixture(scope="session")
def packaged_python() -> Path:
    """The channels folder with this machine's Python in it. Packaging takes seconds, so all workers
    share it: tests copy it."""
    return shared_parts.packaged_python()


@pytest.fixture(scope="session")
def main_build(home: Home) -> subprocess.CompletedProcess[str]:
    """The main environment, without its image: locked, installed, tested, registered; by a user
    with the most careless umask. Tested quickly: CI's main command runs the whole smoke test."""
    before = os.umask(0)
    try:
        result = home.run("build", *MAIN_REQUEST, "--no-image", "--set=profile=quick")
    finally:
        os.umask(before)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="session")
def main_prefix(home: Home, main_build: object) -> Path:
    return home.project / "prefixes" / MAIN


@pytest.fixture(scope="session")
def cpu_request(home: Home, packaged_python: Path) -> tuple[str, ...]:
    """A small environment for tests that break things; needs a place that has PyTorch's CPU wheels (pip's settings)."""
    request = ("--torch", "2.13", "--cpu", "--no-companions")
    result = home.run("lock", *request, "--dry-run")
    if result.returncode != 0:
        absence(
            "cpu-torch", f"no CPU build of torch can be had here: {result.stderr.splitlines()[-1]}"
        )
    return request


@pytest.fixture(scope="session")
def docker_base() -> str:
    """A Debian base image in the engine, made without a registry: debootstrap and docker import."""
    import docker
    from docker.errors import ImageNotFound

    with (
        exclusively(Path(tempfile.gettempdir()) / "provision-test-base.lock"),
        contextlib.closing(docker.from_env(timeout=600)) as client,
    ):
        try:
            client.images.get(BASE)
        except ImageNotFound:
            if not shutil.which("debootstrap") or os.geteuid() != 0:
                absence("docker", "making a base image needs debootstrap and root")
            script = Path(__file__).with_name("make_base.sh")
            subprocess.run([script, BASE], check=True, capture_output=True)
    return BASE
