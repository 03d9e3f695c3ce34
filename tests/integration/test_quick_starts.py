"""The commands of docs/quickstart.md as printed, with the text taken from the page.

What runs them is the closest real thing: a Slurm of four nodes whose GPUs are devices of another
kind, sshd on each, a registry called registry.lab in a network of its own. `lab` is an environment of
tiny wheels, or the one with torch that all tests have.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.faulty import served
from tests.integration.conftest import NO_INDEXES, Home, environment_folder, make_home
from tests.integration.short_folders import short_folder
from tests.integration.slurm_cluster import SlurmCluster, start_slurm_cluster
from tests.integration.smoke_process import PYTHON
from tests.integration.ssh_hosts import let_in
from tests.integration.virtual_hosts import virtual_network
from tests.small import write_index
from tests.unit.cli.test_quickstart import quick_start
from tests.unit.image.test_image_disk_base import layout

pytestmark = [pytest.mark.exhaustive, pytest.mark.index]

LAB = ("--torch", "2.13", "--cpu", "--no-companions", "--python-from", "host")
GPUS = 8  # as the page asks for
SECTIONS = ("Slurm", "For administrators of 50 nodes")
# What needs a torch that works; the other verbs send files and compare them.
WITH_TORCH = ("launch", "jobs", "smoke")


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    with short_folder("slurm") as folder, start_slurm_cluster(folder, GPUS) as slurm:
        yield slurm


@pytest.fixture
def login(cluster: SlurmCluster) -> dict[str, str]:
    """Variables of a login node, from which all nodes are reached by ssh."""
    hosts = let_in(cluster.network, cluster.folder / "ssh")
    return {"PATH": f"{hosts.config.parent / 'bin'}:{os.environ['PATH']}", **cluster.environment}


@contextlib.contextmanager
def small_lab(
    tmp_path: Path, packaged_python: Path, variables: Mapping[str, str], *options: str
) -> Iterator[Home]:
    """A user with an environment of tiny wheels. options: of its build."""
    write_index(tmp_path / "world")
    root = tmp_path / "home"
    home = make_home(root, shares_packages=True)
    shutil.copytree(packaged_python, root / "data" / "channels", symlinks=True)
    with served(tmp_path / "world") as index:
        own_variables = {
            **NO_INDEXES,
            "PIP_INDEX_URL": f"{index.url}/simple",
            "UV_CACHE_DIR": str(root / "uv"),
            "HOME": str(root),
        }
        user = Home(root=root, env={**home.env, **own_variables, **variables})
        result = user.run("build", "lab", *LAB, *options, "--no-image", "--no-smoke")
        assert result.returncode == 0, result.stderr
        yield user


@pytest.fixture
def torch_lab(tmp_path: Path, login: dict[str, str]) -> Home:
    """A user on a login node whose `lab` is the environment with torch: hard links to its files."""
    home = make_home(tmp_path / "home")
    source = Path(PYTHON).parent.parent
    prefix = home.project / "prefixes" / "lab"
    prefix.parent.mkdir(parents=True)
    subprocess.run(["cp", "-al", source, prefix], check=True)
    shutil.copytree(environment_folder(source), home.envs / "lab")
    marker = prefix / "conda-meta" / "provision.state"
    content = json.loads(marker.read_text())
    marker.unlink()  # it is the other environment's, too
    marker.write_text(json.dumps({**content, "name": "lab", "folder": str(home.envs / "lab")}))
    return Home(root=home.root, env={**home.env, "HOME": str(home.root), **login})


def commands(with_torch: bool) -> list[list[str]]:
    """Of both quick starts for clusters, in order."""
    words = [shlex.split(line) for title in SECTIONS for line in quick_start(title)]
    return [command for command in words if (command[0] in WITH_TORCH) == with_torch]


@pytest.mark.slurm
@pytest.mark.needs("mksquashfs", "unsquashfs", "sshd", "ssh-keygen")
def test_files_reach_the_nodes(
    tmp_path: Path, packaged_python: Path, login: dict[str, str], cluster: SlurmCluster
) -> None:
    outputs = {}
    with small_lab(tmp_path, packaged_python, login) as user:
        for command in commands(with_torch=False):
            result = user.run(*command)
            assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
            outputs[" ".join(command)] = result.stdout
    verbs = [command.split()[0] for command in outputs]
    assert verbs == ["nodes", "pack", "ship", "nodes", "doctor", "ship", "drift", "report"]
    assert "4 nodes for lab: 4 fit" in outputs["nodes check lab --on slurm:gpu"]
    assert "active on 4 of 4 nodes" in outputs["ship lab --on slurm:gpu"]
    assert "nothing was sent" in outputs["ship lab --on slurm:gpu --min 95%"]
    assert "4 nodes, all the same" in outputs["drift lab --on slurm:gpu"]
    assert "<html" in (user.envs.parent / "report.html").read_text()
    for node in cluster.nodes:
        python = "/opt/provision/lab/bin/python"
        assert node.run(python, "-c", "import torch; print(torch.__version__)") == "2.13.0+cpu\n"


RANKS = """
import os, torch
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], torch.__version__, flush=True)
"""


@pytest.mark.torch
@pytest.mark.slurm
@pytest.mark.needs("sshd", "ssh-keygen")
def test_jobs_and_smoke_test_run_on_the_nodes(torch_lab: Home, cluster: SlurmCluster) -> None:
    (torch_lab.envs.parent / "train.py").write_text(RANKS)
    outputs = []
    for command in commands(with_torch=True):
        result = torch_lab.run(*command)
        assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
        outputs.append(result.stdout)
    dry, launched, jobs, smoke = outputs
    assert dry.startswith("#!") and "#SBATCH --nodes=2" in dry
    job = launched.splitlines()[0].removeprefix("submitted: job ")
    assert job in jobs
    cluster.wait_for_job(job)
    log = torch_lab.run("jobs", "log", job).stdout
    assert len({line for line in log.splitlines() if "of 16 2." in line}) == 16, log
    assert "smoke test on slurm:gpu: pass" in smoke


REGISTRY = "registry.lab"
CERTIFICATE = (
    *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
    *("-subj", f"/CN={REGISTRY}", "-addext", f"subjectAltName=DNS:{REGISTRY}"),
)
REGISTRY_SETTINGS = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/images}}}}
http: {{addr: 0.0.0.0:5000, tls: {{certificate: {folder}/cert.pem, key: {folder}/key.pem}}}}
"""


