"""How images are run: every requirement has a reason, and every format expresses the same."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from provision import image, launch, render
from provision.cli.main import cli
from provision.core.errors import InvalidSpec, ToolMissing
from provision.core.process import exec_command
from provision.core.types import LockedPackage, Resolution
from tests.unit.test_image_config import LOCK, resolution

REFERENCE = "provision/torch2.3-cuda12.1-py311:abababababab"
MOUNTS = (
    launch.parse_mount("/scratch/a b:/data:ro".replace(" ", "_")),
    launch.parse_mount("cache:/cache"),
)
NOTHING = launch.RunOptions()
ASKED = launch.RunOptions(shm_gib=16, mounts=MOUNTS, user="1234:100")


def text(
    format: str,
    options: launch.RunOptions = NOTHING,
    wanted: Resolution | None = None,
    command: tuple[str, ...] = (),
) -> str:
    values = launch.contract_context(wanted or infiniband(), REFERENCE, command, options)
    return render.render_contract(format, values, remake=["provision", "image", "contract", "toy"])


def infiniband() -> Resolution:
    plain = resolution()
    return dataclasses.replace(
        plain, spec=dataclasses.replace(plain.spec, infiniband=True, name="torch2.3-cuda12.1-py311")
    )


def test_a_cpu_image_asks_for_no_gpu() -> None:
    assert launch.docker_arguments(resolution(cuda=None)) == [
        "--init",
        "--shm-size=8g",
        "--ulimit",
        "stack=67108864",
    ]
    for format in launch.RUN_FORMATS:
        output = text(format, wanted=resolution(cuda=None))
        assert not re.search("gpu|nvidia|memlock: -1|ulimit -l", output, re.IGNORECASE), format


def test_run_contract_of_a_cuda_image() -> None:
    assert shlex.join(launch.run_command(resolution(), "provision/toy:1", ["python"])) == (
        "docker run --rm -it --gpus all --init --shm-size=8g --ulimit stack=67108864 --ulimit memlock=-1 provision/toy:1 python"
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


@pytest.mark.parametrize("format", launch.RUN_FORMATS)
def test_every_format_gives_the_reasons_and_how_to_remake_it(format: str) -> None:
    output = text(format, ASKED)
    assert "remake with: provision image contract toy" in output
    left_out = {"kubernetes": ("memlock",), "slurm-pyxis": ("network",)}.get(format, ())
    for need in launch.run_requirements(infiniband(), ASKED):
        assert need.what in left_out or need.reason in output, need
    assert text(format, ASKED) == output


@pytest.mark.parametrize("format", launch.RUN_FORMATS)
def test_the_command_in_a_contract_is_quoted(
    format: str,
) -> None:
    command_line = [
        "provision",
        "image",
        "contract",
        "toy",
        "--",
        "python",
        "-c",
        "print('a')\nprint(['b  c'])",
        "\x1b[0m",
    ]
    values = launch.contract_context(infiniband(), REFERENCE, (), NOTHING)
    output = render.render_contract(format, values, remake=command_line)
    (line,) = [line for line in output.splitlines() if "remake with: " in line]
    script = f"printf '%s\\0' {line.partition('remake with: ')[2]}"
    assert (
        subprocess.run(
            ["bash", "-c", script], check=True, capture_output=True, text=True
        ).stdout.split("\0")[:-1]
        == command_line
    )


def test_docker_script() -> None:
    script = text("docker", ASKED, command=("python", "-c", "print('a b')"))
    command_line = shlex.split(script.replace("\\\n", " ").partition("exec ")[2])
    assert command_line[:4] == ["docker", "run", "--rm", "--interactive"]
    assert command_line[-6:] == ["cache:/cache", REFERENCE, "python", "-c", "print('a b')", "$@"]
    assert (
        " ".join(command_line).find(
            "--device /dev/infiniband --cap-add IPC_LOCK --network host --user 1234:100"
        )
        > 0
    )


def test_compose() -> None:
    document = yaml.safe_load(text("compose", ASKED, command=("python", "a: b")))
    (service,) = document["services"].values()
    assert service["command"] == ["python", "a: b"]
    assert (service["init"], service["shm_size"], service["user"]) == (True, "16gb", "1234:100")
    assert service["ulimits"] == {"stack": 67108864, "memlock": -1}
    assert service["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    ]
    assert (service["devices"], service["cap_add"]) == (
        ["/dev/infiniband:/dev/infiniband"],
        ["IPC_LOCK"],
    )
    assert (service["network_mode"], service["volumes"]) == (
        "host",
        ["/scratch/a_b:/data:ro", "cache:/cache"],
    )
    assert document["volumes"] == {"cache": {}}


def test_kubernetes() -> None:
    job = yaml.safe_load(text("kubernetes", ASKED))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", container["name"])
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert container["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"]}
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1234,
        "runAsGroup": 100,
        "fsGroup": 100,
    }
    assert pod["volumes"][0] == {
        "name": "shm",
        "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"},
    }
    assert {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]} == {
        "/dev/shm": "shm", "/data": "mount-1", "/cache": "mount-2",
    }  # fmt: skip
    assert pod["volumes"][2]["persistentVolumeClaim"] == {"claimName": "cache"}
    assert (pod["hostNetwork"], pod["shareProcessNamespace"], container["command"]) == (
        True,
        True,
        ["/opt/env/bin/python"],
    )


def test_slurm_with_pyxis_is_a_shell_script(tmp_path: Path) -> None:
    script = tmp_path / "job"
    options = dataclasses.replace(ASKED, mounts=(MOUNTS[0], launch.parse_mount("/cache:/cache")))
    script.write_text(text("slurm-pyxis", options, command=("torchrun", "my train.py")))
    subprocess.run(["bash", "-n", script], check=True)
    output = script.read_text()
    assert "--container-mounts=/scratch/a_b:/data:ro,/cache:/cache" in output
    assert output.endswith("""\n    torchrun 'my train.py' "$@"\n""")
    assert "#SBATCH --gpus-per-node=1" in output


def test_devcontainer() -> None:
    output = text("devcontainer", ASKED)
    document: dict[str, Any] = json.loads(
        "".join(line for line in output.splitlines() if not line.strip().startswith("//"))
    )
    assert (document["image"], document["workspaceFolder"]) == (REFERENCE, "/workspace")
    assert document["runArgs"] == launch.docker_arguments(infiniband(), ASKED)
    assert document["hostRequirements"] == {"gpu": True}


def test_dollars_are_not_variables_of_the_runtime() -> None:
    """Compose and Kubernetes would put variables there; two dollars are one to both."""
    command = ("sh", "-c", "echo $HOME ${HOME} $(HOME) $$")
    options = launch.RunOptions(mounts=(launch.parse_mount("/a$b:/c$d"),))
    (service,) = yaml.safe_load(text("compose", options, command=command))["services"].values()
    twice = "echo $$HOME $${HOME} $$(HOME) $$$$"
    assert (service["command"][2], service["volumes"]) == (twice, ["/a$$b:/c$$d"])
    pod = yaml.safe_load(text("kubernetes", options, command=command))["spec"]["template"]["spec"]
    assert (pod["containers"][0]["command"][2], pod["volumes"][1]["hostPath"]["path"]) == (
        twice,
        "/a$b",
    )
    assert "'echo $HOME ${HOME} $(HOME) $$'" in text("docker", options, command=command)


@pytest.mark.parametrize(
    ("format", "mount", "reason"),
    [
        ("slurm-pyxis", "cache:/cache", "no named volumes"),
        ("kubernetes", "My_cache:/cache", "a claim's name"),
        ("kubernetes", f"{'a' * 254}:/cache", "a claim's name"),
        ("devcontainer", "/${localWorkspaceFolder}:/x", "a variable"),
    ],
)
def test_mounts_that_a_format_cannot_express(
    format: launch.RunFormat, mount: str, reason: str
) -> None:
    options = launch.RunOptions(mounts=(launch.parse_mount(mount),))
    with pytest.raises(InvalidSpec, match=reason):
        launch.check_run_options(format, options)
    launch.check_run_options("docker", options)


@pytest.mark.parametrize(
    ("format", "options", "command", "reason"),
    [
        (
            "slurm-pyxis",
            launch.RunOptions(user="1234:100"),
            (),
            "slurm-pyxis cannot set a user",
        ),
        ("slurm-pyxis", launch.RunOptions(shm_gib=8), (), "slurm-pyxis cannot set the size"),
        ("devcontainer", NOTHING, ("python",), "devcontainer cannot set a command"),
    ],
)
def test_options_that_a_format_cannot_express_are_refused(
    format: launch.RunFormat, options: launch.RunOptions, command: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(InvalidSpec, match=reason):
        launch.check_run_options(format, options, command)
    for other in set(launch.RUN_FORMATS) - {format}:
        launch.check_run_options(other, options, command)
    launch.check_run_options(format, NOTHING)


@pytest.mark.parametrize("written", ["oci:/x y", "oci:/x", "A B", "", "-v"])
def test_invalid_image_names(written: str) -> None:
    with pytest.raises(InvalidSpec, match="is not an image reference"):
        image.parse_engine_reference(written)


def test_the_docker_command_uses_our_engine() -> None:
    """It goes by DOCKER_HOST first, as we do, and then by its contexts, of which we know nothing."""
    assert image.docker_cli_flags({"DOCKER_HOST": "tcp://lab:2375"}) == []
    assert (
        image.docker_cli_flags({})
        == image.docker_cli_flags({"DOCKER_HOST": ""})
        == ["--host", "unix:///var/run/docker.sock"]
    )


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
        exec_command(["no-such-docker", "run", "a b"])


def served(*names: str, **more: object) -> launch.NotebookServer:
    packages = tuple(
        LockedPackage(manager="pip", name=name, version="1", url="", sha256="") for name in names
    )
    return launch.find_notebook_server(replace(LOCK, packages=packages), **more)  # type: ignore[arg-type]


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
    assert (wanted.url("abc"), wanted.is_open) == ("http://127.0.0.1:8888/lab?token=abc", False)


def test_jupyter_listens_itself_in_the_hosts_network() -> None:
    wanted = served("notebook", port=9999)
    assert wanted.flags(host_network=True) == ["--env", "JUPYTER_TOKEN"]
    assert wanted.command(host_network=True)[2:5] == [
        "notebook",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port=9999",
    ]


@pytest.mark.parametrize(
    ("address", "published", "url", "is_open"),
    [
        ("0.0.0.0", "0.0.0.0:8888:8888", "http://127.0.0.1:8888/?token=t", True),
        ("10.1.2.3", "10.1.2.3:8888:8888", "http://10.1.2.3:8888/?token=t", True),
        ("::1", "[::1]:8888:8888", "http://[::1]:8888/?token=t", False),
    ],
)
def test_jupyter_is_open_only_if_requested(
    address: str, published: str, url: str, is_open: bool
) -> None:
    wanted = served("jupyter-server", address=address)
    assert (wanted.flags(host_network=False)[-1], wanted.url("t"), wanted.is_open) == (
        published,
        url,
        is_open,
    )


def test_environments_without_a_notebook_server_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="nothing in the image serves notebooks") as caught:
        served("ipykernel")
    assert "--pip jupyterlab" in caught.value.advice
    with pytest.raises(InvalidSpec, match="not an IP address"):
        served("jupyterlab", address="everywhere")
    result = CliRunner().invoke(cli, ["image", "run", "lab", "--jupyter", "--", "python"])
    assert (result.exit_code, "Leave one of the two out" in result.stderr) == (3, True)
