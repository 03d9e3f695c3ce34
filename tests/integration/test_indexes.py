"""Wheels from several indexes at once, as pip's settings and PROVISION_TORCH_INDEX name them; all
of them are served here."""

from __future__ import annotations

import hashlib
import os
import random
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from provision.adapters import uv
from provision.core import process
from provision.core.errors import IntegrityError, Unreachable, Unsolvable
from provision.core.types import Pin
from provision.lockfile.diagnose import uv as diagnose_uv
from provision.lockfile.diagnose.unsat_core import PinReasons
from tests.faulty import served
from tests.small import write_wheel
from tests.unit.adapters.test_conda_connection import channel  # noqa: F401

REQUEST = uv.ResolveRequest(
    requirements=("torch==2.13.0+cu116", "numpy"), python="3.11", glibc="2.28", build_path="cu116"
)
WHY = PinReasons.of(
    [
        Pin(
            manager="pip",
            requirement=REQUEST.requirements[0],
            reason="requested",
            source="spec.yml",
        )
    ],
    {},
)


def publish(place: Path, *wheels: tuple[str, str]) -> None:
    for name, version in wheels:
        wheel = write_wheel(place / name, name, version)
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (place / name / "index.html").write_text(
            f'<a href="{wheel.name.replace("+", "%2B")}#sha256={sha256}">{wheel.name}</a>\n'
        )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package index in pip's settings, and a folder of wheels."""
    publish(tmp_path / "served" / "simple", ("numpy", "2.0.0"), ("torch", "2.13.0"))
    publish(tmp_path / "served" / "own" / "cu116", ("torch", "2.13.0+cu116"))
    write_wheel(tmp_path / "links", "mine", "1.0")
    for name in (
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "UV_FIND_LINKS",
        uv.TORCH_INDEX,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "links").as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    with served(tmp_path / "served") as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        yield server.url


def locked_versions(*requirements: str) -> dict[str, str]:
    request = uv.ResolveRequest(
        requirements=requirements, python="3.11", glibc="2.28", build_path="cu116"
    )
    return {package.name: package.version for package in uv.resolve(request)}