@pytest.mark.docker
@pytest.mark.hosts
@pytest.mark.needs("docker-registry", "git", "openssl")
def test_images_reach_the_registry(tmp_path: Path, packaged_python: Path) -> None:
    """The job's own line runs in tests/unit/cli/test_quickstart.py."""
    folder = tmp_path / "registry"
    folder.mkdir()
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    subprocess.run([*CERTIFICATE, *files], check=True, capture_output=True)
    (folder / "config.yml").write_text(REGISTRY_SETTINGS.format(folder=folder))
    base = layout(tmp_path / "base")
    variables = {"SSL_CERT_FILE": str(folder / "cert.pem")}
    build, push, launch = quick_start("Kubernetes")
    with (
        virtual_network([REGISTRY, "workstation"], tmp_path / "hosts") as network,
        small_lab(tmp_path, packaged_python, variables, "--base", f"oci:{base}") as user,
    ):
        log = folder / "log"
        network[REGISTRY].start("docker-registry", "serve", str(folder / "config.yml"), log=log)
        identity = ("-c", "user.name=a", "-c", "user.email=a@lab.example")
        for git in (["init", "-q"], ["add", "envs"], [*identity, "commit", "-qm", "lab"]):
            subprocess.run(["git", *git], cwd=user.envs.parent, check=True)
        built = user.run(*shlex.split(build))
        assert built.returncode == 0, built.stderr
        provision = str(Path(sys.executable).parent / "provision")
        words = ("env", "-C", str(user.envs.parent), provision, *shlex.split(push))
        child = subprocess.run(
            network["workstation"].command(*words), env=user.env, capture_output=True, text=True
        )
        removed = user.run("env", "remove", "lab", "--yes")
    assert child.returncode == 0, child.stdout + child.stderr
    assert removed.returncode == 0, removed.stderr
    pushed = shlex.split(push)[-1]
    assert pushed in child.stdout and pushed in launch
    repository = pushed.removeprefix(f"{REGISTRY}:5000/").rpartition(":")[0]
    assert (folder / "images/docker/registry/v2/repositories" / repository).is_dir()


@pytest.mark.needs("git")
def test_installation(tmp_path: Path) -> None:
    """In a clone, with a home of its own, as the page's first lines say."""
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "clone"], check=True)
    text = (ROOT / "docs" / "quickstart.md").read_text()
    block = re.search(r"(?:^    .+\n)+", text, re.MULTILINE)
    assert block is not None
    script = f"set -e\n{block[0]}provision --version; complete -p provision\n"
    answer = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=tmp_path / "clone",
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"^provision, version \S+$", answer.stdout, re.MULTILINE)
    assert (tmp_path / "provision" / "bin" / "provision").exists()
