"""Wheels by uv, from an index that is there and from one that no longer is."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provision.adapters import uv
from provision.adapters.uv.installer import wheels_to_reinstall
from provision.core.errors import Unreachable
from provision.core.types import LockedPackage
from tests.small import WHEELS, write_index


class _Handler(http.server.SimpleHTTPRequestHandler):
    """What it serves is old at once, as an index page is after some minutes."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=0")
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[http.server.ThreadingHTTPServer]:
    """The only index that uv knows, with an empty cache."""
    write_index(tmp_path / "index")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Handler, directory=str(tmp_path / "index"))
    )
    thread = threading.Thread(target=functools.partial(server.serve_forever, 0.02), daemon=True)
    thread.start()
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_port}/simple/")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def locked(folder: Path, name: str) -> LockedPackage:
    path = folder / "index" / "files" / f"{name}-{WHEELS[name]}-py3-none-any.whl"
    url = f"https://index.invalid/{path.name}"
    return LockedPackage(
        manager="pip",
        name=name,
        version=WHEELS[name],
        url=url,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def environment(folder: Path) -> Path:
    subprocess.run(
        [uv.uv_executable(), "venv", "--quiet", "--python", sys.executable, folder], check=True
    )
    return folder / "bin" / "python"


def installed(python: Path) -> set[str]:
    return {
        path.name.partition("-")[0]
        for path in python.parent.parent.glob("lib/python3*/site-packages/*.dist-info")
    }


def test_complete_cache_installs_without_an_index(
    index: http.server.ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked_packages = [locked(tmp_path, name) for name in ("numpy", "ipykernel")]
    uv.install_wheels(locked_packages, environment(tmp_path / "first"))
    index.shutdown()
    index.server_close()
    missing = replace(locked_packages[0], sha256="0" * 64)
    with pytest.raises(Unreachable, match="did not answer") as refused:
        uv.install_wheels([missing], environment(tmp_path / "missing"))
    assert "UV_OFFLINE=1" in refused.value.advice
    monkeypatch.setenv("UV_OFFLINE", "1")
    again = environment(tmp_path / "again")
    uv.install_wheels(locked_packages, again)
    assert installed(again) == {"numpy", "ipykernel"}


def clashing(folder: Path, name: str) -> LockedPackage:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = {
        "tests/__init__.py": f"# of {name}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    }
    files[f"{info}/entry_points.txt"] = f"[console_scripts]\ntell = tests:{name}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{each},sha256={record_hash(text)},{len(text)}\n" for each, text in files.items()]
    with zipfile.ZipFile(path, "w") as wheel:
        for each, text in {**files, f"{info}/RECORD": "".join(rows) + f"{info}/RECORD,,\n"}.items():
            wheel.writestr(each, text)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return LockedPackage(manager="pip", name=name, version="1.0", url=path.as_uri(), sha256=sha256)


def record_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def test_conflicting_file_comes_from_the_last_wheel_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    locked_packages = [clashing(tmp_path, name) for name in ("one", "two", "zen", "large")]
    python = environment(tmp_path / "env")
    uv.install_wheels(locked_packages[:3], python)
    (site,) = python.parent.parent.glob("lib/python3*/site-packages")
    uv.install_wheels(locked_packages[3:], python)  # what was there before stays below
    assert (site / "tests/__init__.py").read_text() == "# of large"
    assert [package.name for package in wheels_to_reinstall(locked_packages, site)] == ["zen"]
    uv.install_wheels(locked_packages, python)
    assert (site / "tests/__init__.py").read_text() == "# of zen"
    assert "from tests import zen" in python.with_name("tell").read_text()
