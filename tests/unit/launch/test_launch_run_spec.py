"""What images require to run, and Jupyter in a container."""

from __future__ import annotations

import csv
import io
import shlex
from dataclasses import replace

import pytest
from click.testing import CliRunner

from provision import launch
from provision.cli.main import cli
from provision.core.errors import InvalidSpec, ToolMissing
from provision.core.process import exec_command
from provision.core.types import LockedPackage
from provision.image.base import parse_engine_reference
from tests.unit.image.test_image_config import LOCK, resolution
from tests.unit.launch.test_launch_contract import infiniband


def test_run_contract_of_a_cuda_image() -> None:
    assert shlex.join(launch.docker_arguments(resolution())) == (
        "--gpus all --init --shm-size=8g --ulimit stack=67108864 --ulimit memlock=-1"
    )
    assert all(need.reason for need in launch.run_requirements(infiniband()))
    assert [need.what for need in launch.run_requirements(infiniband())] == [
        "gpus",
        "init",
        "shm",
        "stack",
        "memlock",
        "infiniband",
        "network",
    ]


def test_unmet_requirements_are_left_out() -> None:
    assert launch.docker_arguments(
        resolution(), without=("gpus", "memlock")
    ) == launch.docker_arguments(resolution(cuda=None))


def test_mounts_are_of_the_kind_for_which_an_engine_makes_no_folder() -> None:
    mounts = tuple(map(launch.parse_mount, ("/data:/workspace:ro", "cache:/cache")))
    flags = launch.docker_arguments(resolution(), launch.RunOptions(mounts=mounts))
    assert flags[-4:] == [
        "--mount",
        "type=bind,source=/data,target=/workspace,readonly",
        "--mount",
        "type=volume,source=cache,target=/cache",
    ]


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ("/a b:ü$(x)", "source=/a b:ü$(x)"),
        ("/a,b", '"source=/a,b"'),
        ('/a"b,', '"source=/a""b,"'),
        ("/a\nb", '"source=/a\nb"'),
    ],
)
def test_folders_of_any_name_are_mounted(source: str, field: str) -> None:
    mount = launch.ContainerMount(source=source, target="/workspace")
    flags = launch.docker_arguments(resolution(), launch.RunOptions(mounts=(mount,)))
    assert flags[-1] == f"type=bind,{field},target=/workspace"
    assert next(csv.reader(io.StringIO(flags[-1], newline="")))[1] == f"source={source}"


@pytest.mark.parametrize("written", ["oci:/x y", "oci:/x", "A B", "", "-v"])
def test_invalid_image_names(written: str) -> None:
    with pytest.raises(InvalidSpec, match="is not an image reference"):
        parse_engine_reference(written)


@pytest.mark.parametrize(
    "written", ["/a", "a:b", "/a:b", "/a:/b:rx", "/a:/b,/c:/d", " /a:/b", "/a b:/c"]
)
def test_invalid_mounts(written: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a mount"):
        launch.parse_mount(written)


@pytest.mark.parametrize("written", ["root", "1000", "1000:", "-1:0", "1:2:3"])
def test_invalid_users(written: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a user"):
        launch.parse_user(written)


def test_a_missing_docker_command_is_reported_with_the_line_to_copy() -> None:
    with pytest.raises(ToolMissing, match=r"no `no-such-docker` on PATH.*no-such-docker run 'a b'"):
        exec_command(["no-such-docker", "run", "a b"], {})


def served(*names: str, port: int = 8888) -> launch.NotebookServer:
    packages = tuple(
        LockedPackage(manager="pip", name=name, version="1", url="", sha256="") for name in names
    )
    return launch.find_notebook_server(replace(LOCK, packages=packages), port)


def test_jupyter_is_published_on_loopback_only() -> None:
    wanted = served("numpy", "jupyter_server", "jupyterlab")
    assert wanted.flags(host_network=False) == [
        "--env",
        "JUPYTER_TOKEN",
        "--publish",
        "127.0.0.1:8888:8888",
    ]
    assert wanted.command(host_network=False)[:5] == [
        "/opt/env/bin/python", "-m", "jupyterlab", "--ServerApp.ip=0.0.0.0", "--ServerApp.port=8888",
    ]  # fmt: skip
    assert wanted.url("abc") == "http://127.0.0.1:8888/lab?token=abc"


def test_jupyter_listens_itself_in_the_hosts_network() -> None:
    wanted = served("notebook", port=9999)
    assert wanted.flags(host_network=True) == ["--env", "JUPYTER_TOKEN"]
    assert wanted.command(host_network=True)[2:5] == [
        "notebook",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port=9999",
    ]


def test_environments_without_a_notebook_server_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="nothing in the image serves notebooks") as caught:
        served("ipykernel")
    assert "--pip jupyterlab" in caught.value.advice
    result = CliRunner().invoke(cli, ["image", "run", "lab", "--jupyter", "--", "python"])
    assert (result.exit_code, "Leave one of the two out" in result.stderr) == (3, True)
