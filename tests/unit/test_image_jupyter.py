"""Jupyter in a container: what is published where, and that the token is in no command line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from provision import image
from provision.cli.main import cli
from provision.core.errors import InvalidSpec
from provision.core.types import LockedPackage
from tests.unit.test_image_config import LOCK


def served(*names: str, **more: object) -> image.NotebookServer:
    packages = tuple(
        LockedPackage(manager="pip", name=name, version="1", url="", sha256="") for name in names
    )
    return image.find_notebook_server(replace(LOCK, packages=packages), **more)  # type: ignore[arg-type]


def test_only_the_loopback_reaches_it() -> None:
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


def test_on_the_hosts_network_it_listens_there_itself() -> None:
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
def test_elsewhere_only_when_told(address: str, published: str, url: str, is_open: bool) -> None:
    wanted = served("jupyter-server", address=address)
    assert (wanted.flags(host_network=False)[-1], wanted.url("t"), wanted.is_open) == (
        published,
        url,
        is_open,
    )


def test_what_cannot_be_served() -> None:
    with pytest.raises(InvalidSpec, match="nothing in the image serves notebooks") as caught:
        served("ipykernel")
    assert "--pip jupyterlab" in caught.value.advice
    with pytest.raises(InvalidSpec, match="not an IP address"):
        served("jupyterlab", address="everywhere")
    done = CliRunner().invoke(cli, ["image", "run", "lab", "--jupyter", "--", "python"])
    assert (done.exit_code, "Leave one of them out" in done.stderr) == (3, True)
