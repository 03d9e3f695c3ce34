"""No byte of an image contains the credentials of a private channel or index."""

from __future__ import annotations

import base64
import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provision import render
from provision.adapters import conda
from provision.adapters.uv import uv_executable
from provision.core import container
from provision.core.mirrors import path_from_url
from provision.environment import runtime_package
from provision.image import oci_layout
from provision.image.build import build_image
from provision.image.cache_key import Recipe
from provision.image.config import dockerfile_context
from provision.image.disk_base import read_disk_base
from tests.integration.test_image import EnvironmentParts, Watching, resolution
from tests.unit.image.test_image_disk_base import layout

PASSWORD, TOKEN = "pass-6f1d", "token-93ac"
GREETED = base64.b64encode(f"lab:{PASSWORD}".encode()).decode()


class Guarded(http.server.SimpleHTTPRequestHandler):
    """Files below /t/TOKEN/, for one user alone."""

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Basic {GREETED}" or not self.path.startswith(
            f"/t/{TOKEN}/"
        ):
            self.send_error(401)
            return
        self.path = self.path.removeprefix(f"/t/{TOKEN}")
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def environment_parts(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentParts:
    return EnvironmentParts(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def address(environment_parts: EnvironmentParts) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Guarded, directory=str(environment_parts.folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://lab:{PASSWORD}@127.0.0.1:{server.server_port}/t/{TOKEN}"
    server.shutdown()
    server.server_close()


def test_image_has_no_password_or_token(
    environment_parts: EnvironmentParts, address: str, tmp_path: Path
) -> None:
    def fetched(path: Path) -> str:
        return f"{address}/{path.relative_to(environment_parts.folder).as_posix()}"

    packages = tuple(
        replace(package, url=fetched(path_from_url(package.url)))
        for package in environment_parts.conda
    )
    plain = environment_parts.lock()
    wheels = tuple(
        replace(package, url=fetched(path_from_url(package.url))) for package in plain.by("pip")
    )
    lock = replace(plain, packages=(*packages, *wheels))

    def link(target: Path, final: Path = Path(container.PREFIX)) -> None:
        conda.install_packages(
            packages, target, final=final, cache=tmp_path / "cache", progress=Watching()
        )

    place = tmp_path / "prefix"
    place.mkdir()
    link(place, place)
    urls = [f"{package.name} @ {package.url}" for package in wheels]
    options: list[str | Path] = [
        "--quiet",
        "--no-deps",
        "--no-index",
        "--cache-dir",
        tmp_path / "uv",
        "--python",
        place / "bin" / "python",
    ]
    subprocess.run([uv_executable(), "pip", "install", *options, *urls], check=True)
    secrets = [text.encode() for text in (PASSWORD, TOKEN, GREETED)]
    left = b"".join(path.read_bytes() for path in place.rglob("*.json"))
    assert any(secret in left for secret in secrets)  # installers write down where things came from
    installed = tmp_path / "installed"
    shutil.copytree(place, installed, symlinks=True)
    # Of the prefix an image has the byte code alone.
    (place / "pip.conf").write_text(f"[global]\nindex-url = {address}/simple\n")
    (place / ".netrc").write_text(f"machine 127.0.0.1 login lab password {PASSWORD}\n")
    base = read_disk_base(f"oci:{layout(tmp_path / 'base')}")
    runtime = tmp_path / "provision_runtime"
    runtime.mkdir()
    (runtime / "__main__.py").write_text("")

    def copy_prefix(staging: Path) -> None:
        installed.rename(staging)

    recipe = Recipe(
        resolution=resolution(),
        lock=lock,
        base=base,
        runtime=runtime_package.load(runtime).files,
    )
    toy_image = build_image(
        recipe,
        layout=tmp_path / "layout",
        install=copy_prefix,
        byte_code=place,
        progress=Watching(),
    )
    assert "python" in [layer.group for layer in toy_image.layers]
    for path in [path for path in toy_image.layout.rglob("*") if path.is_file()]:
        assert not [secret for secret in secrets if secret in path.read_bytes()], path
    assert oci_layout.read(toy_image.layout) is not None
    text = render.render_dockerfile("toy", dockerfile_context(resolution(), lock))[
        render.DOCKERFILE
    ]
    assert not [secret for secret in secrets if secret in text.encode()]
