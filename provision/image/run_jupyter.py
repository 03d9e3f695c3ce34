"""Jupyter in a container: with a token, and reached through this machine's loopback unless told otherwise. All of it is pure.

Inside, it listens on every address of the container's own network, since that is where a published port arrives; only what is published
can be reached. On the host's network there is no such wall, so there it listens where it was told to, and nowhere else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from provision.core.errors import InvalidSpec
from provision.core.types import Lock
from provision.image.conda_files import PYTHON, WORKSPACE

TOKEN = "JUPYTER_TOKEN"  # jupyter_server reads it; a command line could be read by every user of the machine
LOOPBACK = "127.0.0.1"
# What serves notebooks, the most convenient first: package -> module to run, and where its page is.
SERVERS: Mapping[str, tuple[str, str]] = {
    "jupyterlab": ("jupyterlab", "lab"),
    "notebook": ("notebook", "tree"),
    "jupyter-server": ("jupyter_server", ""),
}


@dataclass(frozen=True, kw_only=True)
class Notebook:
    """A server of notebooks as a user wants it. address: of the machine that runs the engine. module, page: as SERVERS has them."""

    module: str
    page: str
    port: int = 8888
    address: str = LOOPBACK

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach it."""
        return not ipaddress.ip_address(self.address).is_loopback

    def flags(self, *, host_network: bool) -> list[str]:
        """Of `docker run`; the token comes from docker's own environment."""
        published = (
            []
            if host_network
            else ["--publish", f"{_bracketed(self.address)}:{self.port}:{self.port}"]
        )
        return ["--env", TOKEN, *published]

    def command(self, *, host_network: bool) -> list[str]:
        where = self.address if host_network else "0.0.0.0"
        fixed = ["--no-browser", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={WORKSPACE}"]
        return [
            PYTHON,
            "-m",
            self.module,
            f"--ServerApp.ip={where}",
            f"--ServerApp.port={self.port}",
            *fixed,
        ]

    def url(self, token: str) -> str:
        address = LOOPBACK if ipaddress.ip_address(self.address).is_unspecified else self.address
        return f"http://{_bracketed(address)}:{self.port}/{self.page}?token={token}"


def notebook(lock: Lock, *, port: int = 8888, address: str = LOOPBACK) -> Notebook:
    """The server that an environment has. InvalidSpec where it has none, or for an address that is none."""
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise InvalidSpec(
            f"{address!r} is no address.",
            advice="Write one in numbers: 127.0.0.1, or 0.0.0.0 for all.",
        ) from error
    there = {canonicalize_name(package.name) for package in lock.packages}
    found = next((SERVERS[name] for name in SERVERS if name in there), None)
    if found is None:
        raise InvalidSpec(
            f"{lock.path} has no {', '.join(SERVERS)}: there is nothing in the image that serves notebooks.",
            advice="Add one: `provision build NAME --pip jupyterlab --relock`.",
        )
    return Notebook(module=found[0], page=found[1], port=port, address=address)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
