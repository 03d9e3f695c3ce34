"""The engine's version, asked over its socket without the SDK: by servers that answer, answer wrongly or never."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provision.adapters import docker

OK = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"


@contextmanager
def engine(path: Path, reply: bytes) -> Iterator[None]:
    """A server on a socket that sends one reply; nothing, and it keeps the connection, for an empty one."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        connections: list[socket.socket] = []

        def serve() -> None:
            connection, _ = server.accept()
            connections.append(connection)
            connection.recv(4096)
            if reply:
                connection.sendall(reply)
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(10)
        for connection in connections:
            connection.close()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "s"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    return path


def test_the_version(path: Path) -> None:
    with engine(path, OK + b'{"Version": "28.5.2"}'):
        assert docker.engine_version() == ("28.5.2", None)


@pytest.mark.parametrize(
    "reply",
    [
        b"",  # it hangs
        b"no HTTP",
        b"HTTP/1.0 500 Internal Server Error\r\n\r\n{}",
        OK + b"{",
        OK + b"[]",
        OK + b"{}",
    ],
)
def test_an_engine_that_does_not_answer_has_a_reason(path: Path, reply: bytes) -> None:
    with engine(path, reply):
        version, reason = docker.engine_version()
    assert version is None
    assert reason


def test_no_socket(path: Path) -> None:
    assert docker.engine_version() == (None, f"there is no {path}")


def test_a_path_below_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/file/s")
    assert docker.engine_version() == (None, "Not a directory")


def test_a_context_is_the_sdks_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONTEXT", "lab")
    (tmp_path / "config.json").write_text("{}")
    version, reason = docker.engine_version()
    assert version is None
    assert "`lab`" in str(reason)


def test_status_does_not_load_the_sdk(tmp_path: Path) -> None:
    path = tmp_path / "s"
    program = (
        "import sys; from provision.adapters.docker import engine_version; "
        "print(engine_version()[0], 'docker' in sys.modules)"
    )
    with engine(path, OK + b'{"Version": "5.8.6"}'):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"DOCKER_HOST": f"unix://{path}"},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split() == ["5.8.6", "False"]
