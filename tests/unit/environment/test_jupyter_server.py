"""The notebook server's command, and reading its address. The real one runs in tests/integration."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from provision.environment import jupyter_server

JUPYTER = Path("/data/jupyter/py3.11/bin/jupyter")


def test_the_server_listens_on_loopback_with_a_token_of_its_own(tmp_path: Path) -> None:
    command = jupyter_server.server_command(JUPYTER, "lab", tmp_path, None)
    assert command[:3] == ["/data/jupyter/py3.11/bin/python", "-m", "jupyterlab"]
    assert "--ServerApp.ip=127.0.0.1" in command
    assert "--MultiKernelManager.default_kernel_name=lab" in command
    assert not [word for word in command if "token" in word.lower()]
    exactly = jupyter_server.server_command(JUPYTER, "lab", tmp_path, 9000)
    assert {"--ServerApp.port=9000", "--ServerApp.port_retries=0"} <= set(exactly)


def test_a_token_of_another_server_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    variables = jupyter_server.server_variables()
    assert "JUPYTER_TOKEN" not in variables and "PYTHONPATH" not in variables


def test_the_address_is_told_once_while_the_server_runs(tmp_path: Path) -> None:
    told = tmp_path / "told"
    addresses: list[str] = []
    lines: list[str] = []

    def note(address: str) -> None:
        addresses.append(address)
        port = urlsplit(address).port
        assert port is not None
        socket.create_connection(("127.0.0.1", port)).close()
        told.touch()

    # The address is printed before anything listens there, as JupyterLab does.
    script = (
        "import sys, pathlib, time, socket\n"
        "server = socket.socket()\n"
        "server.bind(('127.0.0.1', 0))\n"
        "port = server.getsockname()[1]\n"
        "print('[I] starting', file=sys.stderr)\n"
        "for host in ('localhost', '127.0.0.1'):\n"
        "    print(f'    http://{host}:{port}/lab?token=00ff', file=sys.stderr, flush=True)\n"
        "server.listen()\n"
        f"while not pathlib.Path({str(told)!r}).exists(): time.sleep(0.01)\n"
        "sys.exit(3)"
    )
    status = jupyter_server.serve(
        [sys.executable, "-c", script], {}, on_address=note, on_line=lines.append
    )
    assert (status, len(addresses)) == (3, 1)
    assert addresses[0].startswith("http://localhost:") and addresses[0].endswith("=00ff")
    assert lines[0] == "[I] starting" and len(lines) == 3
