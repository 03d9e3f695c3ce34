"""The notebook server's command, and reading its address. The real one runs in tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.environment import jupyter_server

PYTHON = Path("/data/jupyter/py3.11/bin/python")


def test_the_server_listens_on_loopback_with_a_token_of_its_own(tmp_path: Path) -> None:
    command = jupyter_server.server_command(PYTHON, "lab", tmp_path, None)
    assert command[:3] == ["/data/jupyter/py3.11/bin/python", "-m", "jupyterlab"]
    assert "--ServerApp.ip=127.0.0.1" in command
    assert "--MultiKernelManager.default_kernel_name=lab" in command
    assert not [word for word in command if "token" in word.lower()]
    exactly = jupyter_server.server_command(PYTHON, "lab", tmp_path, 9000)
    assert {"--ServerApp.port=9000", "--ServerApp.port_retries=0"} <= set(exactly)


def test_a_token_of_another_server_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    variables = jupyter_server.server_variables()
    assert "JUPYTER_TOKEN" not in variables and "PYTHONPATH" not in variables
