"""`provision notebook`, run as typed: a real JupyterLab on loopback, with a token and our kernels alone."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from provision.core.project import project_folder
from provision.environment import prefix as prefixes
from tests.integration.waiting import eventually
from tests.unit.cli.test_quickstart import quick_start

pytestmark = pytest.mark.index

ANSWER_S = 120
START = "from provision.cli.main import main\nmain()"


def request(address: str, path: str, token: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"token {token}"} if token else {}
    url = f"http://127.0.0.1:{urlsplit(address).port}{path}"
    try:
        asked = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(asked, timeout=ANSWER_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, None


def is_open(port: int | None) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def make_environment(root: Path) -> None:
    """What `provision kernel add` needs: a request, and a prefix with ipykernel's record."""
    folder = root / "envs" / "lab"
    folder.mkdir(parents=True)
    request = 'torch: "2.9"\ncpu: true\npython_from: channel\n'
    (folder / "spec.yml").write_text(request)
    data = root / "data"
    prefix = data / project_folder(data, root / "envs") / "prefixes" / "lab"
    site = prefix / "lib" / "python3.11" / "site-packages"
    (site / "ipykernel-7.0.0.dist-info").mkdir(parents=True)
    (prefix / "conda-meta").mkdir()
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(sys.executable)
    marker = {"name": "lab", "folder": str(folder), "lock_sha256": "1" * 64}
    (prefix / prefixes.MARKER).write_text(json.dumps(marker))


@pytest.mark.exhaustive
@pytest.mark.needs("ps")
def test_jupyterlab_asks_for_a_token_and_starts_our_kernels(tmp_path: Path) -> None:
    command = shlex.split(quick_start("Jupyter")[1])
    assert command[0] == "notebook"
    make_environment(tmp_path)
    folders = {
        "PROVISION_DATA": str(tmp_path / "data"),
        "PROVISION_CACHE": str(tmp_path / "cache"),
        "JUPYTER_DATA_DIR": str(tmp_path / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_TOKEN": "of-another-server",
    }
    with subprocess.Popen(
        [sys.executable, "-c", START, *command],
        cwd=tmp_path,
        env={**os.environ, **folders},
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            address = ""
            while not address.startswith("http://"):
                line = server.stderr.readline()
                assert line, "it ended"
                address = line.strip()
            token = address.rpartition("=")[2]
            assert token != "of-another-server"
            # Jupyter prints the address, and then listens.
            eventually(lambda: is_open(urlsplit(address).port))
            assert request(address, "/api/kernelspecs")[0] == 403
            status, document = request(address, "/api/kernelspecs", token)
            commands = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True)
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(timeout=ANSWER_S) == 0
    assert (status, document["default"]) == (200, "lab")
    assert list(document["kernelspecs"]) == ["lab"]
    assert token not in commands.stdout
    with pytest.raises(urllib.error.URLError):  # nothing listens any more
        request(address, "/api/kernelspecs")