def test_pytorch_index_with_the_pip_index(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(uv.TORCH_INDEX, f"{index}/own/")
    assert locked_versions("torch==2.13.0+cu116", "numpy") == {
        "torch": "2.13.0+cu116",
        "numpy": "2.0.0",
    }
    assert locked_versions("torch==2.13.0+cu116", "mine") == {
        "torch": "2.13.0+cu116",
        "mine": "1.0",
    }  # the disk is asked, too


def test_advice_names_the_index_to_configure(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsolvable) as failed:
        locked_versions(*REQUEST.requirements)
    advice = diagnose_uv.explain(failed.value, REQUEST, WHY).advice
    assert "PROVISION_TORCH_INDEX is its address, without the folder cu116 at its end" in advice
    monkeypatch.setenv(uv.TORCH_INDEX, f"{index}/own/cu116".replace("//", "//me:secret@"))
    with pytest.raises(Unsolvable) as failed:
        locked_versions(*REQUEST.requirements)
    advice = diagnose_uv.explain(failed.value, REQUEST, WHY).advice
    assert f"leads to {index}/own/cu116/cu116." in advice


def test_advice_names_another_python(index: str, tmp_path: Path) -> None:
    publish(tmp_path / "served" / "simple", ("modern", "1.0"))
    page = tmp_path / "served" / "simple" / "modern" / "index.html"
    page.write_text(page.read_text().replace("<a ", '<a data-requires-python="&gt;=3.13" '))
    request = uv.ResolveRequest(requirements=("modern", "numpy"), python="3.11", glibc="2.28")
    with pytest.raises(Unsolvable) as failed:
        uv.resolve(request)
    advice = diagnose_uv.explain(failed.value, request, WHY).advice
    assert advice.startswith("Without other changes, --python 3.13 solves it.")


@pytest.mark.exhaustive
def test_advice_names_the_options_to_omit_missing_packages(
    index: str,
) -> None:
    """As one that a lab filled before it came along: each option where it helps alone, several
    where only all of them do."""

    def advice(*along: str) -> str:
        request = uv.ResolveRequest(
            requirements=("torch==2.13.0", "numpy", *along), python="3.11", glibc="2.28"
        )
        why = PinReasons.of(
            [
                Pin(manager="pip", requirement=text, reason="comes along", source="us")
                for text in request.requirements
            ]
        )
        with pytest.raises(Unsolvable) as failed:
            uv.resolve(request)
        return diagnose_uv.explain(failed.value, request, why).advice

    assert advice("xxhash>=2").startswith(
        "Without other changes, `fast_checkpoints: false` in spec.yml solves it."
    )
    assert "an answer" not in advice("missing", "xxhash>=2")


@pytest.fixture
def steering_folder(index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder whose project files and uv variables name other versions and places."""
    publish(tmp_path / "foreign", ("numpy", "99.0"))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "steering"\nversion = "1"\n'
        '[tool.uv]\nconstraint-dependencies = ["numpy<2"]\n'
        f'[[tool.uv.index]]\nurl = "{(tmp_path / "foreign").as_uri()}"\n'
        f'[tool.uv.pip]\ntarget = "{tmp_path / "target"}"\n'
    )
    (folder / "override.txt").write_text("numpy==99.0\n")
    (folder / "requirements.in").write_text("numpy\n")
    monkeypatch.setenv("UV_OVERRIDE", "override.txt")
    monkeypatch.setenv("UV_TARGET", str(tmp_path / "target"))
    monkeypatch.chdir(folder)
    return folder


def test_the_working_folder_does_not_change_a_lock(steering_folder: Path) -> None:
    assert locked_versions("numpy") == {"numpy": "2.0.0"}


def test_the_working_folder_does_not_change_where_wheels_are_installed(
    steering_folder: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    packages = uv.resolve(uv.ResolveRequest(requirements=("numpy",), python="3.11", glibc="2.28"))
    uv.install_wheels(packages, tmp_path / "venv" / "bin" / "python")
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert (tmp_path / "venv" / "lib" / python / "site-packages" / "numpy.py").exists()
    assert not (tmp_path / "target").exists()


def test_a_password_of_an_index_is_on_no_command_line(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine can read /proc/PID/cmdline."""
    address = index.replace("//", "//bob:swordfish@") + "/simple"
    monkeypatch.setenv("PIP_INDEX_URL", address)
    command_lines: set[bytes] = set()
    finished = threading.Event()

    def watch() -> None:
        while not finished.is_set():
            command_lines.update(child_command_lines())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert locked_versions("numpy") == {"numpy": "2.0.0"}
    finally:
        finished.set()
        watcher.join()
    uv_lines = [line for line in command_lines if b"compile" in line]
    assert uv_lines, "no uv process was seen"
    assert not any(b"swordfish" in line for line in uv_lines)


def test_a_password_of_an_index_is_on_no_command_line_of_an_installation(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = uv.resolve(uv.ResolveRequest(requirements=("numpy",), python="3.11", glibc="2.28"))
    monkeypatch.setenv("PIP_INDEX_URL", index.replace("//", "//bob:swordfish@") + "/simple")
    venv.create(tmp_path / "venv", with_pip=False)
    commands: list[str] = []

    def recorded(command: Sequence[str | Path], **options: Any) -> Any:
        commands.append(" ".join(map(str, command)))
        return process.run(command, **options)

    monkeypatch.setattr("provision.adapters.uv.uv_process.run", recorded)
    uv.install_wheels(packages, tmp_path / "venv" / "bin" / "python")
    assert any("pip install" in command for command in commands)
    assert not any("swordfish" in command for command in commands)


@pytest.mark.needs("openssl")
def test_the_authority_that_pip_trusts_reaches_uv(
    channel: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """channel: a server with a certificate of a lab's own authority."""
    publish(tmp_path / "channel" / "simple", ("numpy", "2.0.0"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{channel}simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(Unreachable) as error:
        locked_versions("numpy")
    assert "REQUESTS_CA_BUNDLE" in error.value.advice
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    assert locked_versions("numpy") == {"numpy": "2.0.0"}


def child_command_lines() -> Iterator[bytes]:
    """The command lines of this process' children."""
    own = str(os.getpid())
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == own:
                yield (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue


@pytest.mark.parametrize("position", [40, 9000, -300, -60, -10])
def test_a_damaged_wheel_is_named_with_its_index(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """A flipped bit in the header, in the compressed data, and in the directory of the archive."""
    wheel = compressed_wheel(tmp_path / "served" / "simple" / "einops", "einops", "0.8.0")
    packages = uv.resolve(uv.ResolveRequest(requirements=("einops",), python="3.11", glibc="2.28"))
    content = bytearray(wheel.read_bytes())
    content[position] ^= 0x55
    wheel.write_bytes(bytes(content))
    venv.create(tmp_path / "venv", with_pip=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "other cache"))
    with pytest.raises(IntegrityError) as refused:
        uv.install_wheels(packages, tmp_path / "venv" / "bin" / "python")
    assert "einops" in refused.value.message
    assert f"Wheels came from {index}/simple" in refused.value.advice


def compressed_wheel(folder: Path, name: str, version: str) -> Path:
    wheel = write_wheel(folder, name, version)
    with zipfile.ZipFile(wheel) as archive:
        files = {info: archive.read(info) for info in archive.namelist()}
    files[f"{name}.py"] = random.Random(1).randbytes(30_000).hex().encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "index.html").write_text(f'<a href="{wheel.name}#sha256={sha256}">{wheel.name}</a>')
    return wheel
